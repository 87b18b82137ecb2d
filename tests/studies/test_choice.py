"""Choices of a method: objectives by hand, the surest significant gain, or else FedAvg."""

import dataclasses
import math

import numpy as np
import pytest

from tests.support import golden
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.intervals import Resampled, Spread
from tff_agnostic.models.model import Measure
from tff_agnostic.program.studies.choice import (
    Standing,
    attained,
    best_looking,
    chosen,
    clearly_worse,
    judged,
    parse_share,
    worse,
)
from tff_agnostic.program.studies.comparison import OVERALL, WORST, Comparison, Trials
from tff_agnostic.program.studies.comparison_page import notes
from tff_agnostic.program.studies.gains import Estimates, Gain, difference
from tff_agnostic.program.studies.portfolio import Schedule, SearchResults, _equal_rows
from tff_agnostic.program.studies.recommendation import Recommendation
from tff_agnostic.program.studies.search_space import parse_objective
from tff_agnostic.program.studies.verdict import why_no_interval

_NAMES = ("a", "b", "c")
_MEASURES = {
    "loss": Measure("loss", Unit.NONE, False),
    "accuracy": Measure("accuracy", Unit.SHARE, True),
}


def _trials(rng, seeds=4, replicates=50):
    values = {m: rng.uniform(0.2, 0.9, size=[seeds, len(_NAMES) + 1]) for m in _MEASURES}
    by_name = {
        name: {m: entry[:, i] for m, entry in values.items()}
        for i, name in enumerate((*_NAMES, OVERALL))
    }
    by_name[WORST] = {"loss": values["loss"][:, :3].max(axis=1)}
    by_name[WORST]["accuracy"] = values["accuracy"][:, :3].min(axis=1)
    drawn = [
        Resampled(
            {m: entry[k] + 0.01 * rng.normal(size=[replicates, 4]) for m, entry in values.items()},
            np.full([4], 30.0),
        )
        for k in range(seeds)
    ]
    tail = {"superquantile": {m: rng.uniform(size=[seeds]) for m in _MEASURES}}
    trials = Trials(by_name, [], over_clients=tail, resampled=drawn, seeds=list(range(seeds)))
    return trials, values, np.array([[entry.values[m] for entry in drawn] for m in _MEASURES])


@pytest.mark.parametrize("measure", list(_MEASURES))
def test_objectives_equal_values_by_hand(measure):
    rng = np.random.default_rng(1)
    ours, values, drawn = _trials(rng)
    theirs, other, _ = _trials(rng)
    comparison = Comparison(_NAMES, _MEASURES, {"ours": ours, "fed_avg": theirs})
    index = list(_MEASURES).index(measure)
    # Regret is a domain's value minus the best mean that any method has there.
    pick, elementwise_best = (np.max, np.minimum) if measure == "loss" else (np.min, np.maximum)
    best = elementwise_best(values[measure][:, :3].mean(axis=0), other[measure][:, :3].mean(axis=0))
    regret = pick(values[measure][:, :3] - best, axis=1)
    actual = attained(comparison, "ours", _objective(f"regret:{measure}"))
    np.testing.assert_allclose(actual.values, regret)
    np.testing.assert_allclose(actual.replicates, pick(drawn[index][..., :3] - best, axis=-1))

    mixed = attained(comparison, "ours", _objective(f"3*regret:{measure}+overall:{measure}"))
    np.testing.assert_allclose(mixed.values, 0.75 * regret + 0.25 * values[measure][:, 3])
    assert mixed.replicates.shape == drawn[index].shape[:2]

    tail = attained(comparison, "ours", _objective(f"superquantile:{measure}"))
    assert tail.replicates is None
    domain_values = attained(comparison, "ours", _objective(f"domain(b):{measure}"))
    np.testing.assert_allclose(domain_values.values, values[measure][:, 1])

    # The average's loss is in points of a share, and else a fraction of FedAvg's average.
    after, before = values[measure][:, 3].mean(), other[measure][:, 3].mean()
    standing = judged(comparison, _objective(f"worst:{measure}"), "fed_avg")["ours"]
    expected = before - after if measure == "accuracy" else after / before - 1
    assert standing.loss == pytest.approx(expected)


