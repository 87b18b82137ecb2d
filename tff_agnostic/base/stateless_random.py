"""Stateless seeds, so that a run is a function of its flags and its data.

A client's seed derives from the run's seed, the round, and a fingerprint of the client's examples.
Devices therefore need no client id, and results depend neither on the order of the cohort nor on
the runtime's batches of clients. Seeds are int64. All operations are elementwise integer
arithmetic, whose results are the same for one client, for many clients at once, and on every
device.
"""

from __future__ import annotations

import math
from typing import Union

import numpy as np

from tff_agnostic.base.later import tf

# SplitMix64 (Steele, Lea and Flood 2014, figure 15): increment and multipliers, as signed numbers.
_INCREMENT = -7046029254386353131
_MULTIPLIERS = (-4658895280553007687, -7723592293110705685)
_SHIFTS = (30, 27, 31)
_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
# Number of random bits in a uniform number: the precision of float32.
UNIFORM_BITS = 24
# Maximum Poisson number; larger numbers would have a probability of less than 2^-24.
MAX_POISSON = 11


def fold_in(seed: tf.Tensor, data: tf.Tensor) -> tf.Tensor:
    """Returns new seeds, int64, derived from seeds and integers; shapes are broadcast."""
    increment = tf.constant(_INCREMENT, tf.int64)
    # Add 1 to `data` instead of adding a third summand. For three summands in a loop of a large
    # graph, TensorFlow creates an operation with a temporary variable, which still exists in the
    # function's next call.
    state = tf.cast(seed, tf.int64) + (tf.cast(data, tf.int64) + 1) * increment
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS):
        state = (state ^ _logical_shift(state, shift)) * multiplier
    return state ^ _logical_shift(state, _SHIFTS[2])


def stateless_seed(seed: tf.Tensor) -> tf.Tensor:
    """Returns the seed for TensorFlow's stateless random ops, int32 [2], from an int64 scalar."""
    halves = [seed & _MAX_INT32, _logical_shift(seed, 32) & _MAX_INT32]
    return tf.cast(tf.stack(halves), tf.int32)


def uniform(seed: tf.Tensor, use: int) -> tf.Tensor:
    """Returns numbers in [0, 1), float32, from seeds of any shape.

    Args:
        seed: int64.
        use: Number that identifies the purpose; each purpose gets different numbers from the same
            seeds.
    """
    return tf.cast(uniform_bits(seed, use), tf.float32) / 2.0**UNIFORM_BITS


def uniform_bits(seed: tf.Tensor, use: Union[int, np.ndarray]) -> tf.Tensor:
    """Returns `uniform` times 2^`UNIFORM_BITS`, int64; `seed` and `use` are broadcast."""
    return _logical_shift(fold_in(seed, tf.constant(use)), 64 - UNIFORM_BITS)


def poisson_one(seed: tf.Tensor, count: int) -> tf.Tensor:
    """Returns Poisson numbers with mean 1, float32 [*S, count], from seeds of shape S.

    The inverse distribution function maps uniform numbers to Poisson numbers of at most
    `MAX_POISSON`.
    """
    bits = uniform_bits(seed[..., tf.newaxis], np.arange(count))
    below = np.cumsum([math.exp(-1) / math.factorial(k) for k in range(MAX_POISSON)])
    steps = np.floor(below * 2.0**UNIFORM_BITS).astype(np.int64)
    reached = tf.searchsorted(steps, tf.reshape(bits, [-1]), side="right")
    return tf.cast(tf.reshape(reached, tf.shape(bits)), tf.float32)


def random_order(seed: tf.Tensor, num_examples: tf.Tensor, capacity: tf.Tensor) -> tf.Tensor:
    """Returns a permutation of each client's examples.

    Args:
        seed: int64, of any shape S.
        num_examples: int32, of shape S.
        capacity: int32 scalar, at least every number of examples.

    Returns:
        int32 [*S, capacity]: first a permutation of 0 to n - 1, which does not depend on
        `capacity`, then the other numbers.
    """
    positions = tf.range(capacity)
    keys = _logical_shift(fold_in(seed[..., tf.newaxis], positions), 1)
    is_example = positions < num_examples[..., tf.newaxis]
    return tf.argsort(tf.where(is_example, keys, _MAX_INT64), stable=True)


def hash_multipliers(width: tf.Tensor) -> tf.Tensor:
    """Returns odd multipliers, int64, to hash `width` numbers linearly without losing bits."""
    return tf.bitwise.bitwise_or(
        fold_in(tf.constant(0, tf.int64), tf.range(width)), tf.constant(1, tf.int64)
    )


def known_multipliers(width: int) -> np.ndarray:
    """Returns `hash_multipliers` of a known width as an array, without TensorFlow."""
    increment, *multipliers = np.array([_INCREMENT, *_MULTIPLIERS], np.int64).view(np.uint64)
    state = np.arange(1, width + 1, dtype=np.uint64) * increment
    for shift, multiplier in zip(_SHIFTS, multipliers):
        state = (state ^ (state >> np.uint64(shift))) * multiplier
    return (state ^ (state >> np.uint64(_SHIFTS[2])) | np.uint64(1)).view(np.int64)


def _logical_shift(values: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.right_shift(values, tf.constant(bits, tf.int64)) & ((1 << (64 - bits)) - 1)
