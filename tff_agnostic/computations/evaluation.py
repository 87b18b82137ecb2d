"""Federated evaluation of a model or a family of models, and counts of outcomes.

The server learns only sums: totals per domain, histograms of clients' values, and totals over
clients of similar size.

A family has one model per level (Laguel et al. 2021). The paper leaves open how a client chooses
its model. Here a client measures every model on a fraction of its examples, and chooses the model
with the smallest loss. On its other examples it measures three things: the chosen model, each model
of the family, and the best model in hindsight.

Outcome counts are numbers of examples by domain and outcome; they define unigram models.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from tff_agnostic.aggregations.aggregation import Bound, ClientLimits
from tff_agnostic.base.later import tf
from tff_agnostic.base.stateless_random import MAX_POISSON, poisson_one
from tff_agnostic.computations.algorithm import CommunicationStep, HashablePartial
from tff_agnostic.computations.class_sums import ClassCounting
from tff_agnostic.computations.client_output import all_finite
from tff_agnostic.computations.clients import Clients, client_hashes
from tff_agnostic.computations.domain_losses import (
    DomainSums,
    Holdout,
    MetricSums,
    add_at,
    domain_sums,
    domain_sums_and_counts,
    domain_sums_bounds,
)
from tff_agnostic.computations.histograms import Grid, LinearGrid, LogGrid, SizeGrid
from tff_agnostic.computations.round import tensor_specs
from tff_agnostic.models.metrics import Metric
from tff_agnostic.models.model import Model, ModelWeights, model_measures

SIZES = SizeGrid()
# Number of bootstrap replicates, and maximum number of values that a client sends
# for each sum's replicates.
_REPLICATES = 200
_MAX_RESAMPLED = 10_000
# Seed of the clients' bootstrap weights. It is public and the same in all runs, so that replicates
# of two models on the same clients can be compared pairwise.
_RESAMPLING_SEED = 1907


class ClientDistribution(NamedTuple):
    """Sums that describe the distribution of one measure over clients.

    Row i < p is domain i; row p combines all examples of a client. A client counts only in rows in
    which its measure is defined.

    Attributes:
        num_clients: Number of clients in each row, int64 [p + 1].
        total: Sum of the clients' values of the measure, float32 [p + 1].
        histogram: Number of clients by row and bin of the measure's grid, int64 [p + 1, bins].
    """

    num_clients: tf.Tensor
    total: tf.Tensor
    histogram: tf.Tensor


class SizeSums(NamedTuple):
    """Sums of one measure over clients of similar size, all domains together; see `SIZES`.

    Attributes:
        num_clients: Number of clients of each size for which the measure is defined, int64 [sizes].
        total: Sum of the clients' values of the measure, float32 [sizes].
    """

    num_clients: tf.Tensor
    total: tf.Tensor


class EvaluationOutput(NamedTuple):
    """Output of a client in an evaluation; the server sees the sum over clients.

    Attributes:
        sums: Losses, counts and metric sums per domain.
        over_clients: The distribution over clients of "loss" and of each metric.
        by_size: Sums of "loss" and of each metric by client size.
        clients: Numbers of clients that were evaluated, that had no examples, and that had
            non-finite values, int64 scalars. Clients with non-finite values add to no other field.
        resampled: Bootstrap replicates: the `stacked` sums of m measures times each of the client's
            B weights, float32 [B, 2 m, p]; () without replicates.
        classes: Counts of predicted classes, a `ClassSums`; () if not counted.
    """

    sums: DomainSums
    over_clients: OrderedDict[str, ClientDistribution]
    by_size: OrderedDict[str, SizeSums]
    clients: OrderedDict[str, tf.Tensor]
    resampled: Any = ()
    classes: Any = ()


def num_replicates(num_domains: int) -> int:
    """Returns the number of bootstrap replicates; 0 if many domains would make them too costly."""
    replicates = min(_REPLICATES, _MAX_RESAMPLED // num_domains)
    return replicates if replicates >= _REPLICATES // 4 else 0


def measure_grids(model: Model) -> OrderedDict[str, Grid]:
    """Returns the histogram grids of the loss and of each metric."""
    grids: OrderedDict[str, Grid] = OrderedDict(loss=metric_grid(None))
    for metric in model.metrics:
        grids[metric.name] = metric_grid(metric)
    return grids


def metric_grid(metric: Optional[Metric]) -> Grid:
    """Returns the histogram grid of a metric, or of the loss for None."""
    if metric is None or metric.upper is None:
        return LogGrid()
    return LinearGrid(metric.upper, metric.num_bins)


def evaluate_clients(
    weights: ModelWeights,
    clients: Clients,
    *,
    model: Model,
    num_domains: int,
    replicates: int = 0,
    counting: Optional[ClassCounting] = None,
) -> EvaluationOutput:
    """Client work: measures the broadcast weights, without randomness.

    Args:
        num_domains: Number of domains p.
        replicates: Number B of bootstrap replicates.
        counting: Counts predicted classes; None to skip.
    """
    sums, counts = domain_sums_and_counts(model, num_domains, weights, clients, counting)
    output: EvaluationOutput = clients.map(
        lambda sums, n: evaluation_output(model, sums, tf.equal(n, 0)), sums, clients.num_examples
    )
    if counting is not None:
        is_finite = 1 - output.clients["non_finite"]
        output = output._replace(classes=counting.sums(counts * is_finite[..., tf.newaxis]))
    if not replicates:
        return output
    counted = poisson_one(client_hashes(_RESAMPLING_SEED, clients), replicates)
    return output._replace(resampled=_resampled(counted, stacked(output.sums), replicates))


def _resampled(counted: tf.Tensor, sums: tf.Tensor, replicates: int) -> tf.Tensor:
    """Returns each weight [B] of a client times the client's sums [2 m, p]: float32 [B, 2 m, p].

    Vectorised clients, [G, B] and [G, 2 m, p], are already summed here, to [1, B, 2 m, p]. Only
    plain sums, which send values unchanged, have replicates, so the total is the same.
    """
    rows, num_domains = sums.shape[-2:].as_list()
    values = tf.reshape(sums, [-1, rows * num_domains])
    weights = tf.reshape(counted, [-1, replicates])
    total = tf.matmul(weights, values, transpose_a=True)
    shape = [replicates, rows, num_domains]
    return tf.reshape(total, shape if counted.shape.rank == 1 else [1, *shape])


def stacked(sums: DomainSums) -> tf.Tensor:
    """Returns the sums [..., p] of m measures as one tensor, float32 [..., 2 m, p].

    Losses and counts come first, then the numerator and the denominator of each metric.
    """
    ratios = [sums.losses, tf.cast(sums.counts, tf.float32)]
    for metric_sums in sums.metric_sums.values():
        ratios.extend(metric_sums)
    return tf.stack(ratios, axis=-2)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A federated evaluation of one or several models, in one communication step.

    Attributes:
        step: The communication step; its state is the measured model, which it broadcasts.
        measured_spec: Spec of the measured model, a structure of `tf.TensorSpec`.
        client_data_spec: Spec of a client's examples.
    """

    step: CommunicationStep
    measured_spec: Any
    client_data_spec: Any


