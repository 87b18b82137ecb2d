"""Sets Lambda of mixtures: simplex, box and hull, with projections and their worst mixtures.

Mohri, Sivek, Suresh 2019, "Agnostic Federated Learning": the agnostic loss is the maximum over
lambda in Lambda of sum_i lambda_i L_i. It is linear in lambda, so Lambda and its convex hull have
the same maximum; every set here is convex and within the simplex of the p domains.

A box contains the mixtures within bounds per domain, lower <= lambda <= upper. The Euclidean
projection of v is clip(v + nu, lower, upper), the entropic projection of y is clip(c y, lower,
upper); nu or c makes the sum 1. The sum is piecewise linear in this parameter, with bends where a
coordinate reaches a bound. Evaluating the sum at all bends finds the piece on which it is 1; on
this piece the equation is solved exactly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional, Protocol

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_json
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Options, Verbatim, Within

_TOLERANCE = 1e-6
# Wider gaps between coordinates have the same effect, as a coordinate of a result is at most 1.
_WIDE_GAP = 2.0
_SUM_TOLERANCE = 1e-3


class LambdaSet(Protocol):
    """A convex set of mixtures; the default methods are for the simplex.

    A server represents a point of the set by its coordinates, float32 [q], and updates these. The
    coordinates are lambda itself; in a `Hull` they are the weights of the hull's mixtures.
    """

    def mixture(self, coordinates: tf.Tensor) -> tf.Tensor:
        """Returns lambda, float32 [p]."""
        return coordinates

    def gradient(self, losses: tf.Tensor) -> tf.Tensor:
        """Returns the gradient of sum_i lambda_i L_i with respect to the coordinates, float32 [q].

        Args:
            losses: Losses L of the domains, float32 [p].
        """
        return losses

    def project(self, point: tf.Tensor) -> tf.Tensor:
        """Returns the coordinates nearest to a point [q] in Euclidean distance."""
        return project_to_simplex(point)

    def project_kl(self, point: tf.Tensor) -> tf.Tensor:
        """Returns the coordinates x that minimise sum_i x_i log(x_i / y_i) for a point y.

        Args:
            point: y, a point of a simplex, float32 [q]; its zeros stay 0.
        """
        return point

    def start(self, initial: np.ndarray) -> np.ndarray:
        """Returns the coordinates of the first lambda, float64 [q].

        Args:
            initial: The option lambda_0, float64 [p].
        """
        return initial

    def worst(self, losses: np.ndarray) -> np.ndarray:
        """Returns the lambda in the set with the largest sum_i lambda_i L_i, float64 [p].

        Args:
            losses: Finite losses L of the domains, float64 [p].
        """

    def to_json(self, domain_names: tuple[str, ...]) -> dict[str, Any]:
        """Returns a JSON description of the set, for readers without the run's settings."""


@dataclasses.dataclass(frozen=True)
class Simplex(LambdaSet):
    """The simplex Delta_p: all mixtures."""

    def worst(self, losses: np.ndarray) -> np.ndarray:
        """Returns the vertex of the domain with the largest loss."""
        vertex: np.ndarray = np.eye(len(losses))[np.argmax(losses)]
        return vertex

    def to_json(self, domain_names: tuple[str, ...]) -> dict[str, Any]:
        """See `LambdaSet.to_json`."""
        return {"set": "simplex"}


def project_to_simplex(
    vector: tf.Tensor, total: Any = 1.0, is_free: Optional[tf.Tensor] = None
) -> tf.Tensor:
    """Returns the point of a scaled simplex nearest to `vector` [p] in Euclidean distance.

    Source: Duchi et al. 2008, "Efficient projections onto the l1-ball", figure 1.

    Args:
        total: Sum of the entries of the result, a positive scalar.
        is_free: Entries that may be positive, bool [p]; all if None.
    """
    if is_free is not None:
        vector = tf.where(is_free, vector, -np.inf)
    # Shift the maximum to 0, which has no effect but saves digits: float32 cannot
    # represent 2^24 + 1.
    vector = vector - tf.reduce_max(vector)
    descending = tf.sort(vector, direction="DESCENDING")
    ranks = tf.range(1, tf.size(vector) + 1, dtype=vector.dtype)
    excess = (tf.cumsum(descending) - total) / ranks
    support_size = tf.reduce_sum(tf.cast(descending > excess, tf.int32))
    return tf.maximum(vector - excess[support_size - 1], 0.0)


