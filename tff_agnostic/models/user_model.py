"""Loads a user's `build_model` function, and tries its model on a few rows."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, Union

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.base.text_ids import TokenIds
from tff_agnostic.base.user_code import UserFile, value_kind
from tff_agnostic.models.batch_mixing import is_single, per_example_loss
from tff_agnostic.models.keras import as_float32, model_from_keras, sharing_functions
from tff_agnostic.models.keras_platform import name_layers_afresh
from tff_agnostic.models.metrics import (
    Metric,
    accuracy,
    binary_accuracy,
    mean_absolute_error,
    root_mean_squared_error,
    text_metrics,
)
from tff_agnostic.models.model import Model

_FUNCTION = "build_model"
# Number of examples for trying a model.
NUM_ROWS = 2
# Models are kept so that later models can share their functions: at most this many models, of at
# most this many parameters. Tracing a larger model is cheap compared with training it.
_MAX_KEPT, _MAX_KEPT_PARAMETERS = 4, 10_000_000
# Names that metrics may not have, as they are other columns of metrics.csv.
_TAKEN = ("loss", "num_examples")

Shapes = Union[tuple[int, ...], Mapping[str, tuple[int, ...]]]


@dataclasses.dataclass(frozen=True)
class ModelData:
    """Description of the data, passed to the user's function that builds a model.

    Attributes:
        x_spec: Spec of "x" with a first dimension of None: a single spec, or a mapping of specs by
            name. Texts are word ids, int32 [n, T].
        y_spec: Spec of "y" with a first dimension of None: one label per example, or for next-word
            prediction the next ids, int32 [n, T].
        domain_names: Names of the domains.
        num_classes: Number of classes, if labels are classes in [0, num_classes); otherwise None.
        vocabulary_size: Number of words in the vocabulary, if x is text; otherwise None.
        label_range: Minimum and maximum label of training clients, if labels are real numbers and
            the range is known.
        categories: Known values of each categorical column. Value k has the id k + 1; 0 is the id
            of any other value.
        x_names: Name of each entry of the vector x, such as "age", "age is missing" and
            "city=Lima"; a mapping by array name if x has several arrays. None if unknown.
        x_mean: Mean of each entry over training clients, float32 in x's shape; 0 for indicator and
            category entries, whose values are 0 or 1. None if unknown.
        x_deviation: Standard deviation of each entry, float32 in x's shape; 1 if it would be 0, and
            for indicator and category entries. None if unknown.
    """

    x_spec: Any
    y_spec: tf.TensorSpec
    domain_names: tuple[str, ...]
    num_classes: Optional[int] = None
    vocabulary_size: Optional[int] = None
    label_range: Optional[tuple[float, float]] = None
    categories: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    x_names: Any = None
    x_mean: Any = None
    x_deviation: Any = None

    @property
    def predicts_next_words(self) -> bool:
        """Whether each label is the word after the word in x."""
        return self.vocabulary_size is not None and bool(self.y_shape)

    @property
    def x_shape(self) -> Shapes:
        """Shape of one example's x, for `tf.keras.Input`; by name if x has several arrays."""
        if isinstance(self.x_spec, Mapping):
            return {name: tuple(spec.shape[1:]) for name, spec in self.x_spec.items()}
        return tuple(self.x_spec.shape[1:])

    @property
    def x_dtype(self) -> Any:
        """Dtype of x as a string; by name if x has several arrays."""
        if isinstance(self.x_spec, Mapping):
            return {name: spec.dtype.name for name, spec in self.x_spec.items()}
        return self.x_spec.dtype.name

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of one label."""
        return tuple(self.y_spec.shape[1:])

    @property
    def num_ids(self) -> Optional[int]:
        """Number of ids in texts, including special ids of `TokenIds`; None for other data."""
        return None if self.vocabulary_size is None else TokenIds(self.vocabulary_size).num_ids

    @property
    def sequence_length(self) -> Optional[int]:
        """Length T of texts in ids; None for other data."""
        return None if self.vocabulary_size is None else self.x_spec.shape[1]


def load_user_model(path: Path, data: ModelData, seed: int = 0) -> Model:
    """Returns the model that a user's Python file builds; see `build_user_model`."""
    name_layers_afresh()
    return build_user_model(UserFile(path), data, seed)


