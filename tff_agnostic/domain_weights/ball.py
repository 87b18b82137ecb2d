"""Mixtures near the training mixture: chi2(lambda || m_bar) <= rho.

The generalisation bound of Mohri et al. 2019 (section 3) uses this distance: the skewness of a set,
which is the maximum of chi2(lambda || m_bar) + 1 over the set, is at most rho + 1 here.

In a projection, the ball's constraint becomes a term with a multiplier mu. At the right mu the
solution x(mu) is on the ball's surface. As mu grows, chi2 falls, so bisection finds mu. All
computations are in float64, as they divide by the weights of small domains.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Callable

import numpy as np

from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError, Options, Verbatim, Within
from tff_agnostic.domain_weights.sets import LambdaSet

_TOLERANCE = 1e-6
# Range of the multiplier's logarithm to base 2; each bisection halves it.
_LOG_MULTIPLIERS = (-80.0, 80.0)
_BISECTIONS = 50
_NEWTON_STEPS = 12
_LAMBERT_STEPS = 6


@dataclasses.dataclass(frozen=True)
class BallSet(Options):
    """Mixtures near the training mixture.

    Attributes:
        radius: Maximum chi-squared distance from the training mixture.
    """

    radius: Annotated[float, Within(above=0)] = 1.0

    def build(self, domain_names: Sequence[str], training_mixture: np.ndarray) -> LambdaSet:
        """Returns the set Lambda for the given domains and their training mixture, [p]."""
        return Ball(tuple(training_mixture.tolist()), self.radius)


@dataclasses.dataclass(frozen=True)
class Ball(LambdaSet):
    """The mixtures within a chi2 distance of a given mixture.

    Attributes:
        center: m_bar, each domain's fraction of the training examples; positive, with sum 1.
        radius: rho, the maximum chi2 distance sum_i (lambda_i - m_i)^2 / m_i; positive.
    """

    center: tuple[float, ...]
    radius: float

    def project(self, point: tf.Tensor) -> tf.Tensor:
        """See `LambdaSet.project`."""
        return self._on_surface(point, _euclidean)

    def project_kl(self, point: tf.Tensor) -> tf.Tensor:
        """See `LambdaSet.project_kl`."""
        return self._on_surface(point, _entropic)

    def start(self, initial: np.ndarray) -> np.ndarray:
        """Returns lambda_0; raises an `OptionError` if it lies outside the ball."""
        distance = _chi2_numpy(initial, np.array(self.center))
        if distance > self.radius + _TOLERANCE:
            mixture = np.round(self.center, 6).tolist()
            raise OptionError(
                "initial",
                f"a lambda_0 within the radius {self.radius:g} of the training mixture {mixture}",
                Verbatim(f"one at a chi2 distance of {distance:g}"),
            )
        return initial

    def worst(self, losses: np.ndarray) -> np.ndarray:
        """See `LambdaSet.worst`.

        With the multipliers mu of the ball and nu of the sum, the solution is lambda_i = m_i max(1
        + (L_i - nu) / (2 mu), 0).
        """
        center = np.array(self.center, np.float64)
        # Shift and scale the losses, which does not change the mixture. With a largest loss of 0,
        # the worst domain has the factor 1 for any mu.
        below_worst = np.asarray(losses, np.float64) - np.max(losses)
        span = -np.min(below_worst)
        if span == 0:
            return center
        below_worst /= span

        def at(log_multiplier: float) -> np.ndarray:
            # To maximise sum_i lambda_i L_i - mu chi2, move the centre along L, and project it.
            mu = 2.0**log_multiplier
            return _weighted_simplex(center * (1.0 + below_worst / (2.0 * mu)), center)

        low, high = _LOG_MULTIPLIERS
        if _chi2_numpy(at(low), center) <= self.radius:
            return at(low)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            inside = _chi2_numpy(at(middle), center) <= self.radius
            low, high = (low, middle) if inside else (middle, high)
        return at(high)

    def to_json(self, domain_names: tuple[str, ...]) -> dict[str, Any]:
        """See `LambdaSet.to_json`."""
        return {
            "set": "ball",
            "center": dict(zip(domain_names, self.center)),
            "radius": self.radius,
        }

    def _on_surface(
        self, point: tf.Tensor, project: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
    ) -> tf.Tensor:
        center = tf.constant(self.center, tf.float64)
        target = tf.cast(point, tf.float64)

        def bisect(step: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tuple:
            middle = (low + high) / 2
            inside = _chi2(project(target, center, _exp2(middle)), center) <= self.radius
            return step + 1, tf.where(inside, low, middle), tf.where(inside, middle, high)

        def projected() -> tf.Tensor:
            bounds = [tf.constant(bound, tf.float64) for bound in _LOG_MULTIPLIERS]
            _, _, high = tf.while_loop(
                lambda step, *_: step < _BISECTIONS, bisect, (tf.constant(0), *bounds)
            )
            return project(target, center, _exp2(high))

        unconstrained = project(target, center, tf.constant(0.0, tf.float64))
        solution = tf.cond(
            _chi2(unconstrained, center) <= self.radius, lambda: unconstrained, projected
        )
        return tf.cast(solution, point.dtype)


def _exp2(exponent: tf.Tensor) -> tf.Tensor:
    return tf.pow(tf.constant(2.0, tf.float64), exponent)


def _chi2(lambda_: tf.Tensor, center: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.square(lambda_ - center) / center)


def _chi2_numpy(lambda_: np.ndarray, center: np.ndarray) -> float:
    return float(np.sum(np.square(lambda_ - center) / center))


def _euclidean(point: tf.Tensor, center: tf.Tensor, mu: tf.Tensor) -> tf.Tensor:
    """Returns argmin over the simplex of ||x - v||^2 + mu chi2(x || m).

    The solution is x_i = w_i max(v_i + mu - nu, 0) with w_i = 1 / (1 + mu / m_i) and nu as in
    `project_to_simplex`.
    """
    # Divide by 1 + mu, so that no term grows with mu.
    weights = (1.0 + mu) / (1.0 + mu / center)
    values = (point + mu) / (1.0 + mu)
    order = tf.argsort(values, direction="DESCENDING")
    sorted_values, sorted_weights = tf.gather(values, order), tf.gather(weights, order)
    total = tf.cumsum(sorted_weights)
    thresholds = (tf.cumsum(sorted_weights * sorted_values) - 1.0) / total
    support_size = tf.reduce_sum(tf.cast(sorted_values > thresholds, tf.int32))
    return weights * tf.maximum(values - thresholds[support_size - 1], 0.0)


def _weighted_simplex(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns x_i = max(a_i - nu w_i, 0) with sum 1."""
    order = np.argsort(-values / weights, kind="stable")
    a, w = np.cumsum(values[order]), np.cumsum(weights[order])
    thresholds = (a - 1.0) / w
    support_size = int(np.sum(values[order] / weights[order] > thresholds))
    x: np.ndarray = np.maximum(values - thresholds[support_size - 1] * weights, 0.0)
    return x


