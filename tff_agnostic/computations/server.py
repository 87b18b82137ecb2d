"""The weighted average, the server optimizers, and the columns every training reports."""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.computations.client_output import ClientCounts
from tff_agnostic.computations.domain_losses import (
    AnyDomainSums,
    DomainSumsApart,
    mean_domain_losses,
)
from tff_agnostic.models.model import Model, ModelWeights, measures_of
from tff_agnostic.registry import Registry
from tff_agnostic.report_fields import Quantity, Role, Unit
from tff_agnostic.settings import Settings, setting

_ADAPTIVE = ("adam", "yogi", "adagrad")
_WITH_MOMENTUM = ("momentum", "nesterov", "adam", "yogi")
_LEARNING_RATE, _MOMENTUM, _VELOCITY = "learning_rate", "momentum", "velocity"


class TrainingState(NamedTuple):
    """The state of an algorithm that trains one model and remembers nothing else.

    Attributes:
        weights: w_t.
        optimizer_state: State of the server optimizer.
    """

    weights: ModelWeights
    optimizer_state: Any


class WeightsUpdate(NamedTuple):
    """Result of applying a round's average to the model."""

    weights: ModelWeights
    optimizer_state: Any
    update_norm: tf.Tensor


def initial_training_state(
    model: Model, optimizer: tff.learning.optimizers.Optimizer
) -> TrainingState:
    """Returns the model's initial weights w_0 with the optimizer's initial state."""
    weights = as_tensors(model.initial_weights)
    specs = [tf.TensorSpec(w.shape, w.dtype) for w in weights.trainable]
    return TrainingState(weights, as_tensors(optimizer.initialize(specs)))


def as_tensors(structure: Any) -> Any:
    """Returns a structure of arrays as one of tensors, as the first state of a run has to be."""
    return tf.nest.map_structure(tf.convert_to_tensor, structure)


def average_and_apply(
    optimizer: tff.learning.optimizers.Optimizer,
    weights: ModelWeights,
    optimizer_state: Any,
    weighted_delta: list[tf.Tensor],
    beta: tf.Tensor,
) -> WeightsUpdate:
    """Line 9: the average of the clients' deltas, weighted by beta, is the optimizer's gradient.

    With SGD of learning rate 1 this is w_t = sum(beta^k w^k) / beta_t. A round in which no client
    has a positive weight leaves weights and optimizer as they are.

    Args:
        optimizer: The server optimizer.
        weights: w_{t-1}.
        optimizer_state: Its state.
        weighted_delta: Sum of beta^k (w - w^k) over the cohort.
        beta: Sum of beta^k.
    """
    gradient = [tf.math.divide_no_nan(d, beta) for d in weighted_delta]
    trainable = [tf.convert_to_tensor(w) for w in weights.trainable]
    next_optimizer_state, next_trainable = optimizer.next(optimizer_state, trainable, gradient)
    has_weight = beta > 0

    def if_weighted(new: Any, old: Any) -> Any:
        return tf.nest.map_structure(lambda n, o: tf.where(has_weight, n, o), new, old)

    next_trainable = if_weighted(next_trainable, trainable)
    return WeightsUpdate(
        weights=ModelWeights(next_trainable, weights.non_trainable),
        optimizer_state=if_weighted(next_optimizer_state, optimizer_state),
        update_norm=tf.linalg.global_norm([n - o for n, o in zip(next_trainable, trainable)]),
    )


def training_report(
    model: Model,
    sums: AnyDomainSums,
    clients: ClientCounts,
    update_norm: tf.Tensor,
    domain_weights: Mapping[str, tf.Tensor],
) -> "OrderedDict[str, Any]":
    """What every algorithm that trains reports, in the layout of TFF's own learning processes.

    Vectors have one entry per domain. Where a metric has nothing to count in a domain its ratio is
    0, so that all is finite: see the number of examples.

    Args:
        model: The model.
        sums: Losses, counts and metric sums of the cohort.
        clients: What became of the clients.
        update_norm: Norm of the update of the weights.
        domain_weights: What the algorithm has to say of the weights of domains, vectors [p].
    """
    train: OrderedDict[str, Any] = OrderedDict(loss=mean_domain_losses(sums))
    if isinstance(sums, DomainSumsApart):
        train["num_kept_out"] = sums.counts
    train["num_examples"] = sums.trained
    for metric in model.metrics:
        ratio = sums.metric_sums[metric.name]
        train[metric.name] = metric.value(tf.math.divide_no_nan(ratio.numerator, ratio.denominator))
    return OrderedDict(
        client_work=OrderedDict(train=train),
        domain_weights=OrderedDict(domain_weights),
        clients=OrderedDict(clients._asdict()),
        finalizer=OrderedDict(update_norm=update_norm),
    )


def training_quantities(
    model: Model,
    domain_weights: Mapping[str, Quantity],
    while_training: bool = False,
    is_apart: bool = False,
) -> "OrderedDict[str, Any]":
    """Describes `training_report`.

    Args:
        model: The model.
        domain_weights: Describes the argument of that name.
        while_training: Whether losses and metrics are those of the first epoch, each example's
            before its batch's step; otherwise they are those of w_{t-1}, before the training.
        is_apart: Whether they are of examples that are kept out of training, `DomainSumsApart`.
    """
    prefix = "first_epoch" if while_training else "train"
    when = "in the first epoch of training" if while_training else "on the cohort, before training"
    if is_apart:
        prefix, when = "kept_out", "on the cohort's examples that are kept out of training"
    train: OrderedDict[str, Any] = OrderedDict()
    for name, measure in measures_of(model).items():
        train[name] = Quantity(
            f"{prefix}/{name}",
            f"{name} {when}",
            per_domain=True,
            unit=measure.unit,
            higher_is_better=measure.higher_is_better,
            of_present_domains=True,
            role=Role.DOMAIN_LOSS if name == "loss" else Role.NONE,
            is_drawn=True,
            file_name=f"{prefix}_{name}",
            formerly=(f"train/{name}",) if while_training else (),
        )
        if name == "loss" and is_apart:
            # Before the other: it says of which domains there is a loss.
            train["num_kept_out"] = Quantity(
                "kept_out/num_examples",
                "examples of the cohort that are kept out of training",
                per_domain=True,
                unit=Unit.EXAMPLES,
            )
        if name == "loss":
            train["num_examples"] = Quantity(
                "train/num_examples",
                "examples of the cohort",
                per_domain=True,
                unit=Unit.EXAMPLES,
            )
    return OrderedDict(
        client_work=OrderedDict(train=train),
        domain_weights=OrderedDict(domain_weights),
        clients=OrderedDict(
            (name, Quantity(f"clients/{name}", f"clients: {name}", unit=Unit.CLIENTS))
            for name in ClientCounts._fields
        ),
        finalizer=OrderedDict(
            update_norm=Quantity("update_norm", "norm of the round's update of the weights")
        ),
    )


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


if TYPE_CHECKING:
    # TFF has no types that a checker could see.
    _Optimizer = Any
else:
    _Optimizer = tff.learning.optimizers.Optimizer


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
