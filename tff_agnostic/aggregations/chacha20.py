"""ChaCha20 (RFC 8439, section 2.3), a stream cipher, in TensorFlow's integer operations.

The key stream is a function of a 256-bit key and a 96-bit nonce. As far as is publicly known,
without the key it looks like random bits, and no bits can be computed from others. The
implementation uses only 32-bit integer arithmetic, so that every runtime, device and exported graph
yields the same bits. It has no table look-ups and no branches that depend on the key.
"""

from __future__ import annotations

import atexit
import functools
from typing import Callable, Optional

import numpy as np

from tff_agnostic.base.later import tf

# Number of int64 values of a key.
KEY_NUMBERS = 4
BLOCK_WORDS = 16
# Name of the key-stream function in graphs; `verification` treats its results as noise.
KEYSTREAM = "chacha20_keystream"

# ChaCha20's constant words: the bytes "expand 32-byte k".
_CONSTANTS = np.frombuffer(b"expand 32-byte k", np.uint32)
_DOUBLE_ROUNDS = 10
_LOW = 2**32 - 1

# The state: four rows of four words, uint32 [4, blocks] each.
_Rows = tuple["tf.Tensor", "tf.Tensor", "tf.Tensor", "tf.Tensor"]


def keystream(
    key: tf.Tensor, nonce: tf.Tensor, num_words: int, first_block: Optional[tf.Tensor] = None
) -> tf.Tensor:
    """Returns words of a key stream, uint32 [num_words].

    Args:
        key: The key, int64 [4]: its 32 bytes as little-endian numbers.
        nonce: 12 bytes as little-endian words, uint32 [3]; unique among the streams of a key.
        num_words: Number of 32-bit words.
        first_block: Block counter of the first words, uint32 scalar; 0 if None. A block is
            `BLOCK_WORDS` words.
    """
    if first_block is None:
        first_block = tf.constant(0, tf.uint32)
    num_blocks = -(-num_words // BLOCK_WORDS)
    return _block_function(num_blocks)(key, nonce, first_block)[:num_words]


def halves(number: tf.Tensor) -> list[tf.Tensor]:
    """Returns the lower and the upper 32 bits of int64 numbers, uint32."""
    low = tf.bitwise.bitwise_and(number, tf.constant(_LOW, tf.int64))
    high = tf.bitwise.bitwise_and(
        tf.bitwise.right_shift(number, tf.constant(32, tf.int64)), tf.constant(_LOW, tf.int64)
    )
    return [tf.cast(low, tf.uint32), tf.cast(high, tf.uint32)]


def joined_halves(words: tf.Tensor) -> tf.Tensor:
    """Returns 64-bit numbers, int64 [n / 2], each from two words of uint32 [n]."""
    low, high = tf.unstack(tf.cast(tf.reshape(words, [-1, 2]), tf.int64), axis=1)
    return tf.bitwise.bitwise_or(tf.bitwise.left_shift(high, tf.constant(32, tf.int64)), low)


# A run uses only a few sizes. Each is traced once, so that graphs call the function by its name.
@functools.lru_cache(maxsize=32)
def _block_function(num_blocks: int) -> Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]:
    def chacha20_keystream(key: tf.Tensor, nonce: tf.Tensor, first_block: tf.Tensor) -> tf.Tensor:
        words = tf.reshape(tf.stack(halves(key), axis=1), [8, 1])
        counter = tf.constant(np.arange(num_blocks, dtype=np.uint32)[np.newaxis])
        many = tf.zeros([1, num_blocks], tf.uint32)
        rows = (
            tf.constant(_CONSTANTS[:, np.newaxis]) + many,
            words[:4] + many,
            words[4:] + many,
            tf.concat([counter + first_block, nonce[:, tf.newaxis] + many], axis=0),
        )
        _, *mixed = tf.while_loop(
            lambda k, *mixed: k < _DOUBLE_ROUNDS,
            lambda k, *mixed: (k + 1, *_double_round(mixed)),
            (tf.constant(0), *rows),
        )
        block = tf.concat([a + b for a, b in zip(rows, mixed)], axis=0)
        return tf.reshape(tf.transpose(block), [BLOCK_WORDS * num_blocks])

    chacha20_keystream.__name__ = KEYSTREAM
    return tf.function(
        chacha20_keystream,
        input_signature=(
            tf.TensorSpec([KEY_NUMBERS], tf.int64),
            tf.TensorSpec([3], tf.uint32),
            tf.TensorSpec([], tf.uint32),
        ),
        autograph=False,
    )


# At exit, compiled functions must be deleted before TensorFlow's modules, or Python prints errors.
atexit.register(_block_function.cache_clear)


def _double_round(rows: _Rows) -> _Rows:
    """Applies quarter rounds to the columns of the state, then to its diagonals."""
    a, b, c, d = _quarter_round(*rows)
    a, b, c, d = _quarter_round(a, _turned(b, 1), _turned(c, 2), _turned(d, 3))
    return a, _turned(b, 3), _turned(c, 2), _turned(d, 1)


def _quarter_round(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor, d: tf.Tensor) -> _Rows:
    """Computes four quarter rounds at once, one per word of the rows."""
    a += b
    d = _rotated(tf.bitwise.bitwise_xor(d, a), 16)
    c += d
    b = _rotated(tf.bitwise.bitwise_xor(b, c), 12)
    a += b
    d = _rotated(tf.bitwise.bitwise_xor(d, a), 8)
    c += d
    b = _rotated(tf.bitwise.bitwise_xor(b, c), 7)
    return a, b, c, d


def _rotated(words: tf.Tensor, bits: int) -> tf.Tensor:
    """Rotates words to the left by `bits`."""
    return tf.bitwise.bitwise_or(
        tf.bitwise.left_shift(words, tf.constant(bits, tf.uint32)),
        tf.bitwise.right_shift(words, tf.constant(32 - bits, tf.uint32)),
    )


def _turned(row: tf.Tensor, places: int) -> tf.Tensor:
    """Rotates a row of words to the left by `places`."""
    # For a few blocks, this is milliseconds faster than `tf.roll`.
    return tf.gather(row, [(k + places) % 4 for k in range(4)])
