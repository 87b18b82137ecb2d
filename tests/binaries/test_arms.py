"""`compare --arms`: methods with their own settings."""

import dataclasses
from pathlib import Path

import pytest

from binaries import compare, export
from tests.support import golden
from tests.support.commands import TOY, Caller, compared_specs, tree
from tests.support.pages import page_blocks
from tff_agnostic.base.files import read_json
from tff_agnostic.domain_weights.ascent import Fixed

_SHORT = (*TOY, "--rounds=2", "--trials=1", "--evaluate_every=1")
_ARMS = "--arms=mild=q_ffl:q=0.1;strong=q_ffl:q=5,preset=paper;agnostic_fed_avg;last_layer;pooled"


@pytest.fixture(scope="module")
def compared(call: Caller, tmp_path_factory) -> tuple[Path, str]:
    """Folder and output of a comparison of five methods, one changed by --override."""
    path = tmp_path_factory.mktemp("arms") / "runs"
    flags = ["--override=strong:client_learning_rate=0.01", "--window=4", f"--output_dir={path}"]
    outcome = call.ok(compare, *_SHORT, _ARMS, *flags)
    return path, outcome.out


def _config(path: Path, arm: str) -> dict:
    return read_json(path / "runs" / arm / "trial_00" / "run" / "config.json")


@pytest.mark.nightly
def test_methods_have_their_settings(compared):
    path, _ = compared
    mild, strong, agnostic = (_config(path, arm) for arm in ("mild", "strong", "agnostic_fed_avg"))
    assert [config["algorithm"] for config in (mild, strong)] == ["q_ffl", "q_ffl"]
    assert (mild["q"], strong["q"]) == (0.1, 5.0)
    assert strong["client_learning_rate"] == 0.01 != mild["client_learning_rate"]
    assert (mild["client_weighting"], strong["client_weighting"]) == ("examples", "equal")
    assert (agnostic["algorithm"], agnostic["window"]) == ("agnostic_fed_avg", 4)
    assert "window" not in mild and "q" not in agnostic
    tables = [block for block in page_blocks(path) if block.get("columns")]
    labels = ["AgnosticFedAvg", "last layer balanced", "pooled, not federated"]
    assert [t["columns"][1:] for t in tables].count(["mild", "strong", *labels]) == 2
    actual = read_json(path / "compare.json")
    assert actual["mild"]["(overall)"] != actual["strong"]["(overall)"]


@pytest.mark.nightly
def test_last_layer_starts_from_fed_avg(compared, call):
    path, printed = compared
    remark = "1 round of FedAvg, and from its model 1 round of dense, the only layer, in which"
    assert f"last layer balanced: {remark}" in printed or f"last_layer: {remark}" in printed
    # The page shows the command that repeats the comparison.
    assert "last_layer:window=4" in (path / "report.html").read_text()
    first = path / "runs" / "first_stages" / "last_layer" / "trial_00" / "run"
    second = path / "runs" / "last_layer" / "trial_00" / "run"
    before, here = (read_json(p / "config.json") for p in (first, second))
    assert (before["algorithm"], before["rounds"], before["seed"]) == ("fed_avg", 1, 0)
    assert (here["lambda_update"], here["rounds"], here["seed"]) == ("fixed", 1, 0)
    checkpoint = first / "checkpoints" / "round_00000001.npz"
    assert here["initial_model"] == str(checkpoint.resolve())
    assert (second / "initial_model.npz").read_bytes() == checkpoint.read_bytes()


@pytest.mark.nightly
def test_pooled_method_is_marked_as_not_federated(compared, call, tmp_path):
    path, printed = compared
    run = path / "runs" / "pooled" / "trial_00" / "run"
    assert "no federated training: the examples of all 8 training clients are in one" in printed
    result = read_json(run / "result.json")
    assert result["pooled"] is True
    assert result["about"]["algorithm"]["label"] == "FedAvg, pooled"
    assert "pooled" not in read_json(path / "runs" / "mild" / "trial_00" / "run" / "result.json")
    output = f"--output_dir={tmp_path / 'p'}"
    message = call.refused(tmp_path, export, f"--checkpoint={run}", output)
    assert message == "--pooled: expected a federated run to export, found a run on pooled examples"


@pytest.mark.nightly
def test_resume_adds_a_method(call, folder, compared):
    path, _ = compared
    flags = [*_SHORT, "--window=4", f"--output_dir={path}", "--resume"]
    overrides = "--override=strong:client_learning_rate=0.01"
    kept = ("mild", "last_layer", "first_stages", "pooled")
    before = [tree(path / "runs" / name) for name in kept]
    call.ok(compare, *flags, overrides, f"{_ARMS};plain=q_ffl:q=0")
    assert [tree(path / "runs" / name) for name in kept] == before
    actual = read_json(path / "compare.json")
    assert list(actual) == ["mild", "strong", "agnostic_fed_avg", "last_layer", "pooled", "plain"]

    message = call.refused(path, compare, *flags, overrides, _ARMS.replace("q=5", "q=6"))
    assert message.endswith("holds another run: --q is 5.0 there and 6.0 here")
    message = call.refused(path, compare, *flags, overrides, _ARMS, "--rounds=3")
    assert message.startswith("--rounds: expected as many as before for last_layer, whose second ")


def test_shorthands_expand_to_settings():
    words = "fed_avg;uniform;slow=frozen:lambda_learning_rate=0.001;domain_input"
    flags = [*_SHORT, f"--arms={words}"]
    specs = compared_specs(*flags)
    assert list(specs) == ["fed_avg", "uniform", "slow", "domain_input"]
    (plain,), (with_domain,) = specs["fed_avg"], specs["domain_input"]
    config = dataclasses.replace(plain.config, domain_input="embedding")
    assert dataclasses.replace(plain, config=config) == with_domain
    uniform, frozen = specs["uniform"][0], specs["slow"][0]
    assert {run.config.algorithm for run in (uniform, frozen)} == {"agnostic_fed_avg"}
    assert uniform.algorithm.lambda_.update == Fixed()
    assert uniform.algorithm.lambda_.initial is None
    assert frozen.algorithm.lambda_.absent == "freeze"
    assert frozen.algorithm.lambda_.learning_rate == 0.001
    # `uniform` ignores the given lambda, and the other methods start from it.
    specs = compared_specs(*flags, "--lambda_initial=0.2,0.1,0.3,0.2,0.2")
    assert specs["uniform"][0].algorithm.lambda_.initial is None
    assert specs["slow"][0].algorithm.lambda_.initial == (0.2, 0.1, 0.3, 0.2, 0.2)
    # In --algorithms, a shorthand stands for the same settings as in --arms.
    (uniform_again,) = compared_specs(*_SHORT, "--algorithms=uniform")["uniform"]
    assert uniform_again == uniform


@golden.arguments
def test_invalid_flags_raise_user_error(folder, arguments):
    nothing_starts = Caller(None)
    return nothing_starts.refused(folder, compare, *TOY, *arguments)