def test_regret_without_counted_domains_is_undefined():
    trials, _, _ = _trials(np.random.default_rng(3))
    few = dataclasses.replace(trials, not_counted=_NAMES)
    comparison = Comparison(_NAMES, _MEASURES, {"ours": few, "fed_avg": trials})
    regret = attained(comparison, "ours", _objective("regret"))
    assert np.isnan(regret.values).all() and regret.replicates is None
    standing = judged(comparison, _objective("regret"), "fed_avg")["ours"]
    assert math.isnan(standing.gain.mean) and chosen({"ours": standing}) is None


def test_method_that_equals_fed_avg_is_found():
    rng = np.random.default_rng(4)
    (base, _, _), (other, _, _) = _trials(rng, seeds=1), _trials(rng, seeds=1)
    trials = {"fed_avg-1": base, "uniform-2": base, "frozen-1": other}
    tried = Comparison(_NAMES, _MEASURES, trials)
    assert _equal_rows(tried, {"fed_avg": 0, "uniform": 1, "frozen": 0}) == ["uniform"]


def test_surest_significant_gain_is_chosen():
    rows = {
        "large": _judged(0.2, 0.08, loss=0.02),
        "sure": _judged(0.1, 0.01, loss=0.0),
        "costly": _judged(0.15, 0.01, loss=0.1),
        "doubtful": _judged(0.3, 0.2),
        "worse": _judged(-0.1, 0.01),
    }
    assert chosen(rows) == "costly"
    assert chosen(rows, 0.05) == "sure"
    assert chosen({n: rows[n] for n in ("doubtful", "worse")}) is None
    assert chosen({"unknown": Standing(Gain("", 0.5, 0.9, 0.4, None, math.nan), 0.0)}) is None
    # If a model diverged for some clients, the gain covers the other clients only.
    rows["costly"] = dataclasses.replace(rows["costly"], is_whole=False)
    assert chosen(rows) == "sure"
    assert chosen({}) is None
    assert worse(rows) == {"worse"}


def test_method_with_more_diverged_clients_is_excluded():
    ours, *_ = _trials(np.random.default_rng(1))
    theirs, *_ = _trials(np.random.default_rng(2))
    for ours_lost, theirs_lost, is_whole in ((2, 0, False), (2, 3, True)):
        rows = {
            "ours": dataclasses.replace(ours, non_finite=ours_lost),
            "fed_avg": dataclasses.replace(theirs, non_finite=theirs_lost),
        }
        comparison = Comparison(_NAMES, _MEASURES, rows)
        actual = judged(comparison, _objective("worst:accuracy"), "fed_avg")
        assert actual["ours"].is_whole == is_whole
        warned = [line for line in notes(comparison) if "are not finite and count nowhere" in line]
        assert len(warned) == (ours_lost > 0) + (theirs_lost > 0)


@pytest.mark.parametrize(
    ("unit", "before", "most"),
    [(Unit.SHARE, 0.7, 0.02), (Unit.NONE, 0.7, 0.05), (Unit.FACTOR, 96.7, 96.7 * 0.0512711)],
)
def test_only_significantly_far_methods_are_dropped(unit, before, most):
    def row(gain, error):
        return Standing(dataclasses.replace(_judged(gain, error).gain, before=before), 0.0)

    rows = {
        # This method is significantly worse, but by so little that another of its settings may be
        # the best.
        "hardly": row(-0.2 * most, 0.01 * most),
        "perhaps": row(-2.0 * most, 0.6 * most),
        "far": row(-2.0 * most, 0.4 * most),
        "beyond": row(-1.01 * most, 0.001 * most),
        "better": row(2.0 * most, 0.001 * most),
        "unknown": Standing(Gain("", before, 0.0, before, None, math.nan), 0.0),
    }
    assert worse(rows) == {"hardly", "perhaps", "far", "beyond"}
    assert clearly_worse(rows, unit) == {"far", "beyond"}


def test_methods_within_the_limit_come_first():
    rows = {
        "costly": _judged(0.3, 0.2, loss=0.1),
        "unknown": _judged(0.2, 0.2, loss=math.nan),
        "small": _judged(0.01, 0.2, loss=0.05),
        "better": _judged(0.02, 0.2, loss=-0.01),
    }
    assert best_looking(rows, 2) == ["costly", "unknown"]
    assert best_looking(rows, 3, 0.05) == ["better", "small", "costly"]
    assert best_looking({}, 2, 0.0) == []


