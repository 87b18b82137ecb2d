"""Losses, counts and metric sums per domain, on the training examples or on held-out ones.

The domain pass of Ro et al. 2021 (Algorithm 1, CLIENT lines 2 to 6) measures examples that are
trained on. The model memorises a small domain's examples: the domain's training loss falls, and
lambda moves away while the domain is still served badly. With a `Holdout` each client keeps a share
of its examples out of training, the same ones in every round, and measures those instead.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, Optional, Protocol

from tff_agnostic.aggregations.aggregation import Bound, ClientLimits
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Options, Within
from tff_agnostic.base.stateless_random import UNIFORM_BITS, random_order, uniform_bits
from tff_agnostic.computations.clients import Batch, Clients, client_seeds
from tff_agnostic.models.model import Examples, Model, ModelWeights

_BATCH_SIZE = 256
# Seeds of a split are those of no round: it is the same in all of them.
_NO_ROUND = -1
# This use of such a seed; orders use those from 0.
_ROUNDING = -1


class MetricSums(NamedTuple):
    """Numerator and denominator of a metric per domain, float32 [p]."""

    numerator: tf.Tensor
    denominator: tf.Tensor


class DomainSums(NamedTuple):
    """Sums over the examples of each domain at given weights.

    Attributes:
        losses: L^k: sum of the losses of each domain's examples, float32 [p].
        counts: Number of these examples, int64 [p].
        metric_sums: Numerator and denominator of each metric per domain.
        trained: Where held-out examples are measured, the number of examples of each domain that
            are trained on, int64 [p]; () where those are the same.
    """

    losses: tf.Tensor
    counts: tf.Tensor
    metric_sums: OrderedDict[str, MetricSums]
    trained: Any = ()

    @property
    def trained_counts(self) -> tf.Tensor:
        """N^k: number of examples of each domain that are trained on, int64 [p]."""
        return self.trained if self.is_held_out else self.counts

    @property
    def is_held_out(self) -> bool:
        """Whether the examples that are measured are kept out of training."""
        return bool(tf.nest.flatten(self.trained))

    def trained_and_measured(self) -> tuple[tf.Tensor, Optional[tf.Tensor]]:
        """Returns the examples of each domain that are trained on, and that are measured.

        Both are float32 [p]; the latter are None where they are the same.
        """
        measured = tf.cast(self.counts, tf.float32)
        if not self.is_held_out:
            return measured, None
        return tf.cast(self.trained, tf.float32), measured

    def mean_losses(self) -> tf.Tensor:
        """Lines 10 and 11: L = sum(L^k) / N_t, and 0 for a domain without examples in the round.

        The line as printed is 0/0 there; the text of section 4 sets L to zero.
        """
        return tf.math.divide_no_nan(self.losses, tf.cast(self.counts, tf.float32))

    def mean_loss(self, otherwise: tf.Tensor) -> tf.Tensor:
        """Returns the mean over the measured examples of one client, F_k, or of a cohort.

        Args:
            otherwise: What the loss counts as where nothing is measured, float32 scalar.
        """
        count = tf.cast(tf.reduce_sum(self.counts), tf.float32)
        mean = tf.math.divide_no_nan(tf.reduce_sum(self.losses), count)
        return tf.where(count > 0, mean, otherwise)


def domain_counts(num_domains: int, clients: Clients) -> tf.Tensor:
    """Returns N^k: the number of each client's examples of each domain, int64 [p] or [G, p]."""
    positions = tf.range(clients.capacity)
    ids, counted = clients.take(positions)["domain_id"], clients.has(positions)
    shape = tf.concat([tf.shape(clients.num_examples), [num_domains]], axis=0)
    return add_at(tf.zeros(shape, tf.int64), ids, tf.cast(counted, tf.int64))


