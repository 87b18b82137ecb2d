"""Sentences and figures of verdicts on made-up gains."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from tests.run.harness import AWKWARD_NAMES
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.intervals import Resampled, Spread
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.document import Figure
from tff_agnostic.program.reports.html import svg
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.program.studies.comparison import OVERALL, SUMMARIES, WORST, Comparison, Trials
from tff_agnostic.program.studies.gains import Gain, attained, gain, gains, tied
from tff_agnostic.program.studies.recommendation import Recommendation
from tff_agnostic.program.studies.search_space import parse_objective
from tff_agnostic.program.studies.verdict import (
    ClaimContext,
    neglected,
    verdict,
    verdict_figure,
    verdicts,
)

_ACCURACY = Measure("accuracy", Unit.SHARE, True)
_LOSS = Measure("loss", Unit.NONE, False)
_NAMES = ("a", "b", "c")


def _gain(name, before, after, error, clients=40.0, seed_part=0.3, trials=3):
    """Returns a gain with standard error `error`, a fraction of it from seeds."""
    total = error**2
    parts = ((1 - seed_part) * total, seed_part * total) if seed_part < 1 else (math.nan, total)
    spread = Spread(after - before, *parts, total, 30.0)
    return Gain(name, before, after, after - before, spread, clients, trials=trials)


def _sentences(worst, domains, overall=0.002, clients=40.0, error=0.02, seed_part=0.3, trials=5):
    small, large = (0.004, 40.0, seed_part, trials), (error, clients, seed_part, trials)
    actual = {n: _gain(n, 0.9, 0.9 + d, *small) for n, d in zip("bc", domains)}
    actual |= {n: _gain(n, 0.6, 0.6 + worst, *large) for n in ("a", WORST)}
    actual[OVERALL] = _gain(OVERALL, 0.9, 0.9 + overall, *small)
    context = ClaimContext("Ours", "FedAvg", _ACCURACY, "test", "a", "a")
    return "\n".join(verdict(context, actual))


def test_verdict_names_better_and_worse_domains():
    text = _sentences(0.12, (-0.03, 0.001))
    assert (
        "Ours is better than FedAvg in the worst domain (a): accuracy 72.0% against 60.0%, "
        "+12.0 points (95% interval +7.9 to +16.1)."
    ) in text
    assert (
        "Who pays: Ours is worse than FedAvg in 1 of 3 domains (accuracy of b: 87.0% against "
        "90.0%, -3.0 points (95% interval -4.0 to -2.0))."
    ) in text
    assert (
        "Ours is better than FedAvg in 1 of 3 domains (accuracy of a: 72.0% against 60.0%" in text
    )
    assert "No significant difference in 1 of 3 domains between Ours and FedAvg (c)." in text
    assert (
        "No significant difference between Ours and FedAvg on all examples (95% interval -0.6 to "
        "+1.0): accuracy 90.2% against 90.0%, +0.2 points."
    ) in text
    assert "over other test clients and other seeds (5 trials)" in text
    assert "Next:" not in text


def test_insignificant_gain_estimates_needed_clients():
    text = _sentences(0.03, (0.0, 0.0), error=0.02)
    assert "No significant difference between Ours and FedAvg in the worst domain (a) (95%" in text
    assert "No domain is significantly worse off with Ours." in text
    # t of 30 degrees is 2.042: (0.7 e^2) / ((0.03 / 2.042)^2 - 0.3 e^2) = 2.9 times the clients.
    assert "about 2.9 times the test clients would show it" in text
    assert "`./run frontier`" in text and "--lambda_baselines" in text


def test_few_clients_have_no_interval():
    text = _sentences(0.12, (0.0, 0.0), clients=2.0)
    assert (
        "Ours has accuracy 72.0%, FedAvg 60.0% in the worst domain (a): +12.0 points (not certain: "
        "too few test clients for an interval (worth 2.0))."
    ) in text
    assert (
        "Next: an interval needs test clients that are worth at least 3 of equal size, and there "
        "are 2.0: add some, or join similar domains"
    ) in text


def test_interval_for_all_examples_states_its_scope():
    actual = {n: _gain(n, 0.6, 0.7, 0.02, clients=1.0) for n in ("a", "b", WORST)}
    actual[OVERALL] = _gain(OVERALL, 0.9, 0.92, 0.004)
    text = "\n".join(verdict(_context("a", "a"), actual))
    assert "No domain has an interval: no difference of a domain is certain." in text
    assert "Intervals are of 95%, over other test clients and other seeds (3 trials).\n" in text
    # A frontier would have no intervals either, and is not suggested.
    assert "join similar domains." in text and "frontier" not in text


def test_seed_intervals_state_that_they_exclude_clients():
    text = _sentences(0.12, (0.0, 0.0), clients=math.nan, seed_part=1)
    assert "is better than FedAvg" in text
    assert "over other seeds (5 trials)" in text
    assert "They do not cover other test clients" in text


def _context(worst, their_worst):
    return ClaimContext("Ours", "FedAvg", _ACCURACY, "test", worst, their_worst)


def test_verdict_names_both_worst_domains_and_largest_changes():
    # FedAvg's worst domain is a, and ours is b, but not significantly. Domain c gains most.
    actual = {
        "a": _gain("a", 0.615, 0.65, 0.02),
        "b": _gain("b", 0.936, 0.6, 0.3),
        "c": _gain("c", 0.55, 0.91, 0.3),
        WORST: _gain(WORST, 0.615, 0.6, 0.2),
        OVERALL: _gain(OVERALL, 0.9, 0.9, 0.004),
    }
    text = "\n".join(verdict(_context("b", "a"), actual))
    assert "in the worst domain (95%" in text and "accuracy 60.0% (b) against 61.5% (a)" in text
    assert (
        "Largest change for the worse: b: 60.0% against 93.6%, -33.6 points (not significant, 95%"
        in text
    )
    assert (
        "largest change for the better: c: 91.0% against 55.0%, +36.0 points (not significant, 95%"
        in text
    )


def test_domains_without_interval_are_named():
    actual = {n: _gain(n, 0.9, 0.9 + d, 0.004) for n, d in (("a", 0.1), (WORST, 0.1), (OVERALL, 0))}
    actual |= {n: _gain(n, 0.9, 0.7, 0.004, clients) for n, clients in (("b", 1.7), ("c", 2.3))}
    text = "\n".join(verdict(_context("a", "a"), actual))
    assert "No domain with an interval is significantly worse off with Ours." in text
    assert (
        "No interval in 2 of 3 domains (b: too few test clients for an interval (worth 1.7); c: "
        "too few test clients for an interval (worth 2.3))."
    ) in text
    assert (
        "Largest change for the worse: b: 70.0% against 90.0%, -20.0 points (too few test clients"
        in text
    )


def test_advice_estimates_the_needed_trials():
    seeds = {"clients": math.nan, "seed_part": 1}
    # To show a gain of half a point, twelve times as many trials are needed.
    little = _sentences(0.005, (0.0, 0.0), error=0.0085, **seeds)
    assert "takes more than 10 times the data: treat it as 0" in little
    # t of 30 degrees is 2.042: 5 (0.02 / (0.03 / 2.042))^2 = 9.3 trials.
    some = _sentences(0.03, (0.0, 0.0), error=0.02, **seeds)
    assert "about --trials=10 would show a difference of this size" in some
    few = _sentences(0.03, (0.0, 0.0), error=0.02, trials=3, **seeds)
    assert "3 trials are too few to estimate how many would show a difference: --trials=10" in few
    nothing = _sentences(0.0001, (0.0, 0.0))
    assert "more than 10 times the data: treat it as 0" in nothing


def _row(accuracies, noise, resampled=True, seed=0, seeds=(1, 2, 3)):
    """Returns three trials whose replicates have standard deviation `noise` in each domain."""
    rng = np.random.default_rng(seed)
    means = np.asarray(accuracies, float)
    by_seed = [means + d for d in (-0.001, 0.0, 0.001)]
    replicates = rng.normal(0, 1, (200, 3)) * noise
    values = {n: {"accuracy": np.array([v[i] for v in by_seed])} for i, n in enumerate(_NAMES)}
    for name in SUMMARIES:
        entry = np.min if name == WORST else np.mean
        values[name] = {"accuracy": np.array([entry(v) for v in by_seed])}
    drawn = [
        Resampled(
            {"accuracy": np.c_[v + replicates, (v + replicates).mean(axis=1)]}, np.full(4, 25.0)
        )
        for v in by_seed
    ]
    return Trials(values, [{}] * 3, resampled=drawn if resampled else (), seeds=seeds)


def _comparison(rows, names=_NAMES):
    return Comparison(names, {"loss": _LOSS, "accuracy": _ACCURACY}, rows, {"ours": "Ours"})


def test_gains_are_paired_differences():
    rows = {
        "fed_avg": _row([0.6, 0.8, 0.9], 0.05),
        "ours": _row([0.75, 0.7, 0.9], 0.05),
    }
    actual = gains(_comparison(rows), "ours", "fed_avg", _ACCURACY)
    assert actual["a"].mean == pytest.approx(0.15)
    assert actual["b"].mean == pytest.approx(-0.1)
    # Both methods have the same client noise, which cancels in differences.
    assert actual["a"].spread.client_variance == pytest.approx(0, abs=1e-12)
    # The worst domain is a with FedAvg, and b with ours.
    assert actual[WORST].mean == pytest.approx(0.1)
    drawn = [
        np.array([entry.values["accuracy"][:, :3].min(axis=1) for entry in rows[r].resampled])
        for r in rows
    ]
    expected = np.var((drawn[1] - drawn[0]).mean(axis=0), ddof=1) * 25 / 24
    assert actual[WORST].spread.client_variance == pytest.approx(expected)


def test_equal_means_are_tied():
    rows = {row: _row([0.6, 0.8, 0.9], 0.1, seed=0) for row in ("fed_avg", "ours")}
    assert tied(_comparison(rows), "a", _ACCURACY) == {"ours"}


def test_estimates_stay_within_measure_and_need_clients():
    comparison = _comparison({"ours": _row([0.97, 0.8, 0.02], 0.2)})
    trials = comparison.trials["ours"]
    for name in _NAMES:
        _, (low, high) = attained(trials, _NAMES, name, _ACCURACY)
        assert 0 <= low < high <= 1
    few = [dataclasses.replace(entry, clients=np.full(4, 2.0)) for entry in trials.resampled]
    assert attained(dataclasses.replace(trials, resampled=few), _NAMES, "a", _ACCURACY)[1] is None


def test_groups_with_few_clients_are_tied():
    rows = {"fed_avg": _row([0.6, 0.8, 0.9], 0.05), "ours": _row([0.4, 0.8, 0.9], 0.05)}
    for name, trials in rows.items():
        few = [dataclasses.replace(entry, clients=np.full(4, 2.0)) for entry in trials.resampled]
        rows[name] = dataclasses.replace(trials, resampled=few)
    assert tied(_comparison(rows), "a", _ACCURACY) == {"ours"}


@pytest.mark.parametrize(("paired", "resampled"), [(False, True), (True, False)])
def test_unpaired_or_not_resampled_gains_lack_spread(paired, resampled):
    rows = {"ours": _row([0.7, 0.7, 0.9], 0.05)}
    rows["theirs"] = _row([0.6, 0.8, 0.9], 0.05, resampled, seeds=(1, 2, 3 if paired else 4))
    actual = gain(_comparison(rows), "ours", "theirs", "a", _ACCURACY)
    assert actual.mean == pytest.approx(0.1)
    assert (actual.spread is None) == (not paired)
    assert not actual.has_clients
    assert actual.has_seeds == paired


def test_shared_sentences_appear_once():
    rows = {"fed_avg": _row([0.6, 0.8, 0.9], 0.05)}
    rows["ours"] = _row([0.8, 0.8, 0.9], 0.04, seed=1)
    rows["other"] = _row([0.6, 0.8, 0.9], 0.04, seed=2)
    lines = verdicts(_comparison(rows))
    assert lines[0].startswith("Ours is better than fed_avg in the worst domain (a)")
    assert sum(line.startswith("Intervals are of 95%") for line in lines) == 1
    # Each method has its own sentences.
    rows["third"] = _row([0.6, 0.8, 0.9], 0.04, seed=3)
    rows["worse"] = _row([0.3, 0.8, 0.9], 0.04, seed=4)
    lines = verdicts(_comparison(rows))
    for name in ("Ours", "other", "third"):
        assert f"No domain is significantly worse off with {name}." in lines
    assert any(line.startswith("No significant difference between other and") for line in lines)
    assert verdicts(_comparison({"ours": rows["ours"]})) == []


def test_recommendation_states_values_of_its_model():
    rows = {"fed_avg": _row([0.6, 0.8, 0.9], 0.05), "ours": _row([0.75, 0.7, 0.9], 0.05)}
    comparison = _comparison(rows)
    objective = parse_objective("worst:accuracy", comparison.measures, _NAMES)
    nothing: Any = None

    def first_line(choice):
        return Recommendation(nothing, objective, choice, None, comparison).verdict[0]

    first = first_line("ours")
    assert first == (
        "The recommended model, of the first seed, has accuracy 69.9% in its worst domain (b) and "
        "78.2% on all examples of the test clients; FedAvg of the same seed has 59.9% in its worst "
        "domain (a) and 76.6% on all examples."
    )
    first = first_line(None)
    assert first.endswith(
        "59.9% in its worst domain (a) and 76.6% on all examples of the test clients."
    )
    # A domain without a number is not the worst.
    rows["fed_avg"].values["a"]["accuracy"] = np.full(3, np.nan)
    first = first_line(None)
    assert "79.9% in its worst domain (b)" in first


def test_methods_are_compared_with_the_majority_class():
    rows = {"fed_avg": _row([0.5, 0.8, 0.9], 0.05), "ours": _row([0.6, 0.8, 0.9], 0.05, seed=1)}
    for name, trials in rows.items():
        rows[name] = dataclasses.replace(trials, class_counts={"a": (60, 40)})
    lines = verdicts(_comparison(rows))
    expected = "accuracy is not above that of always answering the most frequent class in 1 of 3"
    assert [line.split(":")[0] for line in lines if expected in line] == ["fed_avg", "Ours"]
    # The verdict begins with the worst domain.
    assert "in the worst domain" in lines[0]


@pytest.mark.parametrize("names", [_NAMES, AWKWARD_NAMES[:3]])
def test_figure_has_domains_before_and_after(names):
    rows = {"fed_avg": _row([0.6, 0.8, 0.9], 0.02), "ours": _row([0.75, 0.8, 0.9], 0.02, seed=1)}
    for trials in rows.values():
        for old, new in zip(_NAMES, names):
            trials.values[new] = trials.values.get(old, trials.values.get(new))
    comparison = _comparison(rows, names)
    domain_gains = gains(comparison, "ours", "fed_avg", _ACCURACY)
    figure = verdict_figure(comparison, "ours", "fed_avg", _ACCURACY, domain_gains)
    before, gained = figure.axes
    assert len(before.get_yticks()) == len(gained.get_yticks()) == 3
    assert gained.get_legend_handles_labels()[1] == ["better", "no significant difference"]
    assert svg(Figure("", lambda: figure))
    # Without an interval, no difference is certain.
    few = {name: dataclasses.replace(entry, clients=2.0) for name, entry in domain_gains.items()}
    _, gained = verdict_figure(comparison, "ours", "fed_avg", _ACCURACY, few).axes
    assert gained.get_legend_handles_labels()[1] == ["no interval"]


# Only domain a has a lambda near 0.
_LAMBDA = {"lambda/a": 0.01, "lambda/b": 0.49, "lambda/c": 0.5}


@pytest.mark.parametrize(
    ("clients", "worse", "expected"),
    [
        (25.0, -0.3, "Ours neglects a: accuracy 30.0%, fed_avg 60.0%, and lambda 0.01 in the mean"),
        (
            2.0,
            -0.3,
            "Ours may neglect a (too few test clients for an interval (worth 2.0)): accuracy "
            "30.0%, fed_avg 60.0%, and lambda 0.01 in",
        ),
        (2.0, 0.1, None),
    ],
)
def test_neglected_domains_are_named(clients, worse, expected):
    rows = {
        "fed_avg": _row([0.6, 0.8, 0.9], 0.05),
        "ours": _row([0.6 + worse, 0.7, 0.9], 0.05, seed=1),
    }
    history = {name: np.full(10, value) for name, value in _LAMBDA.items()}
    for name, trials in rows.items():
        drawn = [
            dataclasses.replace(entry, clients=np.full(4, clients)) for entry in trials.resampled
        ]
        rows[name] = dataclasses.replace(trials, histories=[history] * 3, resampled=drawn)
    runs = {
        "fed_avg": resolve("digits", {"algorithm": "fed_avg"}, {}),
        "ours": resolve("digits", {"algorithm": "agnostic_fed_avg"}, {}),
    }
    lines = neglected(_comparison(rows), runs)
    assert len(lines) == (expected is not None)
    assert not lines or lines[0].startswith(expected)
    # Domain b is also worse, but its lambda is not near 0.
    assert not any("neglects b" in line for line in lines)
