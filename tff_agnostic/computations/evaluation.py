"""Federated evaluation per domain and over clients; of one model, a family, or outcome counts.

The server learns sums only. The distribution over clients comes from summed histograms, and how a
measure depends on the size of a client from sums over the clients of about the same size.

A family has several models (Laguel et al. 2021). The paper leaves open how a client finds its
level. Here it measures every model on a share of its own examples and takes the one with the
smallest loss. The rest of its examples is measured with that model, with each model of the family,
and with the one that turns out best.

Outcome counts, how often each outcome is among the examples of each domain, make unigram models.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from tff_agnostic.aggregations.aggregation import Bound, ClientLimits
from tff_agnostic.base.later import tf
from tff_agnostic.base.stateless_random import MOST_POISSON, poisson_one
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
from tff_agnostic.computations.round import specs_of
from tff_agnostic.models.metrics import Metric
from tff_agnostic.models.model import Model, ModelWeights, measures_of

SIZES = SizeGrid()
# How often clients are resampled, and the most numbers that a client sends of each sum for it.
_REPLICATES = 200
_MOST_RESAMPLED = 10_000
# Seeds the weights of the clients. Public, and the same in all runs: replicates of two models on
# the same clients can be compared one by one.
_RESAMPLING_SEED = 1907


class ClientDistribution(NamedTuple):
    """Sums that describe how one measure is spread over clients.

    Rows 0 to p-1 are domains, row p is all of a client's examples together. A client counts in a
    row if the measure is defined for it there.

    Attributes:
        num_clients: Clients in each row, int64 [p + 1].
        total: Sum of their values, of a metric its ratios, float32 [p + 1].
        histogram: The same on the measure's grid, int64 [p + 1, bins].
    """

    num_clients: tf.Tensor
    total: tf.Tensor
    histogram: tf.Tensor


class SizeSums(NamedTuple):
    """One measure by the clients' numbers of examples, all domains together; see `SIZES`.

    Attributes:
        num_clients: Clients of each size for which the measure is defined, int64 [sizes].
        total: Sum of their values, of a metric its ratios, float32 [sizes].
    """

    num_clients: tf.Tensor
    total: tf.Tensor


class EvaluationOutput(NamedTuple):
    """What a client contributes to an evaluation; the server sees the sum over clients.

    Attributes:
        sums: Losses, counts and metric sums per domain.
        over_clients: The distribution over clients of "loss" and of each metric.
        by_size: The same measures by the clients' numbers of examples.
        clients: Number of clients that were evaluated, had no examples, or gave values that are not
            finite (which add nothing else), int64 scalars.
        resampled: The `stacked` sums with each client's weight in each of B replicates, float32
            [B, 2 m, p]; () where clients are not resampled. See `num_replicates`.
        classes: Answers by class, a `ClassSums`; () where they are not counted.
    """

    sums: DomainSums
    over_clients: OrderedDict[str, ClientDistribution]
    by_size: OrderedDict[str, SizeSums]
    clients: OrderedDict[str, tf.Tensor]
    resampled: Any = ()
    classes: Any = ()


def num_replicates(num_domains: int) -> int:
    """Returns how often clients are resampled; 0 with so many domains that it would cost much."""
    found = min(_REPLICATES, _MOST_RESAMPLED // num_domains)
    return found if found >= _REPLICATES // 4 else 0


def measure_grids(model: Model) -> OrderedDict[str, Grid]:
    """Returns the histogram grid of the loss and of each metric's ratio."""
    grids: OrderedDict[str, Grid] = OrderedDict(loss=grid_of(None))
    for metric in model.metrics:
        grids[metric.name] = grid_of(metric)
    return grids