def model_measurement(
    model: Model,
    num_domains: int,
    replicates: int = 0,
    counting: Optional[ClassCounting] = None,
) -> Measurement:
    """Returns the evaluation of one model's weights; its sums are an `EvaluationOutput`.

    Args:
        num_domains: Number of domains p.
        replicates: Number of bootstrap replicates. Only for plain sums: with fewer clients than
            replicates, secure sums with known weights would reveal each client's values to the
            server.
        counting: Counts predicted classes; None to skip.
    """
    return Measurement(
        CommunicationStep(
            name="evaluation",
            broadcast=lambda weights: weights,
            client_work=HashablePartial(
                evaluate_clients,
                model=model,
                num_domains=num_domains,
                replicates=replicates,
                counting=counting,
            ),
            bounds=lambda limits: evaluation_bounds(model, limits, bool(replicates), counting),
            bytes_per_example=model.bytes_per_example,
        ),
        tensor_specs(model.initial_weights),
        model.client_data_spec(),
    )


def evaluation_output(model: Model, sums: DomainSums, is_empty: tf.Tensor) -> EvaluationOutput:
    """Returns one client's output from its sums by domain; zeros if a value is not finite.

    Args:
        sums: Sums of the client, values [p].
        is_empty: Whether the client has no examples, boolean scalar.
    """
    ratios = OrderedDict(loss=MetricSums(sums.losses, tf.cast(sums.counts, tf.float32)))
    ratios.update(sums.metric_sums)
    over_clients = OrderedDict(
        (name, _client_distribution(grid, ratios[name]))
        for name, grid in measure_grids(model).items()
    )
    is_finite = all_finite([sums.losses, sums.metric_sums])
    has_size = SIZES.holds(tf.reduce_sum(sums.counts)) & is_finite
    by_size = _by_size(has_size, over_clients)
    sums, over_clients = tf.nest.map_structure(
        lambda value: tf.where(is_finite, value, tf.zeros_like(value)), (sums, over_clients)
    )
    clients = OrderedDict(
        evaluated=tf.cast(is_finite & ~is_empty, tf.int64),
        empty=tf.cast(is_empty, tf.int64),
        non_finite=tf.cast(~is_finite, tf.int64),
    )
    return EvaluationOutput(sums, over_clients, by_size, clients)


