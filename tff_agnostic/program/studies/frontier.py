"""The best fixed mixture of the domains for the worst one, and the algorithms that reach it.

Grids of lambdas are pure functions of the domains' fractions of the training examples. A mixture is
better or worse if an interval over test clients and seeds excludes 0
(`tff_agnostic.program.studies.gains`).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Callable, Optional

import numpy as np

from tff_agnostic.base.errors import UserError, agreeing, counted
from tff_agnostic.base.registry import Registry
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.formatting import cell, points
from tff_agnostic.models.model import Measure
from tff_agnostic.program.studies.comparison import WORST, Comparison
from tff_agnostic.program.studies.gains import Gain, gain
from tff_agnostic.program.studies.verdict import row_sentences

TRAINING_MIXTURE = "training_mixture"
# Weights that differ by less are the same mixture.
_SAME = 1e-9
_DECIMALS = 3
_SECONDS = 3600.0


@dataclasses.dataclass(frozen=True)
class Mixture:
    """A point of the simplex: a lambda that stays while a model is trained.

    Attributes:
        name: Name of the folder of its trials, equal on every grid.
        label: Label in tables.
        weights: lambda, p numbers that sum to 1.
        line: The domain on the line to which it lies; None in grids without such lines.
        way: Position on the line from the training mixture to the domain, in [0, 1].
    """

    name: str
    label: str
    weights: tuple[float, ...]
    line: Optional[int] = None
    way: float = 0.0


class FrontierOutcome(enum.Enum):
    """Whether a mixture helps, and whether an algorithm reaches it."""

    NONE_HELPS = "none_helps"
    FOUND = "found"
    MISSED = "missed"
    OPEN = "open"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class TrialMean:
    """The results of trials.

    Attributes:
        mean: Mean of the worst domain's measure.
        spread: Sample standard deviation; NaN for one trial and for numbers that are not finite.
    """

    mean: float
    spread: float


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of comparing the worst domain's measure of mixtures and algorithms.

    "Better" and "worse" are significant: the interval of the gain excludes 0.

    Attributes:
        outcome: A mixture helps if the best one is better than the training mixture. An algorithm
            found it if it is better than the training mixture, and not worse than the best one; it
            missed it if it is worse than the best one.
            "Found" is that at least one did, "missed" that all did, and "open" what is neither;
            "unknown", that no domain was counted.
        best: The mixture with the best mean: the training mixture if no other one is better.
        training_end: Result of the training mixture.
        best_end: Result of the best mixture.
        ends: Result of each algorithm, by its name.
        gain: Difference of the best mixture from the training mixture, at least 0.
        gaps: Difference of the best mixture from each algorithm; negative if the algorithm is
            better.
        found_by: The algorithms that found the best mixture.
        missed_by: The algorithms that are worse than the best mixture.
        beyond: The algorithms that are better than the best mixture.
    """

    outcome: FrontierOutcome
    best: str
    training_end: TrialMean
    best_end: TrialMean
    ends: Mapping[str, TrialMean]
    gain: float
    gaps: Mapping[str, float]
    found_by: tuple[str, ...]
    missed_by: tuple[str, ...]
    beyond: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Frontier:
    """The results of fixed mixtures and of algorithms.

    Attributes:
        comparison: The trials of every mixture and every algorithm.
        mixtures: The mixtures, which are rows of the comparison by their names; the training
            mixture is the first.
        measure: The measure of the worst domain.
    """

    comparison: Comparison
    mixtures: Sequence[Mixture]
    measure: Measure

    @property
    def training_mixture(self) -> Mixture:
        """The mixture of the training examples."""
        return next(m for m in self.mixtures if m.name == TRAINING_MIXTURE)

    @property
    def best(self) -> Mixture:
        """The mixture that is best for the worst domain."""
        return next(m for m in self.mixtures if m.name == self.verdict.best)

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The rows of the comparison that are no mixtures."""
        names = {mixture.name for mixture in self.mixtures}
        return tuple(row for row in self.comparison.trials if row not in names)

    @functools.cached_property
    def verdict(self) -> Verdict:
        """The verdict on the worst domain."""
        return judge(
            {mixture.name: self._worst(mixture.name) for mixture in self.mixtures},
            {row: self._worst(row) for row in self.algorithms},
            self.measure.higher_is_better,
            lambda row, other: self._gain(row, other).told(),
        )

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        return sentence(
            self.verdict,
            self.best.label,
            len(self.mixtures),
            {row: self.comparison.label(row) for row in self.algorithms},
            self.measure,
            self.comparison.split,
        )

    @property
    def sentences(self) -> list[str]:
        """The verdict, the gains and losses of the best mixture, and a next step."""
        best, training = self.best.name, self.training_mixture.name
        if best == training or self.verdict.outcome is FrontierOutcome.UNKNOWN:
            return [self.sentence, *self._next]
        changes = row_sentences(self.comparison, best, training, self.measure)
        return [self.sentence, *changes, *self._next]

    @property
    def _next(self) -> list[str]:
        outcome = self.verdict.outcome
        if outcome is FrontierOutcome.NONE_HELPS:
            return [
                "Next: where no weights of the domains help, another model, other features or more "
                "data of the worst domain may; --lambda_baselines follows excess losses, so that a "
                "domain that is hard whatever its weight does not take all of it."
            ]
        if outcome in (FrontierOutcome.MISSED, FrontierOutcome.OPEN):
            return [
                "Next: `./run tune` looks for settings that get there; the best mixture itself is "
                "--lambda_update=fixed with its weights in --lambda_initial."
            ]
        return []

    def mean(self, row: str, domain: str) -> float:
        """Returns the mean of a domain's measure over the trials of a row."""
        return self.comparison.trials[row].mean(domain, self.measure.name)

    def _gain(self, row: str, other: str) -> Gain:
        return gain(self.comparison, row, other, WORST, self.measure)

    def _worst(self, row: str) -> np.ndarray:
        return self.comparison.trials[row].values[WORST][self.measure.name]