def domain_sums_bounds(model: Model, limits: ClientLimits, is_held_out: bool = False) -> DomainSums:
    """Returns the bound of every value of a client's `DomainSums`, in its structure."""
    n = limits.examples

    def metric_bounds(name: str, numerator: float, denominator: float) -> MetricSums:
        ratio = f"metric {name}"
        return MetricSums(
            Bound(n * numerator, ratio=ratio, entrywise=True),
            Bound(n * denominator, ratio=ratio, entrywise=True, denominator=True),
        )

    return DomainSums(
        losses=Bound(n * limits.loss, ratio="loss", entrywise=True),
        counts=Bound(n, integer=True, ratio="loss", entrywise=True, denominator=True),
        metric_sums=OrderedDict(
            (m.name, metric_bounds(m.name, m.max_numerator, m.max_denominator))
            for m in model.metrics
        ),
        trained=Bound(n, integer=True, denominator=True) if is_held_out else (),
    )


def domain_sums(
    model: Model,
    num_domains: int,
    weights: ModelWeights,
    clients: Clients,
    batch_size: int = _BATCH_SIZE,
) -> DomainSums:
    """CLIENT lines 2 to 6: losses, counts and metric sums of each domain at `weights`.

    Domain ids are in [0, p): datasets refuse others beforehand; here they would count for another
    client.

    Args:
        num_domains: p.
        weights: w, the same for every client.
        clients: Whose examples are measured.
        batch_size: Examples of a client per step; bounds the memory only.
    """
    sums, _ = domain_sums_and_counts(model, num_domains, weights, clients, None, batch_size)
    return sums


class ExampleCounter(Protocol):
    """Counts something of examples and their predictions, beside their losses."""

    def start(self, clients: Clients) -> Any:
        """Returns each client's counts over no examples."""

    def of_client(self, examples: Examples, predictions: Any) -> Any:
        """Returns what is found of one client's batch."""

    def add(self, total: Any, examples: Examples, is_present: tf.Tensor, found: Any) -> Any:
        """Adds what was found of a batch of all clients to their counts."""


def domain_sums_and_counts(
    model: Model,
    num_domains: int,
    weights: ModelWeights,
    clients: Clients,
    counter: Optional[ExampleCounter],
    batch_size: int = _BATCH_SIZE,
) -> tuple[DomainSums, Any]:
    """Returns the `domain_sums`, and each client's counts, () without a counter."""

    def add_batch(batch: Batch, state: tuple[DomainSums, Any]) -> tuple[DomainSums, Any]:
        examples = clients.take(batch.positions)

        def of_client(examples: Examples) -> tuple[ExampleMeasures, Any]:
            losses, predictions = model.example_losses(
                weights, examples, training=False, seed=tf.zeros([2], tf.int32)
            )
            found = () if counter is None else counter.of_client(examples, predictions)
            return example_measures(model, examples, losses, predictions), found

        sums, total = state
        measures, found = clients.map(of_client, examples)
        if counter is not None:
            total = counter.add(total, examples, batch.is_present, found)
        return add_to_domains(sums, examples["domain_id"], batch.is_present, measures), total

    counts = () if counter is None else counter.start(clients)
    initial = zero_sums(model, num_domains, clients), counts
    found: tuple[DomainSums, Any] = clients.fold_batches(batch_size, add_batch, initial)
    return found


class ExampleMeasures(NamedTuple):
    """What is measured of each of n examples.

    Attributes:
        losses: float32 [n].
        metrics: Numerator and denominator of each metric, float32 [n].
    """

    losses: tf.Tensor
    metrics: OrderedDict[str, MetricSums]


