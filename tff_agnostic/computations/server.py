"""The server's update: weighted average, optimizer, and the columns that all algorithms report.

Optimizers are pure functions of a state, the weights and the round's average update. They compute
the same steps as `tff.learning.optimizers` of TFF 0.87, and their states have the same keys, so
that runs can resume from checkpoints of TFF's optimizers. They need no TFF, and also support
Nesterov momentum.
"""

from __future__ import annotations

import dataclasses
import types
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Callable, NamedTuple, Optional, Union

from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Options, Within
from tff_agnostic.base.report_fields import ReportField, Role, Unit
from tff_agnostic.computations.algorithm import Column, RoundView
from tff_agnostic.computations.client_output import ClientCounts
from tff_agnostic.computations.round import tensor_specs
from tff_agnostic.computations.schedules import Constant, Rate, Schedule
from tff_agnostic.models.model import Model, ModelWeights, model_measures

_STEP = "step"
_RATE, _ROUND = "learning_rate", "round"
# Adam's and Yogi's beta_2, Yogi's initial preconditioner, and Adagrad's initial accumulator.
_BETA_2 = 0.999
_YOGI_START = 1e-6
_ADAGRAD_START = 0.1

# (hyperparameters in the dtype of the weight, weight, gradient, *slots) -> (weight, *slots).
Update = Callable[..., tuple["tf.Tensor", ...]]


class TrainingState(NamedTuple):
    """State of an algorithm that trains one model without further memory.

    Attributes:
        weights: The model's weights w_t.
        optimizer_state: State of the server optimizer.
    """

    weights: ModelWeights
    optimizer_state: Any


def initial_model(model: Model, optimizer: ServerOptimizer) -> TrainingState:
    """Returns the model's initial weights w_0 with the optimizer's initial state."""
    weights = as_tensors(model.initial_weights)
    specs = tensor_specs(weights.trainable)
    return TrainingState(weights, as_tensors(optimizer.initialize(specs)))


def as_tensors(structure: Any) -> Any:
    """Converts a structure of arrays to tensors, as required for a run's first state."""
    return tf.nest.map_structure(tf.convert_to_tensor, structure)


