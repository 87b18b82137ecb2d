"""Verdicts on made-up tables whose right sentences are evident."""

import dataclasses
import math

import numpy as np
import pytest

from tests.run.harness import AWKWARD_NAMES, is_png
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.intervals import Resampled, Spread
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.figures import save
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.program.studies.comparison import OVERALL, SUMMARIES, WORST, Comparison, Trials
from tff_agnostic.program.studies.gains import Gain, alike, attained, gain, gains
from tff_agnostic.program.studies.verdict import Sides, harmed, verdict, verdict_figure, verdicts

_ACCURACY = Measure("accuracy", Unit.SHARE, True)
_LOSS = Measure("loss", Unit.NONE, False)
_NAMES = ("a", "b", "c")


def _gain(name, before, after, error, clients=40.0, of_seeds=0.3):
    """A gain whose standard error is known, mostly of clients."""
    total = error**2
    parts = ((1 - of_seeds) * total, of_seeds * total) if of_seeds < 1 else (math.nan, total)
    return Gain(
        name, before, after, after - before, Spread(after - before, *parts, total, 30.0), clients
    )


def _told(worst, domains, overall=0.002, clients=40.0, error=0.02, of_seeds=0.3):
    found = {n: _gain(n, 0.9, 0.9 + d, 0.004, 40.0, of_seeds) for n, d in zip("bc", domains)}
    found["a"] = _gain("a", 0.6, 0.6 + worst, error, clients, of_seeds)
    found[WORST] = _gain(WORST, 0.6, 0.6 + worst, error, clients, of_seeds)
    found[OVERALL] = _gain(OVERALL, 0.9, 0.9 + overall, 0.004, 40.0, of_seeds)
    sides = Sides("Ours", "FedAvg", _ACCURACY, "test", 3, "a", "a", {"a": 40})
    return "\n".join(verdict(sides, found))


def test_a_gain_beyond_doubt_is_told_and_so_is_who_pays():
    text = _told(0.12, (-0.03, 0.001))
    assert (
        "Ours is better than FedAvg for the worst domain (a): accuracy 72.0% against 60.0%, a gain "
        "of +12.0 points (95% interval +7.9 to +16.1)."
    ) in text
    assert "Better off: 1 of 3 domains (a: +12.0 points [" in text
    assert "Worse off: 1 of 3 domains (b: -3.0 points [-4.0, -2.0])." in text
    assert "In 1 of 3 domains no difference can be told from 0." in text
    assert "for all examples together cannot be told: accuracy 90.2% against 90.0%" in text
    assert "for other test clients and other seeds (3 trials)" in text
    assert "Next:" not in text


def test_noise_is_no_gain_and_what_would_tell_is_said():
    text = _told(0.03, (0.0, 0.0), error=0.02)
    assert (
        "Whether Ours is better or worse than FedAvg for the worst domain (a) cannot be told"
        in text
    )
    assert "No domain is shown to be worse off." in text
    assert "No single domain of the 3 shows a difference that can be told from 0." in text
    # t of 30 degrees is 2.042: (0.7 e^2) / ((0.03 / 2.042)^2 - 0.3 e^2) = 2.9 times the clients.
    assert "2.9 times as many test clients of a would tell a difference of this size" in text
    assert "about 120, not 40" in text
    assert "`./run frontier`" in text and "--lambda_baselines" in text


def test_a_loss_is_told_as_one():
    text = _told(-0.12, (0.02, 0.02))
    assert "Ours is worse than FedAvg for the worst domain (a)" in text
    assert "Better off: 2 of 3 domains (b: +2.0" in text
    assert "`./run frontier`" in text


def test_too_few_clients_have_no_interval_and_are_told_how_many_are_needed():
    text = _told(0.12, (0.0, 0.0), clients=2.0)
    assert (
        "cannot be told: accuracy 72.0% against 60.0%, a gain of +12.0 points (no interval" in text
    )
    assert "worth 2.0 of equal size" in text
    assert "Next: an interval needs test clients of a" in text


def test_an_interval_without_clients_says_so():
    text = _told(0.12, (0.0, 0.0), clients=math.nan, of_seeds=1)
    assert "is better than FedAvg" in text
    assert "for other seeds (3 trials)" in text
    assert "The test clients are not in them" in text


def test_sentences_name_both_worst_domains_and_largest_change():
    # Domain a is the worst with FedAvg; b falls below it, by more than any other domain changes,
    # which its few clients cannot show.
    found = {
        "a": _gain("a", 0.615, 0.65, 0.02),
        "b": _gain("b", 0.936, 0.6, 0.3),
        "c": _gain("c", 0.9, 0.91, 0.02),
        WORST: _gain(WORST, 0.615, 0.6, 0.2),
        OVERALL: _gain(OVERALL, 0.9, 0.9, 0.004),
    }
    sides = Sides("Ours", "FedAvg", _ACCURACY, "test", 3, "b", "a")
    text = "\n".join(verdict(sides, found))
    assert "for the worst domain cannot be told: accuracy 60.0% (b) against 61.5% (a)" in text
    assert "largest change is that of b: accuracy 93.6% to 60.0%, -33.6 points (not told" in text


