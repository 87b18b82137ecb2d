"""Nesterov's accelerated gradient as a TFF optimizer; TFF itself has momentum without it."""

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tensorflow_federated as tff

if TYPE_CHECKING:
    # TFF has no types that a checker could see.
    _Optimizer = Any
else:
    _Optimizer = tff.learning.optimizers.Optimizer

_LEARNING_RATE, _MOMENTUM, _VELOCITY = "learning_rate", "momentum", "velocity"


class Nesterov(_Optimizer):
    """SGD with Nesterov momentum, in the form of Sutskever et al. 2013 that Keras' SGD has too.

        v <- m v - eta g,  w <- w + m v - eta g

    Args:
        learning_rate: eta, positive.
        momentum: m, in [0, 1).
    """

    def __init__(self, learning_rate: float, momentum: float) -> None:
        self._learning_rate = learning_rate
        self._momentum = momentum

    def initialize(self, specs: Any) -> Any:
        """Returns the state before the first step: velocities of zero."""
        return OrderedDict(
            [
                (_LEARNING_RATE, self._learning_rate),
                (_MOMENTUM, self._momentum),
                (_VELOCITY, tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)),
            ]
        )

    def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
        """Returns the state and the weights after one step."""

        def velocity(v: tf.Tensor, g: tf.Tensor) -> tf.Tensor:
            rate, momentum = _hyperparameters(state, g.dtype)
            return momentum * v - rate * g

        def step(w: tf.Tensor, v: tf.Tensor, g: tf.Tensor) -> tf.Tensor:
            rate, momentum = _hyperparameters(state, g.dtype)
            return w + momentum * v - rate * g

        velocities = tf.nest.map_structure(velocity, state[_VELOCITY], gradients)
        next_weights = tf.nest.map_structure(step, weights, velocities, gradients)
        return OrderedDict(state, **{_VELOCITY: velocities}), next_weights


def _hyperparameters(state: Any, dtype: tf.DType) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.cast(state[_LEARNING_RATE], dtype), tf.cast(state[_MOMENTUM], dtype)
