"""Checks on synthetic batches that examples do not affect each other's results.

Algorithms weight each example by its domain, and runtimes pad batches with rows that do not count.
Both require that an example's outputs, loss and metrics do not depend on the other rows of its
batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, TypeVar

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.models.metrics import ColumnLoss
from tff_agnostic.models.model import ModelWeights

# Number of synthetic examples, and the indices of the examples in each compared batch. The last
# example is zeros, like padding.
_NUM_ROWS = 5
_BATCH = (0, 1, 2)
_SAME_SIZE = ((0, 3, 4), (4, 3, 2))
_ALONE = ((0,), (2,))
# In a wide 16-bit layer, rounding changes values by up to 0.01 between batch sizes. Values that
# truly depend on the batch size differ by much more.
_SAME_SIZE_TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
_ALONE_TOLERANCE = {"rtol": 0.2, "atol": 0.05}
_NOISE = 0.1

# Function that maps examples [n, ...] to outputs [n, ...]; both may be structures.
PerExample = Callable[[Any], Any]
_T = TypeVar("_T")


class Mixing(NamedTuple):
    """An example's output that depends on the other examples of its batch.

    Attributes:
        output: Index of the output among the flat outputs.
        values: The output of the same example in two batches.
        is_alone: Whether the second batch contains no example but this one.
    """

    output: int
    values: tuple[float, float]
    is_alone: bool

    def message(self, place: str, numbers: str) -> str:
        """Returns a one-line error message.

        Args:
            place: Name of the layer, loss or metric, which starts the message.
            numbers: Noun phrase for the outputs, such as "outputs of an example".
        """
        first, second = self.values
        return (
            f"{place}: expected {numbers} that do not depend on the others of its batch, found "
            f"{first:.4g} in a batch, {second:.4g} {'alone' if self.is_alone else 'in another'}"
        )


def on_made_up_examples(spec: Any, check: Callable[[Any], _T]) -> _T:
    """Runs a check on synthetic examples, and returns its result.

    Args:
        spec: Specs with a first dimension of None, in any structure.
        check: Called with the examples, which are tensors; may raise any error.
    """
    try:
        return check(made_up_examples(spec))
    except tf.errors.OpError:
        # With a single class or word, only 0 is a valid label or id, and TensorFlow rejects 1.
        return check(made_up_examples(spec, largest_integer=0))


def made_up_examples(spec: Any, largest_integer: int = 1) -> Any:
    """Returns seeded examples: floats in [0, 1), integers from 0, and a last row of zeros.

    Args:
        spec: Specs with a first dimension of None, in any structure.
        largest_integer: Largest integer to draw.

    Raises:
        UserError: If the dtype of a spec is not numeric.
    """
    rng = np.random.default_rng(0)

    def column(one: tf.TensorSpec) -> tf.Tensor:
        shape = [_NUM_ROWS, *(n or 1 for n in one.shape[1:])]
        if one.dtype.is_floating:
            values: np.ndarray = rng.uniform(size=shape)
        elif one.dtype.is_integer or one.dtype.is_bool:
            values = rng.integers(largest_integer + 1, size=shape)
            if len(shape) == 1:
                # Give neighbouring rows different labels.
                values = np.arange(_NUM_ROWS) % (largest_integer + 1)
        else:
            raise UserError(
                f"the model: expected numeric examples, found {one.dtype.name}, which the checks "
                "cannot synthesise"
            )
        values[-1] = 0
        return tf.constant(values.astype(one.dtype.as_numpy_dtype))

    return tf.nest.map_structure(column, spec)


def perturbed(weights: ModelWeights) -> ModelWeights:
    """Returns perturbed weights as tensors, because weights of 0 would hide dependencies."""
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
    """Returns an output that depends on other examples of its batch; None if none does.

    Args:
        call: The function to check.
        examples: The result of `made_up_examples`, or values computed from it.
        with_sizes: Whether to compare batches of different sizes. False for a function whose random
            numbers depend on the batch size.
        place: Name of the function, for messages.

    Raises:
        UserError: If an output has no row per example.
    """
    expected = _outputs(call, examples, _BATCH, place)
    for batch in (*_SAME_SIZE, *(_ALONE if with_sizes else ())):
        is_alone = len(batch) == 1
        tolerance = _ALONE_TOLERANCE if is_alone else _SAME_SIZE_TOLERANCE
        outputs = _outputs(call, examples, batch, place)
        for k, (batch_values, other_values) in enumerate(zip(expected, outputs)):
            for row in set(_BATCH).intersection(batch):
                first, second = batch_values[_BATCH.index(row)], other_values[batch.index(row)]
                is_off = ~np.isclose(second, first, equal_nan=True, **tolerance)
                if np.any(is_off):
                    values = float(first[is_off][0]), float(second[is_off][0])
                    return Mixing(k, values, is_alone)
    return None


def find_model_mixing(call: Callable[[Any, tf.Tensor], Any], examples: Any) -> Optional[Mixing]:
    """Returns a model output that depends on other examples of its batch; None if none does.

    Random layers do not disturb the check: with one seed, batches of one size have the same random
    numbers.

    Args:
        call: Maps (examples, seed int32 [2]) to outputs.
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
        # The model's random operations have a state, so no two of its calls can be compared.
        return None
    return find_mixing(with_seed(0), examples, with_sizes=not draws)


