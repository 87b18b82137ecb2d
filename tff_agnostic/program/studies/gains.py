"""Gains of one method over another in each domain, with confidence intervals.

Gains are paired differences. Trials with equal seeds share data, cohorts and initial weights, and
replicates of both methods weight test clients equally (see `tff_agnostic.metrics.intervals`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Optional

import numpy as np

from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.intervals import Interval, Spread, combined, has_enough
from tff_agnostic.models.model import Measure
from tff_agnostic.program.studies.comparison import OVERALL, WORST, Comparison, Trials

# With two trials Student's quantile is 12.7, so that an interval may contain every possible gain.
MIN_TRIALS = 3


@dataclasses.dataclass(frozen=True)
class Gain:
    """The gain of one method over another in one group; negative if the method is worse.

    Attributes:
        name: Name of the group: a domain, `OVERALL` or `WORST`.
        before: Mean of the other method over its trials.
        after: Mean of the method over its trials.
        spread: The gain with its variance; None without pairs of trials.
        clients: Effective number of test clients; NaN if clients were not resampled.
        largest: Maximum possible gain and loss; 1 for a share.
    """

    name: str
    before: float
    after: float
    mean: float
    spread: Optional[Spread]
    clients: float
    largest: float = math.inf
    trials: int = MIN_TRIALS

    @property
    def has_clients(self) -> bool:
        """Whether the interval includes the variation over test clients."""
        return self.spread is not None and not math.isnan(self.spread.client_variance)

    @property
    def has_seeds(self) -> bool:
        """Whether the interval includes the variation over seeds."""
        return self.spread is not None and not math.isnan(self.spread.seed_variance)

    @property
    def has_too_few_clients(self) -> bool:
        """Whether the clients are too few for an interval."""
        return not math.isnan(self.clients) and not has_enough(self.clients)

    @property
    def has_too_few_trials(self) -> bool:
        """Whether the trials are too few: an interval would contain every possible gain."""
        return self._holds_all(None if self.spread is None else self.spread.interval())

    @property
    def is_open(self) -> bool:
        """Whether the data do not show which method is better."""
        too_few = self.has_too_few_trials or self.has_too_few_clients
        return not self.direction() and (self.interval() is not None or too_few)

    def _holds_all(self, interval: Interval) -> bool:
        if interval is None or self.trials >= MIN_TRIALS:
            return False
        return interval[0] < -self.largest and self.largest < interval[1]

    def interval(self, tests: int = 1) -> Interval:
        """Returns the interval, limited to possible gains; None with too few clients or trials.

        Args:
            tests: Number of simultaneous intervals, for Bonferroni's inequality.
        """
        if self.spread is None or self.has_too_few_clients:
            return None
        interval = self.spread.interval(tests)
        if interval is None or self._holds_all(interval):
            return None
        return max(interval[0], -self.largest), min(interval[1], self.largest)

    def direction(self, tests: int = 1) -> int:
        """Returns 1 if the group is significantly better off, -1 if it is worse off, else 0."""
        interval = self.interval(tests)
        if interval is None:
            return 0
        return int(interval[0] > 0) - int(interval[1] < 0)


def gains(comparison: Comparison, row: str, baseline: str, measure: Measure) -> Mapping[str, Gain]:
    """Returns the gain in each domain, in `OVERALL` and in `WORST`, by name; see `gain`."""
    names = (*comparison.domain_names, OVERALL, WORST)
    return {name: gain(comparison, row, baseline, name, measure) for name in names}


def gain(comparison: Comparison, row: str, baseline: str, name: str, measure: Measure) -> Gain:
    """Returns the gain of a method over another in one group.

    If the trials of both methods have different seeds, the gain has no interval.
    """
    names, sides = comparison.domain_names, (comparison.trials[row], comparison.trials[baseline])
    ours, theirs = (estimates(entry, names, name, measure) for entry in sides)
    return difference(name, ours, theirs, measure.higher_is_better, measure.unit)


@dataclasses.dataclass(frozen=True, eq=False)
class Estimates:
    """A method's values in a group, for each trial and for each resampling of clients.

    Attributes:
        values: Value in each trial, [K].
        replicates: Value in each replicate, [K, B]; None if clients were not resampled.
        clients: Effective number of clients; NaN if they were not resampled.
        is_smooth: See `intervals.combined`.
    """

    values: np.ndarray
    replicates: Optional[np.ndarray]
    clients: float
    seeds: tuple[int, ...]
    is_smooth: bool = True


def estimates(trials: Trials, names: Sequence[str], name: str, measure: Measure) -> Estimates:
    """Returns the values of a method in a domain, `OVERALL` or `WORST`."""
    replicates = _replicates(trials, names, name, measure)
    clients = math.nan if replicates is None else _clients(trials, names, name, measure)
    values = np.asarray(trials.values[name][measure.name])
    return Estimates(values, replicates, clients, tuple(trials.seeds), name != WORST)


def difference(
    name: str, ours: Estimates, theirs: Estimates, higher_is_better: bool, unit: Unit
) -> Gain:
    """Returns the gain of `ours` over `theirs`; see `gain`."""
    sign = 1.0 if higher_is_better else -1.0
    after, before = float(np.mean(ours.values)), float(np.mean(theirs.values))
    mean = sign * (after - before)
    if len(ours.values) != len(theirs.values) or ours.seeds != theirs.seeds or math.isnan(mean):
        return Gain(name, before, after, mean, None, math.nan, trials=len(ours.values))
    replicates, clients, drawn, other = None, math.nan, ours.replicates, theirs.replicates
    if drawn is not None and other is not None and drawn.shape == other.shape:
        replicates, clients = sign * (drawn - other), min(ours.clients, theirs.clients)
    changes = sign * (ours.values - theirs.values)
    magnitude = float(np.max(np.abs([ours.values, theirs.values])))
    spread = combined(changes, replicates, clients, ours.is_smooth, magnitude)
    largest = 1.0 if unit is Unit.SHARE else math.inf
    return Gain(name, before, after, mean, spread, clients, largest, len(changes))


def tied(comparison: Comparison, name: str, measure: Measure) -> frozenset[str]:
    """Returns the methods that do not differ significantly from the best one in a group."""
    means = {row: entry.mean(name, measure.name) for row, entry in comparison.trials.items()}
    defined = {row: mean for row, mean in means.items() if not math.isnan(mean)}
    if not defined:
        return frozenset()
    best = (max if measure.higher_is_better else min)(defined, key=lambda row: defined[row])
    others = {r: gain(comparison, best, r, name, measure) for r in defined if r != best}
    return frozenset(r for r, entry in others.items() if entry.is_open or not entry.mean)


def attained(
    trials: Trials, names: Sequence[str], name: str, measure: Measure
) -> tuple[float, Interval]:
    """Returns a method's mean in a group, and its interval, limited to possible values.

    The interval is None if the group has too few test clients, or if nothing varies.
    """
    values = estimates(trials, names, name, measure)
    spread = combined(values.values, values.replicates, values.clients, values.is_smooth)
    interval = spread.interval()
    if interval is None or not (math.isnan(values.clients) or has_enough(values.clients)):
        return spread.mean, None
    low, high = (0.0, 1.0) if measure.unit is Unit.SHARE else (-math.inf, math.inf)
    return spread.mean, (max(interval[0], low), min(interval[1], high))


def _replicates(
    trials: Trials, names: Sequence[str], name: str, measure: Measure
) -> Optional[np.ndarray]:
    """Returns the values of replicates, [K, B]; None unless all trials have the same number B."""
    each = [
        entry.values[measure.name] for entry in trials.resampled if measure.name in entry.values
    ]
    if not each or len({entry.shape for entry in each}) > 1 or len(each) < len(trials.resampled):
        return None
    values = np.array(each)
    if name == OVERALL:
        return values[..., -1]
    if name != WORST:
        return values[..., names.index(name)]
    counted = [i for i, domain in enumerate(names) if domain not in trials.not_counted]
    if not counted:
        return None
    domain_values = values[..., counted]
    return domain_values.min(axis=-1) if measure.higher_is_better else domain_values.max(axis=-1)


def _clients(trials: Trials, names: Sequence[str], name: str, measure: Measure) -> float:
    """Returns a group's effective number of clients; for `WORST`, the worst domain's number."""
    clients = np.mean([entry.clients for entry in trials.resampled], axis=0)
    if name == OVERALL:
        return float(clients[-1])
    return float(
        clients[names.index(worst_domain(trials, names, measure) if name == WORST else name)]
    )


def worst_domain(
    trials: Trials, names: Sequence[str], measure: Measure, which: slice = slice(None)
) -> str:
    """Returns the counted domain with the worst mean over the trials in a slice."""
    means = {n: float(np.mean(trials.values[n][measure.name][which])) for n in names}
    counted = {n: v for n, v in means.items() if n not in trials.not_counted and v == v}
    choose = min if measure.higher_is_better else max
    return choose(counted or means, key=lambda n: means[n])