def average_and_apply(
    optimizer: ServerOptimizer,
    state: Any,
    weighted_delta: list[tf.Tensor],
    beta: tf.Tensor,
) -> Any:
    """Updates the weights by the clients' average delta, weighted by beta (line 9).

    The average is the optimizer's gradient. With SGD of learning rate 1 the result is w_t =
    sum(beta^k w^k) / beta_t. In a round in which no client has a positive weight, weights and
    optimizer do not change.

    Args:
        state: A named tuple with the fields `weights`, which is w_{t-1}, and `optimizer_state`.
        weighted_delta: Sum of beta^k (w - w^k) over the cohort.
        beta: Sum of beta^k over the cohort.

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

    optimizer_state = if_weighted(next_optimizer_state, state.optimizer_state)
    for name in optimizer.round_entries:
        optimizer_state[name] = next_optimizer_state[name]
    return state._replace(
        weights=ModelWeights(if_weighted(next_trainable, trainable), state.weights.non_trainable),
        optimizer_state=optimizer_state,
    )


def update_norm(before: ModelWeights, after: ModelWeights) -> tf.Tensor:
    """Returns the norm of the change in the trainable weights, float32 scalar."""
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
    """Returns the columns that all algorithms report, in the layout of TFF's learning processes.

    Vectors have one entry per domain. A metric is 0 in a domain without counted examples, so that
    all values are finite; the number of examples distinguishes this case.

    Args:
        is_held_out: Whether losses and metrics are measured on examples held out of training.
        domain_weights: Columns about the weights of domains.
        finalizer: Columns about the server step, in addition to the norm of the update.
        output: `RoundView` -> the sum over the cohort; it has `domain_sums` and `clients`.
        while_training: Whether the first epoch measures losses and metrics, each example before its
            batch's step; otherwise they are measured at w_{t-1}, before the training.
    """
    prefix = "first_epoch" if while_training else "train"
    when = "in the first epoch of training" if while_training else "on the cohort, before training"
    if is_held_out:
        prefix, when = "kept_out", "on the cohort's examples that are kept out of training"

    def measure(name: str, value: Callable[[Any], tf.Tensor]) -> Column:
        model_measure = model_measures(model)[name]
        return Column(
            ReportField(
                f"{prefix}/{name}",
                f"{name} {when}",
                per_domain=True,
                unit=model_measure.unit,
                higher_is_better=model_measure.higher_is_better,
                needs_examples=True,
                role=Role.DOMAIN_LOSS if name == "loss" else Role.NONE,
                is_drawn=True,
            ),
            lambda r: value(output(r).domain_sums),
            ("client_work", "train", name),
        )

    def count(name: str, label: str, key: str, value: Callable[[Any], tf.Tensor]) -> Column:
        return Column(
            ReportField(name, label, per_domain=True, unit=Unit.EXAMPLES),
            lambda r: value(output(r).domain_sums),
            ("client_work", "train", key),
        )

    def metric(name: str, value: Callable[[tf.Tensor], tf.Tensor]) -> Column:
        def from_sums(sums: Any) -> tf.Tensor:
            ratio = sums.metric_sums[name]
            return value(tf.math.divide_no_nan(ratio.numerator, ratio.denominator))

        return measure(name, from_sums)

    def outcome(name: str) -> Column:
        field = ReportField(f"clients/{name}", f"clients: {name}", unit=Unit.CLIENTS)
        return Column(field, lambda r: getattr(output(r).clients, name), ("clients", name))

    held_out = count(
        "kept_out/num_examples",
        "examples of the cohort that are kept out of training",
        "num_kept_out",
        lambda sums: sums.counts,
    )

    def grouped(group: str, columns: Sequence[Column]) -> list[Column]:
        return [c._replace(path=(group, *c.keys)) for c in columns]

    norm_column = Column(
        ReportField("update_norm", "norm of the round's update of the weights"), norm
    )
    return (
        measure("loss", lambda sums: sums.mean_losses()),
        # The count of held-out examples comes first, as a report's first count shows which
        # domains have a loss.
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


@dataclasses.dataclass(frozen=True)
class ServerOptimizer:
    """A server optimizer.

    Its state is a mapping with these entries: hyperparameters, the number of steps if it counts
    them, the number of rounds if its rate has a schedule, and slots with a tensor per weight.

    Attributes:
        update: Computes one step of one weight tensor.
        hyperparameters: Hyperparameters by name.
        slots: Slots by name, each with its initial value.
        counts_steps: Whether `update` receives the number of the step, from 1, as "step".
        rate: Learning rate by round, if it has a schedule.
        constraint: The model's constraint, applied after each step; see `Model.constraint`.
    """

    update: Update
    hyperparameters: tuple[tuple[str, float], ...]
    slots: tuple[tuple[str, float], ...] = ()
    counts_steps: bool = False
    rate: Optional[Rate] = None
    constraint: Optional[Callable[[list[tf.Tensor]], list[tf.Tensor]]] = None

    @property
    def round_entries(self) -> tuple[str, ...]:
        """Names of the state's entries that change even in rounds without a step."""
        return () if self.rate is None else (_RATE, _ROUND)

    def initialize(self, specs: Any) -> OrderedDict[str, Any]:
        """Returns the state before the first step.

        Args:
            specs: List of the weights' specs.
        """
        state: OrderedDict[str, Any] = OrderedDict(self.hyperparameters)
        if self.counts_steps:
            state[_STEP] = 0
        if self.rate is not None:
            state[_ROUND] = 0
        for name, start in self.slots:
            state[name] = [tf.fill(s.shape, tf.cast(start, s.dtype)) for s in specs]
        return state

    def next(
        self, state: Mapping[str, Any], weights: list[tf.Tensor], gradients: list[tf.Tensor]
    ) -> tuple[OrderedDict[str, Any], list[tf.Tensor]]:
        """Returns the state and the weights after one step."""
        after = OrderedDict(state)
        if self.counts_steps:
            after[_STEP] = state[_STEP] + 1
        if self.rate is not None:
            after[_RATE] = self.rate.at(state[_ROUND])
            after[_ROUND] = state[_ROUND] + 1
        numbers = [*(name for name, _ in self.hyperparameters), *[_STEP] * self.counts_steps]
        names = [name for name, _ in self.slots]
        stepped = [
            self.update({n: tf.cast(after[n], w.dtype) for n in numbers}, w, g, *slots)
            for w, g, *slots in zip(weights, gradients, *(state[name] for name in names))
        ]
        for k, name in enumerate(names, start=1):
            after[name] = [values[k] for values in stepped]
        next_weights = [values[0] for values in stepped]
        return after, next_weights if self.constraint is None else self.constraint(next_weights)


