"""Losses, counts and metric sums per domain, on the training examples or on held-out ones.

Losses of domains from examples that clients keep out of their local training.

The domain pass of Ro et al. 2021 measures examples that are trained on: the losses of a domain with
few of them fall by heart, and lambda leaves it although it is not served well. Here each client
keeps a share of its examples apart, the same ones in every round, and measures those only.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Optional, Union

import tensorflow as tf

from tff_agnostic.aggregations.aggregation import Bound, ClientLimits
from tff_agnostic.computations.clients import (
    ClientGroup,
    PerClient,
    batch_positions,
    client_seeds,
    one_client,
)
from tff_agnostic.models.model import Examples, Model, ModelWeights
from tff_agnostic.settings import Settings, setting
from tff_agnostic.stateless_random import UNIFORM_BITS, random_order, uniform_bits

_BATCH_SIZE = 256
# Seeds of a split are those of no round: it is the same in all of them.
_NO_ROUND = -1
# This use of such a seed; orders use those from 0.
_ROUNDING = -1


class DomainSums(NamedTuple):
    """Sums over the examples of each domain at given weights; see `TrainingOutput`."""

    losses: tf.Tensor
    counts: tf.Tensor
    metric_sums: "OrderedDict[str, MetricSums]"

    @property
    def trained(self) -> tf.Tensor:
        """Number of examples of each domain that are trained on: those that are measured."""
        return self.counts


class DomainSumsApart(NamedTuple):
    """Sums over examples that are kept out of training, and the number of those that are not."""

    losses: tf.Tensor
    counts: tf.Tensor
    metric_sums: "OrderedDict[str, MetricSums]"
    trained: tf.Tensor


AnyDomainSums = Union[DomainSums, DomainSumsApart]


class MetricSums(NamedTuple):
    """Numerator and denominator of a metric per domain, float32 [p]."""

    numerator: tf.Tensor
    denominator: tf.Tensor


def domain_counts(num_domains: int, clients: ClientGroup) -> tf.Tensor:
    """Returns N^k: the number of each client's examples of each domain, int64 [p] or [G, p]."""
    positions = tf.range(clients.capacity)
    ids, counted = clients.take(positions)["domain_id"], clients.has(positions)
    shape = tf.concat([tf.shape(clients.num_examples), [num_domains]], axis=0)
    return add_at(tf.zeros(shape, tf.int64), ids, tf.cast(counted, tf.int64))


def mean_domain_losses(sums: AnyDomainSums) -> tf.Tensor:
    """Lines 10 and 11: L = sum(L^k) / N_t, and 0 for a domain without examples in the round.

    The line as printed is 0/0 there; the text of section 4 sets L to zero.
    """
    return tf.math.divide_no_nan(sums.losses, tf.cast(sums.counts, tf.float32))


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


def domain_pass(
    model: Model,
    num_domains: int,
    weights: ModelWeights,
    clients: ClientGroup,
    per_client: PerClient = one_client,
    batch_size: int = _BATCH_SIZE,
) -> DomainSums:
    """CLIENT lines 2 to 6: losses, counts and metric sums of each domain at `weights`.

    Domain ids are in [0, p): others fail in TensorFlow, and datasets refuse them beforehand.

    Args:
        model: The model.
        num_domains: p.
        weights: w, the same for every client.
        clients: One client, or many in step.
        per_client: How functions of one client are applied.
        batch_size: Examples of a client per step; bounds the memory only.
    """

    def add_batch(start: tf.Tensor, sums: DomainSums) -> tuple[tf.Tensor, DomainSums]:
        positions = batch_positions(start, batch_size, clients.capacity, per_client)
        batch = clients.take(positions)

        def of_client(batch: Examples) -> ExampleMeasures:
            losses, predictions = model.example_losses(
                weights, batch, training=False, seed=tf.zeros([2], tf.int32)
            )
            return measure_examples(model, batch, losses, predictions)

        counted = clients.has(positions)
        next_sums = add_by_domain(sums, batch["domain_id"], counted, per_client(of_client, batch))
        return start + batch_size, next_sums

    _, sums = tf.while_loop(
        lambda start, _: start < clients.capacity,
        add_batch,
        (tf.constant(0), zero_sums(model, num_domains, clients)),
    )
    return sums


class ExampleMeasures(NamedTuple):
    """What is measured of each of n examples.

    Attributes:
        losses: float32 [n].
        metrics: Numerator and denominator of each metric, float32 [n].
    """

    losses: tf.Tensor
    metrics: "OrderedDict[str, MetricSums]"