def test_domains_without_interval_are_named_unmeasurable():
    found = {n: _gain(n, 0.9, 0.9 + d, 0.004) for n, d in (("a", 0.1), (WORST, 0.1), (OVERALL, 0))}
    found |= {n: _gain(n, 0.9, 0.7, 0.004, clients) for n, clients in (("b", 1.7), ("c", 2.3))}
    sides = Sides("Ours", "FedAvg", _ACCURACY, "test", 3, "a", "a")
    text = "\n".join(verdict(sides, found))
    assert "No measurable domain is shown to be worse off." in text
    assert "Not measurable: 2 of 3 domains (b: no interval: the test clients are worth 1.7" in text
    assert "c: no interval: the test clients are worth 2.3" in text
    assert "largest change is that of b: accuracy 90.0% to 70.0%, -20.0 points (not meas" in text


def test_advice_on_trials_is_rough_and_bounded():
    # Half a point: twelve times the trials are not worth it, three times are.
    little = _told(0.005, (0.0, 0.0), clients=math.nan, error=0.0085, of_seeds=1)
    assert "more than 10 times the data: treat it as 0" in little
    some = _told(0.03, (0.0, 0.0), clients=math.nan, error=0.02, of_seeds=1)
    assert "(a rough estimate from 3 trials)" in some


def test_a_difference_of_nothing_is_taken_for_nothing():
    assert "more than 10 times the data: treat it as 0" in _told(0.0001, (0.0, 0.0))


def _row(accuracies, noise, resampled=True, seed=0, seeds=(1, 2, 3)):
    """Trials [K] of three domains, whose replicates vary by client noise [domains]."""
    rng = np.random.default_rng(seed)
    own = np.asarray(accuracies, float)
    by_seed = [own + d for d in (-0.001, 0.0, 0.001)]
    replicates = rng.normal(0, 1, (200, 3)) * noise
    values = {n: {"accuracy": np.array([v[i] for v in by_seed])} for i, n in enumerate(_NAMES)}
    for name in SUMMARIES:
        of = np.min if name == WORST else np.mean
        values[name] = {"accuracy": np.array([of(v) for v in by_seed])}
    drawn = [
        Resampled(
            {"accuracy": np.c_[v + replicates, (v + replicates).mean(axis=1)]}, np.full(4, 25.0)
        )
        for v in by_seed
    ]
    return Trials(
        values, [{}] * 3, resampled=drawn if resampled else (), num_clients={"a": 30}, seeds=seeds
    )


def _comparison(rows, names=_NAMES):
    return Comparison(names, {"loss": _LOSS, "accuracy": _ACCURACY}, rows, {"ours": "Ours"})


def test_gains_are_of_pairs_and_the_worst_domain_is_each_rows_own():
    rows = {
        "fed_avg": _row([0.6, 0.8, 0.9], 0.05),
        "ours": _row([0.75, 0.7, 0.9], 0.05),
    }
    found = gains(_comparison(rows), "ours", "fed_avg", _ACCURACY)
    assert found["a"].mean == pytest.approx(0.15)
    assert found["b"].mean == pytest.approx(-0.1)
    # Both rows have the same noise of clients in each replicate: it is in no difference.
    assert found["a"].spread.of_clients == pytest.approx(0, abs=1e-12)
    # The worst is a before, and b after.
    assert found[WORST].mean == pytest.approx(0.1)
    drawn = [
        np.array([of.values["accuracy"][:, :3].min(axis=1) for of in rows[r].resampled])
        for r in rows
    ]
    expected = np.var((drawn[1] - drawn[0]).mean(axis=0), ddof=1) * 25 / 24
    assert found[WORST].spread.of_clients == pytest.approx(expected)


def test_estimates_stay_within_measure_and_need_clients():
    comparison = _comparison({"ours": _row([0.97, 0.8, 0.02], 0.2)})
    trials = comparison.trials["ours"]
    for name in _NAMES:
        _, (low, high) = attained(trials, _NAMES, name, _ACCURACY)
        assert 0 <= low < high <= 1
    few = [dataclasses.replace(of, clients=np.full(4, 2.0)) for of in trials.resampled]
    assert attained(dataclasses.replace(trials, resampled=few), _NAMES, "a", _ACCURACY)[1] is None


def test_groups_with_too_few_clients_are_marked_alike():
    rows = {"fed_avg": _row([0.6, 0.8, 0.9], 0.05), "ours": _row([0.4, 0.8, 0.9], 0.05)}
    for name, trials in rows.items():
        few = [dataclasses.replace(of, clients=np.full(4, 2.0)) for of in trials.resampled]
        rows[name] = dataclasses.replace(trials, resampled=few)
    assert alike(_comparison(rows), "a", _ACCURACY) == {"ours"}


