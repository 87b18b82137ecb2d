"""Gradient estimates and steps for the game min_w max_lambda sum_i lambda_i L_i(w).

Source: Mohri, Sivek, Suresh 2019, section 4.2 and appendix F. lambda and the domains' losses L are
float32 vectors [p].
"""

from __future__ import annotations

import dataclasses
from typing import Callable, Literal, NamedTuple

import numpy as np

from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Verbatim
from tff_agnostic.computations import DomainSums
from tff_agnostic.domain_weights.ascent import FREEZE, ZERO, Cvar, LambdaOptions

# An unbiased estimator. Called with lambda or L, float32 [p], and a seed, int32 [2]; returns a
# vector [p] whose mean over seeds is that lambda or L. Estimates of lambda are the domain weights
# in w's gradient; estimates of L are lambda's gradient.
Estimate = Callable[["tf.Tensor", "tf.Tensor"], "tf.Tensor"]


def all_domains(values: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns lambda or L unchanged, for the per-domain gradients of section 4.2."""
    del seed
    return values


def drawn_by_lambda(lambda_: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns the one-hot vector of a domain K ~ lambda, for the weighted gradient of figure 4."""
    return tf.one_hot(draw(lambda_, seed), lambda_.shape[0])


def one_drawn_loss(losses: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns lambda's gradient of figure 4: p L_K in a uniformly drawn entry K, 0 elsewhere."""
    p = losses.shape[0]
    return losses * p * tf.one_hot(draw(tf.ones([p]) / p, seed), p)


def draw(probabilities: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Returns an index drawn with `probabilities` [n], int32; its probability is never 0."""
    ends = tf.cumsum(probabilities)
    place = tf.random.stateless_uniform([], seed) * ends[-1]
    # Rounding may put the position beyond the last end: choose the last index
    # with a positive probability.
    last = tf.reduce_sum(tf.cast(ends < ends[-1], tf.int32))
    return tf.minimum(tf.reduce_sum(tf.cast(ends <= place, tf.int32)), last)


@dataclasses.dataclass(frozen=True)
class LossEstimatorOptions(LambdaOptions):
    """Options of algorithms whose lambda steps along estimates of the domains' losses.

    Attributes:
        loss_estimate: Divisor of each domain's loss sum: its expected number of examples per round
            (unbiased), or its number of examples in this round (ratio).
    """

    loss_estimate: Literal["unbiased", "ratio"] = "unbiased"

    @property
    def usually_absent(self) -> Literal["freeze", "zero"]:
        """The default treatment of absent domains.

        An unbiased estimate is 0 for an absent domain, and too large for a present domain. If
        lambda moved for present domains only, it would drift upwards. With "ratio", the lambda of
        an absent domain may stay unchanged.
        """
        return ZERO if self.loss_estimate == "unbiased" else FREEZE

    def domain_losses(self, sums: DomainSums, expected: np.ndarray) -> tf.Tensor:
        """Returns L, float32 [p]; `expected` is the number of measured examples per round, [p]."""
        is_unbiased = self.loss_estimate == "unbiased"
        return sums.losses / expected if is_unbiased else sums.mean_losses()

    def __post_init__(self) -> None:
        """Rejects CVaR, which needs exact losses, and baselines with unbiased estimates."""
        super().__post_init__()
        if isinstance(self.lambda_.update, Cvar):
            expected = "a step along estimates of the losses"
            problem = Verbatim("cvar, which needs exact losses; agnostic_fed_avg has it")
            raise self.lambda_.error("update", expected, problem)
        if self.lambda_.baselines is not None and self.loss_estimate != "ratio":
            expected = "ratio with baselines, as they are mean losses"
            raise self.error("loss_estimate", expected)


class LastGradients(NamedTuple):
    """The gradients g_{t-2} of both players, for optimistic steps.

    Attributes:
        weights: Gradient with respect to w, with the structure of the trainable weights.
        losses: Gradient with respect to lambda, float32 [p].
        is_known: Whether each domain has had a loss so far, bool [p].
    """

    weights: list[tf.Tensor]
    losses: tf.Tensor
    is_known: tf.Tensor


def optimistic_step(
    last: LastGradients,
    weights: list[tf.Tensor],
    losses: tf.Tensor,
    step: tf.Tensor,
    has_loss: tf.Tensor,
) -> tuple[list[tf.Tensor], tf.Tensor, LastGradients]:
    """Returns the directions 2 g_{t-1} - g_{t-2} (appendix F.3), and the next `LastGradients`.

    In the first step, and at a domain's first loss, the direction is g_{t-1}. For a domain without
    a loss, the gradient of its last loss is kept, as no step has subtracted it yet.

    Args:
        last: Gradients g_{t-2} of both players.
        weights: Gradient g_{t-1} with respect to w.
        losses: Gradient g_{t-1} with respect to lambda, float32 [p].
        step: Number t of the step, from 1.
        has_loss: Whether each loss is from this round, bool [p].
    """
    has_last = step > 1
    ahead = [tf.where(has_last, 2.0 * g - old, g) for g, old in zip(weights, last.weights)]
    lambda_direction = tf.where(has_last & last.is_known, 2.0 * losses - last.losses, losses)
    kept = tf.where(has_loss, losses, last.losses)
    return ahead, lambda_direction, LastGradients(weights, kept, last.is_known | has_loss)


def scaled_step(
    before: list[tf.Tensor], after: list[tf.Tensor], factor: tf.Tensor
) -> list[tf.Tensor]:
    """Returns `before`, moved by `factor` times the optimizer step from `before` to `after`."""
    return [
        tf.where(factor < 1.0, w + factor * (stepped - w), stepped)
        for w, stepped in zip(before, after)
    ]


def project_to_ball(weights: list[tf.Tensor], radius: float) -> list[tf.Tensor]:
    """Returns the nearest weights whose norm is at most `radius`."""
    norm = tf.linalg.global_norm(weights)
    factor = tf.where(norm > radius, radius / norm, 1.0)
    return [w * factor for w in weights]


def running_mean(
    mean: tf.Tensor, value: tf.Tensor, count: tf.Tensor, is_counted: tf.Tensor
) -> tf.Tensor:
    """Returns the running mean after the `count`-th value; `mean` if the value is not counted."""
    share = 1.0 / tf.cast(tf.maximum(count, 1), tf.float32)
    return tf.where(is_counted, mean + (value - mean) * share, mean)
