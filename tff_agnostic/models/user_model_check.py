"""Whether what a user's `build_model` returned is a model of the data: tried on a few rows."""

from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import tensorflow as tf

from tff_agnostic.errors import UserError
from tff_agnostic.models.metrics import Metric
from tff_agnostic.models.user_file import kind_of

# The number of examples that a model is tried on.
NUM_ROWS = 2
# Columns of metrics.csv beside those of metrics.
_TAKEN = ("loss", "num_examples")


class Built(NamedTuple):
    """What `build_model` returned; metrics are None where it has none."""

    keras_model: tf.keras.Model
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    metrics: Optional[Sequence[Metric]]


def taken_apart(returned: Any) -> Built:
    """Returns the parts of what `build_model` returned.

    Raises:
        UserError: If it is not (keras_model, loss) or (keras_model, loss, metrics).
    """
    wanted = "expected it to return (keras_model, loss) or (keras_model, loss, metrics), found"
    if not isinstance(returned, (tuple, list)):
        raise UserError(f"build_model: {wanted} {kind_of(returned)}")
    if len(returned) not in (2, 3):
        raise UserError(f"build_model: {wanted} {len(returned)} values")
    keras_model, loss, *rest = returned
    if not isinstance(keras_model, tf.keras.Model):
        raise UserError(
            f"build_model: {wanted} {kind_of(keras_model)} in place of keras_model, a "
            "tf.keras.Model"
        )
    if not callable(loss) or isinstance(loss, type):
        raise UserError(
            f"build_model: {wanted} {kind_of(loss)} in place of loss, a Keras loss object or a "
            "function of labels and predictions"
        )
    return Built(keras_model, loss, _checked_metrics(rest[0]) if rest else None)


def _checked_metrics(metrics: Any) -> Sequence[Metric]:
    if isinstance(metrics, Metric):
        metrics = [metrics]
    if not isinstance(metrics, (tuple, list)):
        raise UserError(f"build_model: metrics: expected a list, found {kind_of(metrics)}")
    for metric in metrics:
        if not isinstance(metric, Metric):
            raise UserError(
                "build_model: metrics: expected tff_agnostic.models.Metric objects, found "
                f"{kind_of(metric)}"
            )
    names = [metric.name for metric in metrics]
    for name in names:
        if name in _TAKEN or "/" in name or not name.strip() or names.count(name) > 1:
            raise UserError(
                "build_model: metrics: expected different names without slashes, other than "
                f"{' and '.join(_TAKEN)}, found {name!r}"
            )
    return metrics


def check_output(
    output: Any, y_spec: tf.TensorSpec, num_classes: Optional[int], num_ids: Optional[int]
) -> None:
    """Checks that outputs for `NUM_ROWS` examples fit the labels.

    Structures of several outputs are left to the loss.

    Raises:
        UserError: If they do not.
    """
    if not tf.is_tensor(output):
        return
    shape, found = output.shape, described(output)
    if shape.rank == 0 or shape[0] != NUM_ROWS:
        raise UserError(f"the model: expected outputs with a row per example, found {found}")
    if num_ids is not None:
        length = y_spec.shape[1]
        if shape.rank != 3 or shape[1] != length or shape[2] < num_ids:
            raise UserError(
                "the model's outputs do not fit the labels: expected a score of each id at each "
                f"position, [n, {length}, {num_ids}], found {found}"
            )
    elif num_classes is not None and shape.rank == 2 and 1 < shape[1] < num_classes:
        raise UserError(
            f"the model's outputs do not fit the labels: labels go up to {num_classes - 1}, which "
            f"takes {num_classes} scores, found {shape[1]}: {found}"
        )


def check_loss(losses: Any, is_text: bool) -> None:
    """Checks that there is one number per example.

    Raises:
        UserError: If not.
    """
    if not tf.is_tensor(losses) or not losses.dtype.is_floating:
        raise UserError(
            f"loss: expected one real number per example, found {_kind_or_shape(losses)}"
        )
    if losses.shape != [NUM_ROWS]:
        advice = (
            "tff_agnostic.models.SentenceLoss() is such a loss of texts"
            if is_text
            else 'Keras losses need reduction="none"'
        )
        number = "a single number" if losses.shape.rank == 0 else described(losses)
        raise UserError(
            f"loss: expected one number per example, shape [n], found {number}; {advice}"
        )


def check_metric(name: str, ratio: Any) -> None:
    """Checks what a metric gives for `NUM_ROWS` examples.

    Raises:
        UserError: If that is not a numerator and a denominator per example.
    """
    are_vectors = (
        isinstance(ratio, (tuple, list))
        and len(ratio) == 2
        and all(tf.is_tensor(v) and v.shape == [NUM_ROWS] and v.dtype == tf.float32 for v in ratio)
    )
    if not are_vectors:
        parts = ratio if isinstance(ratio, (tuple, list)) else [ratio]
        raise UserError(
            f"metric {name}: expected a numerator and a denominator per example, float32 [n] each, "
            f"found {', '.join(map(_kind_or_shape, parts)) or 'nothing'}"
        )


def described(value: Any) -> str:
    """Returns the shape and dtype of specs or tensors of n examples, in a structure or not."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {described(v)}" for key, v in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(described, value)) + ")"
    sizes = ["?" if size is None else str(size) for size in value.shape]
    if sizes and sizes[0] in ("?", str(NUM_ROWS)):
        sizes[0] = "n"
    return f"[{', '.join(sizes)}] {value.dtype.name}"


def _kind_or_shape(value: Any) -> str:
    return described(value) if tf.is_tensor(value) else kind_of(value)
