"""A trained model, and what its inputs and outputs are called in files."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_agnostic.models.functional import Model, ModelWeights

# Of the only input and the only output.
INPUT = "x"
OUTPUT = "predictions"


@dataclasses.dataclass(frozen=True)
class TrainedModel:
    """A model with its trained weights.

    Attributes:
        model: The model.
        weights: Its weights.
        class_names: Names of the classes that it tells apart, if they have any.
        words: Of texts the vocabulary; word k has the id k + 1.
    """

    model: Model
    weights: ModelWeights
    class_names: Optional[tuple[str, ...]] = None
    words: Optional[Sequence[str]] = None

    def predict(self, x: Any, weights: Optional[ModelWeights] = None) -> Any:
        """Returns the predictions as evaluations make them: without dropout.

        Args:
            x: Inputs of n examples.
            weights: The same weights in another form, such as variables.
        """
        # Of no effect: nothing is drawn outside of training.
        seed = tf.zeros([2], tf.int32)
        if weights is None:
            weights = self.weights
        tensors = ModelWeights(*(list(map(tf.convert_to_tensor, ws)) for ws in weights))
        return self.model.predict(tensors, x, False, seed)

    def input_specs(self, num_examples: Optional[int] = None) -> dict[str, tf.TensorSpec]:
        """Returns the spec of each input by its name.

        Args:
            num_examples: The first dimension; any number if None.
        """
        return {
            name: tf.TensorSpec([num_examples, *spec.shape[1:]], spec.dtype, name=name)
            for name, spec in inputs_by_name(self.model.example_spec["x"]).items()
        }

    def output_names(self) -> list[str]:
        """Returns the names of the predictions' tensors, in the order of `tf.nest.flatten`."""
        return output_names(self.output_structure())

    def output_structure(self) -> Any:
        """Returns predictions of one example of zeros."""
        zeros = tf.nest.map_structure(
            lambda spec: tf.zeros([1, *(n or 1 for n in spec.shape[1:])], spec.dtype),
            self.model.example_spec["x"],
        )
        return self.predict(zeros)


def inputs_by_name(x: Any) -> dict[str, Any]:
    """Returns the arrays of x by their names, `INPUT` if it is one."""
    return dict(x) if isinstance(x, Mapping) else {INPUT: x}


def inputs_of(spec: Any, by_name: Mapping[str, Any]) -> Any:
    """Returns x in the form of its spec; the inverse of `inputs_by_name`."""
    return dict(by_name) if isinstance(spec, Mapping) else by_name[INPUT]


def output_names(predictions: Any) -> list[str]:
    """Returns a name for each tensor of predictions, in the order of `tf.nest.flatten`."""
    if isinstance(predictions, Mapping):
        return sorted(predictions)
    count = len(tf.nest.flatten(predictions))
    return [OUTPUT] if count == 1 else [f"{OUTPUT}_{k}" for k in range(count)]


def outputs_by_name(predictions: Any) -> dict[str, Any]:
    """Returns the tensors of predictions by their names."""
    return dict(zip(output_names(predictions), tf.nest.flatten(predictions)))
