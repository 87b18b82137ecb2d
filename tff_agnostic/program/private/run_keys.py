"""The secrets of a private run: the key of its noise, and what its cohorts are drawn with."""

import hashlib
import secrets
from typing import Union

import numpy as np
import tensorflow as tf

from tff_agnostic.aggregations import chacha20
from tff_agnostic.aggregations.private.generators import NOISE_GENERATORS
from tff_agnostic.aggregations.private.options import PrivacyOptions
from tff_agnostic.computations.exchange import RunState
from tff_agnostic.data.sampling import Seed

# Keeps what cohorts are drawn with apart from the key of the noise, of which it tells nothing.
_COHORTS = b"cohorts"
# Keeps the noise of a seed apart from other draws.
_NOISE_STREAM = 17


def noise_key(options: PrivacyOptions) -> tuple[int, ...]:
    """Returns a secret from the operating system, or what --noise_seed gives in its place."""
    generator = NOISE_GENERATORS[options.noise_generator]
    if options.noise_seed is None:
        return generator.key(secrets.token_bytes(generator.key_bytes))
    sequence = np.random.SeedSequence([options.noise_seed, _NOISE_STREAM])
    return generator.key(sequence.generate_state(generator.key_bytes // 8, np.uint64).tobytes())


def cohort_seed(state: RunState) -> Seed:
    """Returns what cohorts are drawn with: a secret, as the account takes for granted.

    The run's own seed is in config.json, and every client is sent it. Cohorts are drawn by the
    generator of the noise if that is ChaCha20, and otherwise by NumPy's.
    """
    key = np.asarray(state.aggregations[0].noise_key, np.int64)
    digest = hashlib.sha256(_COHORTS + key.tobytes()).digest()
    if len(key) == chacha20.KEY_NUMBERS:
        return lambda *place: SecretNumbers(digest, place)
    return int.from_bytes(digest[:16], "little")


class SecretNumbers:
    """Random numbers of ChaCha20, with the methods of `numpy.random.Generator` that cohorts need.

    Args:
        key: 32 bytes.
        place: What they are for, at most two numbers below 2^32; other places have others.
    """

    def __init__(self, key: bytes, place: tuple[int, ...]) -> None:
        self._key = np.frombuffer(key, np.int64)
        self._place = place
        self._calls = 0

    def random(self, size: int) -> np.ndarray:
        """Returns numbers in [0, 1), multiples of 2^-53."""
        return (self._words(size) >> np.uint64(11)).astype(np.float64) / 2.0**53

    def uniform(self) -> float:
        """Returns such a number."""
        return float(self.random(1)[0])

    def permutation(self, values: Union[int, np.ndarray]) -> np.ndarray:
        """Returns an array, or the numbers below one, in random order."""
        values = np.arange(values) if isinstance(values, int) else values
        return values[np.argsort(self._words(len(values)), kind="stable")]

    def choice(self, values: Union[int, np.ndarray], size: int, replace: bool) -> np.ndarray:
        """Returns so many of them, none twice, in random order."""
        assert not replace
        return self.permutation(values)[:size]

    def _words(self, size: int) -> np.ndarray:
        # Every call has a stream of its own.
        first, second = (*self._place, 0)[:2]
        nonce = np.array([first, second, self._calls], np.uint32)
        self._calls += 1
        with tf.device("/cpu:0"):
            words = chacha20.keystream(tf.constant(self._key), tf.constant(nonce), 2 * size)
        return words.numpy().view(np.uint64)