def build_user_model(file: UserFile, data: ModelData, seed: int = 0) -> Model:
    """Returns the model that a user's Python file builds.

    The file defines a function `build_model(data)`, where `data` is a `ModelData`. It returns
    `(keras_model, loss)` or `(keras_model, loss, metrics)`:

    - keras_model: a `tf.keras.Model` of x;
    - loss: a Keras loss with `reduction="none"`, or a function (labels, predictions) -> [n], such
      as `SentenceLoss` for texts. If an example has one label and one output, a loss that needs
      both as columns [n, 1] receives columns; see `per_example_loss`;
    - metrics: `Metric` objects. The defaults depend on the labels. Classes have accuracy; a single
      output has it only if the loss has `from_logits`, as `BinaryCrossentropy` does. Real labels
      with known range and a single output have mean absolute and root mean squared error. Next
      words have `text_metrics`.

    The file can import modules in its folder.

    Args:
        file: The user's file, already executed.
        seed: Seed of the initial weights.
    """
    build = file.function(_FUNCTION, "data")
    tf.keras.utils.set_random_seed(seed)
    with file.running(_FUNCTION, build):
        keras_model, loss, metrics = taken_apart(build(data))
    x, y = _rows(data.x_spec, 0), _rows(data.y_spec, _largest_label(data))
    with file.running(f"the model, called with x {described(data.x_spec)},", build):
        output = tf.nest.map_structure(as_float32, keras_model(x))
        num_ids = data.num_ids if data.predicts_next_words else None
        check_output(output, data.y_spec, data.num_classes, num_ids)
        _check_scores(loss, output, data.num_classes)
    metrics = _default_metrics(data, output, loss) if metrics is None else metrics
    loss = per_example_loss(loss, y, output)
    loss_place = f"the loss, of y {described(data.y_spec)} and outputs {described(output)},"
    with file.running(loss_place, build):
        check_loss(loss(y, output), is_text=data.predicts_next_words)
    for metric in metrics:
        with file.running(f"the metric {metric.name}", build):
            check_metric(metric.name, metric.per_example(y, output))
    with file.running("the model, traced for training,", build):
        try:
            model = model_from_keras(
                lambda: keras_model,
                loss=loss,
                example_spec={"x": data.x_spec, "y": data.y_spec},
                metrics=metrics,
                seed=seed,
            )
        except ValueError as e:
            if file.raised(e):
                raise
            raise UserError(str(e)) from e
    # Trials with other seeds build the same model; share its functions, so that
    # they are traced once.
    shared = sharing_functions(model, _earlier())
    if shared is model and model.num_parameters <= _MAX_KEPT_PARAMETERS:
        _earlier().append(model)
    return shared


@functools.cache
def _earlier() -> collections.deque[Model]:
    return collections.deque(maxlen=_MAX_KEPT)


def _rows(spec: Any, value: int) -> Any:
    """Returns `NUM_ROWS` examples filled with a value; dimensions of unknown size have size 1."""
    return tf.nest.map_structure(
        lambda s: tf.fill([NUM_ROWS, *(n or 1 for n in s.shape[1:])], tf.cast(value, s.dtype)), spec
    )


def _largest_label(data: ModelData) -> int:
    # Try the largest label, as a loss that accepts it accepts all labels.
    largest = data.num_ids if data.predicts_next_words else data.num_classes
    return (largest or 1) - 1


def _default_metrics(data: ModelData, output: Any, loss: Any) -> Sequence[Metric]:
    if data.predicts_next_words:
        assert data.vocabulary_size is not None and data.sequence_length is not None
        return text_metrics(TokenIds(data.vocabulary_size), data.sequence_length)
    if data.y_shape or not tf.is_tensor(output):
        return []
    if not data.y_spec.dtype.is_integer:
        return _errors(data.label_range) if is_single(output) else []
    if output.shape.rank == 2 and output.shape[1] > 1:
        return [accuracy()]
    from_logits = getattr(loss, "from_logits", None)
    has_two_classes = data.num_classes is not None and data.num_classes <= 2
    if has_two_classes and is_single(output) and isinstance(from_logits, bool):
        return [binary_accuracy(from_logits)]
    return []


