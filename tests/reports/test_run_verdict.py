"""The verdict of a run with made-up numbers."""

import dataclasses
import json

import numpy as np
from scipy import stats

from tests.reports import made_up
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.intervals import Resampled
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.run_record import RunRecord, read_run
from tff_agnostic.program.reports.run_verdict import run_verdict

_NAMES = ("good", "open", "bad", "few")
# Two classes: always answering the first has 60% in each domain.
_COUNTS = {name: [60, 40] for name in _NAMES}
_ACCURACIES = {"good": 0.9, "open": 0.62, "bad": 0.4, "few": 0.9}
_CLIENTS = np.array([25.0, 25.0, 25.0, 2.0, 77.0])
_ERROR = 0.03


def _run(resampled=True, counts=_COUNTS, accuracies=_ACCURACIES, error=_ERROR):
    result = made_up.result(_NAMES, class_counts=counts)
    for name, accuracy in accuracies.items():
        result["domains"][name]["accuracy"] = accuracy
    result["overall"]["accuracy"] = 0.7
    drawn = None
    if resampled:
        noise = np.random.default_rng(0).normal(size=(200, len(_NAMES) + 1))
        noise = error * (noise - noise.mean(0)) / noise.std(0, ddof=1)
        means = np.array([*accuracies.values(), 0.7])
        drawn = Resampled({"accuracy": means + noise}, _CLIENTS)
    measures = {"accuracy": Measure("accuracy", Unit.SHARE, True)}
    return RunRecord(result, {}, {}, {}, measures, resampled=drawn)


def test_domains_are_better_worse_or_undecided():
    overall, worse, better, unknown, few, largest, scope, note, what_next = run_verdict(_run())
    assert overall.startswith(
        "AgnosticFedAvg is better than always answering the most frequent class on all examples: "
        "accuracy 70.0% against 60.0%, +10.0 points (95% interval"
    )
    assert " in 1 of 4 domains (accuracy of bad: 60.0% to 40.0%, -20.0 points (95% int" in worse
    assert "No significant difference in 1 of 4 domains" in unknown
    # Two clients are too few for an interval.
    assert few == "No interval in 1 of 4 domains (few: too few test clients for an interval (2.0))."
    # Student's, for four domains at once, of n / (n - 1) times the variance of the replicates.
    variance = _ERROR**2 * 25 / 24
    freedom = 1 / (1 / 24 + 1 / 199)
    half = stats.t.ppf(1 - 0.025 / 4, freedom) * variance**0.5
    low, high = 100 * (0.3 - half), 100 * (0.3 + half)
    assert (
        f"(accuracy of good: 60.0% to 90.0%, +30.0 points (95% interval {low:+.1f} to {high:+.1f}))"
    ) in better
    assert largest.startswith("Largest gain: domain few: 60.0% to 90.0%, +30.0 points (too few ")
    assert "of 95%, over other test clients; those of single domains hold for all 4" in scope
    assert "equal size" in note and what_next.startswith("Next: `./run compare`")


def test_run_without_resampling_has_no_direction():
    lines = run_verdict(_run(resampled=False))
    assert lines[0] == (
        "AgnosticFedAvg has accuracy 70.0% against 60.0% of always answering the most frequent "
        "class on all examples, +10.0 points."
    )
    assert "There are no intervals, because the test clients were not resampled." in lines
    assert not any("is better than" in line for line in lines[:-1])


def test_clients_that_are_all_right_have_wilson_interval():
    lines = run_verdict(_run(accuracies={**_ACCURACIES, "good": 1.0}, error=0.0))
    # Wilson's of 25, for four domains at once: its lower end is 1 / (1 + z^2 / 25).
    low = 100 / (1 + stats.norm.ppf(1 - 0.025 / 4) ** 2 / 25) - 60
    assert any(
        f"good: 60.0% to 100.0%, +40.0 points (95% interval {low:+.1f} to +40.0)" in line
        for line in lines
    )


def test_perfect_constant_has_no_verdict():
    assert run_verdict(_run(counts={name: [5] for name in _NAMES})) == []


def test_unknown_constant_has_a_reason():
    why, what_next = run_verdict(_run(counts={}))
    assert why.startswith("This run does not show whether AgnosticFedAvg is better than a constant")
    assert (
        "labels were not counted. With an algorithm that follows losses of domains, --lambda" in why
    )
    assert what_next.startswith("Next: `./run compare`")
    run = _run(counts={})
    private = dataclasses.replace(run, result={**run.result, "privacy": {"epsilon": 1.0}})
    assert "as counts of private training's clients need noise" in run_verdict(private)[0]