def _client_distribution(grid: Grid, ratio: MetricSums) -> ClientDistribution:
    def with_overall(values: tf.Tensor) -> tf.Tensor:
        return tf.concat([values, [tf.reduce_sum(values)]], axis=0)

    denominator = with_overall(ratio.denominator)
    value = tf.math.divide_no_nan(with_overall(ratio.numerator), denominator)
    defined = denominator > 0
    bins = tf.one_hot(grid.bin_index(value), grid.num_bins, dtype=tf.int64)
    return ClientDistribution(
        num_clients=tf.cast(defined, tf.int64),
        total=value,
        histogram=bins * tf.cast(defined, tf.int64)[:, tf.newaxis],
    )


def _by_size(
    has_size: tf.Tensor, over_clients: Mapping[str, ClientDistribution]
) -> OrderedDict[str, SizeSums]:
    counted, none = tf.cast(has_size, tf.int64), tf.zeros([SIZES.num_bins])
    return OrderedDict(
        # The last row combines all examples of a client; undefined values are 0.
        (
            name,
            SizeSums(
                counted * distribution.num_clients[-1],
                tf.where(has_size, distribution.total[-1], none),
            ),
        )
        for name, distribution in over_clients.items()
    )


def evaluation_bounds(
    model: Model,
    limits: ClientLimits,
    is_resampled: bool = False,
    counting: Optional[ClassCounting] = None,
) -> EvaluationOutput:
    """Returns the bounds of one client's output, for secure sums.

    Args:
        is_resampled: Whether there are bootstrap replicates.
        counting: Counts predicted classes; None to skip.
    """
    one = Bound(1, integer=True)
    largest = {"loss": limits.loss}
    largest.update((m.name, m.max_numerator if m.upper is None else m.upper) for m in model.metrics)
    sums = domain_sums_bounds(model, limits)
    resampled: Any = ()
    if is_resampled:
        largest_sum = max(bound.limit for bound in tf.nest.flatten(sums))
        resampled = Bound(MAX_POISSON * largest_sum)
    return EvaluationOutput(
        sums=sums,
        over_clients=OrderedDict(
            (name, ClientDistribution(one, Bound(limit), one)) for name, limit in largest.items()
        ),
        by_size=OrderedDict((name, SizeSums(one, Bound(limit))) for name, limit in largest.items()),
        clients=OrderedDict(evaluated=one, empty=one, non_finite=one),
        resampled=resampled,
        classes=() if counting is None else counting.bounds(limits),
    )


