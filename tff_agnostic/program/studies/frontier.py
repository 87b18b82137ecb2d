"""The fixed mixture of domains that is best for the worst domain, and algorithms that reach it.

The grid of mixtures depends only on the domains' fractions of the training examples. A mixture is
better or worse than another one if the interval over test clients and seeds excludes 0 (see
`studies.gains`).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Callable, Optional

import numpy as np

from tff_agnostic.base.errors import UserError, agreeing
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.claims import split_name
from tff_agnostic.program.studies.comparison import WORST, Comparison
from tff_agnostic.program.studies.gains import gain
from tff_agnostic.program.studies.verdict import row_sentences, worst_sentence

TRAINING_MIXTURE = "training_mixture"
# Mixtures whose weights differ by less than this count as equal.
_SAME = 1e-9


@dataclasses.dataclass(frozen=True)
class Mixture:
    """A point of the simplex: a constant lambda for training a model.

    Attributes:
        name: Name of the folder with the mixture's trials; it does not depend on the grid's size.
        weights: lambda, p numbers that sum to 1.
        line: Index of the domain at the end of the mixture's line; None for the training mixture,
            and if there are only two domains.
        way: Position on the line from the training mixture to the domain, in [0, 1].
    """

    name: str
    label: str
    weights: tuple[float, ...]
    line: Optional[int] = None
    way: float = 0.0


def mixtures(
    points: int, shares: np.ndarray, names: Sequence[str], max_mixtures: int
) -> list[Mixture]:
    """Returns a grid of mixtures, with the training mixture first.

    Mixtures of two domains are on the line between them. Mixtures of more domains are on the lines
    from the training mixture to each single domain. A domain without training examples has weight
    0.

    Args:
        points: Number of points per line, including both ends; at least 2.
        shares: Fraction of the training examples in each domain, [p].
    """
    trained = np.flatnonzero(shares)
    if len(trained) < 2:
        raise UserError(
            f"--task: expected at least 2 domains with training examples to mix, found "
            f"{len(trained)} of {len(names)}"
        )
    is_pair = len(trained) == 2
    count = 1 + (points if is_pair else len(trained) * (points - 1))
    if count > max_mixtures:
        raise UserError(
            f"--grid_points: expected at most {max_mixtures} mixtures, found {count} with {points} "
            f"points per line and {len(trained)} domains"
        )
    names = [" ".join(name.split()) for name in names]
    first = Mixture(TRAINING_MIXTURE, "training mixture", tuple(shares.tolist()))
    others = (_between if is_pair else _to_domains)(shares, points, names)
    return [first, *others]


def _to_domains(shares: np.ndarray, points: int, names: Sequence[str]) -> Iterator[Mixture]:
    """Yields the mixtures on the lines from the training mixture to each single domain."""
    for domain in map(int, np.flatnonzero(shares)):
        for way in map(float, np.linspace(0, 1, points)[1:]):
            if way == 1:
                point = _vertex(domain, names)
            else:
                weights = (1 - way) * shares + way * np.eye(len(shares))[domain]
                label = f"{100 * way:.3g}% of the way to {names[domain]}"
                point = Mixture(f"to_{domain}_{way:.6g}", label, tuple(weights.tolist()))
            yield dataclasses.replace(point, line=domain, way=way)


def _between(shares: np.ndarray, points: int, names: Sequence[str]) -> Iterator[Mixture]:
    """Yields evenly spaced mixtures of two domains, without the training mixture."""
    pair = [int(i) for i in np.flatnonzero(shares)]
    for k in range(points):
        weights = np.zeros(len(shares))
        weights[pair] = np.array([k, points - 1 - k]) / (points - 1)
        if np.abs(weights - shares).max() < _SAME:
            continue
        if k in (0, points - 1):
            yield _vertex(pair[0] if k else pair[1], names)
            continue
        yield Mixture(
            "lambda_" + "_".join(f"{i}-{weights[i]:.6g}" for i in pair),
            ", ".join(f"{100 * weights[i]:.3g}% {names[i]}" for i in pair),
            tuple(weights.tolist()),
        )


def _vertex(domain: int, names: Sequence[str]) -> Mixture:
    weights = np.eye(len(names))[domain]
    return Mixture(f"only_{domain}", f"{names[domain]} only", tuple(weights.tolist()))


class FrontierOutcome(enum.Enum):
    """Whether a mixture helps, and whether an algorithm reaches it."""

    NONE_HELPS = "none_helps"
    FOUND = "found"
    MISSED = "missed"
    OPEN = "open"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of comparing mixtures and algorithms by the worst domain's measure.

    "Better" and "worse" mean that the difference is significant: the gain's interval excludes 0.

    Attributes:
        outcome: `NONE_HELPS` if the best mixture is not better than the training mixture. `FOUND`
            if an algorithm is better than the training mixture and not worse than the best mixture.
            `MISSED` if all algorithms are worse than the best mixture. `OPEN` if neither holds.
            `UNKNOWN` if no domain is counted.
        best: The mixture with the best mean; of equal mixtures the first.
        found_by: The algorithms that found the best mixture.
        missed_by: The algorithms that are worse than the best mixture.
        beyond: The algorithms that are better than the best mixture.
    """

    outcome: FrontierOutcome
    best: str
    found_by: tuple[str, ...] = ()
    missed_by: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()


