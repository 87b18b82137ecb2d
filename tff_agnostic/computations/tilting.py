"""Weights exp(t (F - c)) of losses F (Li et al. 2021), of which only quotients matter."""

import tensorflow as tf

# Exponents t (F_k - c) are cut to this range. The sums of a round stay finite above it; below it a
# round whose clients all have weights there still averages them.
LOWEST, HIGHEST = -16.0, 50.0


def tilted(loss: tf.Tensor, center: tf.Tensor, tilt: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns exp(t (F_k - c)), and whether it would be larger than weights can be.

    Args:
        loss: F_k, float32 of any shape.
        center: c, float32 scalar.
        tilt: t, float32 scalar.
    """
    exponent = tilt * (loss - center)
    return tf.exp(tf.clip_by_value(exponent, LOWEST, HIGHEST)), exponent > HIGHEST


def next_center(weight: tf.Tensor, weighted_loss: tf.Tensor, usual_loss: tf.Tensor) -> tf.Tensor:
    """Returns c of the next round: the mean of the F_k by the weights of this one.

    With it the same losses would have weights p_k exp(t (F_k - c)) whose sum is at most that of the
    p_k, and at least the smallest p_k: the logarithm of that quotient is the divergence of the
    weights from the p_k. Where all weights were lost in the rounding of a secure sum it is the mean
    loss of the examples.

    Args:
        weight: Sum of the clients' weights.
        weighted_loss: Sum of their F_k times their weights.
        usual_loss: The mean loss of the round's examples.
    """
    tilted_loss = tf.math.divide_no_nan(weighted_loss, weight)
    return tf.where(weight > 0, tilted_loss, usual_loss)