def test_private_evaluation_has_no_intervals():
    run = _run(resampled=False, counts={})
    privacy = {"epsilon": 1.0, "evaluation": {"epsilon": 1.0}}
    why, clients, what_next = run_verdict(
        dataclasses.replace(run, result={**run.result, "privacy": privacy})
    )
    assert "the largest of several noisy counts" in why
    assert clients.startswith("There are no intervals for other test clients: private evaluations")
    assert "with statistics=true either" in clients
    assert what_next.startswith("Next: ")


_OF_WHAT = "the mean of the numbers, or the shares of the classes or words"
_LOSSES = {"good": 0.1, "open": 0.48, "bad": 0.9, "few": 0.1}


def _of_losses(tmp_path, source="trivial"):
    """A run whose trivial predictors have a loss of 0.5 each, read back from its folder."""
    folder = made_up.write_run(tmp_path / "run", made_up.result(_NAMES))
    known = {name: {"training": 0.5, "heldout": 0.4, "source": source} for name in _NAMES}
    (folder / "baselines").mkdir()
    (folder / "baselines" / "baselines.json").write_text(json.dumps({"domains": known}))
    run = read_run(folder)
    for name, loss in _LOSSES.items():
        run.result["domains"][name]["loss"] = loss
    noise = np.random.default_rng(0).normal(size=(200, len(_NAMES) + 1))
    noise = _ERROR * (noise - noise.mean(0)) / noise.std(0, ddof=1)
    drawn = Resampled({"loss": np.array([*_LOSSES.values(), 0.4]) + noise}, _CLIENTS)
    return dataclasses.replace(run, resampled=drawn)


def test_trial_reads_baselines_of_its_comparison(tmp_path):
    trial = made_up.write_run(tmp_path / "row" / "trial_00", made_up.result(_NAMES))
    for number, loss in (("", 0.3), ("2", 0.5)):
        beside = tmp_path / "baselines" / number
        beside.mkdir()
        known = {n: {"training": loss, "heldout": 0.4, "source": "trivial"} for n in _NAMES}
        (beside / "baselines.json").write_text(json.dumps({"domains": known}))
    assert not read_run(trial).trivial_losses
    config = json.loads((trial / "config.json").read_text())
    for loss, expected in ((0.5, dict.fromkeys(_NAMES, 0.5)), (0.4, {})):
        config["lambda_baselines"] = [loss] * len(_NAMES)
        (trial / "config.json").write_text(json.dumps(config))
        assert read_run(trial).trivial_losses == expected


def test_losses_are_compared_with_trivial_predictors(tmp_path):
    worse, better, unknown, few, *_ = run_verdict(_of_losses(tmp_path))
    assert worse.startswith(f"AgnosticFedAvg is worse than the trivial predictor ({_OF_WHAT}")
    # A smaller loss is better.
    assert " in 1 of 4 domains (loss of bad: 0.500 to 0.900, +0.400 (95% interval" in worse
    assert "in 1 of 4 domains" in unknown and "few: too few test clients" in few
    half = stats.t.ppf(1 - 0.025 / 4, 1 / (1 / 24 + 1 / 199)) * (_ERROR**2 * 25 / 24) ** 0.5
    ends = f"{-0.4 - half:+.3f} to {-0.4 + half:+.3f}"
    assert f"good: 0.500 to 0.100, -0.400 (95% interval {ends}))" in better


def test_other_measures_are_compared_with_constants(tmp_path):
    losses = _of_losses(tmp_path, "own")
    constants = {"loss": {**dict.fromkeys(_NAMES, 0.5), "all": 0.4}}
    run = dataclasses.replace(losses, result={**losses.result, "constant_answers": constants})
    overall, worse, better, *_ = run_verdict(run)
    value = run.result["overall"]["loss"]
    assert f"loss {value:.3f} against 0.400" in overall
    assert f"is worse than the best constant ({_OF_WHAT}) in 1 of 4 domains (loss" in worse
    assert f"is better than the best constant ({_OF_WHAT}) in 1 of 4" in better
    # Readers know metrics.
    constants["accuracy"] = {"all": 0.6}
    assert "accuracy " in run_verdict(run)[0]


def test_baseline_runs_are_no_trivial_predictors(tmp_path):
    assert "This run does not show whether" in run_verdict(_of_losses(tmp_path, "own"))[0]


def test_domains_of_one_class_leave_all_examples():
    counts = {name: [10 * (k == i) for k in range(4)] for i, name in enumerate(_NAMES)}
    overall, scope, _ = run_verdict(_run(counts=counts))
    assert "70.0% against 25.0%" in overall
    assert "single domains" not in scope
