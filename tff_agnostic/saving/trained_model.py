"""A trained model, and the check that a saved file makes the same predictions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np

from tff_agnostic.base.files import finite_or_none
from tff_agnostic.base.later import tf
from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.data.inputs import DOMAIN, IDS, ONLY, SENTENCE, TEXT, ModelInputs, Whole
from tff_agnostic.models.model import Examples, Measure, Model, ModelWeights, model_measures
from tff_agnostic.tasks.task import Task

# Names of the only input and the only output.
INPUT = ONLY
OUTPUT = "predictions"
# Maximum number of test examples in a check, which is slow: TFLite runs one at a time.
_MAX_EXAMPLES = 2000
_NUM_MADE_UP = 256
TEST, MADE_UP = "test", "made-up"
# Absolute and relative tolerance of predictions, as files may round in another order.
_TOLERANCE = 1e-5


# No repr, as TensorFlow's warnings would print exact statistics of training clients.
@dataclasses.dataclass(frozen=True, repr=False)
class TrainedModel:
    """A model with its trained weights.

    Attributes:
        class_names: Names of the classes; None if unknown.
        words: The vocabulary of texts; word k has the id k + 1.
        inputs: Description of the model's inputs; None if unknown.
    """

    model: Model
    weights: ModelWeights
    class_names: Optional[tuple[str, ...]] = None
    words: Optional[Sequence[str]] = None
    inputs: Optional[ModelInputs] = None

    def predict(self, x: Any, weights: Optional[ModelWeights] = None) -> Any:
        """Returns predictions as in an evaluation, without dropout.

        Args:
            x: Inputs of n examples.
            weights: Weights, such as variables, to use instead of the trained arrays.
        """
        # The seed has no effect outside of training.
        seed = tf.zeros([2], tf.int32)
        if weights is None:
            weights = self.weights
        tensors = ModelWeights(*(list(map(tf.convert_to_tensor, ws)) for ws in weights))
        return self.model.predict(tensors, x, False, seed)

    def input_specs(self, num_examples: Optional[int] = None) -> dict[str, tf.TensorSpec]:
        """Returns the spec of each input by name, for any number of examples by default."""
        return {
            name: tf.TensorSpec([num_examples, *spec.shape[1:]], spec.dtype, name=name)
            for name, spec in inputs_by_name(self.model.example_spec["x"]).items()
        }

    def output_names(self) -> list[str]:
        """Returns the names of the predictions' tensors, in the order of `tf.nest.flatten`."""
        return output_names(self.output_structure())

    def output_structure(self) -> Any:
        """Returns the predictions for an example of zeros, which show the structure of outputs."""
        zeros = tf.nest.map_structure(
            lambda spec: tf.zeros([1, *(n or 1 for n in spec.shape[1:])], spec.dtype),
            self.model.example_spec["x"],
        )
        return self.predict(zeros)


def inputs_by_name(x: Any) -> dict[str, Any]:
    """Returns the arrays of x by name; the name of a single array is `INPUT`."""
    return dict(x) if isinstance(x, Mapping) else {INPUT: x}


def inputs_from_names(spec: Any, by_name: Mapping[str, Any]) -> Any:
    """Returns x in the form of its spec; the inverse of `inputs_by_name`."""
    return dict(by_name) if isinstance(spec, Mapping) else by_name[INPUT]


def output_names(predictions: Any) -> list[str]:
    """Returns the names of the tensors in predictions, in the order of `tf.nest.flatten`."""
    if isinstance(predictions, Mapping):
        return sorted(predictions)
    count = len(tf.nest.flatten(predictions))
    return [OUTPUT] if count == 1 else [f"{OUTPUT}_{k}" for k in range(count)]


def outputs_by_name(predictions: Any) -> dict[str, Any]:
    """Returns the tensors of predictions by name."""
    return dict(zip(output_names(predictions), tf.nest.flatten(predictions)))


@dataclasses.dataclass(frozen=True)
class FileCheck:
    """The comparison of a saved file with the run's model.

    Attributes:
        num_examples: Number of compared examples.
        source: Source of the examples: `TEST` or `MADE_UP`.
        largest_difference: Largest absolute difference of predictions; None if it is infinite.
        is_same: Whether all predictions agree up to 1e-5, absolute or relative.
        domains: For each domain, its number of examples, and two values of each measure: the run's
            model's and the file's; None for an undefined value. Empty for made-up examples.
    """

    num_examples: int
    source: str
    largest_difference: Optional[float]
    is_same: bool
    domains: dict[str, dict[str, Any]]


