"""Families of predictors in ensembles: distributions, classifiers, next-word models, numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional, Protocol

import numpy as np

from tff_agnostic.base.later import tf
from tff_agnostic.boosting.mixture_losses import (
    ClassOutputs,
    MixtureTerms,
    NumberOutputs,
    Outputs,
    SharedOutputs,
    WordOutputs,
    as_columns,
    at_words,
    over_words,
)
from tff_agnostic.boosting.predictor_store import PredictorStore, Stacks
from tff_agnostic.models.model import ModelWeights

_EXAMPLES_AT_ONCE = 256
# For this number of sentences of 20 words, and a vocabulary of 10,000 words, the outputs of each
# predictor take 50 MB.
_SENTENCES_AT_ONCE = 64
_FLOAT_BYTES = 4


class PredictorFamily(Protocol):
    """A family of predictors, a frozen dataclass: work with equal families is traced once.

    Attributes:
        are_densities: Whether outputs, and therefore their mixtures, are distributions.
        examples_at_once: Number of examples that clients process at once; affects only memory.
    """

    @property
    def are_densities(self) -> bool:
        """See the class."""

    @property
    def examples_at_once(self) -> int:
        """See the class."""

    def stacked(self, predictors: Sequence[ModelWeights]) -> list[np.ndarray]:
        """Returns arrays that hold q predictors, from each predictor's weights."""

    def chosen(self, stacks: Stacks, indices: tf.Tensor) -> list[tf.Tensor]:
        """Returns a message's arrays for the predictors of given indices, int32 [static C]."""

    def num_bytes(self, stacks: Sequence[np.ndarray], count: int) -> int:
        """Returns the size in bytes of a message with `count` predictors."""

    def bytes_per_example(self, count: int) -> Optional[int]:
        """Returns the bytes that an example reads of `count` predictors; None if it reads all."""

    def outputs(self, stacks: Stacks, x: Any) -> Outputs:
        """Returns outputs for n examples: of all predictors, or of the predictors in a message."""

    def predictions(self, outputs: Any, weights: tf.Tensor, x: Any) -> tf.Tensor:
        """Returns the mixture's predictions, as the model's metrics expect them."""

    def fit(self, labels: tf.Tensor, predictions: tf.Tensor) -> MixtureTerms:
        """Returns the terms on which losses depend, from predictions of the mixture."""

    def per_example(self, values: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Combines the losses of an example's predictions into the example's loss, [n]."""


@dataclasses.dataclass(frozen=True)
class DiscreteMembers:
    """Distributions over outcomes without inputs, such as unigram models.

    Probabilities are stored as [outcomes, q], so that the values of an outcome are contiguous in
    memory. The predictors' own models have scores instead; see `models.next_word.unigram_model`.

    Attributes:
        with_norm: Whether predictions include |h|^2, which requires all of h.
    """

    with_norm: bool = True
    are_densities = True
    examples_at_once = _EXAMPLES_AT_ONCE

    def stacked(self, predictors: Sequence[ModelWeights]) -> list[np.ndarray]:
        """See `PredictorFamily`."""
        scores = np.stack([np.asarray(p.trainable[0], np.float64) for p in predictors])
        raised = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares = (raised / raised.sum(axis=1, keepdims=True)).astype(np.float32)
        return [np.ascontiguousarray(shares.T)]

    def chosen(self, stacks: Stacks, indices: tf.Tensor) -> list[tf.Tensor]:
        """See `PredictorFamily`."""
        return [tf.gather(stack, indices, axis=1) for stack in stacks]

    def num_bytes(self, stacks: Sequence[np.ndarray], count: int) -> int:
        """See `PredictorFamily`."""
        (table,) = stacks
        return count * table.nbytes // table.shape[1]

    def bytes_per_example(self, count: int) -> Optional[int]:
        """See `PredictorFamily`: an example reads one row of the table."""
        return count * _FLOAT_BYTES

    def outputs(self, stacks: Stacks, x: Any) -> SharedOutputs:
        """See `PredictorFamily`."""
        del x
        return SharedOutputs(stacks[0])

    def predictions(self, outputs: SharedOutputs, weights: tf.Tensor, x: Any) -> tf.Tensor:
        """Returns log h(x) and optionally |h|^2, float32 [n, 1 or 2], like a unigram model."""
        columns = [tf.math.log(tf.linalg.matvec(outputs.agreements(x), weights))]
        if self.with_norm:
            norm = tf.reduce_sum(outputs.products(weights) * weights)
            columns.append(tf.fill(tf.shape(x), norm))
        return tf.stack(columns, axis=1)

    def fit(self, labels: tf.Tensor, predictions: tf.Tensor) -> MixtureTerms:
        """See `PredictorFamily`."""
        agreement = tf.exp(predictions[:, 0])
        norm = predictions[:, 1] if self.with_norm else tf.zeros_like(agreement)
        return MixtureTerms(agreement, norm, tf.ones(tf.shape(labels)))

    def per_example(self, values: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """See `PredictorFamily`."""
        del labels
        return values


@dataclasses.dataclass(frozen=True)
class ModelMembers:
    """Models with the same inputs and outputs, of one architecture or several.

    Attributes:
        held: Storage of the models' weights.
    """

    held: PredictorStore
    examples_at_once = _EXAMPLES_AT_ONCE

    def stacked(self, predictors: Sequence[ModelWeights]) -> list[np.ndarray]:
        """See `PredictorFamily`."""
        return self.held.stacked(predictors)

    def chosen(self, stacks: Stacks, indices: tf.Tensor) -> list[tf.Tensor]:
        """See `PredictorFamily`."""
        return self.held.chosen(stacks, indices)

    def num_bytes(self, stacks: Sequence[np.ndarray], count: int) -> int:
        """See `PredictorFamily`."""
        del stacks
        return self.held.num_bytes(count)

    def bytes_per_example(self, count: int) -> Optional[int]:
        """See `PredictorFamily`: None, as a model uses all of its weights."""
        del count
        return None

    def per_example(self, values: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """See `PredictorFamily`."""
        del labels
        return values

    def columns(self, stacks: Stacks, x: Any) -> tf.Tensor:
        """Returns the outputs of C predictors for n examples, [n, C, numbers]."""
        return tf.stack(
            [as_columns(outputs) for outputs in self.held.predictions(stacks, x)], axis=1
        )


@dataclasses.dataclass(frozen=True)
class WordMembers(ModelMembers):
    """Next-word models, mixed by their probabilities of each word.

    A sentence's loss combines the losses of its words as in `SentenceLoss`.

    Attributes:
        expected_length: See `SentenceLoss`.
    """

    expected_length: Optional[float] = None
    are_densities = True
    examples_at_once = _SENTENCES_AT_ONCE

    def outputs(self, stacks: Stacks, x: Any) -> WordOutputs:
        """See `PredictorFamily`."""
        return WordOutputs(self.held.predictions(stacks, x), self.expected_length)

    def predictions(self, outputs: WordOutputs, weights: tf.Tensor, x: Any) -> tf.Tensor:
        """Returns log h(x), float32 [n, T, ids], the scores that metrics of words expect."""
        del x
        return tf.math.log(outputs.mixed(weights))

    def fit(self, labels: tf.Tensor, predictions: tf.Tensor) -> MixtureTerms:
        """See `PredictorFamily`; float32 [n, T] each."""
        probabilities = tf.exp(predictions)
        return MixtureTerms(
            at_words(probabilities, labels),
            tf.reduce_sum(tf.square(probabilities), axis=2),
            tf.ones(tf.shape(labels)),
        )

    def per_example(self, values: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """See `PredictorFamily`."""
        return over_words(values, labels, self.expected_length)


@dataclasses.dataclass(frozen=True)
class NumberMembers(ModelMembers):
    """Models of real numbers, mixed without transformation."""

    are_densities = False

    def outputs(self, stacks: Stacks, x: Any) -> NumberOutputs:
        """See `PredictorFamily`."""
        return NumberOutputs(self.columns(stacks, x))

    def predictions(self, outputs: NumberOutputs, weights: tf.Tensor, x: Any) -> tf.Tensor:
        """Returns h(x), float32 [n, numbers]."""
        del x
        return outputs.mixed(weights)

    def fit(self, labels: tf.Tensor, predictions: tf.Tensor) -> MixtureTerms:
        """See `PredictorFamily`."""
        target = as_columns(labels)
        return MixtureTerms(
            tf.reduce_sum(predictions * target, axis=1),
            tf.reduce_sum(tf.square(predictions), axis=1),
            tf.reduce_sum(tf.square(target), axis=1),
        )


@dataclasses.dataclass(frozen=True)
class ClassMembers(ModelMembers):
    """Classifiers, mixed by their class probabilities."""

    are_densities = True

    def outputs(self, stacks: Stacks, x: Any) -> ClassOutputs:
        """See `PredictorFamily`."""
        return ClassOutputs(self.columns(stacks, x))

    def predictions(self, outputs: ClassOutputs, weights: tf.Tensor, x: Any) -> tf.Tensor:
        """Returns log h(x), float32 [n, classes], the scores that metrics of classes expect."""
        del x
        return tf.math.log(outputs.mixed(weights))

    def fit(self, labels: tf.Tensor, predictions: tf.Tensor) -> MixtureTerms:
        """See `PredictorFamily`."""
        probabilities = tf.exp(predictions)
        return MixtureTerms(
            tf.gather(probabilities, labels, axis=1, batch_dims=1),
            tf.reduce_sum(tf.square(probabilities), axis=1),
            tf.ones(tf.shape(labels)),
        )


@dataclasses.dataclass(frozen=True)
class TwoClassMembers(ModelMembers):
    """Classifiers of two classes, with one output for class 1.

    Attributes:
        from_scores: Whether the task's model predicts scores, whose sigmoid is the probability. The
            mixture then predicts scores as well.
    """

    from_scores: bool = True
    are_densities = True

    def outputs(self, stacks: Stacks, x: Any) -> ClassOutputs:
        """See `PredictorFamily`: probabilities of both classes."""
        positive = self.columns(stacks, x)
        return ClassOutputs(tf.concat([1.0 - positive, positive], axis=2))

    def predictions(self, outputs: ClassOutputs, weights: tf.Tensor, x: Any) -> tf.Tensor:
        """Returns the score or the probability of class 1, float32 [n, 1].

        The predictors' weights need not sum to 1.
        """
        del x
        mixture = outputs.mixed(weights)
        if self.from_scores:
            return tf.math.log(mixture[:, 1:]) - tf.math.log(mixture[:, :1])
        return mixture[:, 1:] / tf.reduce_sum(mixture, axis=1, keepdims=True)

    def fit(self, labels: tf.Tensor, predictions: tf.Tensor) -> MixtureTerms:
        """See `PredictorFamily`; labels are 0 and 1, [n]."""
        positive = tf.reshape(predictions, [-1])
        if self.from_scores:
            # Compute a sigmoid for each class, as 1 - p loses all digits if p rounds to 1.
            positive, negative = tf.sigmoid(positive), tf.sigmoid(-positive)
        else:
            negative = 1.0 - positive
        agreement = tf.where(tf.equal(labels, 1), positive, negative)
        norm = tf.square(positive) + tf.square(negative)
        return MixtureTerms(agreement, norm, tf.ones(tf.shape(labels)))