def judge(
    means: Mapping[str, float],
    algorithms: Sequence[str],
    higher_is_better: bool,
    direction: Callable[[str, str], int],
) -> Verdict:
    """Returns the verdict on mixtures and algorithms.

    Args:
        means: Mean of the worst domain's measure for each mixture, by name, with the training
            mixture first; NaN if no domain was counted.
        direction: Called with two methods; returns 1 if the first is better, -1 if worse, else 0.
    """
    training = next(iter(means))
    if math.isnan(means[training]):
        return Verdict(FrontierOutcome.UNKNOWN, training)
    sign = 1.0 if higher_is_better else -1.0
    # `max` returns the first of equal mixtures.
    best = max(means, key=lambda name: np.nan_to_num(sign * means[name], nan=-np.inf))
    missed_by = tuple(name for name in algorithms if direction(name, best) < 0)
    found_by = tuple(n for n in algorithms if n not in missed_by and direction(n, training) > 0)
    if best == training or direction(best, training) < 1:
        outcome, found_by = FrontierOutcome.NONE_HELPS, ()
    elif found_by:
        outcome = FrontierOutcome.FOUND
    else:
        is_missed = len(missed_by) == len(algorithms)
        outcome = FrontierOutcome.MISSED if is_missed else FrontierOutcome.OPEN
    beyond = tuple(name for name in algorithms if direction(name, best) > 0)
    return Verdict(outcome, best, found_by, missed_by, beyond)


@dataclasses.dataclass(frozen=True)
class Frontier:
    """The results of fixed mixtures and of algorithms.

    Attributes:
        mixtures: The mixtures, with the training mixture first. Each mixture is the method of the
            same name in the comparison.
    """

    comparison: Comparison
    mixtures: Sequence[Mixture]

    @property
    def measure(self) -> Measure:
        """The measure by which mixtures and algorithms are compared."""
        return self.comparison.main_measure

    @property
    def training_mixture(self) -> Mixture:
        """The mixture of the training examples."""
        return self.mixtures[0]

    @property
    def best(self) -> Mixture:
        """The mixture that is best for the worst domain."""
        return next(m for m in self.mixtures if m.name == self.verdict.best)

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The methods of the comparison that are not mixtures."""
        names = {mixture.name for mixture in self.mixtures}
        return tuple(row for row in self.comparison.trials if row not in names)

    @functools.cached_property
    def verdict(self) -> Verdict:
        """The verdict on the worst domain."""
        return judge(
            {mixture.name: self.mean(mixture.name, WORST) for mixture in self.mixtures},
            self.algorithms,
            self.measure.higher_is_better,
            lambda row, other: gain(self.comparison, row, other, WORST, self.measure).direction(),
        )

    @property
    def sentences(self) -> list[str]:
        """The verdict, gains and losses of the best mixture, the algorithms, and a next step."""
        comparison, best, training = self.comparison, self.best.name, self.training_mixture.name
        if self.verdict.outcome is FrontierOutcome.UNKNOWN:
            return [
                "Nothing is known of the worst domain: no domain has enough "
                f"{split_name(comparison.split)} examples in every trial."
            ]
        changes = row_sentences(comparison, best, training) if best != training else []
        ends = [worst_sentence(comparison, row, best) for row in self.algorithms]
        return [f"{self._answer}.", *changes, *ends, *self._next]

    @property
    def _answer(self) -> str:
        verdict = self.verdict
        if verdict.outcome is FrontierOutcome.FOUND:
            return f"A mixture helps, and {self._listed(verdict.found_by)} found it"
        if verdict.outcome is FrontierOutcome.MISSED:
            return "A mixture helps, and it was missed"
        if verdict.outcome is FrontierOutcome.OPEN:
            return "A mixture helps, and whether it was found cannot be told"
        helps = "helps" if verdict.best == self.training_mixture.name else "is shown to help"
        if verdict.beyond:
            # A mixture between two grid points may be as good as the algorithm.
            return (
                f"No mixture of this grid {helps}, but {self._listed(verdict.beyond)} "
                f"{agreeing(len(verdict.beyond), 'is', 'are')} better than all of them, and a "
                "finer grid (--grid_points) may have one that does"
            )
        return f"No mixture {helps}"

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

    def _listed(self, rows: Sequence[str]) -> str:
        *most, last = map(self.comparison.label, rows)
        return f"{', '.join(most)} and {last}" if most else last

    def mean(self, row: str, domain: str) -> float:
        """Returns the mean of a domain's measure over the trials of a method."""
        return self.comparison.trials[row].mean(domain, self.measure.name)