def check_file(
    trained: TrainedModel,
    task: Task,
    predict: Callable[[Any], Any],
    source: str = TEST,
) -> FileCheck:
    """Compares a saved file with the run's model on the same examples.

    Args:
        trained: The run's model.
        task: Task with the test clients, which are sampled until they have 2,000 examples in total.
        predict: The saved model as a function of x; see `save.Format.load`.
        source: `MADE_UP` for random examples, which depend on no client's data; else `TEST`.
    """
    sums = {"run": _Sums(trained, task), "file": _Sums(trained, task)}
    run_model = tf.function(trained.predict, input_signature=[trained.model.example_spec["x"]])
    num_examples, largest, is_same = 0, 0.0, True
    is_made_up = source == MADE_UP
    for examples in [made_up(trained)] if is_made_up else _drawn(task.test):
        x = tf.nest.map_structure(tf.convert_to_tensor, examples["x"])
        expected, actual = run_model(x), predict(x)
        for a, b in zip(tf.nest.flatten(expected), tf.nest.flatten(actual)):
            difference = _differences(a, b)
            largest = max(largest, float(difference.max(initial=0.0)))
            is_near = np.isfinite(difference) & (difference <= _TOLERANCE * (1 + np.abs(a)))
            is_same &= bool(np.all(is_near | (difference == 0.0)))
        if not is_made_up:
            sums["run"].add(examples, expected)
            sums["file"].add(examples, actual)
        num_examples += len(tf.nest.flatten(x)[0])
    domains = _prediction_table(task, sums)
    return FileCheck(num_examples, source, finite_or_none(largest), is_same, domains)


def made_up(trained: TrainedModel) -> Examples:
    """Returns examples with random inputs, and without labels.

    Floats are normally distributed. Integers are ids if they stand for categories, domains or
    words; other integers are 0 or 1.
    """
    rng = np.random.default_rng(0)
    by_name = {}
    for name, spec in inputs_by_name(trained.model.example_spec["x"]).items():
        shape = (_NUM_MADE_UP, *(n or 1 for n in spec.shape[1:]))
        values: np.ndarray
        if spec.dtype.is_floating:
            values = rng.normal(size=shape)
        else:
            values = rng.integers(_num_ids(trained, name), size=shape)
        by_name[name] = values.astype(spec.dtype.as_numpy_dtype)
    return {"x": inputs_from_names(trained.model.example_spec["x"], by_name)}


def _num_ids(trained: TrainedModel, name: str) -> int:
    column = None if trained.inputs is None else trained.inputs.inputs.get(name)
    if not isinstance(column, Whole):
        return 2
    # The id 0 is an unknown category, or padding.
    sizes = {IDS: len(column.values) + 1, DOMAIN: len(column.values)}
    words = len(trained.words or ()) + 1
    return sizes.get(column.kind, words if column.kind in (TEXT, SENTENCE) else 2)


def _differences(expected: Any, actual: Any) -> np.ndarray:
    """Returns absolute differences: 0 for equal infinities or NaNs, and never NaN."""
    a, b = (np.asarray(array, np.float64) for array in (expected, actual))
    is_equal = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        difference = np.abs(a - b)
    return np.where(is_equal, 0.0, np.where(np.isnan(difference), np.inf, difference))


def _drawn(clients: ClientDataset) -> Iterator[Examples]:
    count = 0
    for k in np.random.default_rng(0).permutation(len(clients.client_ids)):
        examples = clients.read(clients.client_ids[k])
        size = len(examples["domain_id"])
        if size == 0:
            continue
        limit = _MAX_EXAMPLES - count
        yield tf.nest.map_structure(lambda column, limit=limit: column[:limit], dict(examples))
        count += size
        if count >= _MAX_EXAMPLES:
            return


class _Sums:
    """Numerators and denominators of each measure, by domain."""

    def __init__(self, trained: TrainedModel, task: Task) -> None:
        self._trained = trained
        self.measures = model_measures(trained.model)
        shape = [len(self.measures), task.num_domains]
        self.numerators, self.denominators = np.zeros(shape), np.zeros(shape)
        self.counts = np.zeros(task.num_domains, np.int64)

    def add(self, examples: Examples, predictions: Any) -> None:
        domains, y = examples["domain_id"], examples["y"]
        self.counts += np.bincount(domains, minlength=len(self.counts))
        for k, measure in enumerate(self.measures.values()):
            numerator, denominator = self._per_example(measure, y, predictions)
            np.add.at(self.numerators[k], domains, np.asarray(numerator, np.float64))
            np.add.at(self.denominators[k], domains, np.asarray(denominator, np.float64))

    def values(self, domain: int) -> dict[str, Optional[float]]:
        """Returns each measure of a domain; None if it is undefined."""
        values = {}
        for k, measure in enumerate(self.measures.values()):
            denominator = self.denominators[k, domain]
            ratio = tf.constant(self.numerators[k, domain] / max(denominator, 1e-30), tf.float32)
            value = ratio if measure.metric is None else measure.metric.value(ratio)
            values[measure.name] = finite_or_none(float(value)) if denominator > 0 else None
        return values

    def _per_example(self, measure: Measure, y: Any, predictions: Any) -> tuple[Any, Any]:
        if measure.metric is not None:
            return measure.metric.per_example(tf.convert_to_tensor(y), predictions)
        model = self._trained.model
        losses = tf.cast(model.loss(tf.convert_to_tensor(y), predictions), tf.float32)
        if model.regularizer is not None:
            losses += model.regularizer(self._trained.weights.trainable)
        return losses, tf.ones_like(losses)


def _prediction_table(task: Task, sums: dict[str, _Sums]) -> dict[str, dict[str, Any]]:
    run, file = sums["run"], sums["file"]
    return {
        name: {
            "examples": int(run.counts[k]),
            **{
                measure: {"run": value, "file": file.values(k)[measure]}
                for measure, value in run.values(k).items()
            },
        }
        for k, name in enumerate(task.domain_names)
        if run.counts[k] > 0
    }