class OutcomeCounts(NamedTuple):
    """Output of a client that counts outcomes.

    Attributes:
        counts: Number of examples by domain and outcome, flattened, int64 [p * outcomes].
        clients: 1 for each domain in which the client has examples, int64 [p].
    """

    counts: tf.Tensor
    clients: tf.Tensor


def count_outcomes(
    nothing: tf.Tensor, clients: Clients, *, num_domains: int, num_outcomes: int
) -> OutcomeCounts:
    """Client work: counts each client's examples by label, an integer in [0, num_outcomes)."""
    del nothing
    positions = tf.range(clients.capacity)
    batch, counted = clients.take(positions), clients.has(positions)
    places = batch["domain_id"] * num_outcomes + tf.cast(batch["y"], tf.int32)
    shape = tf.concat([tf.shape(clients.num_examples), [num_domains * num_outcomes]], axis=0)
    counts = add_at(tf.zeros(shape, tf.int64), places, tf.cast(counted, tf.int64))

    def has_domain(counts: tf.Tensor) -> tf.Tensor:
        examples = tf.reduce_sum(tf.reshape(counts, [num_domains, -1]), axis=1)
        return tf.cast(examples > 0, tf.int64)

    return OutcomeCounts(counts, clients.map(has_domain, counts))


def outcome_measurement(model: Model, num_domains: int, num_outcomes: int) -> Measurement:
    """Returns the measurement that counts outcomes, without a model; sums are `OutcomeCounts`."""

    def bounds(limits: ClientLimits) -> OutcomeCounts:
        return OutcomeCounts(Bound(limits.examples, integer=True), Bound(1, integer=True))

    return Measurement(
        CommunicationStep(
            name="counts",
            broadcast=lambda nothing: nothing,
            client_work=HashablePartial(
                count_outcomes, num_domains=num_domains, num_outcomes=num_outcomes
            ),
            bounds=bounds,
        ),
        tf.TensorSpec([], tf.int32),
        model.client_data_spec(),
    )


class ChoiceOutput(NamedTuple):
    """Output of a client that chooses a model, measured on examples not used for the choice.

    A client that cannot choose (too few examples, or non-finite values) adds only 1 to a count in
    `clients`.

    Attributes:
        models: The evaluation of each model.
        chosen: Evaluation of the model that the client chooses.
        in_hindsight: Evaluation of each measure for the model that is the client's best in this
            measure.
        num_choices: 1 for the chosen model, 0 for the others, int64 [r].
        clients: Numbers of clients that chose, that had too few examples to choose, and that had
            non-finite values, int64 scalars.
    """

    models: tuple[EvaluationOutput, ...]
    chosen: EvaluationOutput
    in_hindsight: EvaluationOutput
    num_choices: tf.Tensor
    clients: OrderedDict[str, tf.Tensor]


def choose_models(
    family: tuple[ModelWeights, ...],
    clients: Clients,
    *,
    model: Model,
    num_domains: int,
    holdout: Holdout,
) -> ChoiceOutput:
    """Client work: measures r models and chooses one; only the split is random.

    Args:
        num_domains: Number of domains p.
        holdout: Holds out the examples that are used for the choice.
    """
    choice_clients, other_clients = holdout.split(clients)
    losses, sums = [], []
    for weights in family:
        choice_sums = domain_sums(model, num_domains, weights, choice_clients)
        losses.append(tf.reduce_sum(choice_sums.losses, axis=-1))
        sums.append(domain_sums(model, num_domains, weights, other_clients))
    output: ChoiceOutput = clients.map(
        lambda *measured: _choose(model, *measured),
        losses,
        sums,
        choice_clients.num_examples,
        other_clients.num_examples,
    )
    return output


