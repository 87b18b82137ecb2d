"""Which mixtures of the domains are trained on: grids of fixed lambdas.

Pure functions on the shares that the domains have of the training examples.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Callable, Optional

import numpy as np

from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry

TRAINING_MIXTURE = "training_mixture"
# Weights that differ by less are the same mixture.
_SAME = 1e-9


@dataclasses.dataclass(frozen=True)
class Mixture:
    """A point of the simplex: a lambda that stays while a model is trained.

    Attributes:
        name: Of the folder of its trials; of the same mixture it is the same on every grid.
        label: What tables call it.
        weights: lambda, p numbers that sum to 1.
        line: The domain on the line to which it lies; None in grids without such lines.
        way: How far it is on that line from the training mixture to the domain, in [0, 1].
    """

    name: str
    label: str
    weights: tuple[float, ...]
    line: Optional[int] = None
    way: float = 0.0


# (shares [p], points of a line) -> further mixtures, the training mixture not among them.
Grid = Callable[[np.ndarray, int, Sequence[str]], Iterator[Mixture]]


def lines(shares: np.ndarray, points: int, names: Sequence[str]) -> Iterator[Mixture]:
    """Yields the mixtures between the training mixture and each domain by itself.

    Args:
        shares: Share of the training examples that each domain has, [p]. There is no line to a
            domain without any.
        points: Of each line, its ends among them.
        names: Of the domains.
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
                point = only(int(domain), names)
            yield dataclasses.replace(point, line=int(domain), way=float(way))


def simplex(shares: np.ndarray, points: int, names: Sequence[str]) -> Iterator[Mixture]:
    """Yields the mixtures whose weights are multiples of 1 / (points - 1).

    Args:
        shares: Share of the training examples that each domain has, [p]. A domain without any has
            weight 0.
        points: Of each edge of the simplex, its ends among them.
        names: Of the domains.
    """
    trained = np.flatnonzero(shares)
    steps = points - 1
    # Between and beside the bars that separate the domains lie their steps.
    for bars in itertools.combinations(range(steps + len(trained) - 1), len(trained) - 1):
        edges = np.array([-1, *bars, steps + len(trained) - 1])
        weights = np.zeros(len(shares))
        weights[trained] = (np.diff(edges) - 1) / steps
        if np.abs(weights - shares).max() < _SAME:
            continue
        positive = [int(i) for i in np.flatnonzero(weights)]
        if len(positive) == 1:
            yield only(positive[0], names)
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

    Of two domains every grid is the line between them.

    Args:
        grid: Name of a member of `GRIDS`.
        points: Of a line of the grid, its ends among them; at least 2.
        shares: Share of the training examples that each domain has, [p].
        names: Of the domains.
        most: How many mixtures may be tried.

    Raises:
        UserError: If that is no grid, or there are more.
    """
    if points < 2:
        raise UserError(f"--grid_points: expected at least 2, found {points}")
    num_trained = np.count_nonzero(shares)
    if num_trained < 2:
        raise UserError(
            f"--task: expected at least 2 domains with training examples to mix, found "
            f"{num_trained} of {len(names)}"
        )
    make = GRIDS.given("--grid", grid)
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


def only(domain: int, names: Sequence[str]) -> Mixture:
    """Returns a vertex of the simplex: nothing but one domain."""
    weights = np.eye(len(names))[domain]
    return Mixture(f"only_{domain}", f"{names[domain]} only", _tuple(weights))


def _tuple(weights: np.ndarray) -> tuple[float, ...]:
    return tuple(float(weight) for weight in weights)
