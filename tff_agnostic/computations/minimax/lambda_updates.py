"""One step of lambda by the domains' losses: mirror ascent with either mirror map, or none.

Sources: Ro et al. 2021, Algorithm 1, SERVER line 12; Mohri, Sivek, Suresh 2019, section 4.2.
Pure functions on float32 vectors, usable with NumPy arrays.
"""

from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.lambda_sets.lambda_set import LambdaSet
from tff_agnostic.lambda_sets.simplex import project_to_simplex

# The smallest normal float32: what is smaller, processors may take for 0.
SMALLEST_WEIGHT = float(np.finfo(np.float32).tiny)


def exponentiated_gradient(
    lambda_: tf.Tensor, losses: tf.Tensor, learning_rate: float
) -> tf.Tensor:
    """Returns lambda * exp(gamma L), normalised (SERVER line 12), in the log domain.

    A positive weight stays positive, however small; 0 stays 0. A product gamma L beyond float32's
    range gives the limit: all weight on the domains with the largest loss.
    """
    losses = tf.convert_to_tensor(losses)
    exponents = learning_rate * losses
    # The same up to a factor of all weights, and it rounds otherwise: only where it has to be.
    from_largest = learning_rate * (losses - tf.reduce_max(losses))
    in_range = tf.reduce_all(tf.math.is_finite(exponents))
    logits = tf.math.log(lambda_) + tf.where(in_range, exponents, from_largest)
    unnormalized = tf.exp(logits - tf.reduce_max(logits))
    normalized = unnormalized / tf.reduce_sum(unnormalized)
    return tf.where(lambda_ > 0, tf.maximum(normalized, SMALLEST_WEIGHT), 0.0)


def projected_gradient(lambda_: tf.Tensor, losses: tf.Tensor, learning_rate: float) -> tf.Tensor:
    """Returns the projection of lambda + gamma L on the simplex (Mohri et al. 2019, 4.2)."""
    return project_to_simplex(lambda_ + learning_rate * losses)


def fixed(lambda_: tf.Tensor, losses: tf.Tensor, learning_rate: float) -> tf.Tensor:
    """Returns lambda unchanged."""
    del losses, learning_rate
    return lambda_


class Step(NamedTuple):
    """What a round has for lambda to move by.

    Attributes:
        coordinates: Of lambda_{t-1} in its set, float32 [q].
        slopes: The gradient of sum_i lambda_i L_i by them, float32 [q].
        learning_rate: gamma_lambda.
        is_free: Which coordinates may change, bool [q]; all if None. The others get back what they
            had, whatever the update returns for them.
    """

    coordinates: tf.Tensor
    slopes: tf.Tensor
    learning_rate: Any
    is_free: Optional[tf.Tensor] = None


def entropy_step(lambda_set: LambdaSet, step: Step) -> tf.Tensor:
    """Mirror ascent with the entropy as mirror map."""
    moved = exponentiated_gradient(step.coordinates, step.slopes, step.learning_rate)
    return lambda_set.nearest_in_entropy(moved)


def euclidean_step(lambda_set: LambdaSet, step: Step) -> tf.Tensor:
    """Mirror ascent with half the squared norm as mirror map."""
    return lambda_set.nearest(step.coordinates + step.learning_rate * step.slopes)


def no_step(lambda_set: LambdaSet, step: Step) -> tf.Tensor:
    """Returns the coordinates unchanged."""
    del lambda_set
    return fixed(step.coordinates, step.slopes, step.learning_rate)


# (set, what the round has) -> coordinates.
DomainWeightUpdate = Callable[[LambdaSet, Step], tf.Tensor]