def _entropic(point: tf.Tensor, center: tf.Tensor, mu: tf.Tensor) -> tf.Tensor:
    """Returns argmin over the simplex of sum_i x_i log(x_i / y_i) + mu / 2 chi2(x || m).

    The solution satisfies log x_i + mu x_i / m_i = log y_i - nu. The sum of x is a decreasing,
    convex function of nu.
    """
    # Weights of 0 must stay 0.
    is_positive = point > 0
    log_y = tf.math.log(tf.where(is_positive, point, 1.0))
    k = mu / center

    def x_and_slope(nu: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        x = _solve_x_plus_log_x(log_y - nu, k)
        x = tf.where(is_positive, x, 0.0)
        # dx / dnu = -x / (1 + k x)
        return tf.reduce_sum(x), tf.reduce_sum(x / (1.0 + k * x))

    def newton(step: tf.Tensor, nu: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        total, slope = x_and_slope(nu)
        return step + 1, nu + (total - 1.0) / slope

    # At this nu, one x_i is 1, so the sum is at least 1: from here, Newton's steps do not
    # overshoot.
    lowest = tf.reduce_max(tf.where(is_positive, log_y - k, -np.inf))
    _, nu = tf.while_loop(lambda step, _: step < _NEWTON_STEPS, newton, (tf.constant(0), lowest))
    x = tf.where(is_positive, _solve_x_plus_log_x(log_y - nu, k), 0.0)
    return x / tf.reduce_sum(x)


def _solve_x_plus_log_x(a: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    """Returns the solution x of log x + k x = a: exp(a) for k = 0, W(k exp(a)) / k otherwise.

    With u = log x, the equation is u + k exp(u) = a, whose left side is convex and increasing:
    Newton's steps from the right of the root do not overshoot.
    """
    beyond = a + tf.math.log(tf.maximum(k, np.finfo(np.float64).tiny))
    # Start right of the root: u <= a always, and k exp(u) <= a + log k if k exp(a) is large.
    u = tf.where(beyond > 1.0, a - beyond + tf.math.log(tf.maximum(beyond, 1.0)), a)
    for _ in range(_LAMBERT_STEPS):
        growth = k * tf.exp(u)
        u -= (u + growth - a) / (1.0 + growth)
    return tf.exp(u)
