"""What noise is made of, by the name of a generator: of a secret key and the place of the noise.

No two releases, exchanges, clients and uses of a run share random bits, whatever examples clients
hold: copies of a client have noise of their own. A round that is run again has the same noise.

- **philox** is TensorFlow's: fast, statistically good, and not made to withstand anyone who wants
  to predict it. A server's noise is float32, and clients' is looked up or is TensorFlow's Poisson.
- **secure** is ChaCha20. A server's noise is in whole steps of a grid, see `grid_noise`, and
  clients' is looked up. Nothing is lost to floating point.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tff_agnostic.aggregations import chacha20
from tff_agnostic.aggregations.private import grid_noise
from tff_agnostic.aggregations.private.integer_codec import Draws, IntegerCodec
from tff_agnostic.aggregations.private.noise import Noise, NoisedGroup, Release
from tff_agnostic.errors import UserError
from tff_agnostic.registry import Registry

_WORD_BYTES = 8


class NoiseGenerator(Protocol):
    """A generator of noise."""

    @property
    def title(self) -> str:
        """What it is, for people."""

    @property
    def is_exact(self) -> bool:
        """Whether floating point gives nothing away of a sum with noise."""

    @property
    def key_bytes(self) -> int:
        """How many random bytes a key takes."""

    def key(self, content: bytes) -> tuple[int, ...]:
        """Returns a key, numbers of an int64 tensor, from as many random bytes as it takes."""

    def check(self, multipliers: Sequence[float]) -> None:
        """Refuses noise that it cannot make.

        Args:
            multipliers: The noise multiplier of each group of a server's sum.

        Raises:
            UserError: If one is out of range.
        """

    def add_noise(
        self,
        noise: Noise,
        release: Release,
        values: Sequence[tf.Tensor],
        groups: Sequence[NoisedGroup],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """On the server: returns sums with noise, and the standard deviation of each one's noise.

        Args:
            noise: The kind of noise.
            release: Which release it is for.
            values: The sums, float64.
            groups: Which of them get noise, and how much.
        """

    def client_draws(
        self, release: Release, place: tf.Tensor, codecs: Sequence[IntegerCodec]
    ) -> list[Draws]:
        """On a client: returns what it draws in an exchange, for each group.

        Args:
            release: Which release it is for.
            place: Number of the client in its cohort, int32 scalar.
            codecs: How each group becomes integers.
        """


@dataclasses.dataclass(frozen=True)
class Philox:
    """TensorFlow's stateless random numbers, whose seed is the key xor the place."""

    title = "Philox with a key of 126 bits, a generator for simulations"
    is_exact = False
    key_bytes = 2 * _WORD_BYTES

    def key(self, content: bytes) -> tuple[int, ...]:
        """Returns two numbers of 63 bits."""
        return tuple(int(word >> np.uint64(1)) for word in np.frombuffer(content, np.uint64))

    def check(self, multipliers: Sequence[float]) -> None:
        """Accepts any."""

    def add_noise(
        self,
        noise: Noise,
        release: Release,
        values: Sequence[tf.Tensor],
        groups: Sequence[NoisedGroup],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Adds float32 noise; see `NoiseGenerator`."""
        noisy, deviations = list(values), [tf.constant(0.0, tf.float64)] * len(values)
        for group in groups:
            deviation = group.multiplier * group.limit
            for i in group.positions:
                spec = tf.TensorSpec(values[i].shape, tf.float32)
                draw = functools.partial(_philox_normal, release, i, spec.shape)
                added = noise(draw, release.number, spec)
                noisy[i] += deviation * tf.cast(added, tf.float64)
                deviations[i] = deviation
        return noisy, deviations

    def client_draws(
        self, release: Release, place: tf.Tensor, codecs: Sequence[IntegerCodec]
    ) -> list[Draws]:
        """Returns draws of one stream for rounding, and of one for noise."""

        def seed(use: int) -> tf.Tensor:
            of_client = release.number * 2**32 + tf.cast(place, tf.int64)
            of_use = tf.constant((release.exchange << 1) + use, tf.int64)
            return tf.bitwise.bitwise_xor(release.key, tf.stack([of_client, of_use]))

        # One draw for all groups: starting one costs a small group's many times over.
        num_values, num_words = _totals(codecs)
        uniforms = tf.random.stateless_uniform([num_values], seed(0), alg="philox")
        words = tf.random.stateless_uniform(
            [num_words], seed(1), None, None, tf.int64, alg="philox"
        )
        return _by_group(codecs, uniforms, words)


# Bits of a seed's first number that tell places, and levels of a tree, apart.
_LEVEL_BITS, _VALUE_BITS = 8, 32


def _philox_normal(
    release: Release, value: int, shape: tf.TensorShape, level: tf.Tensor, number: tf.Tensor
) -> tf.Tensor:
    of_place = (release.exchange << (_LEVEL_BITS + _VALUE_BITS)) + (value << _LEVEL_BITS)
    code = tf.stack([tf.constant(of_place, tf.int64) + level, number])
    seed = tf.bitwise.bitwise_xor(release.key, code)
    return tf.random.stateless_normal(shape, seed, alg="philox")


# The nonce of a stream is three little-endian words. The first has, from its last bit on,
#
#     8 bits    level of the node of a tree that the noise is for, otherwise 0
#     16 bits   number of the exchange in its round
#     8 bits    use: noise of the server, or what a client draws
#
# and the other two are a number of 64 bits: of the release, or of the tree's node, for the server's
# noise; 2^32 times that of the release plus the client's place in its cohort for a client's. So no
# two draws of a key share a nonce. The values of an exchange follow each other in one stream, whose
# block counter begins at 0 and ends below 2^32. Evaluations and cohorts have keys of their own.
_USE_SHIFT, _EXCHANGE_SHIFT, _MAX_EXCHANGES = 24, 8, 2**16
_OF_SERVER, _OF_CLIENT = 1, 2
# Values whose noise is drawn at a time, which takes about 300 bytes for each: whole blocks.
_PIECE = 2**18


@dataclasses.dataclass(frozen=True)
class ChaCha20:
    """ChaCha20, of which every bit of noise is made."""

    title = "ChaCha20 with a key of 256 bits, a cryptographic generator"
    is_exact = True
    key_bytes = chacha20.KEY_NUMBERS * _WORD_BYTES

    def key(self, content: bytes) -> tuple[int, ...]:
        """Returns four numbers of 64 bits."""
        return tuple(map(int, np.frombuffer(content, np.int64)))

    def check(self, multipliers: Sequence[float]) -> None:
        """Refuses noise so wide that rounding to its grid would count; see `NoiseGenerator`."""
        if max(multipliers) > grid_noise.MAX_MULTIPLIER:
            raise UserError(
                f"--noise_multiplier: expected at most {grid_noise.MAX_MULTIPLIER:g} a group "
                f"of values with --noise_generator=secure, found {max(multipliers):g}"
            )

    def add_noise(
        self,
        noise: Noise,
        release: Release,
        values: Sequence[tf.Tensor],
        groups: Sequence[NoisedGroup],
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Adds whole steps to sums on a grid; see `NoiseGenerator`."""
        size = grid_noise.values_of(values, groups)

        def draw(level: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
            nonce = _nonce(_OF_SERVER, release.exchange, level, number)
            return _whole_gaussian(release.key, nonce, size)

        spec = tf.TensorSpec([size], tf.int64)
        return grid_noise.with_noise(values, groups, noise(draw, release.number, spec))

    def client_draws(
        self, release: Release, place: tf.Tensor, codecs: Sequence[IntegerCodec]
    ) -> list[Draws]:
        """Returns draws of one stream: 32 bits for each rounding, then the words of the noise."""
        number = release.number * 2**32 + tf.cast(place, tf.int64)
        nonce = _nonce(_OF_CLIENT, release.exchange, tf.constant(0, tf.int64), number)
        num_values, num_words = _totals(codecs)
        bits = chacha20.keystream(release.key, nonce, num_values + 2 * num_words)
        # 24 bits of each, as many as float32 has room for.
        of_rounding = tf.bitwise.right_shift(bits[:num_values], tf.constant(8, tf.uint32))
        uniforms = tf.cast(of_rounding, tf.float32) / 2.0**24
        return _by_group(codecs, uniforms, chacha20.joined_halves(bits[num_values:]))


def _whole_gaussian(key: tf.Tensor, nonce: tf.Tensor, size: int) -> tf.Tensor:
    """Returns noise of a stream, int64 [size]: of large models piece by piece, to save memory."""
    of_piece = min(size, _PIECE)
    words = 2 * grid_noise.WORDS * of_piece

    def piece(k: tf.Tensor) -> tf.Tensor:
        first_block = tf.cast(k * (words // chacha20.BLOCK_WORDS), tf.uint32)
        bits = chacha20.keystream(key, nonce, words, first_block)
        return grid_noise.whole_gaussian(chacha20.joined_halves(bits))

    if size <= _PIECE:
        return piece(tf.constant(0))
    pieces = tf.map_fn(
        piece,
        tf.range(-(-size // _PIECE)),
        parallel_iterations=1,
        fn_output_signature=tf.TensorSpec([_PIECE], tf.int64),
    )
    return tf.reshape(pieces, [-1])[:size]


def _nonce(use: int, exchange: int, level: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Returns the nonce of a stream, uint32 [3]."""
    if exchange >= _MAX_EXCHANGES:
        raise ValueError(f"expected fewer than {_MAX_EXCHANGES} exchanges")
    first = tf.constant((use << _USE_SHIFT) + (exchange << _EXCHANGE_SHIFT), tf.int64) + level
    return tf.stack([tf.cast(first, tf.uint32), *chacha20.halves(number)])


def key_like(noise_key: Any, content: bytes) -> tuple[int, ...]:
    """Returns a key of the same generator as another one.

    Args:
        noise_key: The other key.
        content: Random bytes, of which a key takes the first.
    """
    num_bytes = len(noise_key) * _WORD_BYTES
    generator = next(g for g in NOISE_GENERATORS.values() if g.key_bytes == num_bytes)
    return generator.key(content[:num_bytes])


def _totals(codecs: Sequence[IntegerCodec]) -> tuple[int, int]:
    """Returns how many values, and how many words of noise, all groups have together."""
    return sum(codec.size for codec in codecs), sum(codec.num_words for codec in codecs)


def _by_group(codecs: Sequence[IntegerCodec], uniforms: tf.Tensor, words: tf.Tensor) -> list[Draws]:
    """Cuts the draws of all groups into those of each."""
    of_rounding = tf.split(uniforms, [codec.size for codec in codecs])
    of_noise = tf.split(words, [codec.num_words for codec in codecs])
    return [Draws(*pair) for pair in zip(of_rounding, of_noise)]


NOISE_GENERATORS: Registry[NoiseGenerator] = Registry(
    "noise generator", {"philox": Philox(), "secure": ChaCha20()}
)
