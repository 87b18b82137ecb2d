"""A user's algorithm file: trained, compared, resumed and exported."""

from pathlib import Path

import numpy as np
import pytest

from binaries import compare, evaluate, export, train
from tests.plan_runner.harness import call as run_plan
from tests.support import golden
from tests.support.algorithm_files import write_by_size
from tests.support.commands import TOY, Caller
from tests.support.marks import usually
from tff_agnostic.base.files import read_json
from tff_agnostic.saving.checkpoints import newest_checkpoint

_SHORT = (*TOY, "--rounds=2", "--evaluate_every=1", "--checkpoint_every=1")
_BY_SIZE = ("--algorithm=by_size.py", "--algorithm_options=size_power=0.5")


@pytest.fixture
def algorithm(folder) -> Path:
    """The algorithm file, in the working directory."""
    return write_by_size(folder / "by_size.py")


@pytest.fixture(scope="module")
def trained(call: Caller, tmp_path_factory) -> Path:
    """Folder of a run of two rounds, next to the algorithm file."""
    path = tmp_path_factory.mktemp("trained")
    file = write_by_size(path / "by_size.py")
    flags = [
        f"--algorithm={file}",
        "--algorithm_options=size_power=0.5",
        f"--output_dir={path / 'run'}",
    ]
    outcome = call.ok(train, *_SHORT, *flags)
    assert outcome.out.startswith("by_size on toy_regression, 2 rounds: ")
    return path / "run"


def _weights(run: Path) -> np.ndarray:
    return newest_checkpoint(run / "checkpoints").leaves[0]


# The cases omit the cohort runtime with plain sums, because the fixture `trained` uses them.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("runtime", "aggregation"),
    usually(
        [("cohort", "secure"), ("tff", "plain")],
        [("cohort", "secure"), ("tff", "plain"), ("ray", "plain")],
    ),
)
def test_runtimes_and_aggregations_train_equal_weights(
    call, algorithm, folder, trained, runtime, aggregation
):
    call.ok(
        *(train, *_SHORT, *_BY_SIZE, "--output_dir=run"),
        *(f"--runtime={runtime}", f"--aggregation={aggregation}"),
    )
    tolerance = 1e-6 if aggregation == "plain" else 1e-4
    np.testing.assert_allclose(_weights(folder / "run"), _weights(trained), rtol=tolerance)


@pytest.mark.nightly
def test_resume_needs_an_unchanged_algorithm_file(call, algorithm, folder, trained):
    def go_on(*arguments: str):
        return call(train, *TOY, *_BY_SIZE, "--output_dir=run", "--resume", *arguments)

    short = ("--evaluate_every=1", "--checkpoint_every=1")
    assert go_on(*short, "--rounds=1").status == 0
    (folder / "other").mkdir()
    message = call.refused(
        folder, train, "--output_dir=run", "--resume", "--algorithm_options=size_power=0.25"
    )
    assert message.endswith("holds another run: --size_power is 0.5 there and 0.25 here")
    source = algorithm.read_text()
    algorithm.write_text(source.replace("factor * n", "1.0 * factor * n"))
    message = call.refused(folder, train, *_SHORT, *_BY_SIZE, "--output_dir=run", "--resume")
    assert message.startswith("run: expected the algorithm that the run there was trained with (")
    # Weights can be evaluated without the code that trained them.
    call.ok(evaluate, "--checkpoint=run")
    message = call.refused(folder, export, "--checkpoint=run", "--output_dir=other/export")
    assert message.startswith("run: expected the algorithm that the run there was trained with (")

    # The file may move if its content stays the same.
    algorithm.unlink()
    (folder / "other" / "size.py").write_text(source)
    message = call.refused(folder, train, "--output_dir=run", "--resume", "--rounds=2")
    assert str(algorithm) in message
    outcome = call.ok(
        *(train, "--output_dir=run", "--resume", "--rounds=2", "--algorithm=other/size.py")
    )
    assert "resuming after round 1\n" in outcome.out
    np.testing.assert_array_equal(_weights(folder / "run"), _weights(trained))


@pytest.mark.nightly
def test_resume_needs_unchanged_imports(call, algorithm, folder):
    first_line = "def by_size(problem, options):\n"
    imports = (first_line, f"{first_line}    import power\n")
    (folder / "power.py").write_text("def power(n, exponent):\n    return n**exponent\n")
    write_by_size(algorithm, imports)
    flags = (*_SHORT, *_BY_SIZE, "--output_dir=run")
    call.ok(train, *flags)
    call.ok(train, *flags, "--resume")
    (folder / "power.py").write_text("def power(n, exponent):\n    return exponent**n\n")
    # A rewritten file is loaded again with its imports, as in a new process.
    write_by_size(algorithm, imports)
    message = call.refused(folder, train, *flags, "--resume")
    assert message.startswith("run: expected the files that the algorithm imports that the run ")


@pytest.mark.nightly
def test_size_power_changes_the_weights(call, algorithm, folder):
    """Power 1 is FedAvg. Other powers differ for clients of different sizes."""
    call.ok(
        *(compare, "--task=digits", "--num_clients=6", "--num_test_clients=4"),
        *("--clients_per_round=3", "--rounds=1", "--trials=1", "--output_dir=runs"),
        "--client_learning_rate=1",
        "--arms=fed_avg;root=by_size.py:size_power=0.5;by_size.py",
    )
    actual = read_json(folder / "runs" / "compare.json")
    assert list(actual) == ["fed_avg", "root", "by_size"]
    fed_avg, root, by_size = (
        _weights(folder / "runs" / "runs" / arm / "trial_00" / "run") for arm in actual
    )
    np.testing.assert_allclose(by_size, fed_avg, rtol=1e-5, atol=1e-7)
    assert np.abs(root - fed_avg).max() > 1e-4


# docs/how_to/add_an_algorithm.md covers an export of plain sums.
@pytest.mark.parametrize("profile", usually([], ["daf", "secure"]))
def test_exported_algorithm_passes_verification(call, algorithm, folder, trained, profile):
    """One export is made from a run, and one from flags without a run."""
    source = {"daf": [f"--checkpoint={trained}"], "secure": [*TOY, *_BY_SIZE]}[profile]
    call.ok(export, *source, f"--profile={profile}", "--output_dir=plan")
    manifest = read_json(folder / "plan" / "manifest.json")
    assert (manifest["algorithm"], manifest["settings"]["size_power"]) == ("by_size", 0.5)
    outcome = run_plan("--plan=plan", "--verify")
    assert outcome.status == 0, outcome


@golden.arguments
def test_rejects_invalid_settings(call, algorithm, folder, arguments):
    flags = ["--algorithm=by_size.py", "--output_dir=run", *arguments]
    return call.refused(folder, train, *_SHORT, *flags)
