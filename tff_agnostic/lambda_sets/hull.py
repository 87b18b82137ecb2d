"""All mixtures of given mixtures: those that a model is expected to meet, by name."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tff_agnostic.lambda_sets.simplex import project_to_simplex


@dataclasses.dataclass(frozen=True)
class Hull:
    """The convex hull of named mixtures.

    Its coordinates are the weights of the mixtures, a point of their simplex: a mixture is to this
    set what a domain is to the simplex.

    Attributes:
        names: Of the q mixtures.
        mixtures: Their weights of the p domains, a tuple for each.
    """

    names: tuple[str, ...]
    mixtures: tuple[tuple[float, ...], ...]

    def mixture(self, coordinates: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the mixtures by their weights."""
        return tf.linalg.matvec(self._matrix(), coordinates, transpose_a=True)

    def slopes(self, losses: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each mixture."""
        return tf.linalg.matvec(self._matrix(), losses)

    def nearest(self, point: tf.Tensor) -> tf.Tensor:
        """See `LambdaSet`."""
        return project_to_simplex(point)

    def nearest_in_entropy(self, point: tf.Tensor) -> tf.Tensor:
        """Returns the point: it is in the set."""
        return point

    def start(self, initial: np.ndarray) -> np.ndarray:
        """Returns equal weights of all mixtures; lambda_0 is then their mean."""
        del initial
        return np.full([len(self.names)], 1.0 / len(self.names))

    def worst(self, losses: np.ndarray) -> np.ndarray:
        """Returns the mixture with the largest loss."""
        mixtures = np.array(self.mixtures, np.float64)
        worst: np.ndarray = mixtures[np.argmax(mixtures @ losses)]
        return worst

    def to_json(self, domain_names: tuple[str, ...]) -> dict[str, Any]:
        """See `LambdaSet`."""
        return {
            "set": "hull",
            "mixtures": {
                name: dict(zip(domain_names, mixture))
                for name, mixture in zip(self.names, self.mixtures)
            },
        }

    def _matrix(self) -> tf.Tensor:
        return tf.constant(self.mixtures, tf.float32)
