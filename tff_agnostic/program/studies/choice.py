"""Which of several rows to recommend: the best one that is shown to be better than FedAvg.

Rows are judged on validation clients by an objective: a weighted mean of numbers that a user wants
to be good. The choice is the row whose gain over FedAvg is surest, that is, whose 95% interval
begins highest, among those whose average loses no more than is allowed. Where no interval lies
above 0, FedAvg is the choice: what is not shown to help is not handed over.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.models.model import Measure
from tff_agnostic.program.studies.comparison import OVERALL, WORST, Comparison, Trials
from tff_agnostic.program.studies.gains import Estimates, Gain, difference, estimates
from tff_agnostic.program.studies.search_space import Objective, Term

REGRET = "regret"
# What counts as near: 2 points of a share, .05 of anything else, of a factor of its logarithm.
_POINTS, _NATS = 0.02, 0.05
_GROUPS = {"worst": WORST, "overall": OVERALL}


@dataclasses.dataclass(frozen=True)
class Judged:
    """A row beside FedAvg.

    Attributes:
        gain: By the objective.
        loss: What its average loses: of a share in points of 1, otherwise as a share of FedAvg's.
        is_whole: Whether as many clients had finite numbers as with FedAvg: others count nowhere.
    """

    gain: Gain
    loss: float
    is_whole: bool = True

    def may_be_chosen(self, may_lose: Optional[float]) -> bool:
        """Returns whether its average loses no more than that; any part may be lost if None.

        Never if it diverged for clients for which FedAvg did not.
        """
        return self.is_whole and (may_lose is None or self.loss <= may_lose)


def best_attained(comparison: Comparison, measure_name: str) -> dict[str, float]:
    """Returns the best mean that any row attains in each domain; NaN where none has a value."""
    pick = max if comparison.measures[measure_name].higher_is_better else min
    found = {}
    for name in comparison.domain_names:
        means = [of.mean(name, measure_name) for of in comparison.trials.values()]
        found[name] = pick((mean for mean in means if not math.isnan(mean)), default=math.nan)
    return found


def attained(comparison: Comparison, row: str, objective: Objective) -> Estimates:
    """Returns what a row attains by an objective, as its measures are: of a loss, lower is better.

    Regret is what a domain lacks to the best that any row attains there, which counts as known.
    """
    terms = [_of_term(comparison, row, term) for term in objective.terms]
    weights = np.array([term.weight for term in objective.terms])
    drawn = [of.replicates for of in terms if of.replicates is not None]
    return Estimates(
        np.tensordot(weights, np.array([of.values for of in terms]), 1),
        np.tensordot(weights, np.array(drawn), 1) if len(drawn) == len(terms) else None,
        min(of.clients for of in terms),
        terms[0].seeds,
        all(of.is_smooth for of in terms),
    )


def _of_term(comparison: Comparison, row: str, term: Term) -> Estimates:
    trials, names, measure = comparison.trials[row], comparison.domain_names, term.measure
    if term.statistic == REGRET:
        return _regret(trials, best_attained(comparison, measure.name), measure)
    if term.statistic in _GROUPS or term.domain is not None:
        return estimates(trials, names, _GROUPS.get(term.statistic, str(term.domain)), measure)
    # Of a distribution over clients there are no replicates: its interval is over seeds.
    values = np.asarray(trials.over_clients[term.statistic][measure.name])
    return Estimates(values, None, math.nan, tuple(trials.seeds), is_smooth=False)


def _regret(trials: Trials, best: Mapping[str, float], measure: Measure) -> Estimates:
    """Returns what the domain that is furthest from the best has more, or less, than it."""
    counted = [n for n in best if n not in trials.not_counted and not math.isnan(best[n])]
    each = [estimates(trials, tuple(best), name, measure) for name in counted]
    if not each:
        nothing = np.full(len(trials.seeds), math.nan)
        return Estimates(nothing, None, math.nan, tuple(trials.seeds), is_smooth=False)
    pick = np.min if measure.higher_is_better else np.max
    values = np.array([of.values - best[name] for name, of in zip(counted, each)])
    drawn = [
        of.replicates - best[name] for name, of in zip(counted, each) if of.replicates is not None
    ]
    replicates = pick(np.array(drawn), axis=0) if len(drawn) == len(each) else None
    worst = int((np.argmin if measure.higher_is_better else np.argmax)(values.mean(axis=1)))
    clients, seeds = each[worst].clients, tuple(trials.seeds)
    return Estimates(pick(values, axis=0), replicates, clients, seeds, is_smooth=False)


def judged(comparison: Comparison, objective: Objective, baseline: str) -> dict[str, Judged]:
    """Returns each row but one beside that one.

    Args:
        baseline: The row that others are compared with, FedAvg's.
    """
    theirs, measure = attained(comparison, baseline, objective), objective.terms[0].measure
    average = comparison.trials[baseline].mean(OVERALL, measure.name)
    scale = 1.0 if measure.unit is Unit.SHARE else abs(average)
    found = {}
    for row in comparison.trials:
        if row == baseline:
            continue
        change = comparison.trials[row].mean(OVERALL, measure.name) - average
        loss = (-change if measure.higher_is_better else change) / (scale or 1.0)
        ours = attained(comparison, row, objective)
        better, unit = objective.higher_is_better, objective.unit
        gain = difference(objective.name, ours, theirs, better, unit)
        is_whole = comparison.trials[row].non_finite <= comparison.trials[baseline].non_finite
        found[row] = Judged(gain, loss, is_whole)
    return found


def chosen(rows: Mapping[str, Judged], may_lose: Optional[float] = None) -> Optional[str]:
    """Returns the row whose gain is surest, of those that are shown to gain; None if none is.

    Args:
        rows: Those that may be chosen.
        may_lose: How much of the average may be lost; see `Judged`. Any part if None.
    """
    sure = {}
    for row, of in rows.items():
        interval = of.gain.interval()
        if interval is not None and interval[0] > 0 and of.may_be_chosen(may_lose):
            sure[row] = interval[0]
    return max(sure, key=lambda row: sure[row]) if sure else None


def best_looking(
    rows: Mapping[str, Judged], number: int, may_lose: Optional[float] = None
) -> list[str]:
    """Returns so many rows that look best: first those that may be chosen, then by their gains.

    Args:
        rows: By one trial of each.
        number: How many at most.
        may_lose: See `chosen`.
    """

    def rank(row: str) -> tuple[bool, float]:
        return not rows[row].may_be_chosen(may_lose), -rows[row].gain.mean

    return sorted(rows, key=rank)[:number]


def near(better: float, unit: Unit) -> float:
    """Returns by how much a row may be worse than a better one, and still count as near to it.

    Args:
        better: What the better row attains.
        unit: What its numbers are.
    """
    if unit is Unit.FACTOR:
        return better * math.expm1(_NATS)
    return _POINTS if unit is Unit.SHARE else _NATS


def worse(rows: Mapping[str, Judged]) -> frozenset[str]:
    """Returns the rows that are shown to be worse than FedAvg, by any amount."""
    return frozenset(row for row, of in rows.items() if of.gain.told() < 0)


def clearly_worse(rows: Mapping[str, Judged], unit: Unit) -> frozenset[str]:
    """Returns the rows that are shown not to be near FedAvg: other settings of them are wasted.

    A row that is hardly worse may be the best one at another setting. Many clients show even a
    difference of nothing: on 284 clients, a perplexity of 96.9 is worse than 96.7.
    """
    intervals = {row: of.gain.interval() for row, of in rows.items()}
    return frozenset(
        row
        for row, interval in intervals.items()
        if interval is not None and interval[1] < -near(rows[row].gain.before, unit)
    )


def share_of(flag: str, text: str) -> float:
    """Returns the share that a text names, such as "0.5%" or "0.005"."""
    number, is_percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        share = float(number) / (100 if is_percent else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise UserError(f"{flag}: expected a share from 0 to 1, such as 0.5%, found {text!r}")
    return share