def _choose(
    model: Model,
    losses: list[tf.Tensor],
    sums: list[DomainSums],
    num_chosen_by: tf.Tensor,
    num_rest: tf.Tensor,
) -> ChoiceOutput:
    # All models have the same examples, so the smallest sum has the smallest mean. If models tie,
    # the first of them is chosen, so the main model has priority.
    choice = _first_best(tf.stack(losses), higher_is_better=False)
    is_finite = all_finite([losses, [[s.losses, s.metric_sums] for s in sums]])
    has_examples = (num_chosen_by > 0) & (num_rest > 0)
    chooses = is_finite & has_examples
    stacked = tf.nest.map_structure(lambda *values: tf.stack(values), *sums)
    chosen = tf.nest.map_structure(lambda values: tf.gather(values, choice), stacked)

    def output(sums: DomainSums) -> EvaluationOutput:
        evaluation = evaluation_output(model, sums, tf.equal(num_rest, 0))
        return tf.nest.map_structure(
            lambda value: tf.where(chooses, value, tf.zeros_like(value)), evaluation
        )

    return ChoiceOutput(
        models=tuple(map(output, sums)),
        chosen=output(chosen),
        in_hindsight=output(_in_hindsight(model, stacked)),
        num_choices=tf.one_hot(choice, len(sums), dtype=tf.int64) * tf.cast(chooses, tf.int64),
        clients=OrderedDict(
            chose=tf.cast(chooses, tf.int64),
            too_few=tf.cast(~has_examples, tf.int64),
            non_finite=tf.cast(has_examples & ~is_finite, tf.int64),
        ),
    )


def _in_hindsight(model: Model, stacked: DomainSums) -> DomainSums:
    """Selects, for each measure, the best model's sums from the sums [r, p] of all models."""
    counts = tf.cast(stacked.counts, tf.float32)

    def best(measure: str, ratio: MetricSums) -> MetricSums:
        values = tf.math.divide_no_nan(
            tf.reduce_sum(ratio.numerator, axis=1), tf.reduce_sum(ratio.denominator, axis=1)
        )
        row = _first_best(values, model_measures(model)[measure].higher_is_better)
        return MetricSums(*(tf.gather(values, row) for values in ratio))

    return DomainSums(
        losses=best("loss", MetricSums(stacked.losses, counts)).numerator,
        counts=stacked.counts[0],
        metric_sums=OrderedDict(
            (name, best(name, ratio)) for name, ratio in stacked.metric_sums.items()
        ),
    )


def choice_measurement(
    model: Model, num_domains: int, num_models: int, holdout: Holdout
) -> Measurement:
    """Returns the evaluation of a family, a tuple of weights; its sums are a `ChoiceOutput`.

    Args:
        num_domains: Number of domains p.
        num_models: Number of models r.
        holdout: Holds out the examples that are used for the choice.
    """
    one = Bound(1, integer=True)

    def bounds(limits: ClientLimits) -> ChoiceOutput:
        evaluation = evaluation_bounds(model, limits)
        clients = OrderedDict(chose=one, too_few=one, non_finite=one)
        return ChoiceOutput((evaluation,) * num_models, evaluation, evaluation, one, clients)

    return Measurement(
        CommunicationStep(
            name="choice",
            broadcast=lambda family: family,
            client_work=HashablePartial(
                choose_models, model=model, num_domains=num_domains, holdout=holdout
            ),
            bounds=bounds,
        ),
        (tensor_specs(model.initial_weights),) * num_models,
        model.client_data_spec(),
    )


def _first_best(values: tf.Tensor, higher_is_better: bool) -> tf.Tensor:
    """Returns the index of the first best value of [r]; non-finite values are the worst."""
    costs = -values if higher_is_better else values
    return tf.argmin(tf.where(tf.math.is_finite(costs), costs, tf.constant(float("inf"))))
