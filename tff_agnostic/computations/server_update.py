"""SERVER lines 9 to 11 of Algorithm 1 (Ro et al. 2021), shared by every algorithm."""

from collections import OrderedDict
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.computations.aggregation import Bound, SecureBounds
from tff_agnostic.computations.structures import ClientCounts, ClientOutput, MetricSums
from tff_agnostic.models.functional import Model, ModelWeights


class WeightsUpdate(NamedTuple):
    """Result of applying a round's average to the model."""

    weights: ModelWeights
    optimizer_state: Any
    update_norm: tf.Tensor


def average_and_apply(
    optimizer: tff.learning.optimizers.Optimizer,
    weights: ModelWeights,
    optimizer_state: Any,
    summed: ClientOutput,
) -> WeightsUpdate:
    """Line 9: the average of the clients' deltas, weighted by beta, is the optimizer's gradient.

    With SGD of learning rate 1 this is w_t = sum(beta^k w^k) / beta_t. A round in which no client
    has a positive weight leaves weights and optimizer as they are.
    """
    gradient = [tf.math.divide_no_nan(d, summed.beta) for d in summed.weighted_delta]
    trainable = [tf.convert_to_tensor(w) for w in weights.trainable]
    next_optimizer_state, next_trainable = optimizer.next(optimizer_state, trainable, gradient)
    has_weight = summed.beta > 0

    def if_weighted(new: Any, old: Any) -> Any:
        return tf.nest.map_structure(lambda n, o: tf.where(has_weight, n, o), new, old)

    next_trainable = if_weighted(next_trainable, trainable)
    return WeightsUpdate(
        weights=ModelWeights(next_trainable, weights.non_trainable),
        optimizer_state=if_weighted(next_optimizer_state, optimizer_state),
        update_norm=tf.linalg.global_norm([n - o for n, o in zip(next_trainable, trainable)]),
    )


def mean_domain_losses(summed: ClientOutput) -> tf.Tensor:
    """Lines 10 and 11: L = sum(L^k) / N_t, and 0 for a domain without examples in the round."""
    return tf.math.divide_no_nan(summed.domain_losses, tf.cast(summed.domain_counts, tf.float32))


def round_metrics(
    model: Model,
    summed: ClientOutput,
    update: WeightsUpdate,
    lambda_: tf.Tensor,
    alpha: tf.Tensor,
) -> "OrderedDict[str, Any]":
    """What every algorithm reports of a round, in the layout of TFF's own learning processes.

    Vectors have one entry per domain. Losses and metrics are those of w_{t-1}, before the round's
    training, on the cohort's examples. Where a metric has nothing to count in a domain its ratio is
    0, so that all is finite: see the number of examples.
    """
    train: OrderedDict[str, Any] = OrderedDict(
        loss=mean_domain_losses(summed), num_examples=summed.domain_counts
    )
    for metric in model.metrics:
        sums = summed.metric_sums[metric.name]
        train[metric.name] = metric.value(tf.math.divide_no_nan(sums.numerator, sums.denominator))
    return OrderedDict(
        client_work=OrderedDict(train=train),
        clients=OrderedDict(summed.clients._asdict()),
        domain_weights=OrderedDict([("lambda", lambda_), ("alpha", alpha)]),
        finalizer=OrderedDict(update_norm=update.update_norm),
    )


def client_output_bounds(
    model: Model, bounds: SecureBounds, default_max_beta: float
) -> ClientOutput:
    """Returns the bound of every value of `ClientOutput`, in its structure."""
    max_beta = default_max_beta if bounds.max_beta is None else bounds.max_beta
    n = bounds.max_examples
    return ClientOutput(
        weighted_delta=[
            Bound(max_beta * bounds.max_delta, signed=True) for _ in model.initial_weights.trainable
        ],
        beta=Bound(max_beta),
        domain_losses=Bound(n * bounds.max_loss),
        domain_counts=Bound(n, integer=True),
        metric_sums=OrderedDict(
            (m.name, MetricSums(Bound(n * m.max_numerator), Bound(n * m.max_denominator)))
            for m in model.metrics
        ),
        clients=ClientCounts(*[Bound(1, integer=True)] * len(ClientCounts._fields)),
    )
