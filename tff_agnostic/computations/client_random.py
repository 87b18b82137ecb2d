"""Draws the random numbers of many clients, each with its own seed, in one kernel.

TensorFlow's vectoriser (`pfor`) draws random numbers for one client after another, as its
operations accept a single seed. That suits a CPU. An accelerator, however, must launch each of
these small operations separately: dropout took 93% of the time of a round (50 clients, a CNN, an
H200). This module implements the same generator, Philox4x32-10 (Salmon et al. 2011), as integer
arithmetic on the seeds of all clients, which XLA compiles to one kernel. Each client gets the same
bits as from a TensorFlow operation with the client's seed. In shapes, G is the number of clients.
Random words have 32 bits; int64 tensors hold words, or pairs of words.
"""

from __future__ import annotations

import atexit
import functools
from typing import Any, Callable

from tff_agnostic.base.later import tf

# Philox's multipliers, its key increments per round, and its number of rounds.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 2**32 - 1
# Key with which TensorFlow derives a generator's key and counter from a seed.
_SEED_KEY = (0x3EC8F720, 0x02461E29)
# Number of random words per counter.
_NUMBERS = 4
# A float32 number in [1, 2) has the exponent 127 and 23 random bits.
_MANTISSA_BITS, _EXPONENT = 23, 127
# Batch sizes are rounded up to a multiple of this number, as XLA compiles a kernel per size.
_KERNEL_ROWS = 8
# TensorFlow's constant for the device's own algorithm: Philox on CPUs and GPUs.
_DEVICE_ALGORITHM = 3


def philox(counter: tuple[tf.Tensor, ...], key: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
    """Returns four random words for each counter and key; shapes are broadcast.

    Args:
        counter: Counter of four words.
        key: Key of two words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The upper word of each pair's product is mixed into the other pair of counter words.
        (low0, high0), (low1, high1) = (
            words(value * tf.constant(by, tf.int64)) for value, by in zip((c0, c2), _MULTIPLIERS)
        )
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = ((k + step) & _WORD for k, step in zip((k0, k1), _KEY_STEPS))
    return c0, c1, c2, c3


def words(pairs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the lower and the upper word of each pair."""
    upper = tf.bitwise.right_shift(pairs, tf.constant(32, tf.int64))
    return pairs & _WORD, upper & _WORD


def key_and_counter(seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns each client's key, [G, 1], and counter, [G, 2], as pairs of words.

    Args:
        seeds: Two integers per client, [G, 2].
    """
    first, second = tf.unstack(tf.cast(seeds, tf.int64), axis=1)
    seed_key = (tf.constant(word, tf.int64) for word in _SEED_KEY)
    mixed = philox((*words(first), *words(second)), tuple(seed_key))
    key, upper = (_pairs(*mixed[i : i + 2]) for i in (0, 2))
    return key[:, tf.newaxis], tf.stack([tf.zeros_like(upper), upper], axis=1)


def random_words(key: tf.Tensor, counter: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns the first `count` random words of each client, [G, count].

    Args:
        key: [G, 1].
        counter: [G, 2].
        count: Number of words, at most 2^66, as the counter's lower pair has 64 bits.
    """
    steps = tf.range((tf.cast(count, tf.int64) + _NUMBERS - 1) // _NUMBERS)
    lower, upper = counter[:, :1] + steps, counter[:, 1:]
    drawn = tf.stack(philox((*words(lower), *words(upper)), words(key)), axis=-1)
    return tf.reshape(drawn, [tf.shape(key)[0], -1])[:, :count]


def uniform(key: tf.Tensor, counter: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns uniform numbers in [0, 1), float32 [G, count]; see `random_words`."""
    drawn = random_words(key, counter, count)
    mantissa = tf.cast(drawn & (2**_MANTISSA_BITS - 1), tf.int32)
    return tf.bitcast(mantissa | _EXPONENT << _MANTISSA_BITS, tf.float32) - 1.0


def whole_numbers(key: tf.Tensor, counter: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns integers from the full range of int32, [G, count]; see `random_words`."""
    return tf.bitcast(tf.cast(random_words(key, counter, count), tf.uint32), tf.int32)


def converter(vectoriser: Any, name: str) -> Callable[[Any], Any]:
    """Returns a `pfor` converter that draws the numbers of all clients at once.

    For other dtypes, and for operations with a named generator, the converter raises
    `ConversionNotImplementedError`, after which TensorFlow converts the operation.

    Args:
        vectoriser: TensorFlow's module `pfor`, which passes the operands.
        name: Type of the operation, one of `CONVERTED`.
    """
    convert = CONVERTED[name]

    def converted(operands: Any) -> Any:
        outputs = convert(operands)
        if outputs is None:
            raise vectoriser.ConversionNotImplementedError(f"{name} of another kind")
        return [vectoriser.wrap(output, True) for output in outputs]

    return converted


def _convert_key_and_counter(operands: Any) -> Any:
    operands.stack_inputs(stack_indices=[0])
    made = _in_one_kernel(key_and_counter)(operands.stacked_input(0))
    return [tf.bitcast(pairs, tf.uint64) for pairs in made]


def _numbers(draw: Callable[..., tf.Tensor], dtype: str) -> Callable[[Any], Any]:
    def convert(operands: Any) -> Any:
        (output,) = operands.op.outputs
        is_known = (
            tf.get_static_value(operands.op.inputs[3]) == _DEVICE_ALGORITHM
            and output.dtype == dtype
            and output.shape.rank is not None
        )
        if not is_known or operands.inputs[0].is_stacked:
            return None
        operands.stack_inputs(stack_indices=[1, 2])
        key, counter = (tf.bitcast(operands.stacked_input(i), tf.int64) for i in (1, 2))
        shape = tf.cast(operands.unstacked_input(0), tf.int32)
        size = tf.reduce_prod(shape)
        drawn = _in_one_kernel(draw)(key, counter, _compiled_size(size, shape, output))
        numbers = tf.reshape(drawn[:, :size], tf.concat([tf.shape(key)[:1], shape], axis=0))
        numbers.set_shape([None, *output.shape])
        return [numbers]

    return convert


def _compiled_size(size: tf.Tensor, shape: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """Returns the number of values to draw, rounded up if batches have varying sizes."""
    if output.shape.rank == 0 or output.shape[0] is not None:
        return size
    rows = -(-shape[0] // _KERNEL_ROWS) * _KERNEL_ROWS
    return size // tf.maximum(shape[0], 1) * rows


CONVERTED: dict[str, Callable[[Any], Any]] = {
    "StatelessRandomGetKeyCounter": _convert_key_and_counter,
    "StatelessRandomUniformV2": _numbers(uniform, "float32"),
    "StatelessRandomUniformFullIntV2": _numbers(whole_numbers, "int32"),
}


@functools.cache
def _in_one_kernel(fn: Callable[..., Any]) -> Any:
    """Returns `fn` compiled by XLA, once per shape, for the device that calls it."""
    return tf.function(fn, autograph=False, jit_compile=True)


# At exit, compiled functions must be deleted before TensorFlow's modules, or Python prints errors.
atexit.register(_in_one_kernel.cache_clear)


def _pairs(lower: tf.Tensor, upper: tf.Tensor) -> tf.Tensor:
    return lower | tf.bitwise.left_shift(upper, tf.constant(32, tf.int64))
