"""Integers that clients send: rounded so that norms stay bounded, with noise, modulo a power of 2.

Everything is in steps of the grid.
"""

import math

import tensorflow as tf

# With which probability coordinates of a group's vector wrap around in a round, at the most.
WRAP_PROBABILITY = 1e-9


def rounded(vector: tf.Tensor, max_norm: float, uniforms: tf.Tensor) -> tf.Tensor:
    """Returns whole numbers near a vector, int64 [d], of a norm of at most `max_norm`.

    Each coordinate is rounded up with the probability of its fraction. If that makes the vector too
    long, which is improbable (Kairouz, Liu, Steinke 2021, proposition 22; there it is then done
    again), coordinates are rounded toward zero, which lengthens nothing.

    Args:
        vector: float32 or float64 [d], of a norm of at most `max_norm`.
        max_norm: Bound of the norm after rounding; see `integer_noise.rounded_sensitivity`.
        uniforms: Numbers in [0, 1), float32 [d].
    """
    by_chance = tf.floor(vector + tf.cast(uniforms, vector.dtype))
    square = tf.reduce_sum(tf.square(tf.cast(by_chance, tf.float64)))
    # A cast rounds toward zero.
    return tf.cast(tf.where(square <= max_norm**2, by_chance, vector), tf.int64)


def bits_of_sum(
    max_norm: float, size: int, is_rotated: bool, deviation: float, expected_clients: float
) -> int:
    """Returns how many bits the modular sum of a group's vectors needs.

    With them no coordinate wraps around but with `WRAP_PROBABILITY`, a third of it for each of: a
    cohort of more clients than M, as a Poisson cohort may have; a sum without noise that is beyond
    its bound, which is M times the norm, or of a rotated vector a sub-Gaussian's; and noise that is
    beyond its own. Tails of Poisson and Skellam numbers of variance v are bounded by
    exp(-t^2 / (2 (v + t / 3))).

    Args:
        max_norm: Of a client's vector before rounding.
        size: d, its coordinates.
        is_rotated: Whether it is.
        deviation: Standard deviation of the noise of the expected clients.
        expected_clients: How many.
    """
    third = WRAP_PROBABILITY / 3
    max_clients = expected_clients + _beyond(expected_clients, math.log(1 / third))
    of_any = math.log(2 * size / third)
    share = min(1.0, math.sqrt(2 * of_any / size)) if is_rotated else 1.0
    noise = _beyond(max_clients / expected_clients * deviation**2, of_any)
    # Rounding changes each client's coordinate by less than 1.
    largest = max_clients * (max_norm * share + 1) + noise
    return math.floor(math.log2(largest)) + 2


def _beyond(variance: float, log_inverse: float) -> float:
    """Returns t with exp(-t^2 / (2 (variance + t / 3))) = exp(-log_inverse)."""
    return log_inverse / 3 + math.sqrt(log_inverse**2 / 9 + 2 * variance * log_inverse)


def residues(integers: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns int64 numbers modulo 2^bits."""
    return tf.bitwise.bitwise_and(integers, tf.constant(2**bits - 1, tf.int64))


def centred(summed: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns of sums modulo 2^bits, or sums of residues, the numbers of least size, int64."""
    half = 2 ** (bits - 1)
    return residues(summed + half, bits) - half
