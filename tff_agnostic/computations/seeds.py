"""Stateless seeds, so that a run is a function of its flags and its data.

A client's seed comes from the run's seed, the round and a fingerprint of the client's examples. No
client id has to reach the device, and the order of the cohort does not matter.
"""

import tensorflow as tf

from tff_agnostic.models.functional import Examples

# An odd multiplier spreads neighbouring values over the 64-bit ring (Knuth's golden ratio).
_MULTIPLIER = -7046029254386353131
_MAX_INT32 = 2**31 - 1


def fold_in(seed: tf.Tensor, data: tf.Tensor) -> tf.Tensor:
    """Returns a new seed int32 [2] from a seed int32 [2] and an integer scalar."""
    return tf.random.experimental.stateless_fold_in(seed, tf.cast(data, tf.int32))


def fingerprint(examples: Examples) -> tf.Tensor:
    """Returns a hash of a client's examples, an int32 scalar in [0, 2^31).

    Trailing rows of zeros do not change it, so a padded client has the seed of the client.
    """
    total = tf.constant(0, tf.int64)
    for column in tf.nest.flatten(examples):
        bits = tf.reshape(_as_integers(column), [-1])
        positions = tf.range(1, tf.size(bits, tf.int64) + 1, dtype=tf.int64)
        total = total * _MULTIPLIER + tf.reduce_sum(bits * (positions * _MULTIPLIER))
    return tf.cast(tf.bitwise.right_shift(total, 33) & _MAX_INT32, tf.int32)


def _as_integers(column: tf.Tensor) -> tf.Tensor:
    if column.dtype == tf.float32:
        return tf.cast(tf.bitcast(column, tf.int32), tf.int64)
    if column.dtype == tf.float64:
        return tf.bitcast(column, tf.int64)
    return tf.cast(column, tf.int64)