@dataclasses.dataclass(frozen=True)
class Hull(LambdaSet):
    """The convex hull of named mixtures.

    Its coordinates are the weights of the mixtures, a point of a simplex.

    Attributes:
        names: Names of the q mixtures.
        mixtures: Weights of the p domains in each mixture.
    """

    names: tuple[str, ...]
    mixtures: tuple[tuple[float, ...], ...]

    def mixture(self, coordinates: tf.Tensor) -> tf.Tensor:
        """Returns the weighted sum of the mixtures."""
        return tf.linalg.matvec(self._matrix(), coordinates, transpose_a=True)

    def gradient(self, losses: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each mixture."""
        return tf.linalg.matvec(self._matrix(), losses)

    def start(self, initial: np.ndarray) -> np.ndarray:
        """Returns equal weights of all mixtures; lambda_0 is then their mean."""
        return np.full([len(self.names)], 1.0 / len(self.names))

    def worst(self, losses: np.ndarray) -> np.ndarray:
        """Returns the mixture with the largest loss."""
        mixtures = np.array(self.mixtures, np.float64)
        worst: np.ndarray = mixtures[np.argmax(mixtures @ losses)]
        return worst

    def to_json(self, domain_names: tuple[str, ...]) -> dict[str, Any]:
        """See `LambdaSet.to_json`."""
        return {
            "set": "hull",
            "mixtures": {
                name: dict(zip(domain_names, mixture))
                for name, mixture in zip(self.names, self.mixtures)
            },
        }

    def _matrix(self) -> tf.Tensor:
        return tf.constant(self.mixtures, tf.float32)


@dataclasses.dataclass(frozen=True)
class Box(LambdaSet):
    """A box within the simplex.

    Attributes:
        lower: Minimum weight of each domain; their sum is at most 1.
        upper: Maximum weight of each domain; their sum is at least 1.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]

    def project(self, point: tf.Tensor) -> tf.Tensor:
        """Returns clip(v + nu, lower, upper) with sum 1."""
        lower, upper = self._bounds()
        v = _without_gaps(tf.cast(point, tf.float64))
        bends = tf.concat([lower - v, upper - v], axis=0)
        shift = _solve(bends, lower, upper, offset=v, slope=tf.ones_like(v))
        return tf.cast(tf.clip_by_value(v + shift, lower, upper), point.dtype)

    def project_kl(self, point: tf.Tensor) -> tf.Tensor:
        """Returns clip(c y, lower, upper) with sum 1."""
        lower, upper = self._bounds()
        y = tf.cast(point, tf.float64)
        bends = tf.math.divide_no_nan(tf.concat([lower, upper], axis=0), tf.concat([y, y], axis=0))
        scale = _solve(bends, lower, upper, offset=tf.zeros_like(y), slope=y)
        return tf.cast(tf.clip_by_value(scale * y, lower, upper), point.dtype)

    def start(self, initial: np.ndarray) -> np.ndarray:
        """Returns lambda_0; raises an `OptionError` if it lies outside the box."""
        lower, upper = np.array(self.lower), np.array(self.upper)
        if np.any(initial < lower - _TOLERANCE) or np.any(initial > upper + _TOLERANCE):
            expected = f"a lambda_0 between lower={lower.tolist()} and upper={upper.tolist()}"
            raise OptionError("initial", expected, Verbatim(initial.tolist()))
        return initial

    def worst(self, losses: np.ndarray) -> np.ndarray:
        """Returns the lower bounds plus the remaining weight, given to the largest losses first."""
        lambda_ = np.array(self.lower, np.float64)
        rest = 1.0 - lambda_.sum()
        for i in np.argsort(-losses, kind="stable"):
            gain = min(rest, self.upper[i] - self.lower[i])
            lambda_[i] += gain
            rest -= gain
        return lambda_

    def to_json(self, domain_names: tuple[str, ...]) -> dict[str, Any]:
        """See `LambdaSet.to_json`."""
        return {
            "set": "box",
            "lower": dict(zip(domain_names, self.lower)),
            "upper": dict(zip(domain_names, self.upper)),
        }

    def _bounds(self) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.constant(self.lower, tf.float64), tf.constant(self.upper, tf.float64)


def _without_gaps(point: tf.Tensor) -> tf.Tensor:
    """Returns a point with the same projection, but without large gaps between coordinates.

    If a coordinate exceeds another by more than 1, it reaches its upper bound before the other
    leaves its lower bound, so the size of the gap does not matter. Nor does a constant that is
    added to all coordinates.
    """
    order = tf.argsort(point, direction="DESCENDING")
    descending = tf.gather(point, order)
    gaps = tf.minimum(descending[:-1] - descending[1:], _WIDE_GAP)
    closer = -tf.concat([tf.zeros([1], point.dtype), tf.cumsum(gaps)], axis=0)
    return tf.gather(closer, tf.argsort(order))


def _solve(
    bends: tf.Tensor, lower: tf.Tensor, upper: tf.Tensor, offset: tf.Tensor, slope: tf.Tensor
) -> tf.Tensor:
    """Returns a t with sum(clip(offset + slope t, lower, upper)) = 1."""
    bends = tf.sort(bends)
    clipped = tf.clip_by_value(offset + slope * bends[:, tf.newaxis], lower, upper)
    sums = tf.reduce_sum(clipped, axis=1)
    # The solution's piece starts at the last bend with a sum of at most 1.
    k = tf.maximum(tf.reduce_sum(tf.cast(sums <= 1.0, tf.int32)) - 1, 0)
    next_bend = bends[tf.minimum(k + 1, tf.size(bends) - 1)]
    within = offset + slope * (bends[k] + next_bend) / 2
    free = tf.cast((within > lower) & (within < upper), slope.dtype)
    free_slope = tf.reduce_sum(slope * free)
    fixed = tf.reduce_sum(clipped[k] * (1.0 - free)) + tf.reduce_sum(offset * free)
    return tf.where(free_slope > 0, tf.math.divide_no_nan(1.0 - fixed, free_slope), bends[k])