def _errors(label_range: Optional[tuple[float, float]]) -> Sequence[Metric]:
    if label_range is None or label_range[0] == label_range[1]:
        return []
    size = label_range[1] - label_range[0]
    return [mean_absolute_error(size), root_mean_squared_error(size)]


class Built(NamedTuple):
    """The result of `build_model`; `metrics` is None if the user returned no metrics."""

    keras_model: tf.keras.Model
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    metrics: Optional[Sequence[Metric]]


def taken_apart(returned: Any) -> Built:
    """Checks and unpacks the value that `build_model` returned."""
    expected = "expected it to return (keras_model, loss) or (keras_model, loss, metrics), found"
    if not isinstance(returned, (tuple, list)):
        raise UserError(f"build_model: {expected} {value_kind(returned)}")
    if len(returned) not in (2, 3):
        raise UserError(f"build_model: {expected} {len(returned)} values")
    keras_model, loss, *rest = returned
    if not isinstance(keras_model, tf.keras.Model):
        raise UserError(
            f"build_model: {expected} {value_kind(keras_model)} instead of keras_model, a "
            "tf.keras.Model"
        )
    if not callable(loss) or isinstance(loss, type):
        raise UserError(
            f"build_model: {expected} {value_kind(loss)} instead of loss, a Keras loss object or a "
            "function of labels and predictions"
        )
    return Built(keras_model, loss, _checked_metrics(rest[0]) if rest else None)


def _checked_metrics(metrics: Any) -> Sequence[Metric]:
    if isinstance(metrics, Metric):
        metrics = [metrics]
    if not isinstance(metrics, (tuple, list)):
        raise UserError(f"build_model: metrics: expected a list, found {value_kind(metrics)}")
    for metric in metrics:
        if not isinstance(metric, Metric):
            raise UserError(
                "build_model: metrics: expected tff_agnostic.models.Metric objects, found "
                f"{value_kind(metric)}"
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

    Models with several outputs are not checked here; their loss checks them.
    """
    if not tf.is_tensor(output):
        return
    shape, description = output.shape, described(output)
    if shape.rank == 0 or shape[0] != NUM_ROWS:
        raise UserError(f"the model: expected outputs with a row per example, found {description}")
    if num_ids is not None:
        length = y_spec.shape[1]
        if shape.rank != 3 or shape[1] != length or shape[2] < num_ids:
            raise UserError(
                "the model's outputs do not fit the labels: expected a score of each id at each "
                f"position, [n, {length}, {num_ids}], found {description}"
            )
    elif num_classes is not None and shape.rank == 2 and 1 < shape[1] < num_classes:
        raise UserError(
            f"the model's outputs do not fit the labels: labels go up to {num_classes - 1}, which "
            f"takes {num_classes} scores, found {shape[1]}: {description}"
        )


def _check_scores(loss: Any, output: Any, num_classes: Optional[int]) -> None:
    """Checks that a loss that expects a score per class does not receive a single number."""
    takes_logits = isinstance(loss, tf.keras.losses.SparseCategoricalCrossentropy)
    if takes_logits and num_classes is not None and num_classes > 1 and is_single(output):
        raise UserError(
            "the model's outputs do not fit the loss: SparseCategoricalCrossentropy takes a score "
            f"for each of {num_classes} classes, found {described(output)} (of two classes "
            "BinaryCrossentropy takes one)"
        )


def check_loss(losses: Any, is_text: bool) -> None:
    """Checks that a loss returns one number per example."""
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
    """Checks a metric's results for `NUM_ROWS` examples."""
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
    """Returns shapes and dtypes of specs or tensors as text, such as "[n, 3] float32"."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {described(v)}" for key, v in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(map(described, value)) + ")"
    sizes = ["?" if size is None else str(size) for size in value.shape]
    if sizes and sizes[0] in ("?", str(NUM_ROWS)):
        sizes[0] = "n"
    return f"[{', '.join(sizes)}] {value.dtype.name}"


def _kind_or_shape(value: Any) -> str:
    return described(value) if tf.is_tensor(value) else value_kind(value)
