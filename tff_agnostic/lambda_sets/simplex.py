"""All mixtures of the domains: the worst is the worst domain."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Simplex:
    """The simplex Delta_p."""

    def mixture(self, coordinates: tf.Tensor) -> tf.Tensor:
        """Returns lambda."""
        return coordinates

    def slopes(self, losses: tf.Tensor) -> tf.Tensor:
        """Returns L."""
        return losses

    def nearest(self, point: tf.Tensor) -> tf.Tensor:
        """See `LambdaSet`."""
        return project_to_simplex(point)

    def nearest_in_entropy(self, point: tf.Tensor) -> tf.Tensor:
        """Returns the point: it is in the set."""
        return point

    def start(self, initial: np.ndarray) -> np.ndarray:
        """Returns lambda_0."""
        return initial

    def worst(self, losses: np.ndarray) -> np.ndarray:
        """Returns the vertex of the domain with the largest loss."""
        vertex: np.ndarray = np.eye(len(losses))[np.argmax(losses)]
        return vertex

    def to_json(self, domain_names: tuple[str, ...]) -> dict[str, Any]:
        """See `LambdaSet`."""
        del domain_names
        return {"set": "simplex"}


def project_to_simplex(vector: tf.Tensor) -> tf.Tensor:
    """Returns the point of the simplex nearest to `vector` [p] in Euclidean distance.

    Source: Duchi et al. 2008, "Efficient projections onto the l1-ball", figure 1.
    """
    descending = tf.sort(vector, direction="DESCENDING")
    ranks = tf.range(1, tf.size(vector) + 1, dtype=vector.dtype)
    excess = (tf.cumsum(descending) - 1.0) / ranks
    support_size = tf.reduce_sum(tf.cast(descending > excess, tf.int32))
    return tf.maximum(vector - excess[support_size - 1], 0.0)
