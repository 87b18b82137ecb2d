"""The server's step: the weighted average, and the columns that every training reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from tff_agnostic.computations.algorithm import Column, RoundView
from tff_agnostic.computations.client_output import ClientCounts
from tff_agnostic.computations.server_optimizers import ServerOptimizer
from tff_agnostic.later import tf
from tff_agnostic.models.model import Model, ModelWeights, measures_of
from tff_agnostic.report_fields import ReportField, Role, Unit


class TrainingState(NamedTuple):
    """The state of an algorithm that trains one model and remembers nothing else.

    Attributes:
        weights: w_t.
        optimizer_state: State of the server optimizer.
    """

    weights: ModelWeights
    optimizer_state: Any


def initial_model(model: Model, optimizer: ServerOptimizer) -> TrainingState:
    """Returns the model's initial weights w_0 with the optimizer's initial state."""
    weights = as_tensors(model.initial_weights)
    specs = [tf.TensorSpec(w.shape, w.dtype) for w in weights.trainable]
    return TrainingState(weights, as_tensors(optimizer.initialize(specs)))


def as_tensors(structure: Any) -> Any:
    """Returns a structure of arrays as one of tensors, as the first state of a run has to be."""
    return tf.nest.map_structure(tf.convert_to_tensor, structure)


def average_and_apply(
    optimizer: ServerOptimizer,
    state: Any,
    weighted_delta: list[tf.Tensor],
    beta: tf.Tensor,
) -> Any:
    """Line 9: the average of the clients' deltas, weighted by beta, is the optimizer's gradient.

    With SGD of learning rate 1 this is w_t = sum(beta^k w^k) / beta_t. A round in which no client
    has a positive weight leaves weights and optimizer as they are.

    Args:
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

    optimizer_state = if_weighted(next_optimizer_state, state.optimizer_state)
    for name in optimizer.of_rounds:
        optimizer_state[name] = next_optimizer_state[name]
    return state._replace(
        weights=ModelWeights(if_weighted(next_trainable, trainable), state.weights.non_trainable),
        optimizer_state=optimizer_state,
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
        is_held_out: Whether losses and metrics are of examples that are kept out of training.
        domain_weights: What the algorithm reports of the weights of domains.
        finalizer: What it reports of its server step, beside the norm of the update.
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
            ReportField(
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
            ReportField(name, label, per_domain=True, unit=Unit.EXAMPLES),
            lambda r: value(output(r).domain_sums),
            ("client_work", "train", key),
        )

    def metric(name: str, value: Callable[[tf.Tensor], tf.Tensor]) -> Column:
        def of_sums(sums: Any) -> tf.Tensor:
            ratio = sums.metric_sums[name]
            return value(tf.math.divide_no_nan(ratio.numerator, ratio.denominator))

        return measure(name, of_sums)

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
