"""What a set Lambda is to those who climb in it: coordinates, projections, and its worst mixture.

Mohri, Sivek, Suresh 2019, "Agnostic Federated Learning": the agnostic loss is the maximum over
lambda in Lambda of sum_i lambda_i L_i. It is linear in lambda, so that Lambda and its convex hull
give the same; every set here is convex and within the simplex of the p domains.
"""

from typing import Any, Protocol

import numpy as np
import tensorflow as tf


class LambdaSet(Protocol):
    """A convex set of mixtures.

    A server holds a point of it by its coordinates, float32 [q], and moves those: they are lambda
    itself but in a `Hull`, where they are the weights of the mixtures that span it.
    """

    def mixture(self, coordinates: tf.Tensor) -> tf.Tensor:
        """Returns lambda, float32 [p]."""

    def slopes(self, losses: tf.Tensor) -> tf.Tensor:
        """Returns the gradient of sum_i lambda_i L_i by the coordinates, float32 [q].

        Args:
            losses: L, float32 [p].
        """

    def nearest(self, point: tf.Tensor) -> tf.Tensor:
        """Returns the coordinates nearest to a point [q] in Euclidean distance."""

    def nearest_in_entropy(self, point: tf.Tensor) -> tf.Tensor:
        """Returns the coordinates x with the least sum_i x_i log(x_i / y_i) to a point y.

        Args:
            point: y, a point of a simplex, float32 [q]. What is 0 there stays 0.
        """

    def start(self, initial: np.ndarray) -> np.ndarray:
        """Returns the coordinates of the first lambda, float64 [q].

        Args:
            initial: lambda_0 as the settings have it, float64 [p].

        Raises:
            UserError: If lambda_0 is not in the set.
        """

    def worst(self, losses: np.ndarray) -> np.ndarray:
        """Returns the lambda in the set with the largest sum_i lambda_i L_i, float64 [p].

        Args:
            losses: L, finite, float64 [p].
        """

    def to_json(self, domain_names: tuple[str, ...]) -> dict[str, Any]:
        """Describes the set, for files that are read without the settings of the run."""
