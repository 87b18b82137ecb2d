"""Classifiers as members of an ensemble: their class probabilities are mixed."""

import dataclasses
from typing import Any

import tensorflow as tf

from tff_agnostic.models.mixtures.holding import Stacks
from tff_agnostic.models.mixtures.losses import Fit
from tff_agnostic.models.mixtures.members import ModelMembers
from tff_agnostic.models.mixtures.outputs import ClassOutputs


@dataclasses.dataclass(frozen=True)
class ClassMembers(ModelMembers):
    """Classifiers, whose class probabilities are mixed."""

    are_densities = True

    def outputs(self, stacks: Stacks, x: Any) -> ClassOutputs:
        """See `Members`."""
        return ClassOutputs(self.columns(stacks, x))

    def predictions(self, outputs: ClassOutputs, weights: tf.Tensor, x: Any) -> tf.Tensor:
        """Returns log h(x), float32 [n, classes]: scores, as metrics of classes read them."""
        del x
        return tf.math.log(outputs.mixed(weights))

    def fit(self, labels: tf.Tensor, predictions: tf.Tensor) -> Fit:
        """See `Members`."""
        probabilities = tf.exp(predictions)
        return Fit(
            tf.gather(probabilities, labels, axis=1, batch_dims=1),
            tf.reduce_sum(tf.square(probabilities), axis=1),
            tf.ones(tf.shape(labels)),
        )


@dataclasses.dataclass(frozen=True)
class TwoClassMembers(ModelMembers):
    """Classifiers of two classes with one output, that of class 1.

    Attributes:
        from_scores: Whether the task's model has scores, of which the probability is the sigmoid:
            its metrics read the mixture in the same form.
    """

    from_scores: bool = True
    are_densities = True

    def outputs(self, stacks: Stacks, x: Any) -> ClassOutputs:
        """See `Members`: both classes' probabilities."""
        of_one = self.columns(stacks, x)
        return ClassOutputs(tf.concat([1.0 - of_one, of_one], axis=2))

    def predictions(self, outputs: ClassOutputs, weights: tf.Tensor, x: Any) -> tf.Tensor:
        """Returns the score or the probability of class 1, float32 [n, 1].

        Weights that do not sum to 1 are as good as those that do.
        """
        del x
        mixture = outputs.mixed(weights)
        if self.from_scores:
            return tf.math.log(mixture[:, 1:]) - tf.math.log(mixture[:, :1])
        return mixture[:, 1:] / tf.reduce_sum(mixture, axis=1, keepdims=True)

    def fit(self, labels: tf.Tensor, predictions: tf.Tensor) -> Fit:
        """See `Members`; labels are 0 and 1, [n]."""
        of_one = tf.reshape(predictions, [-1])
        if self.from_scores:
            # Each by its own sigmoid: 1 less a probability that rounds to 1 has no logarithm.
            of_one, of_zero = tf.sigmoid(of_one), tf.sigmoid(-of_one)
        else:
            of_zero = 1.0 - of_one
        agreement = tf.where(tf.equal(labels, 1), of_one, of_zero)
        norm = tf.square(of_one) + tf.square(of_zero)
        return Fit(agreement, norm, tf.ones(tf.shape(labels)))