def _sentences(rows, choice=None, may_lose=None):
    """Returns the recommendation of a search whose methods have these gains."""
    rng = np.random.default_rng(3)
    trials = {row: _trials(rng)[0] for row in ("fed_avg", *rows)}
    labels = {row: row.upper() for row in rows}
    changes = {row: {"client_learning_rate": 0.5} for row in trials}
    comparison = Comparison(_NAMES, _MEASURES, trials, labels=labels, split="heldout")
    searched = SearchResults(comparison, rows, comparison, changes, {}, Schedule(1, 4))
    objective = _objective("worst:accuracy")
    return Recommendation(searched, objective, choice, may_lose, comparison).sentences


@golden.text
def test_recommendations_have_known_sentences():
    rows = {"sure": _judged(0.2, 0.01, loss=0.031), "other": _judged(0.3, 0.01, loss=0.1)}
    assert chosen(rows, 0.03) is None and chosen(rows, 0.04) == "sure"
    sure = _judged(0.2, 0.01)
    few = dataclasses.replace(sure, gain=dataclasses.replace(sure.gain, clients=1.7))
    diverged = {"sure": dataclasses.replace(sure, is_whole=False)}
    two = Gain("worst", 0.5, 0.9, 0.4, Spread(0.4, math.nan, 0.1, 0.1, 1.0), math.nan, 1.0, 2)
    texts = {
        "no method within the limit": _sentences(rows, None, 0.03),
        "a method within a larger limit": _sentences(rows, "sure", 0.04),
        "too few validation clients": _sentences({"few": few}),
        "a diverged method under a limit": _sentences(diverged, None, 0.03),
        "two trials": _sentences({"wide": Standing(two, 0.0)}),
    }
    return "\n\n".join("\n".join([f"# {name}", *lines]) for name, lines in texts.items())


def _judged(mean, error, loss=0.0):
    spread = Spread(mean, error**2, 0.0, error**2, 30.0)
    return Standing(Gain("worst", 0.5, 0.5 + mean, mean, spread, 40.0), loss)


def _objective(text):
    return parse_objective(text, _MEASURES, _NAMES, ("regret",))


# Student's 97.5% quantiles of 1 and 2 degrees of freedom are 12.706 and 4.303.
@pytest.mark.parametrize(
    ("changes", "unit", "interval"),
    [
        ((0.1, 0.6), Unit.SHARE, None),
        ((0.1, 0.6), Unit.NONE, (0.35 - 12.706 * 0.25, 0.35 + 12.706 * 0.25)),
        ((0.1, 0.12), Unit.SHARE, (0.11 - 12.706 * 0.01, 0.11 + 12.706 * 0.01)),
        ((0.8, 0.9), Unit.SHARE, (0.85 - 12.706 * 0.05, 1.0)),
        ((-0.2, 0.2, 1.0), Unit.SHARE, (-1.0, 1.0)),
    ],
)
def test_intervals_stay_within_possible_gains(changes, unit, interval):
    before = np.zeros(len(changes))
    seeds = tuple(range(len(changes)))
    ours, theirs = (
        Estimates(values, None, math.nan, seeds) for values in (before + changes, before)
    )
    gain = difference("worst", ours, theirs, True, unit)
    assert gain.interval() == (None if interval is None else pytest.approx(interval, abs=1e-4))
    assert gain.has_too_few_trials == (interval is None)
    assert gain.is_open == (gain.direction() == 0)
    # Limits do not change the direction.
    assert gain.direction() == difference("worst", ours, theirs, True, Unit.NONE).direction()


def test_equal_differences_have_no_interval():
    for trials, where in ((1, "for all clients"), (2, "in both trials"), (5, "in all trials")):
        same = Gain("worst", 0.5, 0.9, 0.4, Spread(0.4, 0.0, 0.0, 0.0, 1.0), 30.0, 1.0, trials)
        reason = f"no interval: the difference is the same {where}"
        assert why_no_interval(same, "heldout") == reason


def test_text_of_a_share_is_parsed_or_rejected():
    shares = [parse_share("--x", text) for text in ("0.5%", "0", " 3 %")]
    assert shares == pytest.approx([0.005, 0.0, 0.03])
    for text in ("-1%", "much"):
        message = golden.refusal(parse_share, "--x", text)
        assert message.startswith("--x: expected a share from 0 to 1, such as")
