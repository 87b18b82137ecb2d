"""Random numbers of many clients at once, each with a seed of its own, by one kernel.

TensorFlow's vectoriser (`pfor`) draws them for one client after another, as its operations take a
single seed. That suits a CPU. An accelerator has to start each of these small operations: 13 of 14
parts of a round of 50 clients were dropout (a CNN on an H200). Here the same generator, Philox with
four words of 32 bits and ten rounds (Salmon et al. 2011), is integer arithmetic on all clients'
seeds, and XLA compiles it to one kernel. Every number has the bits that TensorFlow draws for the
client alone. Shapes: G clients. Words of 32 bits, and pairs of them, are int64.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from tff_agnostic.base.later import tf

# Multipliers of a round, what the key grows by after it, and the number of rounds.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 2**32 - 1
# With this key TensorFlow makes a key and a counter of a seed.
_KEY_OF_SEEDS = (0x3EC8F720, 0x02461E29)
# Numbers that a counter gives.
_NUMBERS = 4
# float32: 23 random bits of a number in [1, 2), whose exponent is 127.
_MANTISSA_BITS, _EXPONENT = 23, 127
# XLA compiles a kernel for each number of rows of a batch, rounded up to so many.
_ROWS_OF_A_KERNEL = 8
# TensorFlow's number for the algorithm that suits the device: Philox on CPUs and GPUs.
_ALGORITHM_OF_DEVICE = 3


def philox(counter: tuple[tf.Tensor, ...], key: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
    """Returns four random words for each counter and key, whose shapes broadcast.

    Args:
        counter: Four words.
        key: Two words.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The upper words of the products cross over to the other pair.
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
    """Returns the key, [G, 1], and the counter, [G, 2], of each client, in pairs of words.

    Args:
        seeds: Integers [G, 2].
    """
    first, second = tf.unstack(tf.cast(seeds, tf.int64), axis=1)
    of_seed = (tf.constant(word, tf.int64) for word in _KEY_OF_SEEDS)
    mixed = philox((*words(first), *words(second)), tuple(of_seed))
    key, upper = (_pairs(*mixed[i : i + 2]) for i in (0, 2))
    return key[:, tf.newaxis], tf.stack([tf.zeros_like(upper), upper], axis=1)


def random_words(key: tf.Tensor, counter: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Returns the first `count` words of each client, [G, count].

    Args:
        key: [G, 1].
        counter: [G, 2].
        count: How many, at most 2^66 before the counter's lower pair is used up.
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
    """Returns any whole numbers, int32 [G, count]; see `random_words`."""
    return tf.bitcast(tf.cast(random_words(key, counter, count), tf.uint32), tf.int32)


def converter(vectoriser: Any, name: str) -> Callable[[Any], Any]:
    """Returns what converts a random operation into that of many clients.

    It leaves to TensorFlow other types of numbers, and a generator that the model names.

    Args:
        vectoriser: TensorFlow's module `pfor`, which hands over its operands.
        name: Type of the operation, of `CONVERTED`.
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
            tf.get_static_value(operands.op.inputs[3]) == _ALGORITHM_OF_DEVICE
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
    """Returns how many numbers to draw: as many for several sizes of a batch, if that varies."""
    if output.shape.rank == 0 or output.shape[0] is not None:
        return size
    rows = -(-shape[0] // _ROWS_OF_A_KERNEL) * _ROWS_OF_A_KERNEL
    return size // tf.maximum(shape[0], 1) * rows


CONVERTED: dict[str, Callable[[Any], Any]] = {
    "StatelessRandomGetKeyCounter": _convert_key_and_counter,
    "StatelessRandomUniformV2": _numbers(uniform, "float32"),
    "StatelessRandomUniformFullIntV2": _numbers(whole_numbers, "int32"),
}


@functools.cache
def _in_one_kernel(fn: Callable[..., Any]) -> Any:
    """Returns the function as XLA compiles it: for the device that calls it, and for each shape."""
    return tf.function(fn, autograph=False, jit_compile=True)


def _pairs(lower: tf.Tensor, upper: tf.Tensor) -> tf.Tensor:
    return lower | tf.bitwise.left_shift(upper, tf.constant(32, tf.int64))