# (shares [p], points of a line) -> further mixtures, the training mixture not among them.
Grid = Callable[[np.ndarray, int, Sequence[str]], Iterator[Mixture]]


def lines(shares: np.ndarray, points: int, names: Sequence[str]) -> Iterator[Mixture]:
    """Yields the mixtures between the training mixture and each domain by itself.

    Args:
        shares: Share of the training examples that each domain has, [p]. There is no line to a
            domain without any.
        points: Points of each line, with its ends.
        names: Names of the domains.
    """
    for domain in np.flatnonzero(shares):
        for way in np.linspace(0, 1, points)[1:]:
            weights = (1 - way) * shares + way * np.eye(len(shares))[domain]
            point = Mixture(
                f"to_{domain}_{way:.6g}",
                f"{100 * way:.3g}% of the way to {names[domain]}",
                _tuple(weights),
            )
            if way == 1:
                point = vertex(int(domain), names)
            yield dataclasses.replace(point, line=int(domain), way=float(way))


def simplex(shares: np.ndarray, points: int, names: Sequence[str]) -> Iterator[Mixture]:
    """Yields the mixtures whose weights are multiples of 1 / (points - 1).

    Args:
        shares: Share of the training examples that each domain has, [p]. A domain without any has
            weight 0.
        points: Points of each edge of the simplex, with its ends.
        names: Names of the domains.
    """
    trained = np.flatnonzero(shares)
    steps = points - 1
    # Stars and bars: a domain has the steps between two bars.
    for bars in itertools.combinations(range(steps + len(trained) - 1), len(trained) - 1):
        edges = np.array([-1, *bars, steps + len(trained) - 1])
        weights = np.zeros(len(shares))
        weights[trained] = (np.diff(edges) - 1) / steps
        if np.abs(weights - shares).max() < _SAME:
            continue
        positive = [int(i) for i in np.flatnonzero(weights)]
        if len(positive) == 1:
            yield vertex(positive[0], names)
            continue
        yield Mixture(
            "lambda_" + "_".join(f"{i}-{weights[i]:.6g}" for i in positive),
            ", ".join(f"{100 * weights[i]:.3g}% {names[i]}" for i in positive),
            _tuple(weights),
        )


GRIDS: Registry[Grid] = Registry("grid", {"lines": lines, "simplex": simplex})


