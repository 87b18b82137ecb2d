"""What C predictors say of n examples, as far as the losses of their mixtures need it.

A mixture's losses depend on inner products: of its output with the label (the label's own
probability, where outputs are distributions), and of its output with itself and with each
predictor's. Source: Hamer, Mohri, Suresh 2020, section 4: d loss / d alpha_k = <grad loss(h), h_k>.
"""

from typing import NamedTuple, Protocol

import tensorflow as tf


class Outputs(Protocol):
    """The outputs of C predictors on n examples; n is 1 where it does not depend on the example."""

    def agreements(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns <h_k(x_j), y_j>, float32 [n, C]: of classes the probability of the label."""

    def products(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns <h_w(x_j), h_k(x_j)> with h_w = sum_l weights_l h_l, float32 [n or 1, C]."""

    def squared_norms(self) -> tf.Tensor:
        """Returns |h_k(x_j)|^2, float32 [n or 1, C]."""

    def target_norms(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns |y_j|^2, float32 [n]: of classes 1."""


class SharedOutputs(NamedTuple):
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
        # Sums of products: TFLite's converter crashes on a matrix product that no example is in.
        mixture = tf.reduce_sum(self.table * weights, axis=1, keepdims=True)
        return tf.reduce_sum(self.table * mixture, axis=0, keepdims=True)

    def squared_norms(self) -> tf.Tensor:
        """See `Outputs`."""
        return tf.reduce_sum(tf.square(self.table), axis=0, keepdims=True)

    def target_norms(self, labels: tf.Tensor) -> tf.Tensor:
        """See `Outputs`."""
        return tf.ones(tf.shape(labels))


class ClassOutputs(NamedTuple):
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
        return _products(self.values, weights)

    def squared_norms(self) -> tf.Tensor:
        """See `Outputs`."""
        return tf.reduce_sum(tf.square(self.values), axis=2)

    def target_norms(self, labels: tf.Tensor) -> tf.Tensor:
        """See `Outputs`."""
        return tf.ones(tf.shape(labels))


class NumberOutputs(NamedTuple):
    """Real numbers, which are mixed as they are.

    Attributes:
        values: h_k(x_j), float32 [n, C, numbers].
    """

    values: tf.Tensor

    def agreements(self, labels: tf.Tensor) -> tf.Tensor:
        """See `Outputs`; labels are float32 [n] or [n, numbers]."""
        return tf.linalg.matvec(self.values, as_columns(labels))

    def products(self, weights: tf.Tensor) -> tf.Tensor:
        """See `Outputs`."""
        return _products(self.values, weights)

    def squared_norms(self) -> tf.Tensor:
        """See `Outputs`."""
        return tf.reduce_sum(tf.square(self.values), axis=2)

    def target_norms(self, labels: tf.Tensor) -> tf.Tensor:
        """See `Outputs`."""
        return tf.reduce_sum(tf.square(as_columns(labels)), axis=1)


def as_columns(values: tf.Tensor) -> tf.Tensor:
    """Returns numbers [n] or [n, ...] as float32 [n, numbers]."""
    return tf.cast(tf.reshape(values, [tf.shape(values)[0], -1]), tf.float32)


def mixed(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns sum_k weights_k values_k, [n, numbers], of values [n, C, numbers]."""
    return tf.einsum("ncv,c->nv", values, weights)


def _products(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.linalg.matvec(values, mixed(values, weights))
