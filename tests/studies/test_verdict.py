"""Sentences and figures of verdicts on made-up gains."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.support import golden
from tests.support.results import AWKWARD_NAMES
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
    """Returns a gain with standard error `error`; seeds cause a fraction of its square."""
    total = error**2
    parts = ((1 - seed_part) * total, seed_part * total) if seed_part < 1 else (math.nan, total)
    spread = Spread(after - before, *parts, total, 30.0)
    return Gain(name, before, after, after - before, spread, clients, trials=trials)


def _sentences(worst, domains, clients=40.0, error=0.02, seed_part=0.3, trials=5):
    small, large = (0.004, 40.0, seed_part, trials), (error, clients, seed_part, trials)
    actual = {n: _gain(n, 0.9, 0.9 + d, *small) for n, d in zip("bc", domains)}
    actual |= {n: _gain(n, 0.6, 0.6 + worst, *large) for n in ("a", WORST)}
    actual[OVERALL] = _gain(OVERALL, 0.9, 0.902, *small)
    context = ClaimContext("Ours", "FedAvg", _ACCURACY, "test", "a", "a")
    return "\n".join(verdict(context, actual))


_SEEDS = {"clients": math.nan, "seed_part": 1}


@golden.text
def test_verdicts_have_known_sentences():
    texts = {
        "a gain in the worst domain and a loss in another": _sentences(0.12, (-0.03, 0.001)),
        # It would take twelve times as many trials to show half a point.
        "a small gain over seeds": _sentences(0.005, (0.0, 0.0), error=0.0085, **_SEEDS),
        "a gain in three trials": _sentences(0.03, (0.0, 0.0), trials=3, **_SEEDS),
    }
    # A frontier is not suggested, because it would have no intervals either.
    alone = {n: _gain(n, 0.6, 0.7, 0.02, clients=1.0) for n in ("a", "b", WORST)}
    # FedAvg's worst domain is a, and ours is b, but not significantly. Domain c gains most.
    other = {
        "a": _gain("a", 0.615, 0.65, 0.02),
        "b": _gain("b", 0.936, 0.6, 0.3),
        "c": _gain("c", 0.55, 0.91, 0.3),
        WORST: _gain(WORST, 0.615, 0.6, 0.2),
    }
    few = {n: _gain(n, 0.9, 0.7, 0.004, clients) for n, clients in (("b", 1.7), ("c", 2.3))}
    few |= {n: _gain(n, 0.9, 1.0, 0.004) for n in ("a", WORST)}
    for name, actual, worst in (
        ("an interval for all examples only", alone, "a"),
        ("another worst domain", other, "b"),
        ("two domains without interval", few, "a"),
    ):
        actual[OVERALL] = _gain(OVERALL, 0.9, 0.92, 0.004)
        context = ClaimContext("Ours", "FedAvg", _ACCURACY, "test", worst, "a")
        texts[name] = "\n".join(verdict(context, actual))
    return "\n\n".join(f"# {name}\n{text}" for name, text in texts.items())


def test_intervals_and_needed_data_use_student_quantiles():
    t = stats.t.ppf(0.975, 30)
    ends = f"{12 - 2 * t:+.1f} to {12 + 2 * t:+.1f}"
    assert f"+12.0 points (95% interval {ends})" in _sentences(0.12, (0.0, 0.0))
    clients = 0.7 * 0.02**2 / ((0.03 / t) ** 2 - 0.3 * 0.02**2)
    text = _sentences(0.03, (0.0, 0.0))
    assert f"about {clients:.1f} times the test clients would show it" in text
    trials = math.ceil(5 * (0.02 * t / 0.03) ** 2)
    text = _sentences(0.03, (0.0, 0.0), **_SEEDS)
    assert f"about --trials={trials} would show a difference of this size" in text


def _row(accuracies, noise, resampled=True, seed=0, seeds=(1, 2, 3), clients=25.0):
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
            {"accuracy": np.c_[v + replicates, (v + replicates).mean(axis=1)]}, np.full(4, clients)
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


def test_estimates_need_enough_clients_and_stay_within_limits():
    trials = _row([0.97, 0.8, 0.02], 0.2)
    for name in _NAMES:
        _, (low, high) = attained(trials, _NAMES, name, _ACCURACY)
        assert 0 <= low < high <= 1
    few = _row([0.97, 0.8, 0.02], 0.2, clients=2.0)
    assert attained(few, _NAMES, "a", _ACCURACY)[1] is None


@pytest.mark.parametrize(
    ("accuracy", "clients", "expected"),
    [(0.6, 25.0, {"ours"}), (0.4, 25.0, set()), (0.4, 2.0, {"ours"})],
)
def test_equal_means_and_few_clients_are_tied(accuracy, clients, expected):
    rows = {
        "fed_avg": _row([0.6, 0.8, 0.9], 0.05, clients=clients),
        "ours": _row([accuracy, 0.8, 0.9], 0.05, clients=clients),
    }
    assert tied(_comparison(rows), "a", _ACCURACY) == expected


@pytest.mark.parametrize(("paired", "resampled"), [(False, True), (True, False)])
def test_client_spread_needs_paired_and_resampled_trials(paired, resampled):
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
    assert {f"No domain is significantly worse off with {n}." for n in ("Ours", "other")} < {*lines}
    assert verdicts(_comparison({"ours": rows["ours"]})) == []


def test_recommendation_has_the_values_of_its_model():
    rows = {"fed_avg": _row([0.6, 0.8, 0.9], 0.05), "ours": _row([0.75, 0.7, 0.9], 0.05)}
    comparison = _comparison(rows)
    objective = parse_objective("worst:accuracy", comparison.measures, _NAMES)
    nothing: Any = None

    def first_line(choice):
        return Recommendation(nothing, objective, choice, None, comparison).verdict[0]

    assert first_line("ours") == (
        "The recommended model, of the first seed, has accuracy 69.9% in its worst domain (b) and "
        "78.2% on all examples of the test clients; FedAvg of the same seed has 59.9% in its worst "
        "domain (a) and 76.6% on all examples."
    )
    # A domain without a number does not count as the worst.
    rows["fed_avg"].values["a"]["accuracy"] = np.full(3, np.nan)
    assert "79.9% in its worst domain (b)" in first_line(None)


def test_methods_are_compared_with_the_majority_class():
    rows = {"fed_avg": _row([0.5, 0.8, 0.9], 0.05), "ours": _row([0.6, 0.8, 0.9], 0.05, seed=1)}
    for name, trials in rows.items():
        rows[name] = dataclasses.replace(trials, class_counts={"a": (60, 40)})
    lines = verdicts(_comparison(rows))
    expected = "accuracy is not above that of always answering the most frequent class in 1 of 3"
    assert [line.split(":")[0] for line in lines if expected in line] == ["fed_avg", "Ours"]
    # The verdict begins with the worst domain.
    assert "in the worst domain" in lines[0]


def test_figure_has_domains_before_and_after():
    names = AWKWARD_NAMES[:3]
    rows = {"fed_avg": _row([0.6, 0.8, 0.9], 0.02), "ours": _row([0.75, 0.8, 0.9], 0.02, seed=1)}
    for trials in rows.values():
        for old, new in zip(_NAMES, names):
            trials.values[new] = trials.values[old]
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
        "fed_avg": _row([0.6, 0.8, 0.9], 0.05, clients=clients),
        "ours": _row([0.6 + worse, 0.7, 0.9], 0.05, seed=1, clients=clients),
    }
    history = {name: np.full(10, value) for name, value in _LAMBDA.items()}
    for name, trials in rows.items():
        rows[name] = dataclasses.replace(trials, histories=[history] * 3)
    runs = {
        "fed_avg": resolve("digits", {"algorithm": "fed_avg"}, {}),
        "ours": resolve("digits", {"algorithm": "agnostic_fed_avg"}, {}),
    }
    lines = neglected(_comparison(rows), runs)
    assert len(lines) == (expected is not None)
    assert not lines or lines[0].startswith(expected)
    # Domain b is also worse, but its lambda is not near 0.
    assert not any("neglects b" in line for line in lines)
