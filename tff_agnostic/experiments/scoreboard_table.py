"""The scoreboard's numbers: what each row attains on the test clients, and how the choice stands.

Pure functions of a comparison of all rows on the test clients. Nothing is chosen here: the settings
and recommend's choice are from the validation clients.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Optional

from tff_agnostic.metrics.intervals import Interval
from tff_agnostic.models.model import Measure
from tff_agnostic.report_fields import Unit
from tff_agnostic.studies.choice import REGRET, attained
from tff_agnostic.studies.comparison import OVERALL, WORST, Comparison
from tff_agnostic.studies.gains import Gain, gain, worst_of
from tff_agnostic.studies.methods import BASELINE
from tff_agnostic.studies.search_space import Objective, Term

# How far recommend may be from the best row: 2 points of a share, .05 nats of a loss.
_POINTS, _NATS = 0.02, 0.05


@dataclasses.dataclass(frozen=True)
class Line:
    """A row of the table, on the test clients.

    Attributes:
        label: What the row is called.
        worst: What it attains in its worst domain, the mean over the seeds.
        worst_domain: Which one that is, in the mean over the seeds.
        gain: By how much it is better than FedAvg there; 0 of FedAvg itself.
        interval: The 95% interval of the gain; None without one.
        regret: By how much the domain that is furthest from the best row there lacks it.
        overall: Of all examples together.
        pays: The domains that are worse than with FedAvg beyond the interval, which holds for all
            domains at once.
        settings: How many settings were tried.
        seeds: How many seeds it was trained anew with.
        seconds: Of all its runs, with references.
    """

    label: str
    worst: Optional[float]
    worst_domain: str
    gain: Optional[float]
    interval: Interval
    regret: Optional[float]
    overall: Optional[float]
    pays: tuple[str, ...]
    settings: int
    seeds: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Standing:
    """How recommend stands on a data set.

    Attributes:
        is_worse: Whether it is worse than FedAvg in the worst domain, beyond the interval.
        best: The row that is best in the worst domain.
        behind: By how much that row is better than the choice there: of a factor, such as
            perplexity, the logarithm; 0 if it is the choice.
        interval: The 95% interval of the difference as it was measured; None without one.
        is_near: Whether the choice is as near to the best row as is aimed at: within 2 points,
            .05 nats, or the interval.
    """

    is_worse: bool
    best: str
    behind: float
    interval: Interval
    is_near: bool


def regret_of(measure: Measure) -> Objective:
    """Returns the worst regret by a measure, as an objective."""
    return Objective((Term(1.0, REGRET, measure),))


def line(comparison: Comparison, row: str, measure: Measure, tried: int, seconds: float) -> Line:
    """Returns a row of the table.

    Args:
        comparison: All rows on the test clients.
        row: Which.
        measure: What was measured.
        tried: How many settings were tried.
        seconds: Of all its runs.
    """
    trials, names = comparison.trials[row], comparison.domain_names
    regret = float(attained(comparison, row, regret_of(measure)).values.mean())
    of_worst = gain(comparison, row, BASELINE, WORST, measure)
    is_baseline = row == BASELINE
    return Line(
        comparison.label(row),
        _known(trials.mean(WORST, measure.name)),
        worst_of(trials, names, measure),
        0.0 if is_baseline else _known(of_worst.mean),
        None if is_baseline else of_worst.interval(),
        _known(-regret if measure.higher_is_better else regret),
        _known(trials.mean(OVERALL, measure.name)),
        () if is_baseline else payers(comparison, row, measure),
        tried,
        len(trials.seeds),
        seconds,
    )


def payers(comparison: Comparison, row: str, measure: Measure) -> tuple[str, ...]:
    """Returns the domains that are shown to be worse than with FedAvg, all at once."""
    names = comparison.domain_names
    of_domains = {name: gain(comparison, row, BASELINE, name, measure) for name in names}
    known = {name: of for name, of in of_domains.items() if not math.isnan(of.mean)}
    return tuple(name for name, of in known.items() if of.told(len(known)) < 0)


def standing(comparison: Comparison, choice: str, measure: Measure) -> Standing:
    """Returns how a choice stands beside FedAvg and beside the best row.

    Args:
        comparison: All rows on the test clients.
        choice: The row that was chosen on validation clients.
        measure: What was measured.
    """
    means = {row: of.mean(WORST, measure.name) for row, of in comparison.trials.items()}
    known = {row: mean for row, mean in means.items() if not math.isnan(mean)}
    best = choice
    for row, mean in known.items():
        is_better = mean > known[best] if measure.higher_is_better else mean < known[best]
        best = row if is_better else best
    is_worse = choice != BASELINE and gain(comparison, choice, BASELINE, WORST, measure).told() < 0
    if best == choice:
        return Standing(is_worse, best, 0.0, None, True)
    of_best = gain(comparison, best, choice, WORST, measure)
    behind = _distance(of_best, measure)
    most = _POINTS if measure.unit is Unit.SHARE else _NATS
    is_near = behind <= most or of_best.is_open or of_best.told() < 0
    return Standing(is_worse, best, behind, of_best.interval(), is_near)


def _distance(of_best: Gain, measure: Measure) -> float:
    if measure.unit is Unit.FACTOR:
        return abs(math.log(of_best.after / of_best.before))
    return of_best.mean


def _known(value: float) -> Optional[float]:
    return value if math.isfinite(value) else None
