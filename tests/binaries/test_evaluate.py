"""`evaluate`: a checkpoint on a task."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from binaries import evaluate, train
from tests.support import golden
from tests.support.commands import TOY, Caller, write_points
from tff_agnostic.base.files import read_json
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.saving.checkpoints import newest_checkpoint


@pytest.fixture(scope="module")
def trained(call: Caller, tmp_path_factory) -> Path:
    """Folder of a run of three rounds, with a checkpoint after each."""
    path = tmp_path_factory.mktemp("trained") / "run"
    arguments = ["--rounds=3", "--checkpoint_every=1", "--keep_checkpoints=3", "--seed=4"]
    call.ok(train, *TOY, *arguments, f"--output_dir={path}")
    return path


@pytest.mark.slow
def test_evaluation_equals_the_run_result(call, folder, trained):
    outcome = call.ok(evaluate, f"--checkpoint={trained}", "--output=evaluation.json")
    assert outcome.out.startswith("agnostic_fed_avg after round 3, on toy_regression\n")
    assert "center -1.0 (worst)" in outcome.out
    evaluation = read_json(folder / "evaluation.json")
    result = read_json(trained / "result.json")
    assert {name: evaluation[name] for name in ("domains", "overall", "worst_domain", "worst")} == {
        name: result[name] for name in ("domains", "overall", "worst_domain", "worst")
    }
    assert (evaluation["round"], evaluation["task"], evaluation["seed"]) == (3, "toy_regression", 4)


def test_evaluates_a_named_checkpoint(call, folder, trained):
    path = trained / "checkpoints" / "round_00000001.npz"
    outcome = call.ok(evaluate, f"--checkpoint={path}", "--output=evaluation.json")
    assert "after round 1," in outcome.out
    assert read_json(folder / "evaluation.json")["round"] == 1


def test_training_clients_match_direct_losses(call, folder, trained):
    outcome = call.ok(
        evaluate, f"--checkpoint={trained}", "--training_clients", "--output=evaluation.json"
    )
    assert "training examples" in outcome.out
    evaluation = read_json(folder / "evaluation.json")
    run = RunFolder(trained)
    task = run.spec().load_task()
    weights = newest_checkpoint(run.checkpoints).models(
        task.model.initial_weights, "", task.model.frozen
    )["model"]
    losses = [
        np.mean(task.model.example_losses(weights, client, training=False, seed=[0, 0])[0])
        for client in map(task.train.read, task.train.client_ids)
    ]
    over_clients = evaluation["overall"]["over_clients"]["loss"]
    assert over_clients["num_clients"] == len(losses)
    assert over_clients["mean"] == pytest.approx(np.mean(losses), rel=1e-5)
    # The tolerance is half a bin of the grid from which percentiles come.
    assert over_clients["p90"] == pytest.approx(np.percentile(losses, 90), rel=0.028)


def test_writes_nothing_without_output(call, folder, trained):
    call.ok(evaluate, f"--checkpoint={trained}")
    assert list(folder.iterdir()) == []


@pytest.mark.nightly
def test_seed_and_task_options_change_results(call, folder, trained):
    def overall(*arguments: str) -> float:
        call.ok(evaluate, f"--checkpoint={trained}", "--output=e.json", *arguments)
        return read_json(folder / "e.json")["overall"]["loss"]

    assert overall("--seed=4") == overall()
    assert overall("--seed=5") != overall()
    assert overall("--spread=1") > overall()


@pytest.mark.nightly
def test_secure_sums_match_plain_up_to_quantisation(call, folder, trained):
    outcome = call.ok(
        *(evaluate, f"--checkpoint={trained}", "--output=e.json", "--aggregation=secure"),
        "--worst_min_examples=200",
    )
    evaluation, result = (read_json(path) for path in (folder / "e.json", trained / "result.json"))
    assert evaluation["overall"]["loss"] == pytest.approx(result["overall"]["loss"], rel=1e-4)
    # The worst domain has too few examples to be counted here.
    assert result["worst_domain"] == "center -1.0"
    assert evaluation["not_counted"] == ["center -1.0", "center -0.4"]
    losses = {name: result["domains"][name]["loss"] for name in ("center +0.3", "center +1.0")}
    assert evaluation["worst_domain"] == max(losses, key=lambda name: losses[name])
    assert "not counted in worst and difference" in outcome.out


def test_client_percentiles_select_statistics(call, folder, trained):
    outcome = call.ok(
        *(evaluate, f"--checkpoint={trained}", "--output=e.json", "--client_percentiles=99.5,20")
    )
    assert "mean (p20, p99.5)" in outcome.out
    evaluation, result = (read_json(path) for path in (folder / "e.json", trained / "result.json"))
    loss, run_loss = (one["overall"]["over_clients"]["loss"] for one in (evaluation, result))
    assert list(loss) == ["num_clients", "mean", "p20", "p99.5", "superquantile"]
    assert loss["superquantile"] == pytest.approx(run_loss["superquantile"])
    assert evaluation["client_values"] == result["client_values"]


@pytest.mark.nightly
def test_evaluation_of_other_data_has_their_domains(call, folder):
    write_points(folder / "two.sqlite", ["phone", "tablet"])
    write_points(folder / "three.sqlite", ["blue", "green", "red"])
    arguments = ["--task=custom", "--data=two.sqlite", "--model=model.py", "--clients_per_round=2"]
    call.ok(train, *arguments, "--rounds=1", "--output_dir=run")
    call.ok(evaluate, "--checkpoint=run", "--data=three.sqlite", "--output=e.json")
    assert list(read_json(folder / "e.json")["domains"]) == ["blue", "green", "red"]
    # Without --data, `evaluate` uses the run's data.
    call.ok(evaluate, "--checkpoint=run", "--output=e.json")
    assert list(read_json(folder / "e.json")["domains"]) == ["phone", "tablet"]


def test_damaged_checkpoint_warns_and_is_skipped(call, folder, trained):
    shutil.copytree(trained, folder / "run")
    newest = folder / "run" / "checkpoints" / "round_00000003.npz"
    newest.write_bytes(newest.read_bytes()[:200])
    outcome = call.ok(evaluate, "--checkpoint=run")
    assert "after round 2," in outcome.out
    assert "round_00000003.npz: expected a checkpoint, found a damaged" in outcome.err
    assert "; trying the one before it" in outcome.err
    # A damaged checkpoint that the user names is not replaced by another.
    message = call.refused(folder, evaluate, f"--checkpoint={newest}")
    assert message.startswith(f"{newest}: expected a checkpoint, found a damaged or another file")


@golden.arguments
def test_invalid_arguments_print_one_line(call, folder, trained, arguments):
    shutil.copytree(trained, folder / "run")
    (folder / "empty").mkdir()
    return call.refused(folder, evaluate, *arguments)
