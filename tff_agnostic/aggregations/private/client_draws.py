"""What a simulated client draws for a release: of a secret key and its place in the cohort alone.

No two of a run's clients, rounds and exchanges share a seed, whatever examples clients hold: copies
of a client have noise of their own. A round that is run again has the same.
"""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

# A group has as many words at the least: a seed.
_LEAST_WORDS = 2
_ROUNDING, _NOISE = 0, 1


class Draws(NamedTuple):
    """Random numbers for a group of d values.

    Attributes:
        uniforms: For rounding, in [0, 1), float32 [d].
        words: For noise, of 64 random bits, int64 [d], or [2] if there are fewer values.
    """

    uniforms: tf.Tensor
    words: tf.Tensor


def client_draws(
    key: tf.Tensor, release: tf.Tensor, exchange: int, place: tf.Tensor, sizes: Sequence[int]
) -> list[Draws]:
    """Returns what one client draws in one exchange, for each group.

    Args:
        key: The secret, int64 [2].
        release: Number of the release, int64 scalar.
        exchange: Number of the exchange in its round.
        place: Number of the client in its cohort, int32 scalar.
        sizes: How many values each group has.
    """

    def seed(use: int) -> tf.Tensor:
        of_client = release * 2**32 + tf.cast(place, tf.int64)
        of_use = tf.constant((exchange << 1) + use, tf.int64)
        return tf.bitwise.bitwise_xor(key, tf.stack([of_client, of_use]))

    # One draw for all groups: starting one costs a small group's many times over.
    num_words = [max(size, _LEAST_WORDS) for size in sizes]
    uniforms = tf.random.stateless_uniform([sum(sizes)], seed(_ROUNDING), alg="philox")
    words = tf.random.stateless_uniform(
        [sum(num_words)], seed(_NOISE), None, None, tf.int64, alg="philox"
    )
    pairs = zip(tf.split(uniforms, list(sizes)), tf.split(words, num_words))
    return [Draws(*pair) for pair in pairs]