def mixtures(
    grid: str, points: int, shares: np.ndarray, names: Sequence[str], most: int
) -> list[Mixture]:
    """Returns the mixtures of a grid; the first one is the training mixture.

    For two domains every grid is the line between them.

    Args:
        grid: Name of a member of `GRIDS`.
        points: Points of a line of the grid, with its ends; at least 2.
        shares: Share of the training examples that each domain has, [p].
        names: Names of the domains.
        most: Maximum number of mixtures.
    """
    num_trained = np.count_nonzero(shares)
    if num_trained < 2:
        raise UserError(
            f"--task: expected at least 2 domains with training examples to mix, found "
            f"{num_trained} of {len(names)}"
        )
    make = GRIDS[grid]
    names = [" ".join(name.split()) for name in names]
    found = [Mixture(TRAINING_MIXTURE, "training mixture", _tuple(shares))]
    if points <= most:
        further = (simplex if num_trained == 2 else make)(shares, points, names)
        found += itertools.islice(further, most)
    if max(points, len(found)) > most:
        raise UserError(
            f"--grid_points: expected a grid of at most {most} mixtures, found more with {points} "
            f"points a line, --grid={grid} and {num_trained} domains"
        )
    return found


def vertex(domain: int, names: Sequence[str]) -> Mixture:
    """Returns a vertex of the simplex: one domain alone."""
    weights = np.eye(len(names))[domain]
    return Mixture(f"only_{domain}", f"{names[domain]} only", _tuple(weights))


def _tuple(weights: np.ndarray) -> tuple[float, ...]:
    return tuple(float(weight) for weight in weights)


def judge(
    mixtures: Mapping[str, np.ndarray],
    algorithms: Mapping[str, np.ndarray],
    higher_is_better: bool,
    direction: Callable[[str, str], int],
) -> Verdict:
    """Returns the verdict on trials.

    Args:
        mixtures: The worst domain's measure at each mixture, [trials], by its name, the training
            mixture's first; NaN where no domain was counted.
        algorithms: The worst domain's measure of each algorithm, [trials].
        higher_is_better: Whether larger values are better.
        direction: Called with two rows; returns 1 if the first is better, -1 if worse, else 0.
    """
    sign = 1.0 if higher_is_better else -1.0
    training = best = next(iter(mixtures))
    goodness = {name: sign * float(np.mean(values)) for name, values in mixtures.items()}
    if not math.isnan(goodness[training]):
        # The first of equal mixtures.
        best = max(mixtures, key=lambda name: np.nan_to_num(goodness[name], nan=-np.inf))
    best_end = mean_and_spread(mixtures[best])
    ends = {name: mean_and_spread(values) for name, values in algorithms.items()}
    missed_by = tuple(name for name in algorithms if direction(name, best) < 0)
    found_by = tuple(n for n in algorithms if n not in missed_by and direction(n, training) > 0)
    if math.isnan(goodness[training]):
        outcome = FrontierOutcome.UNKNOWN
    elif best == training or direction(best, training) < 1:
        outcome, found_by = FrontierOutcome.NONE_HELPS, ()
    elif found_by:
        outcome = FrontierOutcome.FOUND
    else:
        outcome = (
            FrontierOutcome.MISSED if len(missed_by) == len(algorithms) else FrontierOutcome.OPEN
        )
    return Verdict(
        outcome,
        best,
        mean_and_spread(mixtures[training]),
        best_end,
        ends,
        0.0 if best == training else goodness[best] - goodness[training],
        {name: sign * (best_end.mean - end.mean) for name, end in ends.items()},
        found_by,
        missed_by,
        tuple(name for name in algorithms if direction(name, best) > 0),
    )


def mean_and_spread(values: np.ndarray) -> TrialMean:
    """Returns the mean and the spread of trials, [trials]."""
    is_known = len(values) > 1 and bool(np.all(np.isfinite(values)))
    return TrialMean(
        float(np.mean(values)), float(np.std(values, ddof=1)) if is_known else math.nan
    )