def _sgd(h: Mapping[str, tf.Tensor], w: tf.Tensor, g: tf.Tensor) -> tuple[tf.Tensor, ...]:
    return (w - h["learning_rate"] * g,)


def _momentum(
    h: Mapping[str, tf.Tensor], w: tf.Tensor, g: tf.Tensor, a: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    a = h["momentum"] * a + g
    return w - h["learning_rate"] * a, a


def _nesterov(
    h: Mapping[str, tf.Tensor], w: tf.Tensor, g: tf.Tensor, v: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    # Sutskever et al. 2013, in the form of Keras' SGD: v <- m v - eta g, w <- w + m v - eta g
    step = h["learning_rate"] * g
    v = h["momentum"] * v - step
    return w + h["momentum"] * v - step, v


def _adagrad(
    h: Mapping[str, tf.Tensor], w: tf.Tensor, g: tf.Tensor, p: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    # Adagrad (Duchi et al. 2011)
    p = p + tf.square(g)
    return w - h["learning_rate"] * g / tf.sqrt(p + h["epsilon"]), p


def _unbiased_rate(h: Mapping[str, tf.Tensor]) -> tf.Tensor:
    # Kingma and Ba 2015, end of section 2: eta sqrt(1 - beta_2^t) / (1 - beta_1^t)
    t = h[_STEP]
    root = tf.sqrt(1.0 - tf.pow(h["beta_2"], t))
    return h["learning_rate"] * root / (1.0 - tf.pow(h["beta_1"], t))


def _adam(
    h: Mapping[str, tf.Tensor], w: tf.Tensor, g: tf.Tensor, a: tf.Tensor, p: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    # Kingma and Ba 2015, Algorithm 1; a is m_t and p is v_t.
    a = a + (g - a) * (1.0 - h["beta_1"])
    p = p + (tf.square(g) - p) * (1.0 - h["beta_2"])
    return w - _unbiased_rate(h) * a / (tf.sqrt(p) + h["epsilon"]), a, p


def _yogi(
    h: Mapping[str, tf.Tensor], w: tf.Tensor, g: tf.Tensor, a: tf.Tensor, p: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    # Zaheer et al. 2018, Algorithm 2
    a = a + (g - a) * (1.0 - h["beta_1"])
    square = tf.square(g)
    p = p + (1 - h["beta_2"]) * tf.sign(square - p) * square
    return w - _unbiased_rate(h) * a / (tf.sqrt(p) + h["epsilon"]), a, p


@dataclasses.dataclass(frozen=True)
class Sgd(Options):
    """SGD: w <- w - eta g."""

    def build(self, rate: float) -> ServerOptimizer:
        """Returns the optimizer."""
        return ServerOptimizer(_sgd, (("learning_rate", rate),))


@dataclasses.dataclass(frozen=True)
class Momentum(Options):
    """SGD with momentum: a <- m a + g, w <- w - eta a.

    Attributes:
        momentum: Momentum m.
    """

    momentum: Annotated[float, Within(least=0, below=1)] = 0.9

    def build(self, rate: float) -> ServerOptimizer:
        """Returns the optimizer."""
        if not self.momentum:
            return Sgd().build(rate)
        values = (("learning_rate", rate), ("momentum", self.momentum))
        return ServerOptimizer(_momentum, values, (("accumulator", 0.0),))


@dataclasses.dataclass(frozen=True)
class Nesterov(Options):
    """SGD with Nesterov momentum (Sutskever et al. 2013).

    Attributes:
        momentum: Momentum m.
    """

    momentum: Annotated[float, Within(least=0, below=1)] = 0.9

    def build(self, rate: float) -> ServerOptimizer:
        """Returns the optimizer."""
        values = (("learning_rate", rate), ("momentum", self.momentum))
        return ServerOptimizer(_nesterov, values, (("velocity", 0.0),))


@dataclasses.dataclass(frozen=True)
class Adagrad(Options):
    """Adagrad (Duchi et al. 2011).

    Attributes:
        epsilon: Number added to the sum of squared gradients under the root.
    """

    epsilon: Annotated[float, Within(above=0)] = 1e-3

    def build(self, rate: float) -> ServerOptimizer:
        """Returns the optimizer."""
        values = (("learning_rate", rate), ("epsilon", self.epsilon))
        return ServerOptimizer(_adagrad, values, (("preconditioner", _ADAGRAD_START),))


@dataclasses.dataclass(frozen=True)
class _WithMoments(Options):
    """Options of optimizers that average gradients and squared gradients.

    Attributes:
        beta_1: Decay rate of the mean gradient.
        epsilon: Number added to the root of the mean squared gradient.
    """

    beta_1: Annotated[float, Within(least=0, below=1)] = 0.9
    epsilon: Annotated[float, Within(above=0)] = 1e-3

    def _build(self, rate: float, update: Update, start: float) -> ServerOptimizer:
        values = (("learning_rate", rate), ("beta_1", self.beta_1), ("beta_2", _BETA_2))
        slots = (("accumulator", 0.0), ("preconditioner", start))
        hyperparameters = (*values, ("epsilon", self.epsilon))
        return ServerOptimizer(update, hyperparameters, slots, counts_steps=True)


@dataclasses.dataclass(frozen=True)
class Adam(_WithMoments):
    """Adam (Kingma and Ba 2015, Algorithm 1)."""

    def build(self, rate: float) -> ServerOptimizer:
        """Returns the optimizer."""
        return self._build(rate, _adam, 0.0)


@dataclasses.dataclass(frozen=True)
class Yogi(_WithMoments):
    """Yogi (Zaheer et al. 2018, Algorithm 2)."""

    def build(self, rate: float) -> ServerOptimizer:
        """Returns the optimizer."""
        return self._build(rate, _yogi, _YOGI_START)


# Settings, by flag, with which the next weights are the average of the clients' weights.
AVERAGE: Mapping[str, Any] = types.MappingProxyType(
    {"server_optimizer": "sgd", "server_learning_rate": 1.0}
)


@dataclasses.dataclass(frozen=True)
class ServerUpdate(Options):
    """Options of the server's update.

    Attributes:
        optimizer: Optimizer that applies a round's update.
        learning_rate: Learning rate of the server optimizer.
        schedule: Schedule of the learning rate over the rounds.

    Source:
        Reddi et al. 2021, Algorithm 2: the average update of the clients is the gradient.

    Example:
        >>> ServerUpdate(Adam(), learning_rate=0.01).optimizer
        Adam(beta_1=0.9, epsilon=0.001)
    """

    optimizer: Union[Sgd, Momentum, Nesterov, Adagrad, Adam, Yogi] = Sgd()
    learning_rate: Annotated[float, Within(above=0)] = 1.0
    schedule: Schedule = Constant()

    @property
    def rate(self) -> Rate:
        """The learning rate by round."""
        return Rate(self.learning_rate, self.schedule)

    def build(self, model: Model) -> ServerOptimizer:
        """Returns the optimizer of a model's weights."""
        return dataclasses.replace(
            self.optimizer.build(self.learning_rate),
            rate=None if self.rate.is_constant else self.rate,
            constraint=model.constraint,
        )
