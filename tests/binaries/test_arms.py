"""`compare --arms`: one algorithm several times, with settings of its own each time."""

import json
from pathlib import Path

import pytest

from binaries import compare
from tests import golden
from tests.binaries.harness import TOY, Caller, compared_specs, tree
from tff_agnostic.experiments import EXPERIMENTS
from tff_agnostic.studies.arms import Arm

_SHORT = (*TOY, "--rounds=2", "--trials=1", "--evaluate_every=1")
_ARMS = "--arms=mild=q_ffl:q=0.1;strong=q_ffl:q=5,preset=paper;agnostic_fed_avg"


@pytest.fixture(scope="module")
def compared(call: Caller, tmp_path_factory) -> tuple[Path, str]:
    """Three arms, one of which has a setting by --override, and what was printed."""
    path = tmp_path_factory.mktemp("arms") / "runs"
    flags = ["--override=strong:client_learning_rate=0.01", "--window=4", f"--output_dir={path}"]
    outcome = call(compare, *_SHORT, _ARMS, *flags)
    assert outcome.status == 0, outcome
    return path, outcome.out


def _config(path: Path, arm: str) -> dict:
    return json.loads((path / arm / "trial_00" / "config.json").read_text())


def test_every_arm_has_a_folder_with_its_settings(compared):
    path, printed = compared
    head = f"mild, strong, agnostic_fed_avg on toy_regression, 1 trials: {path}\n"
    assert printed.startswith(head)
    mild, strong, agnostic = (_config(path, arm) for arm in ("mild", "strong", "agnostic_fed_avg"))
    assert [config["algorithm"] for config in (mild, strong)] == ["q_ffl", "q_ffl"]
    assert (mild["q"], strong["q"]) == (0.1, 5.0)
    assert strong["client_learning_rate"] == 0.01 != mild["client_learning_rate"]
    assert (mild["client_weighting"], strong["client_weighting"]) == ("examples", "equal")
    assert (agnostic["algorithm"], agnostic["window"]) == ("agnostic_fed_avg", 4)
    assert "window" not in mild and "q" not in agnostic


def test_labels_are_the_rows_of_the_tables(compared):
    path, _ = compared
    lines = (path / "compare.md").read_text().splitlines()
    rows = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
    # Of the domains, and over the clients.
    assert rows == ["algorithm", "mild", "strong", "AgnosticFedAvg"] * 2
    found = json.loads((path / "compare.json").read_text())
    assert list(found) == ["mild", "strong", "agnostic_fed_avg"]
    assert found["mild"]["(overall)"] != found["strong"]["(overall)"]


def test_a_comparison_of_arms_goes_on_with_a_further_one(call, folder, compared):
    path, _ = compared
    flags = [*_SHORT, "--window=4", f"--output_dir={path}", "--resume"]
    overrides = "--override=strong:client_learning_rate=0.01"
    before = tree(path / "mild")
    outcome = call(compare, *flags, overrides, f"{_ARMS};plain=q_ffl:q=0")
    assert outcome.status == 0, outcome
    assert tree(path / "mild") == before
    found = json.loads((path / "compare.json").read_text())
    assert list(found) == ["mild", "strong", "agnostic_fed_avg", "plain"]

    message = call.refused(path, compare, *flags, overrides, _ARMS.replace("q=5", "q=6"))
    assert message.endswith("holds another run: --q is 5.0 there and 6.0 here")


def test_words_are_rows_of_their_own():
    flags = [*_SHORT, "--arms=fed_avg;uniform;slow=frozen:domain_learning_rate=0.001"]
    specs = compared_specs(*flags)
    assert list(specs) == ["fed_avg", "uniform", "slow"]
    uniform, frozen = specs["uniform"][0], specs["slow"][0]
    assert {run.config.algorithm for run in (uniform, frozen)} == {"agnostic_fed_avg"}
    assert uniform.algorithm.domain_weight_update == "fixed"
    assert uniform.algorithm.initial_domain_weights is None
    assert frozen.algorithm.absent_domains == "freeze"
    assert frozen.algorithm.domain_learning_rate == 0.001
    # By --algorithms, too.
    (uniform_again,) = compared_specs(*_SHORT, "--algorithms=uniform")["uniform"]
    assert uniform_again == uniform


@golden.arguments
def test_what_cannot_be_compared(folder, arguments):
    nothing_starts = Caller(None)
    return nothing_starts.refused(folder, compare, *TOY, *arguments)


def test_experiments_have_the_same_arms():
    for experiment in EXPERIMENTS.values():
        assert all(type(arm) is Arm for arm in experiment.arms.values())
