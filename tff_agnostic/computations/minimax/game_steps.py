"""Steps of the game between weights and lambda, as pure functions (Mohri et al. 2019, figure 3)."""

import dataclasses
from typing import Callable, NamedTuple, Optional

import tensorflow as tf

from tff_agnostic.registry import Registry
from tff_agnostic.settings import Settings, setting

# t, counted from 1 -> what both step sizes are multiplied by.
STEP_DECAYS: Registry[Callable[[tf.Tensor], tf.Tensor]] = Registry(
    "decay of steps",
    {
        "none": tf.ones_like,
        "inverse_sqrt": tf.math.rsqrt,
        "inverse": tf.math.reciprocal,
    },
)


@dataclasses.dataclass(frozen=True)
class GameStepOptions(Settings):
    """How both players step.

    Attributes:
        step_decay: Member of `STEP_DECAYS`, for both players.
        optimistic: Steps along 2 g_{t-1} - g_{t-2} in place of g_{t-1}, of both players.
        weights_radius: Norm of the ball around 0 in which w stays; none if None.
    """

    step_decay: str = setting(
        "none",
        "How both players' steps fall in round t: not, by 1 / sqrt(t), or by 1 / t.",
        choices=STEP_DECAYS,
    )
    optimistic: bool = setting(
        False, "Whether both players step along twice the gradient less the one before."
    )
    weights_radius: Optional[float] = setting(
        None, "Norm of the ball in which the weights stay; none if not given.", positive=True
    )


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
