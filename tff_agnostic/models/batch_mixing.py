"""Checks on made-up batches that outputs, losses and metrics of an example are its own.

Algorithms give each example the weight of its domain, and fill batches with rows that do not count.
Both need numbers of an example that do not depend on the others of its batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, TypeVar

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.models.metrics import OfColumns
from tff_agnostic.models.model import ModelWeights

# Rows of the made-up examples in each batch. The last row is zeros, as padding is.
_NUM_ROWS = 5
_BATCH = (0, 1, 2)
_SAME_SIZE = ((0, 3, 4), (4, 3, 2))
_ALONE = ((0,), (2,))
# Rounding errors depend on the size of a batch, by up to .01 in a wide layer of 16 bits; numbers
# that depend on the size are off by a factor.
_SAME_SIZE_TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
_ALONE_TOLERANCE = {"rtol": 0.2, "atol": 0.05}
_NOISE = 0.1

# Examples [n, ...] -> outputs [n, ...], both in any structure.
PerExample = Callable[[Any], Any]
_T = TypeVar("_T")


class Mixing(NamedTuple):
    """A number of an example that depends on the rest of its batch.

    Attributes:
        output: Index of the output among the flat outputs.
        values: The number in one batch, and in another one.
        is_alone: Whether the other batch has no other example.
    """

    output: int
    values: tuple[float, float]
    is_alone: bool

    def message(self, place: str, numbers: str) -> str:
        """Returns a refusal in one line.

        Args:
            place: Name of the layer, loss or metric.
            numbers: Noun phrase of its numbers, such as "outputs of an example".
        """
        first, second = self.values
        return (
            f"{place}: expected {numbers} that do not depend on the others of its batch, found "
            f"{first:.4g} in a batch, {second:.4g} {'alone' if self.is_alone else 'in another'}"
        )


def on_made_up_examples(spec: Any, check: Callable[[Any], _T]) -> _T:
    """Returns the result of a check of made-up examples.

    Args:
        spec: Specs with a first dimension of None, in any structure.
        check: The check, which may raise any error.
    """
    try:
        return check(made_up_examples(spec))
    except tf.errors.OpError:
        # TensorFlow refuses labels and ids of 1 where there is a single class or word.
        return check(made_up_examples(spec, largest_integer=0))


def made_up_examples(spec: Any, largest_integer: int = 1) -> Any:
    """Returns seeded examples: floats in [0, 1), integers up to a largest one, and a row of zeros.

    Args:
        spec: Specs with a first dimension of None, in any structure.
        largest_integer: Largest integer.

    Raises:
        UserError: If a dtype is not numeric.
    """
    rng = np.random.default_rng(0)

    def column(one: tf.TensorSpec) -> tf.Tensor:
        shape = [_NUM_ROWS, *(n or 1 for n in one.shape[1:])]
        if one.dtype.is_floating:
            values: np.ndarray = rng.uniform(size=shape)
        elif one.dtype.is_integer or one.dtype.is_bool:
            values = rng.integers(largest_integer + 1, size=shape)
            if len(shape) == 1:
                # Labels of neighbours differ.
                values = np.arange(_NUM_ROWS) % (largest_integer + 1)
        else:
            raise UserError(
                f"the model: expected examples of numbers, found {one.dtype.name}, of which none "
                "can be made up for a check"
            )
        values[-1] = 0
        return tf.constant(values.astype(one.dtype.as_numpy_dtype))

    return tf.nest.map_structure(column, spec)


def perturbed(weights: ModelWeights) -> ModelWeights:
    """Returns weights near some, as tensors: those of zeros would hide what a model computes."""
    rng = np.random.default_rng(0)

    def near(weight: Any) -> tf.Tensor:
        noise = rng.random(np.shape(weight), np.float32) - 0.5
        return tf.constant(weight + (2 * _NOISE * noise).astype(weight.dtype))

    return ModelWeights(
        list(map(near, weights.trainable)), list(map(tf.constant, weights.non_trainable))
    )


def find_mixing(
    call: PerExample, examples: Any, with_sizes: bool = True, place: str = "the model"
) -> Optional[Mixing]:
    """Returns a number of an example that depends on the rest of its batch; None if none does.

    Args:
        call: The function to check.
        examples: The result of `made_up_examples`, or what was computed of it.
        with_sizes: Whether batches of other sizes are compared; False of a function whose random
            numbers depend on the size.
        place: Name of the function, for messages.

    Raises:
        UserError: If an output has no row per example.
    """
    expected = _outputs(call, examples, _BATCH, place)
    for batch in (*_SAME_SIZE, *(_ALONE if with_sizes else ())):
        is_alone = len(batch) == 1
        tolerance = _ALONE_TOLERANCE if is_alone else _SAME_SIZE_TOLERANCE
        outputs = _outputs(call, examples, batch, place)
        for k, (of_batch, of_other) in enumerate(zip(expected, outputs)):
            for row in set(_BATCH).intersection(batch):
                first, second = of_batch[_BATCH.index(row)], of_other[batch.index(row)]
                is_off = ~np.isclose(second, first, equal_nan=True, **tolerance)
                if np.any(is_off):
                    values = float(first[is_off][0]), float(second[is_off][0])
                    return Mixing(k, values, is_alone)
    return None


def find_model_mixing(call: Callable[[Any, tf.Tensor], Any], examples: Any) -> Optional[Mixing]:
    """Returns a number of a model's outputs that depends on the rest of a batch; None if none does.

    Random numbers of layers are not compared: batches of one size have the same of one seed.

    Args:
        call: (examples, seed int32 [2]) -> outputs.
        examples: The result of `made_up_examples`.
    """

    def with_seed(seed: int) -> PerExample:
        return lambda rows: call(rows, tf.fill([2], seed))

    def outputs(seed: int) -> list[np.ndarray]:
        return _outputs(with_seed(seed), examples, _BATCH)

    def are_equal(first: list[np.ndarray], second: list[np.ndarray]) -> bool:
        return all(np.allclose(a, b, equal_nan=True) for a, b in zip(first, second))

    expected = outputs(0)
    draws = not are_equal(expected, outputs(1))
    if draws and not are_equal(expected, outputs(0)):
        # Random operations with a state of their own: no two calls can be compared.
        return None
    return find_mixing(with_seed(0), examples, with_sizes=not draws)


def per_example_loss(loss: Any, labels: tf.Tensor, outputs: Any) -> Any:
    """Returns a loss, or its form of columns [n, 1] where only that one is a loss of each example.

    Losses of Keras' for real numbers are means over the last axis. As objects they are joined to
    labels [n] and outputs [n, 1] by Keras; as functions they would compute all n^2 differences.

    Args:
        loss: A loss function, or a loss of Keras'.
        labels: Labels of made-up examples.
        outputs: Outputs for them.
    """
    if isinstance(loss, OfColumns) or not (is_single(labels) and is_single(outputs)):
        return loss
    if labels.shape.rank == outputs.shape.rank == 2:
        return loss
    # A caller with fewer rows asks about shapes alone.
    rows = tf.range(_NUM_ROWS) % labels.shape[0]
    labels, outputs = tf.gather(labels, rows), tf.gather(outputs, rows)
    forms = [loss, OfColumns(loss)]
    if isinstance(loss, tf.keras.losses.Loss):
        forms.reverse()
    return next((form for form in forms if _is_per_example(form, labels, outputs)), forms[0])


def is_single(value: Any) -> bool:
    """Whether labels or outputs are a number for each example, [n] or [n, 1]."""
    return tf.is_tensor(value) and value.shape[1:] in ([], [1])


def _is_per_example(loss: Any, labels: tf.Tensor, outputs: tf.Tensor) -> bool:
    # Of users' code that fails, the caller's own call shows the lines.
    try:
        losses = loss(labels, outputs)
        is_vector = tf.is_tensor(losses) and losses.shape == labels.shape[:1]
        return is_vector and find_mixing(_of_pairs(loss), (labels, outputs)) is None
    except Exception:
        return False


def example_refusal(
    functions: Mapping[str, Callable[[tf.Tensor, Any], Any]], labels: tf.Tensor, outputs: Any
) -> Optional[str]:
    """Returns which function's numbers depend on the batch, in a line; None if none does.

    Args:
        functions: Loss and metrics, functions of labels and outputs, by name.
        labels: Labels of made-up examples.
        outputs: Outputs for them.
    """
    for name, function in functions.items():
        mixing = find_mixing(_of_pairs(function), (labels, outputs), place=name)
        if mixing is not None:
            return mixing.message(name, "numbers of an example")
    return None


def _of_pairs(function: Callable[[tf.Tensor, Any], Any]) -> PerExample:
    return lambda pairs: function(*pairs)


def _outputs(
    call: PerExample, examples: Any, batch: Sequence[int], place: str = "the model"
) -> list[np.ndarray]:
    rows = tf.nest.map_structure(lambda column: tf.gather(column, batch), examples)
    outputs = [np.asarray(output) for output in tf.nest.flatten(call(rows))]
    for output in outputs:
        if output.shape[:1] != (len(batch),):
            raise UserError(
                f"{place}: expected outputs with a row per example, found shape "
                f"{list(output.shape)} of {len(batch)} examples"
            )
    return outputs
