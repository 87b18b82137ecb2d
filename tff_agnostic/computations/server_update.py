"""SERVER lines 9 to 11 of Algorithm 1 (Ro et al. 2021), shared by every algorithm that trains."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.aggregations.limits import Bound, ClientLimits
from tff_agnostic.computations.structures import (
    AnyDomainSums,
    AnyTrainingOutput,
    ClientCounts,
    DomainSums,
    DomainSumsApart,
    MetricSums,
    TrainingOutputApart,
    training_output,
)
from tff_agnostic.models.functional import Model, ModelWeights
from tff_agnostic.models.measures import measures_of
from tff_agnostic.quantities import Quantity, Role, Unit


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


def mean_domain_losses(sums: AnyDomainSums) -> tf.Tensor:
    """Lines 10 and 11: L = sum(L^k) / N_t, and 0 for a domain without examples in the round.

    The line as printed is 0/0 there; the text of section 4 sets L to zero.
    """
    return tf.math.divide_no_nan(sums.losses, tf.cast(sums.counts, tf.float32))


def domain_sums(summed: AnyTrainingOutput) -> AnyDomainSums:
    """Returns the part of a round's sums that is about domains."""
    sums = DomainSums(summed.domain_losses, summed.domain_counts, summed.metric_sums)
    if isinstance(summed, TrainingOutputApart):
        return DomainSumsApart(*sums, summed.trained_counts)
    return sums


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


def domain_sums_bounds(model: Model, limits: ClientLimits) -> DomainSums:
    """Returns the bound of every value of `DomainSums`, in its structure."""
    n = limits.max_examples

    def metric_bounds(name: str, numerator: float, denominator: float) -> MetricSums:
        ratio = f"metric {name}"
        return MetricSums(
            Bound(n * numerator, ratio=ratio, entrywise=True),
            Bound(n * denominator, ratio=ratio, entrywise=True, denominator=True),
        )

    return DomainSums(
        losses=Bound(n * limits.max_loss, ratio="loss", entrywise=True),
        counts=Bound(n, integer=True, ratio="loss", entrywise=True, denominator=True),
        metric_sums=OrderedDict(
            (m.name, metric_bounds(m.name, m.max_numerator, m.max_denominator))
            for m in model.metrics
        ),
    )


def measured_sums_bounds(model: Model, limits: ClientLimits, is_apart: bool) -> AnyDomainSums:
    """Returns the same of what clients measure, of `DomainSumsApart` if they do it apart."""
    sums = domain_sums_bounds(model, limits)
    if not is_apart:
        return sums
    trained = Bound(limits.max_examples, integer=True, denominator=True)
    return DomainSumsApart(*sums, trained=trained)


def client_counts_bounds() -> ClientCounts:
    """Returns the bounds of `ClientCounts`."""
    one = Bound(1, integer=True, one_of="clients")
    return ClientCounts(*[one] * len(ClientCounts._fields))


def update_bounds(
    model: Model,
    limits: ClientLimits,
    max_beta: float,
    expected_beta: Optional[float] = None,
    ratio: str = "update",
) -> tuple[list[Bound], Bound]:
    """Returns the bounds of a client's weighted delta and of its weight, which form a ratio.

    Args:
        model: The model.
        limits: Of one client.
        max_beta: Bound of its weight.
        expected_beta: What the weights of a round are expected to add up to, if that is known.
        ratio: Name of the ratio.
    """
    delta = Bound(max_beta * limits.max_delta, signed=True, ratio=ratio)
    beta = Bound(max_beta, ratio=ratio, denominator=True, public_sum=expected_beta)
    return [delta for _ in model.initial_weights.trainable], beta


def training_output_bounds(
    model: Model,
    limits: ClientLimits,
    default_max_beta: float,
    is_apart: bool = False,
    expected_beta: Optional[float] = None,
) -> AnyTrainingOutput:
    """Returns the bound of every value of `TrainingOutput`, in its structure.

    Args:
        model: The model.
        limits: Of one client.
        default_max_beta: Bound of its weight, where the limits state none.
        is_apart: Whether it is `TrainingOutputApart`.
        expected_beta: What the weights of a round are expected to add up to, if that is known.
    """
    max_beta = limits.beta(default_max_beta)
    weighted_delta, beta = update_bounds(model, limits, max_beta, expected_beta)
    sums = measured_sums_bounds(model, limits, is_apart)
    return training_output(weighted_delta, beta, sums, client_counts_bounds())