def per_example_loss(loss: Any, labels: tf.Tensor, outputs: Any) -> Any:
    """Returns `loss`, or `ColumnLoss(loss)` if only the latter gives one loss per example.

    Keras losses for real numbers average over the last axis. Keras reshapes labels [n] to match
    outputs [n, 1] for loss objects, but not for loss functions, which would compute all n^2
    differences.

    Args:
        loss: A loss function, or a Keras loss.
        labels: Labels of synthetic examples.
        outputs: Outputs for these examples.
    """
    if isinstance(loss, ColumnLoss) or not (is_single(labels) and is_single(outputs)):
        return loss
    if labels.shape.rank == outputs.shape.rank == 2:
        return loss
    # Repeat the rows if there are fewer: a caller that passes fewer only checks shapes.
    rows = tf.range(_NUM_ROWS) % labels.shape[0]
    labels, outputs = tf.gather(labels, rows), tf.gather(outputs, rows)
    forms = [loss, ColumnLoss(loss)]
    if isinstance(loss, tf.keras.losses.Loss):
        forms.reverse()
    return next((form for form in forms if _is_per_example(form, labels, outputs)), forms[0])


def is_single(value: Any) -> bool:
    """Returns whether labels or outputs have one number per example, [n] or [n, 1]."""
    return tf.is_tensor(value) and value.shape[1:] in ([], [1])


def _is_per_example(loss: Any, labels: tf.Tensor, outputs: tf.Tensor) -> bool:
    # Ignore errors of user code here: the caller calls it again, and reports the failing lines.
    try:
        losses = loss(labels, outputs)
        is_vector = tf.is_tensor(losses) and losses.shape == labels.shape[:1]
        return is_vector and find_mixing(_on_pairs(loss), (labels, outputs)) is None
    except Exception:
        return False


def example_refusal(
    functions: Mapping[str, Callable[[tf.Tensor, Any], Any]], labels: tf.Tensor, outputs: Any
) -> Optional[str]:
    """Returns an error message if a function's values depend on the batch, otherwise None.

    Args:
        functions: Loss and metrics by name; each is a function of labels and outputs.
        labels: Labels of synthetic examples.
        outputs: Outputs for these examples.
    """
    for name, function in functions.items():
        mixing = find_mixing(_on_pairs(function), (labels, outputs), place=name)
        if mixing is not None:
            return mixing.message(name, "numbers of an example")
    return None


def _on_pairs(function: Callable[[tf.Tensor, Any], Any]) -> PerExample:
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
