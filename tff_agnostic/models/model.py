"""The functional model, its loss and metrics, and conversion from and to TFF's models.

The bridge to TFF is imported on first use.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from tff_agnostic.base.later import tf
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.models.metrics import Metric

Weights = Sequence["tf.Tensor"]
# Module with the bridge to TFF. It is imported on first use, because it is in a higher layer.
_BRIDGE = "tff_agnostic.computations.tff_bridge.models"


class ModelWeights(NamedTuple):
    """Weights of a model, with the same fields as TFF's `ModelWeights`.

    Attributes:
        trainable: Arrays or tensors, in the order of the model.
        non_trainable: Arrays of the weights that training does not change.
    """

    trainable: Any
    non_trainable: Any


# Data of one client, or a batch of them: "x" (an array or a mapping of arrays), "y" and "domain_id"
# (int32 in [0, p)), all with the same first dimension.
Examples = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Model:
    """A model in functional form.

    All callables build TensorFlow ops only from their arguments, and may be traced in any graph.

    Two models are equal if everything except the values of their initial weights is equal. Equal
    models are traced once, for example in trials with different seeds.

    Attributes:
        initial_weights: The weights w_0 as NumPy arrays.
        example_spec: Specs of "x" and "y" with a first dimension of None.
        predict: Maps (weights, x, training, seed) to predictions, whose first dimension is n.
            `seed`, int32 [2], is for stateless random ops and used only when training.
        loss: Maps (labels, predictions) to the loss of each example, float32 [n].
        regularizer: Maps trainable weights to a penalty, float32 scalar; or None. The penalty is
            added to every example's loss, so that the loss measurement and the gradient use the
            same objective.
        constraint: Projects trainable weights onto their constraints; or None. It is applied after
            each step of a client and of the server.
        metrics: Metrics to report in addition to the loss.
        loss_scale: Factor of the objective while gradients are computed, so that float16 gradients
            do not underflow; 1 for float32.
        keras_model: The Keras model behind `predict`, or None. Training does not change its
            variables.
        frozen: Positions of frozen weights among the trainable weights of the Keras model. Frozen
            weights come first in `initial_weights.non_trainable`; see `models.keras`.
    """

    initial_weights: ModelWeights
    example_spec: Mapping[str, Any]
    predict: Callable[[ModelWeights, Any, bool, tf.Tensor], tf.Tensor]
    loss: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    regularizer: Optional[Callable[[Weights], tf.Tensor]] = None
    constraint: Optional[Callable[[Weights], list[tf.Tensor]]] = None
    metrics: tuple[Metric, ...] = ()
    loss_scale: float = 1.0
    keras_model: Optional[tf.keras.Model] = None
    frozen: tuple[int, ...] = ()

    def __eq__(self, other: object) -> bool:
        """Returns whether the models are equal except for the values of their initial weights."""
        return (
            isinstance(other, Model)
            and self.example_spec is other.example_spec
            and self._functions() == other._functions()
            and _shapes(self.initial_weights) == _shapes(other.initial_weights)
        )

    def __hash__(self) -> int:
        return hash((id(self.example_spec), *self._functions()))

    def _functions(self) -> tuple:
        parts = self.predict, self.loss, self.regularizer, self.constraint
        return *parts, self.metrics, self.loss_scale

    @property
    def num_parameters(self) -> int:
        """Number of trainable scalars, |W| in table 1 of Ro et al. 2021."""
        return int(sum(np.size(w) for w in self.initial_weights.trainable))

    @property
    def bytes_per_example(self) -> Optional[int]:
        """Bytes of the weights that one example uses; None if every example uses all weights."""
        return None

    def client_data_spec(self) -> OrderedDict[str, Any]:
        """Specs of one client's "x", "y" and "domain_id", each with first dimension None."""
        return OrderedDict(
            x=self.example_spec["x"],
            y=self.example_spec["y"],
            domain_id=tf.TensorSpec([None], tf.int32),
        )

    def example_losses(
        self, weights: ModelWeights, examples: Examples, training: bool, seed: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns L(w, x_j, y_j) of each example, float32 [n], and the predictions."""
        predictions = self.predict(weights, examples["x"], training, seed)
        losses = tf.cast(self.loss(examples["y"], predictions), tf.float32)
        if self.regularizer is not None:
            losses += tf.cast(self.regularizer(weights.trainable), tf.float32)
        return losses, predictions


def _shapes(weights: ModelWeights) -> list[tuple]:
    return [(np.shape(w), np.asarray(w).dtype) for ws in weights for w in ws]


@dataclasses.dataclass(frozen=True)
class Measure:
    """A measure of a model on examples: the loss, or a metric.

    Attributes:
        name: "loss", or the metric's name.
        unit: Unit of its values.
        higher_is_better: Whether larger values are better.
        metric: The metric; None for the loss, and for results that are read without their model.
    """

    name: str
    unit: Unit
    higher_is_better: bool
    metric: Optional[Metric] = None

    @property
    def better(self) -> str:
        """Which values are better, "higher" or "lower"."""
        return "higher" if self.higher_is_better else "lower"


def model_measures(model: Model) -> OrderedDict[str, Measure]:
    """Returns the measures of a model by name: the loss, then its metrics."""
    measures = OrderedDict(loss=Measure("loss", Unit.NONE, False, None))
    for metric in model.metrics:
        unit = Unit[metric.shown_as.upper()]
        measures[metric.name] = Measure(metric.name, unit, metric.higher_is_better, metric)
    return measures


def main_measure(names: Iterable[str]) -> str:
    """Returns the name of the model's first metric; "loss" if it has none."""
    loss, *metrics = names
    return metrics[0] if metrics else loss


def from_tff(model: Any, metrics: Sequence[Metric] = (), seed: int = 0) -> Model:
    """Returns a TFF model as a `Model`.

    The TFF model's own metrics are dropped, as they are not sums over examples.

    Args:
        model: A `tff.learning.models.FunctionalModel`, or a function without arguments that builds
            a `VariableModel`, which must be a pure function of its weights.
        metrics: Metrics to report in addition to the loss.
        seed: Seed of the initial weights of a `VariableModel`.
    """
    converted: Model = importlib.import_module(_BRIDGE).model_from_tff(model, metrics, seed)
    return converted


def to_tff(model: Model) -> Any:
    """Returns a `tff.learning.models.FunctionalModel` with the same loss, metrics and weights.

    Its loss is the mean over a batch. Random layers draw new values in each call.
    """
    return importlib.import_module(_BRIDGE).model_to_tff(model)


def as_model(model: Any) -> Model:
    """Returns a `Model` unchanged, and converts a TFF model; see `from_tff`."""
    return model if isinstance(model, Model) else from_tff(model)