def grid_of(metric: Optional[Metric]) -> Grid:
    """Returns the histogram grid of a metric's ratio, or of the loss if it is None."""
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
    """Client work: measures the weights that are broadcast; nothing in it is random.

    Args:
        num_domains: p.
        replicates: B, how often clients are resampled.
        counting: Counts answers by class; None if nothing does.
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
    """Returns a client's sums [2 m, p] times each of its weights [B]: float32 [B, 2 m, p].

    Of vectorised clients, [G, B] and [G, 2 m, p], it is the sum over them, [1, B, 2 m, p]: plain
    sums send it as it is, and the runtime has one entry to add up where it would have had G.
    """
    rows, num_domains = sums.shape[-2:].as_list()
    of_client = tf.reshape(sums, [-1, rows * num_domains])
    weights = tf.reshape(counted, [-1, replicates])
    total = tf.matmul(weights, of_client, transpose_a=True)
    shape = [replicates, rows, num_domains]
    return tf.reshape(total, shape if counted.shape.rank == 1 else [1, *shape])


def stacked(sums: DomainSums) -> tf.Tensor:
    """Returns sums [..., p] of m measures as one tensor, float32 [..., 2 m, p].

    Losses and counts come first, then the numerator and the denominator of each metric.
    """
    ratios = [sums.losses, tf.cast(sums.counts, tf.float32)]
    for metric_sums in sums.metric_sums.values():
        ratios.extend(metric_sums)
    return tf.stack(ratios, axis=-2)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """A federated evaluation, of one model or of several: one step, and no state after it.

    Attributes:
        step: It broadcasts its state, which is what is measured.
        measured_spec: Spec of that, a structure of `tf.TensorSpec`.
        client_data_spec: Of a client's examples.
    """

    step: CommunicationStep
    measured_spec: Any
    client_data_spec: Any


def measurement_of_model(
    model: Model,
    num_domains: int,
    replicates: int = 0,
    counting: Optional[ClassCounting] = None,
) -> Measurement:
    """Returns the evaluation of one model's weights; its sums are an `EvaluationOutput`.

    Args:
        num_domains: p.
        replicates: How often clients are resampled. For plain sums only: of fewer clients than
            that, secure sums with known weights would tell the server each one's numbers.
        counting: Counts answers by class; None if nothing does.
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
        specs_of(model.initial_weights),
        model.client_data_spec(),
    )


def evaluation_output(model: Model, sums: DomainSums, is_empty: tf.Tensor) -> EvaluationOutput:
    """Returns what one client contributes, from its sums over each domain; or zeros.

    Args:
        sums: Of the client, values [p].
        is_empty: Whether it has no examples, boolean scalar.
    """
    ratios = OrderedDict(loss=MetricSums(sums.losses, tf.cast(sums.counts, tf.float32)))
    ratios.update(sums.metric_sums)
    over_clients = OrderedDict(
        (name, _client_distribution(grid, ratios[name]))
        for name, grid in measure_grids(model).items()
    )
    is_finite = all_finite([sums.losses, sums.metric_sums])
    is_of_size = SIZES.holds(tf.reduce_sum(sums.counts)) & is_finite
    by_size = _by_size(is_of_size, over_clients)
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
    bins = tf.one_hot(grid.bin_of(value), grid.num_bins, dtype=tf.int64)
    return ClientDistribution(
        num_clients=tf.cast(defined, tf.int64),
        total=value,
        histogram=bins * tf.cast(defined, tf.int64)[:, tf.newaxis],
    )


def _by_size(
    is_of_size: tf.Tensor, over_clients: Mapping[str, ClientDistribution]
) -> OrderedDict[str, SizeSums]:
    counted, none = tf.cast(is_of_size, tf.int64), tf.zeros([SIZES.num_bins])
    return OrderedDict(
        # Of all of a client's examples together; the value is 0 where it is undefined.
        (name, SizeSums(counted * of.num_clients[-1], tf.where(is_of_size, of.total[-1], none)))
        for name, of in over_clients.items()
    )


def evaluation_bounds(
    model: Model,
    limits: ClientLimits,
    is_resampled: bool = False,
    counting: Optional[ClassCounting] = None,
) -> EvaluationOutput:
    """Returns the bounds of what one client contributes, for secure sums.

    Args:
        model: What is evaluated.
        limits: Of a client's examples and losses.
        is_resampled: Whether clients are resampled.
        counting: Counts answers by class.
    """
    one = Bound(1, integer=True)
    largest = {"loss": limits.loss}
    largest.update((m.name, m.max_numerator if m.upper is None else m.upper) for m in model.metrics)
    sums = domain_sums_bounds(model, limits)
    resampled: Any = ()
    if is_resampled:
        largest_sum = max(bound.limit for bound in tf.nest.flatten(sums))
        resampled = Bound(MOST_POISSON * largest_sum)
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
    """What a client sends.

    Attributes:
        counts: Of each domain and outcome, one after the other, int64 [p * outcomes].
        clients: 1 for each domain that it has examples of, int64 [p].
    """

    counts: tf.Tensor
    clients: tf.Tensor


