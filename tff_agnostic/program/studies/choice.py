"""Choice of a method: the surest significant improvement over FedAvg.

Methods are compared on validation clients by an objective, which is a weighted mean of several
numbers. The surest gain over FedAvg is the gain whose 95% interval has the highest lower end.
Methods whose average loses more than allowed are excluded. If no interval is above 0, FedAvg is
chosen.
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
# Maximum differences that count as near, for shares and for other numbers (in nats).
_POINTS, _NATS = 0.02, 0.05
_GROUPS = {"worst": WORST, "overall": OVERALL}


@dataclasses.dataclass(frozen=True)
class Standing:
    """Comparison of a method with FedAvg.

    Attributes:
        gain: Gain in the objective.
        loss: Amount by which the average over all examples is worse than FedAvg's: for shares the
            difference, otherwise a fraction of FedAvg's average.
        is_whole: Whether at least as many clients had finite numbers as with FedAvg.
    """

    gain: Gain
    loss: float
    is_whole: bool = True

    def may_be_chosen(self, may_lose: Optional[float]) -> bool:
        """Whether the average loses at most `may_lose`, or any amount if that is None.

        False if the method diverged for more clients than FedAvg.
        """
        return self.is_whole and (may_lose is None or self.loss <= may_lose)


def best_attained(comparison: Comparison, measure_name: str) -> dict[str, float]:
    """Returns the best mean of any method in each domain; NaN without values."""
    pick = max if comparison.measures[measure_name].higher_is_better else min
    actual = {}
    for name in comparison.domain_names:
        means = [entry.mean(name, measure_name) for entry in comparison.trials.values()]
        actual[name] = pick((mean for mean in means if not math.isnan(mean)), default=math.nan)
    return actual


def attained(comparison: Comparison, row: str, objective: Objective) -> Estimates:
    """Returns the values of a method's objective; of losses, lower values are better.

    Regret is a domain's distance from the best mean of any method. That mean is treated as exact.
    """
    terms = [_term_estimates(comparison, row, term) for term in objective.terms]
    weights = np.array([term.weight for term in objective.terms])
    drawn = [entry.replicates for entry in terms if entry.replicates is not None]
    return Estimates(
        np.tensordot(weights, np.array([entry.values for entry in terms]), 1),
        np.tensordot(weights, np.array(drawn), 1) if len(drawn) == len(terms) else None,
        min(entry.clients for entry in terms),
        terms[0].seeds,
        all(entry.is_smooth for entry in terms),
    )


def _term_estimates(comparison: Comparison, row: str, term: Term) -> Estimates:
    trials, names, measure = comparison.trials[row], comparison.domain_names, term.measure
    if term.statistic == REGRET:
        return _regret(trials, best_attained(comparison, measure.name), measure)
    if term.statistic in _GROUPS or term.domain is not None:
        return estimates(trials, names, _GROUPS.get(term.statistic, str(term.domain)), measure)
    # A distribution over clients has no replicates: its interval is over seeds.
    values = np.asarray(trials.over_clients[term.statistic][measure.name])
    return Estimates(values, None, math.nan, tuple(trials.seeds), is_smooth=False)


def _regret(trials: Trials, best: Mapping[str, float], measure: Measure) -> Estimates:
    """Returns the largest difference of a domain's value from the best mean in the domain.

    NaN if no domain is counted.
    """
    counted = [n for n in best if n not in trials.not_counted and not math.isnan(best[n])]
    each = [estimates(trials, tuple(best), name, measure) for name in counted]
    if not each:
        nothing = np.full(len(trials.seeds), math.nan)
        return Estimates(nothing, None, math.nan, tuple(trials.seeds), is_smooth=False)
    pick = np.min if measure.higher_is_better else np.max
    values = np.array([entry.values - best[name] for name, entry in zip(counted, each)])
    drawn = [
        entry.replicates - best[name]
        for name, entry in zip(counted, each)
        if entry.replicates is not None
    ]
    replicates = pick(np.array(drawn), axis=0) if len(drawn) == len(each) else None
    worst = int((np.argmin if measure.higher_is_better else np.argmax)(values.mean(axis=1)))
    clients, seeds = each[worst].clients, tuple(trials.seeds)
    return Estimates(pick(values, axis=0), replicates, clients, seeds, is_smooth=False)


def judged(comparison: Comparison, objective: Objective, baseline: str) -> dict[str, Standing]:
    """Returns the standing of each method except the baseline."""
    theirs, measure = attained(comparison, baseline, objective), objective.terms[0].measure
    average = comparison.trials[baseline].mean(OVERALL, measure.name)
    scale = 1.0 if measure.unit is Unit.SHARE else abs(average)
    actual = {}
    for row in comparison.trials:
        if row == baseline:
            continue
        change = comparison.trials[row].mean(OVERALL, measure.name) - average
        loss = (-change if measure.higher_is_better else change) / (scale or 1.0)
        ours = attained(comparison, row, objective)
        better, unit = objective.higher_is_better, objective.unit
        gain = difference(objective.name, ours, theirs, better, unit)
        is_whole = comparison.trials[row].non_finite <= comparison.trials[baseline].non_finite
        actual[row] = Standing(gain, loss, is_whole)
    return actual


def chosen(rows: Mapping[str, Standing], may_lose: Optional[float] = None) -> Optional[str]:
    """Returns the method with the surest significant gain; None if there is none.

    Args:
        rows: The candidates.
        may_lose: Largest permitted `Standing.loss`; None for any loss.
    """
    sure = {}
    for row, entry in rows.items():
        interval = entry.gain.interval()
        if interval is not None and interval[0] > 0 and entry.may_be_chosen(may_lose):
            sure[row] = interval[0]
    return max(sure, key=lambda row: sure[row]) if sure else None


def best_looking(
    rows: Mapping[str, Standing], number: int, may_lose: Optional[float] = None
) -> list[str]:
    """Returns the most promising methods, sorted by whether they are admissible, then by gain.

    Args:
        rows: Standing of each method in one trial.
        number: Maximum number of methods.
    """

    def rank(row: str) -> tuple[bool, float]:
        return not rows[row].may_be_chosen(may_lose), -rows[row].gain.mean

    return sorted(rows, key=rank)[:number]


def near(better: float, unit: Unit) -> float:
    """Returns the largest difference at which a method still counts as near a better one."""
    if unit is Unit.FACTOR:
        return better * math.expm1(_NATS)
    return _POINTS if unit is Unit.SHARE else _NATS


def worse(rows: Mapping[str, Standing]) -> frozenset[str]:
    """Returns the methods that are significantly worse than FedAvg, by any amount."""
    return frozenset(row for row, entry in rows.items() if entry.gain.direction() < 0)


def clearly_worse(rows: Mapping[str, Standing], unit: Unit) -> frozenset[str]:
    """Returns the methods that are significantly and far worse than FedAvg.

    `portfolio` does not try their other settings. A slightly worse method may be best at another
    setting, and with many clients even a tiny difference is significant: on 284 clients, a
    perplexity of 96.9 is worse than 96.7.
    """
    intervals = {row: entry.gain.interval() for row, entry in rows.items()}
    return frozenset(
        row
        for row, interval in intervals.items()
        if interval is not None and interval[1] < -near(rows[row].gain.before, unit)
    )


def parse_share(flag: str, text: str) -> float:
    """Returns the fraction of a string such as "0.5%" or "0.005"."""
    number, is_percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        share = float(number) / (100 if is_percent else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise UserError(f"{flag}: expected a share from 0 to 1, such as 0.5%, found {text!r}")
    return share
