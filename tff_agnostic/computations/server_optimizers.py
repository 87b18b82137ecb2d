"""Server optimizers by name; all have the interface of `tff.learning.optimizers`."""

from typing import Callable

import tensorflow_federated as tff

from tff_agnostic.computations.nesterov import Nesterov
from tff_agnostic.registry import Registry


def _sgd(
    learning_rate: float, momentum: float, epsilon: float
) -> tff.learning.optimizers.Optimizer:
    del momentum, epsilon
    return tff.learning.optimizers.build_sgdm(learning_rate)


def _momentum(
    learning_rate: float, momentum: float, epsilon: float
) -> tff.learning.optimizers.Optimizer:
    del epsilon
    return tff.learning.optimizers.build_sgdm(learning_rate, momentum=momentum)


def _nesterov(
    learning_rate: float, momentum: float, epsilon: float
) -> tff.learning.optimizers.Optimizer:
    del epsilon
    return Nesterov(learning_rate, momentum)


def _adagrad(
    learning_rate: float, momentum: float, epsilon: float
) -> tff.learning.optimizers.Optimizer:
    del momentum
    return tff.learning.optimizers.build_adagrad(learning_rate, epsilon=epsilon)


def _adam(
    learning_rate: float, momentum: float, epsilon: float
) -> tff.learning.optimizers.Optimizer:
    return tff.learning.optimizers.build_adam(learning_rate, beta_1=momentum, epsilon=epsilon)


def _yogi(
    learning_rate: float, momentum: float, epsilon: float
) -> tff.learning.optimizers.Optimizer:
    return tff.learning.optimizers.build_yogi(learning_rate, beta_1=momentum, epsilon=epsilon)


# (learning rate, momentum or beta_1, epsilon) -> optimizer.
OptimizerBuilder = Callable[[float, float, float], tff.learning.optimizers.Optimizer]
SERVER_OPTIMIZERS: Registry[OptimizerBuilder] = Registry(
    "server optimizer",
    {
        "sgd": _sgd,
        "momentum": _momentum,
        "nesterov": _nesterov,
        "adagrad": _adagrad,
        "adam": _adam,
        "yogi": _yogi,
    },
)
