"""The weighted average, the server optimizers, and the columns that every training reports."""

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.computations.algorithm import Column, RoundView
from tff_agnostic.computations.client_output import ClientCounts
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


def initial_model(model: Model, optimizer: tff.learning.optimizers.Optimizer) -> TrainingState:
    """Returns the model's initial weights w_0 with the optimizer's initial state."""
    weights = as_tensors(model.initial_weights)
    specs = [tf.TensorSpec(w.shape, w.dtype) for w in weights.trainable]
    return TrainingState(weights, as_tensors(optimizer.initialize(specs)))


def as_tensors(structure: Any) -> Any:
    """Returns a structure of arrays as one of tensors, as the first state of a run has to be."""
    return tf.nest.map_structure(tf.convert_to_tensor, structure)


def average_and_apply(
    optimizer: tff.learning.optimizers.Optimizer,
    state: Any,
    weighted_delta: list[tf.Tensor],
    beta: tf.Tensor,
) -> Any:
    """Line 9: the average of the clients' deltas, weighted by beta, is the optimizer's gradient.

    With SGD of learning rate 1 this is w_t = sum(beta^k w^k) / beta_t. A round in which no client
    has a positive weight leaves weights and optimizer as they are.

    Args:
        optimizer: The server optimizer.
        state: A named tuple with w_{t-1} as `weights`, and the `optimizer_state`.
        weighted_delta: Sum of beta^k (w - w^k) over the cohort.
        beta: Sum of beta^k.

    Returns:
        The state with the next weights and optimizer state.
    """
    gradient = [tf.math.divide_no_nan(d, beta) for d in weighted_delta]
    trainable = [tf.convert_to_tensor(w) for w in state.weights.trainable]
    next_optimizer_state, next_trainable = optimizer.next(
        state.optimizer_state, trainable, gradient
    )
    has_weight = beta > 0

    def if_weighted(new: Any, old: Any) -> Any:
        return tf.nest.map_structure(lambda n, o: tf.where(has_weight, n, o), new, old)

    return state._replace(
        weights=ModelWeights(if_weighted(next_trainable, trainable), state.weights.non_trainable),
        optimizer_state=if_weighted(next_optimizer_state, state.optimizer_state),
    )


def update_norm(before: ModelWeights, after: ModelWeights) -> tf.Tensor:
    """Returns the norm of the difference of trainable weights, float32 scalar."""
    pairs = zip(after.trainable, before.trainable)
    return tf.linalg.global_norm([n - tf.convert_to_tensor(o) for n, o in pairs])


def training_columns(
    model: Model,
    is_held_out: bool = False,
    domain_weights: Sequence[Column] = (),
    finalizer: Sequence[Column] = (),
    norm: Callable[[RoundView], tf.Tensor] = lambda r: update_norm(
        r.before.weights, r.after.weights
    ),
    output: Callable[[RoundView], Any] = lambda r: r.sums[-1],
    while_training: bool = False,
) -> tuple[Column, ...]:
    """Returns what every algorithm that trains reports, in the layout of TFF's learning processes.

    Vectors have one entry per domain. Where a metric has nothing to count in a domain its ratio is
    0, so that all is finite: see the number of examples.

    Args:
        model: The model.
        is_held_out: Whether losses and metrics are of examples that are kept out of training.
        domain_weights: What the algorithm reports of the weights of domains.
        finalizer: What it reports of its server step, beside the norm of the update.
        norm: That norm.
        output: The sum over the cohort that has `domain_sums` and `clients`.
        while_training: Whether losses and metrics are those of the first epoch, each example's
            before its batch's step; otherwise they are those of w_{t-1}, before the training.
    """
    prefix = "first_epoch" if while_training else "train"
    when = "in the first epoch of training" if while_training else "on the cohort, before training"
    if is_held_out:
        prefix, when = "kept_out", "on the cohort's examples that are kept out of training"

    def measure(name: str, value: Callable[[Any], tf.Tensor]) -> Column:
        of_model = measures_of(model)[name]
        return Column(
            Quantity(
                f"{prefix}/{name}",
                f"{name} {when}",
                per_domain=True,
                unit=of_model.unit,
                higher_is_better=of_model.higher_is_better,
                of_present_domains=True,
                role=Role.DOMAIN_LOSS if name == "loss" else Role.NONE,
                is_drawn=True,
                file_name=f"{prefix}_{name}",
                formerly=(f"train/{name}",) if while_training else (),
            ),
            lambda r: value(output(r).domain_sums),
            ("client_work", "train", name),
        )

    def count(name: str, label: str, key: str, value: Callable[[Any], tf.Tensor]) -> Column:
        return Column(
            Quantity(name, label, per_domain=True, unit=Unit.EXAMPLES),
            lambda r: value(output(r).domain_sums),
            ("client_work", "train", key),
        )

    def metric(name: str, value: Callable[[tf.Tensor], tf.Tensor]) -> Column:
        def of_sums(sums: Any) -> tf.Tensor:
            ratio = sums.metric_sums[name]
            return value(tf.math.divide_no_nan(ratio.numerator, ratio.denominator))

        return measure(name, of_sums)

    def outcome(name: str) -> Column:
        field = Quantity(f"clients/{name}", f"clients: {name}", unit=Unit.CLIENTS)
        return Column(field, lambda r: getattr(output(r).clients, name), ("clients", name))

    held_out = count(
        "kept_out/num_examples",
        "examples of the cohort that are kept out of training",
        "num_kept_out",
        lambda sums: sums.counts,
    )

    def grouped(group: str, columns: Sequence[Column]) -> list[Column]:
        return [c._replace(path=(group, *c.keys)) for c in columns]

    norm_column = Column(Quantity("update_norm", "norm of the round's update of the weights"), norm)
    return (
        measure("loss", lambda sums: sums.mean_losses()),
        # Before the next one: it says for which domains there is a loss.
        *([held_out] if is_held_out else []),
        count(
            "train/num_examples",
            "examples of the cohort",
            "num_examples",
            lambda sums: sums.trained_counts,
        ),
        *(metric(m.name, m.value) for m in model.metrics),
        *grouped("domain_weights", domain_weights),
        *map(outcome, ClientCounts._fields),
        *grouped("finalizer", [norm_column, *finalizer]),
    )


# (learning rate, momentum or beta_1, epsilon) -> optimizer.
OptimizerBuilder = Callable[[float, float, float], tff.learning.optimizers.Optimizer]

SERVER_OPTIMIZERS: Registry[OptimizerBuilder] = Registry(
    "server optimizer",
    {
        "sgd": lambda rate, momentum, epsilon: tff.learning.optimizers.build_sgdm(rate),
        "momentum": lambda rate, momentum, epsilon: tff.learning.optimizers.build_sgdm(
            rate, momentum=momentum
        ),
        "nesterov": lambda rate, momentum, epsilon: Nesterov(rate, momentum),
        "adagrad": lambda rate, momentum, epsilon: tff.learning.optimizers.build_adagrad(
            rate, epsilon=epsilon
        ),
        "adam": lambda rate, momentum, epsilon: tff.learning.optimizers.build_adam(
            rate, beta_1=momentum, epsilon=epsilon
        ),
        "yogi": lambda rate, momentum, epsilon: tff.learning.optimizers.build_yogi(
            rate, beta_1=momentum, epsilon=epsilon
        ),
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
