"""The game of w and lambda on sum_i lambda_i L_i(w): estimates of both gradients, and steps.

Source: Mohri, Sivek, Suresh 2019, section 4.2. Pure functions on float32 vectors [p].
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Callable, NamedTuple, Optional

from tff_agnostic.base.options import OneOf, Options, Within
from tff_agnostic.computations import DomainSums
from tff_agnostic.domain_weights.ascent import FREEZE, ZERO
from tff_agnostic.domain_weights.excess import BaselineOptions
from tff_agnostic.errors import UserError
from tff_agnostic.later import tf
from tff_agnostic.registry import Registry

# t, counted from 1 -> what both step sizes are multiplied by.
STEP_DECAYS: Registry[Callable[[tf.Tensor], tf.Tensor]] = Registry(
    "decay of steps",
    {
        "none": lambda t: tf.ones_like(t),
        "inverse_sqrt": lambda t: tf.math.rsqrt(t),
        "inverse": lambda t: tf.math.reciprocal(t),
    },
)

# (lambda, seed, int32 [2]) -> by what the gradient of each domain's loss counts, in expectation
# lambda.
WeightsGradient = Callable[["tf.Tensor", "tf.Tensor"], "tf.Tensor"]

# (losses L of the domains, seed) -> the gradient by lambda, in expectation L.
LambdaGradient = Callable[["tf.Tensor", "tf.Tensor"], "tf.Tensor"]

# (sums of the round, examples of each domain that a round is expected to measure) -> L.
DomainLosses = Callable[[DomainSums, "tf.Tensor"], "tf.Tensor"]


def draw(probabilities: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns an index, int32 scalar; never one whose probability is 0.

    Args:
        probabilities: At least 0, float32 [n]; their sum may be rounded.
        seed: int32 [2].
    """
    ends = tf.cumsum(probabilities)
    place = tf.random.stateless_uniform([], seed) * ends[-1]
    # What rounding leaves beyond the last end belongs to the last one that is positive.
    last = tf.reduce_sum(tf.cast(ends < ends[-1], tf.int32))
    return tf.minimum(tf.reduce_sum(tf.cast(ends <= place, tf.int32)), last)


def _drawn_by_lambda(lambda_: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    # K ~ lambda: as if lambda were the vertex of domain K.
    return tf.one_hot(draw(lambda_, seed), lambda_.shape[0])


def _one_loss(losses: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    # p L_K for K uniform in [p]
    p = losses.shape[0]
    return losses * p * tf.one_hot(draw(tf.ones([p]) / p, seed), p)


WEIGHTS_GRADIENTS: Registry[WeightsGradient] = Registry(
    "gradient of the weights",
    {"per_domain": lambda lambda_, seed: lambda_, "weighted": _drawn_by_lambda},
)
LAMBDA_GRADIENTS: Registry[LambdaGradient] = Registry(
    "gradient of lambda", {"every_domain": lambda losses, seed: losses, "one_domain": _one_loss}
)
DOMAIN_LOSSES: Registry[DomainLosses] = Registry(
    "estimate of domain losses",
    {
        "unbiased": lambda sums, expected: sums.losses / expected,
        "ratio": lambda sums, expected: sums.mean_losses(),
    },
)


@dataclasses.dataclass(frozen=True)
class LossEstimatorOptions(BaselineOptions):
    """How losses of domains are estimated, and their baselines.

    Attributes:
        loss_estimate: What sums of losses are divided by in the games of weights and lambda: counts
            that are expected (unbiased), or those of the round (ratio).
    """

    loss_estimate: Annotated[str, OneOf(DOMAIN_LOSSES)] = "unbiased"

    def check_baselines(self, algorithm: str) -> None:
        """Refuses baselines of losses that are not means."""
        if self.lambda_baselines is not None and self.loss_estimate != "ratio":
            raise UserError(
                f"--lambda_baselines: expected --loss_estimate=ratio with it in {algorithm}, since "
                "a domain's baseline is a mean and the others are no means, found "
                f"{self.loss_estimate}"
            )

    def absent_by_estimate(self) -> str:
        """Returns a default of --lambda_absent.

        An unbiased loss is 0 where a domain is absent, and too large where it is there: a lambda
        that moved only where it is there would climb. With "ratio" lambda may stay.
        """
        return ZERO if self.loss_estimate == "unbiased" else FREEZE


@dataclasses.dataclass(frozen=True)
class GameGradientOptions(Options):
    """Which estimates of the two players' gradients a round makes.

    Attributes:
        weights_gradient: Of what the weights' gradient is in Stochastic-AFL: of all domains by
            their lambda, or of one that is drawn by lambda.
        lambda_gradient: Of what lambda's gradient is in Stochastic-AFL: of the losses of all
            domains, or of one that is drawn uniformly.
    """

    weights_gradient: Annotated[str, OneOf(WEIGHTS_GRADIENTS)] = "per_domain"
    lambda_gradient: Annotated[str, OneOf(LAMBDA_GRADIENTS)] = "every_domain"


@dataclasses.dataclass(frozen=True)
class GameStepOptions(Options):
    """How both players step.

    Attributes:
        step_decay: How both players' steps fall in round t: not, by 1 / sqrt(t), or by 1 / t.
        optimistic: Whether both players step along twice the gradient less the one before.
        weights_radius: Norm of the ball in which the weights stay; none if not given.
    """

    step_decay: Annotated[str, OneOf(STEP_DECAYS)] = "none"
    optimistic: bool = False
    weights_radius: Optional[Annotated[float, Within(above=0)]] = None


class Gradients(NamedTuple):
    """Estimates of the gradients of both players.

    Attributes:
        weights: By w, like the trainable weights.
        losses: By lambda, float32 [p].
    """

    weights: list[tf.Tensor]
    losses: tf.Tensor


def optimistic(found: Gradients, before: Gradients, step: tf.Tensor) -> Gradients:
    """Returns 2 g_{t-1} - g_{t-2}; g_{-1} is g_0.

    Args:
        found: g_{t-1}.
        before: g_{t-2}.
        step: t, counted from 1.
    """
    return tf.nest.map_structure(
        lambda new, old: tf.where(step <= 1, new, 2.0 * new - old), found, before
    )


def scaled_step(
    before: list[tf.Tensor], after: list[tf.Tensor], factor: tf.Tensor
) -> list[tf.Tensor]:
    """Returns weights moved by `factor` times a step: an optimizer's rate may not change."""
    return [
        tf.where(factor < 1.0, w + factor * (stepped - w), stepped)
        for w, stepped in zip(before, after)
    ]


def project_to_ball(weights: list[tf.Tensor], radius: float) -> list[tf.Tensor]:
    """Returns the weights nearest to the given ones whose norm is at most `radius`."""
    norm = tf.linalg.global_norm(weights)
    factor = tf.where(norm > radius, radius / norm, 1.0)
    return [w * factor for w in weights]


def running_mean(
    mean: tf.Tensor, value: tf.Tensor, count: tf.Tensor, is_counted: tf.Tensor
) -> tf.Tensor:
    """Returns the mean of `count` values, the last of which is `value`, if it is counted."""
    share = 1.0 / tf.cast(tf.maximum(count, 1), tf.float32)
    return tf.where(is_counted, mean + (value - mean) * share, mean)
