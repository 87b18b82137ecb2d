"""Server optimizers by name; all have the interface of `tff.learning.optimizers`."""

import dataclasses
from typing import Callable

import tensorflow_federated as tff

from tff_agnostic.computations.nesterov import Nesterov
from tff_agnostic.registry import Registry
from tff_agnostic.settings import Settings, setting


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
_ADAPTIVE = ("adam", "yogi", "adagrad")
_WITH_MOMENTUM = ("momentum", "nesterov", "adam", "yogi")


@dataclasses.dataclass(frozen=True)
class ServerOptimizerOptions(Settings):
    """How the server applies a round's update; part of the settings of algorithms that do.

    Attributes:
        server_optimizer: Member of `SERVER_OPTIMIZERS`.
        server_learning_rate: Its learning rate.
        server_momentum: Its momentum or beta_1.
        server_epsilon: Its epsilon.
    """

    server_optimizer: str = setting("sgd", "Applies a round's update.", choices=SERVER_OPTIMIZERS)
    server_learning_rate: float = setting(1.0, "Of the server optimizer.", positive=True)
    server_momentum: float = setting(
        0.9,
        "Momentum (also nesterov's), or beta_1 of adam and yogi.",
        at_least=0.0,
        below=1.0,
        only_with=("server_optimizer", _WITH_MOMENTUM),
    )
    server_epsilon: float = setting(
        1e-3,
        "Of adam, yogi and adagrad.",
        positive=True,
        only_with=("server_optimizer", _ADAPTIVE),
    )

    def build_server_optimizer(self) -> tff.learning.optimizers.Optimizer:
        """Returns the optimizer."""
        build = SERVER_OPTIMIZERS[self.server_optimizer]
        return build(self.server_learning_rate, self.server_momentum, self.server_epsilon)