def read_mixtures(
    path: Path, domain_names: Sequence[str]
) -> tuple[tuple[str, ...], tuple[tuple[float, ...], ...]]:
    """Reads a JSON object that maps names of mixtures to objects of weights by domain.

    A domain that a mixture omits has the weight 0.

    Args:
        domain_names: Names of the p domains.

    Returns:
        The mixtures' names, and each mixture's weights in the order of `domain_names`.
    """
    content = read_json(path)
    if not content:
        raise UserError(f"{path}: expected at least one mixture, found none")
    mixtures = {
        name: _mixture(f"{path}: {name}", weights, domain_names)
        for name, weights in content.items()
    }
    names_by_weights: dict[tuple[float, ...], str] = {}
    for name, weights in mixtures.items():
        if weights in names_by_weights:
            raise UserError(
                f"{path}: expected different mixtures, found {names_by_weights[weights]!r} and "
                f"{name!r} of the same weights"
            )
        names_by_weights[weights] = name
    return tuple(mixtures), tuple(mixtures.values())


def _mixture(where: str, weights: Any, domain_names: Sequence[str]) -> tuple[float, ...]:
    if not isinstance(weights, dict):
        raise UserError(
            f'{where}: expected weights by domain, as in {{"{domain_names[0]}": 1}}, found '
            f"{type(weights).__name__}"
        )
    unknown = [name for name in weights if name not in domain_names]
    if unknown:
        raise UserError(
            f"{where}: expected domains of {', '.join(domain_names)}, found {', '.join(unknown)}"
        )
    for name, weight in weights.items():
        is_number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not is_number or not 0 <= weight <= 1 + _SUM_TOLERANCE:
            raise UserError(f"{where}: expected a number from 0 to 1 for {name}, found {weight!r}")
    total = math.fsum(weights.values())
    if abs(total - 1) > _SUM_TOLERANCE:
        raise UserError(f"{where}: expected weights that sum to 1, found {total:g}")
    return tuple(weights.get(name, 0.0) / total for name in domain_names)


@dataclasses.dataclass(frozen=True)
class SimplexSet(Options):
    """All mixtures of the domains."""

    def build(self, domain_names: Sequence[str], training_mixture: np.ndarray) -> LambdaSet:
        """Returns the set Lambda for the given domains and their training mixture, [p]."""
        return Simplex()


@dataclasses.dataclass(frozen=True)
class BoxSet(Options):
    """Mixtures within bounds of each domain.

    Attributes:
        lower: Minimum weight of each domain, or one number for all; 0 if not given.
        upper: Maximum weight of each domain, or one number for all; 1 if not given.
    """

    lower: Optional[Annotated[tuple[float, ...], Within(least=0, most=1)]] = None
    upper: Optional[Annotated[tuple[float, ...], Within(least=0, most=1)]] = None

    def build(self, domain_names: Sequence[str], training_mixture: np.ndarray) -> LambdaSet:
        """Returns the set Lambda for the given domains and their training mixture, [p]."""
        lower = self._per_domain("lower", len(domain_names), default=0.0)
        upper = self._per_domain("upper", len(domain_names), default=1.0)
        for name, low, high in zip(domain_names, lower, upper):
            if low > high:
                problem = Verbatim(f"{low:g} > {high:g} for {name}")
                raise self.error("lower", "at most upper for every domain", problem)
        if lower.sum() > 1 + _TOLERANCE:
            expected = "numbers that sum to at most 1, as mixtures sum to 1"
            raise self.error("lower", expected, Verbatim(f"{lower.sum():g}: no mixture is left"))
        if upper.sum() < 1 - _TOLERANCE:
            expected = "numbers that sum to at least 1, as mixtures sum to 1"
            raise self.error("upper", expected, Verbatim(f"{upper.sum():g}: no mixture is left"))
        return Box(tuple(lower.tolist()), tuple(upper.tolist()))

    def _per_domain(self, field: str, num_domains: int, default: float) -> np.ndarray:
        values = getattr(self, field)
        numbers = np.array([default] if values is None else values, np.float64)
        if numbers.shape not in ((1,), (num_domains,)):
            expected = f"one number, or {num_domains}, one per domain"
            raise self.error(field, expected, Verbatim(numbers.size))
        return np.broadcast_to(numbers, [num_domains]).copy()


@dataclasses.dataclass(frozen=True)
class HullSet(Options):
    """The convex hull of the mixtures in a file.

    Attributes:
        file: JSON file of named mixtures, {"name": {"domain": weight, ...}, ...}.
    """

    file: Path

    def build(self, domain_names: Sequence[str], training_mixture: np.ndarray) -> LambdaSet:
        """Returns the set Lambda for the given domains and their training mixture, [p]."""
        return Hull(*read_mixtures(self.file, domain_names))