@pytest.mark.parametrize(("paired", "resampled"), [(False, True), (True, False)])
def test_what_is_not_paired_or_not_resampled_has_less(paired, resampled):
    rows = {"ours": _row([0.7, 0.7, 0.9], 0.05)}
    rows["theirs"] = _row([0.6, 0.8, 0.9], 0.05, resampled, seeds=(1, 2, 3 if paired else 4))
    found = gain(_comparison(rows), "ours", "theirs", "a", _ACCURACY)
    assert found.mean == pytest.approx(0.1)
    assert (found.spread is None) == (not paired)
    assert not found.has_clients
    assert found.has_seeds == paired


def test_a_comparison_tells_each_row_and_what_all_have_in_common_once():
    rows = {"fed_avg": _row([0.6, 0.8, 0.9], 0.05)}
    rows["ours"] = _row([0.8, 0.8, 0.9], 0.04, seed=1)
    rows["other"] = _row([0.6, 0.8, 0.9], 0.04, seed=2)
    algorithms = {**dict.fromkeys(rows, "x"), "fed_avg": "fed_avg"}
    lines = verdicts(_comparison(rows), algorithms)
    assert lines[0].startswith("Ours is better than fed_avg for the worst domain (a)")
    assert sum(line.startswith("Intervals are of 95%") for line in lines) == 1
    # Two of three rows share a line: each says it of itself.
    rows["third"] = _row([0.6, 0.8, 0.9], 0.04, seed=3)
    rows["worse"] = _row([0.3, 0.8, 0.9], 0.04, seed=4)
    lines = verdicts(_comparison(rows), {**algorithms, "third": "x", "worse": "x"})
    assert lines.count("No domain is shown to be worse off.") == 3
    assert any(line.startswith("Whether other is better or worse") for line in lines)
    assert verdicts(_comparison({"ours": rows["ours"]}), {"ours": "x"}) == []


def test_constant_answer_is_held_against_every_row():
    rows = {"fed_avg": _row([0.5, 0.8, 0.9], 0.05), "ours": _row([0.6, 0.8, 0.9], 0.05, seed=1)}
    for name, trials in rows.items():
        rows[name] = dataclasses.replace(trials, class_counts={"a": (60, 40)})
    lines = verdicts(_comparison(rows), {"fed_avg": "fed_avg", "ours": "x"})
    expected = "accuracy is not above that of always answering the most frequent class in 1 of 3"
    assert [line.split(":")[0] for line in lines if expected in line] == ["Ours", "fed_avg"]


@pytest.mark.parametrize("names", [_NAMES, AWKWARD_NAMES[:3]])
def test_the_picture_has_every_domain_before_and_after(tmp_path, names):
    rows = {"fed_avg": _row([0.6, 0.8, 0.9], 0.02), "ours": _row([0.75, 0.8, 0.9], 0.02, seed=1)}
    for trials in rows.values():
        for old, new in zip(_NAMES, names):
            trials.values[new] = trials.values.get(old, trials.values.get(new))
    comparison = _comparison(rows, names)
    found = gains(comparison, "ours", "fed_avg", _ACCURACY)
    figure = verdict_figure(comparison, "ours", "fed_avg", _ACCURACY, found)
    before, gained = figure.axes
    assert len(before.get_yticks()) == len(gained.get_yticks()) == 3
    assert gained.get_legend_handles_labels()[1] == ["better off", "cannot be told"]
    save(figure, tmp_path / "verdict.png")
    assert is_png((tmp_path / "verdict.png").read_bytes())


# Lambda of a is near 0, of b not.
_LAMBDA = {"lambda/a": 0.01, "lambda/b": 0.49, "lambda/c": 0.5}


@pytest.mark.parametrize(
    ("clients", "worse", "expected"),
    [
        (25.0, -0.3, "Ours gave up a: accuracy 30.0, fed_avg 60.0, and lambda 0.01 in the mean"),
        (
            2.0,
            -0.3,
            "whether Ours gave up a cannot be told (no interval: the test clients are worth 2.0 of "
            "equal size, and an interval needs 3): accuracy 30.0, fed_avg 60.0, and lambda 0.01 in",
        ),
        (2.0, 0.1, None),
    ],
)
def test_what_looks_given_up_is_told_with_and_without_an_interval(clients, worse, expected):
    rows = {
        "fed_avg": _row([0.6, 0.8, 0.9], 0.05),
        "ours": _row([0.6 + worse, 0.7, 0.9], 0.05, seed=1),
    }
    history = {name: np.full(10, value) for name, value in _LAMBDA.items()}
    for name, trials in rows.items():
        drawn = [dataclasses.replace(of, clients=np.full(4, clients)) for of in trials.resampled]
        rows[name] = dataclasses.replace(trials, histories=[history] * 3, resampled=drawn)
    runs = {
        "fed_avg": resolve("digits", {"algorithm": "fed_avg"}, {}),
        "ours": resolve("digits", {"algorithm": "agnostic_fed_avg"}, {}),
    }
    lines = harmed(_comparison(rows), runs)
    assert len(lines) == (expected is not None)
    assert not lines or lines[0].startswith(expected)
    # b is worse, too, and has its say.
    assert not any("gave up b" in line for line in lines)
