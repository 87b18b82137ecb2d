"""Predictors of one form, as members of an ensemble: what they say, and how it is mixed."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tff_agnostic.models.functional import Model, ModelWeights
from tff_agnostic.models.mixtures.losses import Fit
from tff_agnostic.models.mixtures.outputs import (
    ClassOutputs,
    NumberOutputs,
    Outputs,
    SharedOutputs,
    as_columns,
    mixed,
)

# Arrays that hold predictors, along an axis that their form says.
Stacks = Sequence[tf.Tensor]


class Members(Protocol):
    """Predictors of one form; equal ones are traced once, so that they are frozen dataclasses.

    Attributes:
        are_densities: Whether outputs are distributions, and so their mixtures.
        axis: Of the arrays, along which predictors lie.
    """

    @property
    def are_densities(self) -> bool:
        """See above."""

    @property
    def axis(self) -> int:
        """See above."""

    def stacked(self, predictors: Sequence[ModelWeights]) -> list[np.ndarray]:
        """Returns the arrays that hold q predictors, from the weights of each."""

    def outputs(self, stacks: Stacks, x: Any) -> Outputs:
        """Returns what C predictors, held by arrays, say of n examples; C is static."""

    def predictions(self, outputs: Any, weights: tf.Tensor, x: Any) -> tf.Tensor:
        """Returns what the mixture predicts, as the model's metrics read it."""

    def fit(self, labels: tf.Tensor, predictions: tf.Tensor) -> Fit:
        """Returns what losses depend on, from predictions of the mixture."""


@dataclasses.dataclass(frozen=True)
class DiscreteMembers:
    """Distributions over outcomes without any input, such as unigram models.

    They are held by their probabilities, [outcomes, q]: what all of them say of an outcome lies
    together in memory. Their models have scores, as `models.unigram`.

    Attributes:
        with_norm: Whether predictions say |h|^2, which takes all of h.
    """

    with_norm: bool = True
    are_densities = True
    axis = 1

    def stacked(self, predictors: Sequence[ModelWeights]) -> list[np.ndarray]:
        """See `Members`."""
        scores = np.stack([np.asarray(p.trainable[0], np.float64) for p in predictors])
        raised = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares = (raised / raised.sum(axis=1, keepdims=True)).astype(np.float32)
        return [np.ascontiguousarray(shares.T)]

    def outputs(self, stacks: Stacks, x: Any) -> SharedOutputs:
        """See `Members`."""
        del x
        return SharedOutputs(stacks[0])

    def predictions(self, outputs: SharedOutputs, weights: tf.Tensor, x: Any) -> tf.Tensor:
        """Returns log h(x) and perhaps |h|^2, float32 [n, 1 or 2], as a unigram model does."""
        columns = [tf.math.log(tf.linalg.matvec(outputs.agreements(x), weights))]
        if self.with_norm:
            norm = tf.reduce_sum(outputs.products(weights) * weights)
            columns.append(tf.fill(tf.shape(x), norm))
        return tf.stack(columns, axis=1)

    def fit(self, labels: tf.Tensor, predictions: tf.Tensor) -> Fit:
        """See `Members`."""
        agreement = tf.exp(predictions[:, 0])
        norm = predictions[:, 1] if self.with_norm else tf.zeros_like(agreement)
        return Fit(agreement, norm, tf.ones(tf.shape(labels)))


@dataclasses.dataclass(frozen=True)
class ModelMembers:
    """Predictors of one architecture, each with weights of its own.

    Attributes:
        model: The architecture.
    """

    model: Model
    axis = 0

    def stacked(self, predictors: Sequence[ModelWeights]) -> list[np.ndarray]:
        """See `Members`: trainable and other weights, in their order."""
        leaves = [[*p.trainable, *p.non_trainable] for p in predictors]
        return [np.stack([np.asarray(a) for a in arrays]) for arrays in zip(*leaves)]

    def values(self, stacks: Stacks, x: Any) -> tf.Tensor:
        """Returns the predictions of each of C predictors, [n, C, numbers]; n is any number."""
        num_trainable = len(self.model.initial_weights.trainable)
        # Unrolled: C is small, and a loop would have no vectorised form in every model.
        predictions = [
            self.model.predict(
                ModelWeights(
                    [s[k] for s in stacks[:num_trainable]], [s[k] for s in stacks[num_trainable:]]
                ),
                x,
                False,
                tf.zeros([2], tf.int32),
            )
            for k in range(stacks[0].shape[0])
        ]
        return tf.stack([as_columns(p) for p in predictions], axis=1)


@dataclasses.dataclass(frozen=True)
class ClassMembers(ModelMembers):
    """Classifiers, whose class probabilities are mixed.

    Attributes:
        from_scores: Whether the model predicts scores, of which probabilities are the softmax.
    """

    from_scores: bool = True
    are_densities = True

    def outputs(self, stacks: Stacks, x: Any) -> ClassOutputs:
        """See `Members`."""
        values = self.values(stacks, x)
        return ClassOutputs(tf.nn.softmax(values) if self.from_scores else values)

    def predictions(self, outputs: ClassOutputs, weights: tf.Tensor, x: Any) -> tf.Tensor:
        """Returns log h(x), float32 [n, classes]: scores, as metrics of classes read them."""
        del x
        return tf.math.log(mixed(outputs.values, weights))

    def fit(self, labels: tf.Tensor, predictions: tf.Tensor) -> Fit:
        """See `Members`."""
        probabilities = tf.exp(predictions)
        return Fit(
            tf.gather(probabilities, labels, axis=1, batch_dims=1),
            tf.reduce_sum(tf.square(probabilities), axis=1),
            tf.ones(tf.shape(labels)),
        )


@dataclasses.dataclass(frozen=True)
class NumberMembers(ModelMembers):
    """Models of real numbers, which are mixed as they are."""

    are_densities = False

    def outputs(self, stacks: Stacks, x: Any) -> NumberOutputs:
        """See `Members`."""
        return NumberOutputs(self.values(stacks, x))

    def predictions(self, outputs: NumberOutputs, weights: tf.Tensor, x: Any) -> tf.Tensor:
        """Returns h(x), float32 [n, numbers]."""
        del x
        return mixed(outputs.values, weights)

    def fit(self, labels: tf.Tensor, predictions: tf.Tensor) -> Fit:
        """See `Members`."""
        target = as_columns(labels)
        return Fit(
            tf.reduce_sum(predictions * target, axis=1),
            tf.reduce_sum(tf.square(predictions), axis=1),
            tf.reduce_sum(tf.square(target), axis=1),
        )