def example_measures(
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


def zero_sums(model: Model, num_domains: int, clients: Clients) -> DomainSums:
    """Returns each client's sums over no examples: values [p], vectorised [G, p]."""
    shape = tf.concat([tf.shape(clients.num_examples), [num_domains]], axis=0)
    zeros = tf.zeros(shape)
    return DomainSums(
        losses=zeros,
        counts=tf.zeros(shape, tf.int64),
        metric_sums=OrderedDict((m.name, MetricSums(zeros, zeros)) for m in model.metrics),
    )


def add_to_domains(
    sums: DomainSums, domain_id: tf.Tensor, counted: tf.Tensor, batch: ExampleMeasures
) -> DomainSums:
    """Adds the measures of a batch to the sums of each client.

    Args:
        sums: Values [p], vectorised [G, p].
        domain_id: int32 [b], vectorised [G, b].
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
    """Adds values [b] to the entries of their domains in a total [p]; vectorised [G, b], [G, p].

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
class Holdout:
    """Which of its examples a client keeps out of its training; a function of the client alone.

    A client of n examples keeps out `share` n of them, rounded up or down by chance so that it is
    the stated share on average, and never all: with a single example it trains on it, and measures
    nothing. Chance is a hash of the run's seed and of the client: how many examples it has, the
    first and the last. (Runs that differ in their seeds are therefore traced anew, if the share is
    positive.)

    Attributes:
        share: In [0, 1); 0 keeps nothing out, and all examples are measured.
        seed: Of the run.
    """

    share: float = 0.0
    seed: int = 0

    @property
    def is_active(self) -> bool:
        """Whether other examples are measured than those that are trained on."""
        return self.share > 0

    def split(self, clients: Clients) -> tuple[Clients, Clients]:
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
        kept_out = dataclasses.replace(
            clients,
            num_examples=num_kept_out,
            # Rounded up; these bounds are known where XLA has to know shapes.
            capacity=tf.minimum(least + 1, _all_but_one(capacity)),
            order=drawn,
        )
        trained = dataclasses.replace(
            clients,
            num_examples=num_trained,
            capacity=capacity - least,
            order=_without_first(drawn, num_kept_out, num_examples),
        )
        return kept_out, trained

    def training(self, clients: Clients) -> Clients:
        """Returns the clients with the examples that they train on."""
        return self.split(clients)[1] if self.is_active else clients

    def trained_part(
        self, counts: Sequence[float], kept_out: Optional[Sequence[float]] = None
    ) -> tuple[float, ...]:
        """Returns how many of these numbers of examples are expected to be trained on.

        Args:
            counts: Examples of each domain.
            kept_out: Those of them that are kept out; the share of all if None, which is too much
                where clients have fewer than 1 / (1 - share) examples.
        """
        if not self.is_active:
            return tuple(counts)
        return tuple(n - k for n, k in zip(counts, self.measured_part(counts, kept_out)))

    def measured_part(
        self, counts: Sequence[float], kept_out: Optional[Sequence[float]] = None
    ) -> tuple[float, ...]:
        """Returns how many of them are expected to be measured: without a share all."""
        if not self.is_active:
            return tuple(counts)
        return tuple(self.share * n for n in counts) if kept_out is None else tuple(kept_out)

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
class HoldoutOptions(Options):
    """On which examples losses are measured; part of the settings of algorithms that need them.

    Attributes:
        measured_share: Share of each client's examples that is kept out of training, to measure on
            them the losses that the algorithm follows; with 0 clients train and measure on all.
    """

    measured_share: Annotated[float, Within(least=0.0, below=1.0)] = 0.0

    def holdout(self, seed: int) -> Holdout:
        """Returns the holdout of a run; without a share the same for all seeds."""
        return Holdout(self.measured_share, seed) if self.measured_share else NO_HOLDOUT


NO_HOLDOUT = Holdout()


def measure_domains(
    model: Model, num_domains: int, weights: ModelWeights, clients: Clients, holdout: Holdout
) -> tuple[DomainSums, Clients]:
    """CLIENT lines 2 to 6 of Algorithm 1, on the examples that are kept out, or on all.

    Args:
        num_domains: p.
        weights: w, the same for every client.
        clients: The clients before their training.
        holdout: Which examples are kept out.

    Returns:
        The sums over the examples that are measured, and the clients with those that they train on.
    """
    if not holdout.is_active:
        return domain_sums(model, num_domains, weights, clients), clients
    kept_out, training = holdout.split(clients)
    sums = domain_sums(model, num_domains, weights, kept_out)
    return sums._replace(trained=domain_counts(num_domains, training)), training
