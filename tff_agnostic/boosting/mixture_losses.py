"""Losses of mixtures of C predictors on n examples, and gradients in the weights alpha.

Source: Hamer, Mohri, Suresh 2020, sections 2 to 4; d loss / d alpha_k = <grad loss(h), h_k>. A
mixture's losses depend on inner products of its output: with the label (for distributions, the
label's probability), with itself, and with each predictor's output.

Up to terms without the mixture, both losses are Bregman divergences of a distribution from the
mixture. F = sum x log x gives the log loss, for classes the cross-entropy of the mixed
probabilities; F = |x|^2 gives the squared loss.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

from tff_agnostic.base.later import tf
from tff_agnostic.base.registry import Registry
from tff_agnostic.models.metrics import is_word


class Outputs(abc.ABC):
    """Outputs of C predictors on n examples; n is 1 if the outputs do not depend on the example.

    For sentences, an example has T predictions: results have an axis of T after the axis of
    examples, which `per_example` reduces.
    """

    @abc.abstractmethod
    def agreements(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns <h_k(x_j), y_j>, float32 [n, C]; for classes it is the label's probability."""

    @abc.abstractmethod
    def products(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns <h_w(x_j), h_k(x_j)> with h_w = sum_l weights_l h_l, float32 [n or 1, C]."""

    @abc.abstractmethod
    def squared_norms(self) -> tf.Tensor:
        """Returns |h_k(x_j)|^2, float32 [n or 1, C]."""

    def target_norms(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns |y_j|^2, float32 [n]; for classes it is 1."""
        return tf.ones(tf.shape(labels))

    def per_example(self, values: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Combines values per prediction to values per example, [n, ...]."""
        del labels
        return values


@dataclasses.dataclass(frozen=True, eq=False)
class SharedOutputs(Outputs):
    """Distributions that do not depend on the example.

    Attributes:
        table: h_k(y) in row y and column k, float32 [outcomes, C].
    """

    table: tf.Tensor

    def agreements(self, labels: tf.Tensor) -> tf.Tensor:
        """See `Outputs`; labels are outcomes, int [n]."""
        return tf.gather(self.table, labels)

    def products(self, weights: tf.Tensor) -> tf.Tensor:
        """See `Outputs`."""
        # Use sums of products, as TFLite's converter crashes on a matrix product without
        # an axis of examples.
        mixture = tf.reduce_sum(self.table * weights, axis=1, keepdims=True)
        return tf.reduce_sum(self.table * mixture, axis=0, keepdims=True)

    def squared_norms(self) -> tf.Tensor:
        """See `Outputs`."""
        return tf.reduce_sum(tf.square(self.table), axis=0, keepdims=True)


@dataclasses.dataclass(frozen=True, eq=False)
class ClassOutputs(Outputs):
    """Distributions over classes.

    Attributes:
        values: h_k(x_j), float32 [n, C, classes].
    """

    values: tf.Tensor

    def agreements(self, labels: tf.Tensor) -> tf.Tensor:
        """See `Outputs`; labels are classes, int [n]."""
        return tf.gather(self.values, labels, axis=2, batch_dims=1)

    def products(self, weights: tf.Tensor) -> tf.Tensor:
        """See `Outputs`."""
        return tf.linalg.matvec(self.values, self.mixed(weights))

    def squared_norms(self) -> tf.Tensor:
        """See `Outputs`."""
        return tf.reduce_sum(tf.square(self.values), axis=2)

    def mixed(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns sum_k weights_k h_k(x_j), float32 [n, classes]."""
        return tf.einsum("ncv,c->nv", self.values, weights)


@dataclasses.dataclass(frozen=True, eq=False)
class NumberOutputs(ClassOutputs):
    """Real numbers, mixed without transformation.

    Attributes:
        values: h_k(x_j), float32 [n, C, numbers].
    """

    def agreements(self, labels: tf.Tensor) -> tf.Tensor:
        """See `Outputs`; labels are float32 [n] or [n, numbers]."""
        return tf.linalg.matvec(self.values, as_columns(labels))

    def target_norms(self, labels: tf.Tensor) -> tf.Tensor:
        """See `Outputs`."""
        return tf.reduce_sum(tf.square(as_columns(labels)), axis=1)


@dataclasses.dataclass(frozen=True, eq=False)
class WordOutputs(Outputs):
    """Distributions over the vocabulary at each of the T positions of sentences.

    Labels are ids, int [n, T]; padding is not predicted and does not count in means.

    Attributes:
        values: h_k(x_j) for each of the C predictors, float32 [n, T, ids]; a sequence, as stacking
            would copy these large arrays.
        expected_length: See `SentenceLoss`.
    """

    values: Sequence[tf.Tensor]
    expected_length: Optional[float] = None

    def agreements(self, labels: tf.Tensor) -> tf.Tensor:
        """See `Outputs`, float32 [n, T, C]; 1 at padding, so that its log loss is 0."""
        return tf.stack([at_words(value, labels) for value in self.values], axis=2)

    def products(self, weights: tf.Tensor) -> tf.Tensor:
        """See `Outputs`, float32 [n, T, C]."""
        mixture = self.mixed(weights)
        return tf.stack([tf.reduce_sum(mixture * v, axis=2) for v in self.values], axis=2)

    def squared_norms(self) -> tf.Tensor:
        """See `Outputs`, float32 [n, T, C]."""
        return tf.stack([tf.reduce_sum(tf.square(v), axis=2) for v in self.values], axis=2)

    def per_example(self, values: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """See `Outputs`: averages over the sentence's words."""
        return over_words(values, labels, self.expected_length)

    def mixed(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns sum_k weights_k h_k(x_j), float32 [n, T, ids]."""
        return tf.add_n([weights[k] * value for k, value in enumerate(self.values)])


def at_words(values: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the values [n, T, ids] at the labels [n, T]; 1 at padding."""
    rows = tf.reshape(values, [-1, values.shape[-1]])
    entries = tf.gather(rows, tf.reshape(labels, [-1]), axis=1, batch_dims=1)
    return tf.where(is_word(labels) > 0, tf.reshape(entries, tf.shape(labels)), 1.0)


def over_words(values: tf.Tensor, labels: tf.Tensor, expected_length: Optional[float]) -> tf.Tensor:
    """Returns the mean over each sentence's words, [n, ...]; 0 for a sentence without words.

    Args:
        values: float32 [n, T] or [n, T, C]; values at padding must be finite.
        labels: Ids, int [n, T].
        expected_length: Divisor of the sum over the words; None for the number of words.
    """
    words = is_word(labels)
    length = tf.reduce_sum(words, axis=1, keepdims=True)
    if expected_length is not None:
        length = tf.constant(expected_length)
    share = tf.math.divide_no_nan(words, length)
    if values.shape.rank == 3:
        share = share[:, :, tf.newaxis]
    return tf.reduce_sum(values * share, axis=1)


def as_columns(values: tf.Tensor) -> tf.Tensor:
    """Returns numbers [n] or [n, ...] as float32 [n, numbers]."""
    return tf.cast(tf.reshape(values, [tf.shape(values)[0], -1]), tf.float32)


class MixtureTerms(NamedTuple):
    """Terms on which a mixture's loss at an example depends; sentences add an axis of T.

    Attributes:
        agreement: <h(x_j), y_j>, float32 [n].
        norm: |h(x_j)|^2, float32 [n or 1].
        target_norm: |y_j|^2, float32 [n].
    """

    agreement: tf.Tensor
    norm: tf.Tensor
    target_norm: tf.Tensor


class LossAt(NamedTuple):
    """Losses of n examples and their gradients.

    Attributes:
        losses: Loss of each example, float32 [n].
        gradients: Gradient with respect to the weight of each of C predictors, float32 [n, C].
    """

    losses: tf.Tensor
    gradients: tf.Tensor


class MixtureLoss(NamedTuple):
    """A loss of mixtures.

    Attributes:
        from_terms: terms -> loss of each prediction, in the shape of the terms.
        at: (outputs, weights [C], labels) -> losses and gradients; the weights need not sum to 1.
        needs_densities: Whether the loss is defined only for distributions.
    """

    from_terms: Callable[[MixtureTerms], tf.Tensor]
    at: Callable[[Outputs, tf.Tensor, tf.Tensor], LossAt]
    needs_densities: bool


def log_loss(fit: MixtureTerms) -> tf.Tensor:
    """Returns -log h(y), in nats."""
    return -tf.math.log(fit.agreement)


def log_loss_at(outputs: Outputs, weights: tf.Tensor, labels: tf.Tensor) -> LossAt:
    """Returns `log_loss` and its gradient -h_k(y) / h(y)."""
    agreements = outputs.agreements(labels)
    agreement = tf.linalg.matvec(agreements, weights)
    losses, gradients = -tf.math.log(agreement), -agreements / agreement[..., tf.newaxis]
    return _per_example_loss(outputs, losses, gradients, labels)


def squared_loss(fit: MixtureTerms) -> tf.Tensor:
    """Returns |h(x) - y|^2; a class y is a one-hot vector."""
    return fit.norm - 2.0 * fit.agreement + fit.target_norm


def squared_loss_at(outputs: Outputs, weights: tf.Tensor, labels: tf.Tensor) -> LossAt:
    """Returns `squared_loss` and its gradient 2 <h(x) - y, h_k(x)>."""
    agreements, products = outputs.agreements(labels), outputs.products(weights)
    fit = MixtureTerms(
        tf.linalg.matvec(agreements, weights),
        tf.linalg.matvec(products, weights),
        outputs.target_norms(labels),
    )
    return _per_example_loss(outputs, squared_loss(fit), 2.0 * (products - agreements), labels)


def _per_example_loss(
    outputs: Outputs, losses: tf.Tensor, gradients: tf.Tensor, labels: tf.Tensor
) -> LossAt:
    return LossAt(outputs.per_example(losses, labels), outputs.per_example(gradients, labels))


MIXTURE_LOSSES: Registry[MixtureLoss] = Registry(
    "loss of an ensemble",
    {
        "log": MixtureLoss(log_loss, log_loss_at, needs_densities=True),
        "squared": MixtureLoss(squared_loss, squared_loss_at, needs_densities=False),
    },
)