def count_outcomes(
    nothing: tf.Tensor, clients: Clients, *, num_domains: int, num_outcomes: int
) -> OutcomeCounts:
    """Client work: counts the labels of each client's examples, which are in [0, outcomes)."""
    del nothing
    positions = tf.range(clients.capacity)
    batch, counted = clients.take(positions), clients.has(positions)
    places = batch["domain_id"] * num_outcomes + tf.cast(batch["y"], tf.int32)
    shape = tf.concat([tf.shape(clients.num_examples), [num_domains * num_outcomes]], axis=0)
    counts = add_at(tf.zeros(shape, tf.int64), places, tf.cast(counted, tf.int64))

    def has_domain(counts: tf.Tensor) -> tf.Tensor:
        of_domain = tf.reduce_sum(tf.reshape(counts, [num_domains, -1]), axis=1)
        return tf.cast(of_domain > 0, tf.int64)

    return OutcomeCounts(counts, clients.map(has_domain, counts))


def measurement_of_outcomes(model: Model, num_domains: int, num_outcomes: int) -> Measurement:
    """Returns the measurement; its sums are an `OutcomeCounts`, and what it measures is nothing."""

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
    """What a client contributes, from the examples that it does not choose by.

    A client that has no examples to choose by, as one with a single example, or for which a model
    gives values that are not finite, adds nothing but to the count of such clients.

    Attributes:
        models: The evaluation of each model.
        chosen: That of the model which the client chooses.
        in_hindsight: Of each measure by itself, that of the model which turned out best in it.
        num_choices: 1 at the model that is chosen, int64 [r].
        clients: Number of clients that chose, had too few examples to choose, or gave values that
            are not finite, int64 scalars.
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
    """Client work: measures r models, and chooses one; nothing in it is random but the split.

    Args:
        num_domains: p.
        holdout: Which examples a client chooses by: those that are kept out.
    """
    to_choose_by, rest = holdout.split(clients)
    losses, sums = [], []
    for weights in family:
        by = domain_sums(model, num_domains, weights, to_choose_by)
        losses.append(tf.reduce_sum(by.losses, axis=-1))
        sums.append(domain_sums(model, num_domains, weights, rest))
    output: ChoiceOutput = clients.map(
        lambda *measured: _choose(model, *measured),
        losses,
        sums,
        to_choose_by.num_examples,
        rest.num_examples,
    )
    return output


def _choose(
    model: Model,
    losses: list[tf.Tensor],
    sums: list[DomainSums],
    num_chosen_by: tf.Tensor,
    num_rest: tf.Tensor,
) -> ChoiceOutput:
    # All models are measured on the same examples: the smallest sum has the smallest mean. Of equal
    # ones it is the first, the main model.
    choice = _first_best(tf.stack(losses), higher_is_better=False)
    is_finite = all_finite([losses, [[s.losses, s.metric_sums] for s in sums]])
    has_examples = (num_chosen_by > 0) & (num_rest > 0)
    chooses = is_finite & has_examples
    stacked = tf.nest.map_structure(lambda *values: tf.stack(values), *sums)
    chosen = tf.nest.map_structure(lambda values: tf.gather(values, choice), stacked)

    def output(of: DomainSums) -> EvaluationOutput:
        found = evaluation_output(model, of, tf.equal(num_rest, 0))
        return tf.nest.map_structure(
            lambda value: tf.where(chooses, value, tf.zeros_like(value)), found
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
    """Returns, of sums [r, p], those of the model with the best value of each measure."""
    counts = tf.cast(stacked.counts, tf.float32)

    def best(measure: str, ratio: MetricSums) -> MetricSums:
        values = tf.math.divide_no_nan(
            tf.reduce_sum(ratio.numerator, axis=1), tf.reduce_sum(ratio.denominator, axis=1)
        )
        row = _first_best(values, measures_of(model)[measure].higher_is_better)
        return MetricSums(*(tf.gather(values, row) for values in ratio))

    return DomainSums(
        losses=best("loss", MetricSums(stacked.losses, counts)).numerator,
        counts=stacked.counts[0],
        metric_sums=OrderedDict(
            (name, best(name, ratio)) for name, ratio in stacked.metric_sums.items()
        ),
    )


def measurement_of_choice(
    model: Model, num_domains: int, num_models: int, holdout: Holdout
) -> Measurement:
    """Returns the evaluation of a family, a tuple of weights; its sums are a `ChoiceOutput`.

    Args:
        num_domains: p.
        num_models: r.
        holdout: Which of its examples a client chooses by: those that are kept out.
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
        (specs_of(model.initial_weights),) * num_models,
        model.client_data_spec(),
    )


def _first_best(values: tf.Tensor, higher_is_better: bool) -> tf.Tensor:
    """Returns the row of the best of values [r], the first of equal ones; not finite is worst."""
    costs = -values if higher_is_better else values
    return tf.argmin(tf.where(tf.math.is_finite(costs), costs, tf.constant(float("inf"))))