def sentence(
    verdict: Verdict,
    best: str,
    num_mixtures: int,
    algorithms: Mapping[str, str],
    measure: Measure,
    split: str,
) -> str:
    """Returns one sentence: does any mixture help the worst domain, and was it found?

    Args:
        best: Label of the best mixture.
        num_mixtures: Number of mixtures.
        algorithms: Label of each algorithm of the verdict, by its name.
        split: Split of the evaluated clients.
    """
    if verdict.outcome is FrontierOutcome.UNKNOWN:
        return (
            f"Nothing is known of the worst domain: no domain has enough {split} examples in every "
            "trial."
        )
    unit, training_end = measure.unit, format_mean(verdict.training_end, measure.unit)
    worst = f"{measure.name.replace('_', ' ')} of the worst domain on the {split} clients"
    if verdict.gain == 0:
        ends = f"{training_end} with the training mixture, the best of {num_mixtures}"
    else:
        ends = (
            f"{format_mean(verdict.best_end, unit)} with the best of {num_mixtures} mixtures "
            f"({best}), against {training_end} with the training mixture"
        )
    algorithm_ends = (_ended(verdict, name, algorithms[name], unit) for name in verdict.ends)
    noise = " (one seed: what another one would change is not known)"
    noise = noise if _is_one_trial(verdict) else ""
    answer = _answer(verdict, algorithms)
    return f"{'; '.join([f'{answer}: {worst} is {ends}', *algorithm_ends])}{noise}."


def format_mean(end: TrialMean, unit: Unit) -> str:
    """Returns a result as a string: "81.3% (5.2)"."""
    spread = "" if math.isnan(end.spread) else f" ({cell(end.spread, unit, _DECIMALS)})"
    return f"{cell(end.mean, unit, _DECIMALS)}{'%' if unit is Unit.SHARE else ''}{spread}"


def shown_difference(difference: float, unit: Unit) -> str:
    """Returns a positive difference as a string: "4.2 points"."""
    return f"{cell(difference, unit, _DECIMALS)}{points(unit)}"


def _answer(verdict: Verdict, algorithms: Mapping[str, str]) -> str:
    if verdict.outcome is FrontierOutcome.FOUND:
        return f"A mixture helps, and {_list([algorithms[n] for n in verdict.found_by])} found it"
    if verdict.outcome is FrontierOutcome.MISSED:
        return "A mixture helps, and it was missed"
    if verdict.outcome is FrontierOutcome.OPEN:
        return "A mixture helps, and whether it was found cannot be told"
    helps = "helps" if verdict.gain == 0 else "is shown to help"
    better = [algorithms[name] for name in verdict.beyond]
    if better:
        # A mixture between those of the grid may attain it, too.
        return (
            f"No mixture of this grid {helps}, but {_list(better)} "
            f"{agreeing(len(better), 'is', 'are')} better than all of them, and a finer grid "
            "(--grid_points) may have one that does"
        )
    return f"No mixture {helps}"


def _ended(verdict: Verdict, name: str, label: str, unit: Unit) -> str:
    gap = verdict.gaps[name]
    ended = f"{label} ended at {format_mean(verdict.ends[name], unit)}"
    difference = shown_difference(abs(gap), unit)
    if name in verdict.beyond:
        return f"{ended}, better than any mixture by {difference}"
    if math.isnan(gap) or name not in verdict.missed_by:
        return ended
    if verdict.outcome is FrontierOutcome.NONE_HELPS:
        return f"{ended}, worse than the best by {difference}"
    return f"{ended} and missed it by {difference}"


def _is_one_trial(verdict: Verdict) -> bool:
    return math.isnan(verdict.best_end.spread) and math.isnan(verdict.training_end.spread)


def _list(items: Sequence[str]) -> str:
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def check_time(hours: float, seconds: float, trials_left: int) -> None:
    """Refuses trials that would take too long.

    Args:
        hours: Maximum number of hours.
        seconds: Seconds of the first trial.
        trials_left: Number of the other trials.
    """
    needed = seconds * (1 + trials_left) / _SECONDS
    if needed > hours:
        # Rounded up: the printed number must suffice.
        enough = math.ceil(100 * needed) / 100
        raise UserError(
            f"--max_hours: expected about {enough:.2f} for {counted(1 + trials_left, 'trial')}, "
            f"the first of which took {seconds:.1f} s, found {hours:g}; fewer --grid_points or "
            "--trials take less, and --resume keeps the finished trials"
        )
