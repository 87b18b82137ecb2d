"""Toy regression (Ro et al. 2021, appendix B): find the point with the smallest worst-domain loss.

Each domain is a set of points in R with mean c_i, assigned to clients at random. The model is one
number w, and the loss of a point y is (y - w)^2. All domains have the same variance, so the worst
domain is the domain with the farthest centre c_i. As the outermost centres are -1 and 1, the
optimum is w = 0. FedAvg finds the mean of all points instead.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated

import numpy as np

from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Options, Within
from tff_agnostic.data.clients import even_partition
from tff_agnostic.models.keras import model_from_keras
from tff_agnostic.models.model import Model
from tff_agnostic.tasks.dealing import deal
from tff_agnostic.tasks.task import Task, TaskContext, TaskSpec

_CENTERS = (-1.0, -0.4, 0.3, 0.7, 1.0)
# Numbers of points per domain, unequal so that the mean of all points is far from the optimum.
_POINTS = (100, 150, 200, 250, 300)
_INITIAL_VALUE = 2.0


@dataclasses.dataclass(frozen=True)
class ToyRegressionOptions(Options):
    """Options of the task.

    Attributes:
        num_clients: Number of training clients.
        spread: Standard deviation of a domain's points.
    """

    num_clients: int = 50
    spread: Annotated[float, Within(least=0.0)] = 0.1


def load(options: ToyRegressionOptions, context: TaskContext) -> Task:
    """Returns the task."""
    rng = np.random.default_rng([context.seed, 0])
    points, domain_id = [], []
    for i, (center, size) in enumerate(zip(_CENTERS, _POINTS)):
        offsets = rng.normal(size=size)
        offsets = (offsets - offsets.mean()) / offsets.std()
        points.append(center + options.spread * offsets)
        domain_id.append(np.full([size], i, np.int32))
    num_points = sum(_POINTS)
    examples = {
        "x": np.ones([num_points, 1], np.float32),
        "y": np.concatenate(points).astype(np.float32),
        "domain_id": np.concatenate(domain_id),
    }

    def partition(num_clients: int) -> list[np.ndarray]:
        return even_partition(num_points, num_clients, rng)

    clients = deal(options, "num_clients", "client_{:03d}", examples, partition)
    return Task(
        domain_names=tuple(f"center {c:+.1f}" for c in _CENTERS),
        train=clients,
        # Test on the training clients, as the task is to fit these points.
        test=clients,
        model=_model(tf.keras.mixed_precision.global_policy().name),
        tracked_weights={"learned value": (0, 0)},
    )


@functools.cache
def _model(policy: str) -> Model:
    """Returns the model; cached, so that all trials share its traces."""
    del policy  # Keras' dtype policy is part of the cache key.

    def build() -> tf.keras.Model:
        initializer = tf.keras.initializers.Constant(_INITIAL_VALUE)
        value = tf.keras.layers.Dense(1, use_bias=False, kernel_initializer=initializer)
        return tf.keras.Sequential([tf.keras.Input([1]), value])

    return model_from_keras(
        build,
        loss=lambda y, w: tf.square(y - w[:, 0]),
        example_spec={
            "x": tf.TensorSpec([None, 1], tf.float32),
            "y": tf.TensorSpec([None], tf.float32),
        },
    )


TASK = TaskSpec(ToyRegressionOptions, load)