def measure_examples(
    model: Model, batch: Examples, losses: tf.Tensor, predictions: tf.Tensor
) -> ExampleMeasures:
    """Returns the measures of one client's batch, from its losses and predictions."""
    return ExampleMeasures(
        losses,
        OrderedDict(
            (metric.name, MetricSums(*metric.per_example(batch["y"], predictions)))
            for metric in model.metrics
        ),
    )


def zero_sums(model: Model, num_domains: int, clients: ClientGroup) -> DomainSums:
    """Returns each client's sums over no examples: values [p], in a group [G, p]."""
    shape = tf.concat([tf.shape(clients.num_examples), [num_domains]], axis=0)
    zeros = tf.zeros(shape)
    return DomainSums(
        losses=zeros,
        counts=tf.zeros(shape, tf.int64),
        metric_sums=OrderedDict((m.name, MetricSums(zeros, zeros)) for m in model.metrics),
    )


def add_by_domain(
    sums: DomainSums, domain_id: tf.Tensor, counted: tf.Tensor, batch: ExampleMeasures
) -> DomainSums:
    """Adds the measures of a batch to the sums of each client.

    Args:
        sums: Values [p], in a group [G, p].
        domain_id: int32 [b], in a group [G, b].
        counted: Which examples count, boolean in the same shape.
        batch: Measures in the same shape.
    """

    def add(total: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        # The batch by itself first: added one by one to a sum that is large already, small losses
        # would be rounded away, and of a client with 20,000 examples the fourth digit.
        values = tf.where(counted, values, tf.zeros_like(values))
        return total + add_at(tf.zeros_like(total), domain_id, values)

    return DomainSums(
        losses=add(sums.losses, batch.losses),
        counts=add(sums.counts, tf.cast(counted, tf.int64)),
        metric_sums=tf.nest.map_structure(add, sums.metric_sums, batch.metrics),
    )


def add_at(total: tf.Tensor, domain_id: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Adds values [b] to the entries of their domains in a total [p]; in a group [G, b], [G, p].

    What it touches is as much as there are examples, however many domains there are.
    """
    num_domains = tf.shape(total)[-1]
    # All clients' totals lie end to end.
    first = tf.range(tf.size(total) // num_domains) * num_domains
    positions = tf.reshape(first, tf.shape(total)[:-1])[..., tf.newaxis] + domain_id
    flat = tf.tensor_scatter_nd_add(
        tf.reshape(total, [-1]), tf.reshape(positions, [-1, 1]), tf.reshape(values, [-1])
    )
    return tf.reshape(flat, tf.shape(total))


@dataclasses.dataclass(frozen=True)
class ExampleSplit:
    """Which of its examples a client keeps out of its training; a function of the client alone.

    A client of n examples keeps out `share` n of them, rounded up or down by chance so that it is
    the stated share on average, and never all: with a single example it trains on it, and measures
    nothing. Chance is a hash of the run's seed and of the client: how many examples it has, the
    first and the last. (Runs that differ in their seeds are therefore traced anew, if the share is
    positive.)

    Attributes:
        share: In [0, 1); 0 keeps nothing apart.
        seed: Of the run.
    """

    share: float = 0.0
    seed: int = 0

    @property
    def is_apart(self) -> bool:
        """Whether other examples are measured than those that are trained on."""
        return self.share > 0

    def __call__(self, clients: ClientGroup) -> tuple[ClientGroup, ClientGroup]:
        """Returns each client's examples that are kept out, and those that it trains on.

        The latter are in the order that they had.
        """
        seed = client_seeds(tf.constant([self.seed, _NO_ROUND], tf.int32), clients)
        num_examples, capacity = clients.num_examples, clients.capacity
        bits = uniform_bits(seed, _ROUNDING)
        num_kept_out = tf.minimum(self._share_of(num_examples, bits), _all_but_one(num_examples))
        num_trained = num_examples - num_kept_out
        least = tf.minimum(self._share_of(capacity), _all_but_one(capacity))
        drawn = random_order(seed, num_examples, capacity)
        kept_out = clients._replace(
            num_examples=num_kept_out,
            # Rounded up; these bounds are known where shapes have to be, of XLA.
            capacity=tf.minimum(least + 1, _all_but_one(capacity)),
            order=drawn,
        )
        trained = clients._replace(
            num_examples=num_trained,
            capacity=capacity - least,
            order=_without_first(drawn, num_kept_out, num_examples),
        )
        return kept_out, trained

    def trained_of(self, counts: Optional[Sequence[float]]) -> Optional[tuple[float, ...]]:
        """Returns how many of these numbers of examples are expected to be trained on."""
        return None if counts is None else tuple((1.0 - self.share) * n for n in counts)

    def measured_of(self, counts: Sequence[float]) -> tuple[float, ...]:
        """Returns how many of them are expected to be measured: without a share all."""
        return tuple((self.share if self.is_apart else 1.0) * n for n in counts)

    def _share_of(self, numbers: tf.Tensor, bits: int = 0) -> tf.Tensor:
        # In integers, which no compiler rounds otherwise.
        share = tf.constant(round(self.share * 2**UNIFORM_BITS), tf.int64)
        scaled = tf.cast(numbers, tf.int64) * share + tf.cast(bits, tf.int64)
        shifted = tf.bitwise.right_shift(scaled, tf.constant(UNIFORM_BITS, tf.int64))
        return tf.cast(shifted, tf.int32)


def _all_but_one(numbers: tf.Tensor) -> tf.Tensor:
    return tf.maximum(numbers, 1) - 1


def _without_first(order: tf.Tensor, num_first: tf.Tensor, num_examples: tf.Tensor) -> tf.Tensor:
    """Returns a client's positions but for the first ones of an order, ascending, then zeros."""
    slots = tf.range(tf.shape(order)[-1])
    first, all_ = num_first[..., tf.newaxis], num_examples[..., tf.newaxis]
    is_left = (slots >= first) & (slots < all_)
    ascending = tf.sort(tf.where(is_left, order, tf.int32.max), axis=-1)
    return tf.where(slots < all_ - first, ascending, 0)


@dataclasses.dataclass(frozen=True)
class DomainLossOptions(Settings):
    """On which examples losses are measured; part of the settings of algorithms that need them.

    Attributes:
        domain_loss_share: Share of each client's examples that is kept out of its training.
    """

    domain_loss_share: float = setting(
        0.0,
        "Share of each client's examples that is kept out of local training, and on which the "
        "losses are measured that the algorithm follows; with 0 clients measure and train on all.",
        at_least=0.0,
        below=1.0,
    )

    def example_split(self, seed: int) -> ExampleSplit:
        """Returns the split of a run; without a share the same for all seeds."""
        return ExampleSplit(self.domain_loss_share, seed) if self.domain_loss_share else _NO_SPLIT


_NO_SPLIT = ExampleSplit()


class Measured(NamedTuple):
    """Clients before their training.

    Attributes:
        sums: Losses, counts and metric sums of each domain, over the examples that are measured,
            with the number of those that are trained on.
        training: The clients with the examples that they train on.
    """

    sums: AnyDomainSums
    training: ClientGroup


def measured(
    model: Model,
    num_domains: int,
    split: ExampleSplit,
    weights: ModelWeights,
    clients: ClientGroup,
    per_client: PerClient,
) -> Measured:
    """CLIENT lines 2 to 6 of Algorithm 1, on the examples that are kept out, or on all.

    Args:
        model: The model.
        num_domains: p.
        split: Which examples are kept out.
        weights: w, the same for every client.
        clients: One client, or many in step.
        per_client: How functions of one client are applied.
    """
    if not split.is_apart:
        return Measured(domain_pass(model, num_domains, weights, clients, per_client), clients)
    kept_out, training = split(clients)
    sums = domain_pass(model, num_domains, weights, kept_out, per_client)
    return Measured(DomainSumsApart(*sums, domain_counts(num_domains, training)), training)


def trained_on(split: ExampleSplit, clients: ClientGroup) -> ClientGroup:
    """Returns the clients with the examples that they train on, as `measured` does."""
    return split(clients)[1] if split.is_apart else clients


def mean_loss(sums: AnyDomainSums, otherwise: tf.Tensor) -> tf.Tensor:
    """Returns the mean over the measured examples of one client, F_k, or of a cohort.

    Args:
        sums: Of the client, or summed over the cohort.
        otherwise: What the loss counts as where nothing is measured, float32 scalar.
    """
    count = tf.cast(tf.reduce_sum(sums.counts), tf.float32)
    mean = tf.math.divide_no_nan(tf.reduce_sum(sums.losses), count)
    return tf.where(count > 0, mean, otherwise)
