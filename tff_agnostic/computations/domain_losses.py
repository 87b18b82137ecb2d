"""Losses, counts and metric sums per domain, on training or held-out examples.

The domain pass of Ro et al. 2021 (Algorithm 1, CLIENT lines 2 to 6) measures losses on training
examples. A model can memorise the training examples of a small domain: their loss falls, and lambda
moves to other domains although the model still fits this domain badly. With a `Holdout` each client
holds out a fraction of its examples, the same in every round, and measures losses on these held-out
examples instead.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, Optional, Protocol

from tff_agnostic.aggregations.aggregation import Bound, ClientLimits
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Options, Within
from tff_agnostic.base.stateless_random import UNIFORM_BITS, random_order, uniform_bits
from tff_agnostic.computations.clients import Batch, Clients, client_seeds
from tff_agnostic.models.model import Examples, Model, ModelWeights

_BATCH_SIZE = 256
# Constant round number in the seeds of splits, so that splits are the same in all rounds.
_NO_ROUND = -1
# Number that distinguishes the draw that rounds a split's size; orders of examples use 0 and above.
_ROUNDING = -1


class MetricSums(NamedTuple):
    """Numerator and denominator of a metric by domain, float32 [p]."""

    numerator: tf.Tensor
    denominator: tf.Tensor


class DomainSums(NamedTuple):
    """Losses, counts and metrics, summed over the measured examples of each domain.

    Attributes:
        losses: L^k: sum of the losses of each domain's examples, float32 [p].
        counts: Number of measured examples of each domain, int64 [p].
        metric_sums: Numerator and denominator of each metric by domain.
        trained: Number of trained examples of each domain, int64 [p]; () without a holdout.
    """

    losses: tf.Tensor
    counts: tf.Tensor
    metric_sums: OrderedDict[str, MetricSums]
    trained: Any = ()

    @property
    def trained_counts(self) -> tf.Tensor:
        """N^k: number of trained examples of each domain, int64 [p]."""
        return self.trained if self.is_held_out else self.counts

    @property
    def is_held_out(self) -> bool:
        """Whether the measured examples are held out of training."""
        return bool(tf.nest.flatten(self.trained))

    def trained_and_measured(self) -> tuple[tf.Tensor, Optional[tf.Tensor]]:
        """Returns the numbers of trained and of measured examples by domain, float32 [p] each.

        The second is None without a holdout, as all trained examples are measured.
        """
        measured = tf.cast(self.counts, tf.float32)
        if not self.is_held_out:
            return measured, None
        return tf.cast(self.trained, tf.float32), measured

    def mean_losses(self) -> tf.Tensor:
        """Returns L = sum(L^k) / N_t (lines 10, 11); 0 for a domain without measured examples.

        The paper's line 11 gives 0/0 for such a domain, but its section 4 sets L to zero.
        """
        return tf.math.divide_no_nan(self.losses, tf.cast(self.counts, tf.float32))

    def mean_loss(self, otherwise: tf.Tensor) -> tf.Tensor:
        """Returns the mean loss over all measured examples: F_k for the sums of one client.

        Args:
            otherwise: Result if no example is measured, float32 scalar.
        """
        count = tf.cast(tf.reduce_sum(self.counts), tf.float32)
        mean = tf.math.divide_no_nan(tf.reduce_sum(self.losses), count)
        return tf.where(count > 0, mean, otherwise)


def domain_counts(num_domains: int, clients: Clients) -> tf.Tensor:
    """Returns N^k: each client's number of examples of each domain, int64 [p] or [G, p]."""
    positions = tf.range(clients.capacity)
    ids, counted = clients.take(positions)["domain_id"], clients.has(positions)
    shape = tf.concat([tf.shape(clients.num_examples), [num_domains]], axis=0)
    return add_at(tf.zeros(shape, tf.int64), ids, tf.cast(counted, tf.int64))


def domain_sums_bounds(model: Model, limits: ClientLimits, is_held_out: bool = False) -> DomainSums:
    """Returns the bounds of one client's `DomainSums`, in the same structure."""
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
    """Returns each client's losses, counts and metric sums of each domain at `weights`.

    CLIENT lines 2 to 6. Datasets check that domain ids are in [0, p): an invalid id would add to
    another client's sums.

    Args:
        num_domains: Number of domains p.
        weights: w, the same for every client.
        batch_size: Examples of a client per step; affects only memory.
    """
    sums, _ = domain_sums_and_counts(model, num_domains, weights, clients, None, batch_size)
    return sums


class ExampleCounter(Protocol):
    """Counts further properties of examples and predictions while losses are measured."""

    def start(self, clients: Clients) -> Any:
        """Returns each client's counts before the first batch."""

    def examine(self, examples: Examples, predictions: Any) -> Any:
        """Returns the properties of one client's batch."""

    def add(self, total: Any, examples: Examples, is_present: tf.Tensor, results: Any) -> Any:
        """Adds the properties of a batch of all clients to their counts."""


def domain_sums_and_counts(
    model: Model,
    num_domains: int,
    weights: ModelWeights,
    clients: Clients,
    counter: Optional[ExampleCounter],
    batch_size: int = _BATCH_SIZE,
) -> tuple[DomainSums, Any]:
    """Returns the `domain_sums`, and each client's result of `counter`; () if `counter` is None."""

    def add_batch(batch: Batch, state: tuple[DomainSums, Any]) -> tuple[DomainSums, Any]:
        examples = clients.take(batch.positions)

        def measure_client(examples: Examples) -> tuple[ExampleMeasures, Any]:
            losses, predictions = model.example_losses(
                weights, examples, training=False, seed=tf.zeros([2], tf.int32)
            )
            results = () if counter is None else counter.examine(examples, predictions)
            return example_measures(model, examples, losses, predictions), results

        sums, total = state
        measures, results = clients.map(measure_client, examples)
        if counter is not None:
            total = counter.add(total, examples, batch.is_present, results)
        return add_to_domains(sums, examples["domain_id"], batch.is_present, measures), total

    counts = () if counter is None else counter.start(clients)
    initial = zero_sums(model, num_domains, clients), counts
    totals: tuple[DomainSums, Any] = clients.fold_batches(batch_size, add_batch, initial)
    return totals


class ExampleMeasures(NamedTuple):
    """Losses and metrics of n examples.

    Attributes:
        losses: Loss of each example, float32 [n].
        metrics: Numerator and denominator of each metric by example, float32 [n].
    """

    losses: tf.Tensor
    metrics: OrderedDict[str, MetricSums]


def example_measures(
    model: Model, batch: Examples, losses: tf.Tensor, predictions: tf.Tensor
) -> ExampleMeasures:
    """Returns losses and metrics of one client's batch, from its losses and predictions."""
    return ExampleMeasures(
        losses,
        OrderedDict(
            (metric.name, MetricSums(*metric.per_example(batch["y"], predictions)))
            for metric in model.metrics
        ),
    )


def zero_sums(model: Model, num_domains: int, clients: Clients) -> DomainSums:
    """Returns zero sums for each client: values [p], vectorised [G, p]."""
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
    """Adds losses, counts and metrics of a batch to each client's sums.

    Args:
        sums: Values [p], vectorised [G, p].
        domain_id: Domain of each example, int32 [b], vectorised [G, b].
        counted: Whether each example counts, boolean, in the shape of `domain_id`.
        batch: Losses and metrics, in the shape of `domain_id`.
    """

    def add(total: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        # Sum the batch first. Small losses added one by one to a large sum would be rounded away:
        # for a client with 20,000 examples the fourth digit would be wrong.
        values = tf.where(counted, values, tf.zeros_like(values))
        return total + add_at(tf.zeros_like(total), domain_id, values)

    return DomainSums(
        losses=add(sums.losses, batch.losses),
        counts=add(sums.counts, tf.cast(counted, tf.int64)),
        metric_sums=tf.nest.map_structure(add, sums.metric_sums, batch.metrics),
    )


def add_at(total: tf.Tensor, domain_id: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Adds values [b] to their domains' entries of a total [p]; vectorised [G, b] and [G, p].

    The cost grows with the number of examples, not with the number of domains.
    """
    num_domains = tf.shape(total)[-1]
    # In the flattened totals, the entries of client k start at k p.
    first = tf.range(tf.size(total) // num_domains) * num_domains
    positions = tf.reshape(first, tf.shape(total)[:-1])[..., tf.newaxis] + domain_id
    flat = tf.tensor_scatter_nd_add(
        tf.reshape(total, [-1]), tf.reshape(positions, [-1, 1]), tf.reshape(values, [-1])
    )
    return tf.reshape(flat, tf.shape(total))


@dataclasses.dataclass(frozen=True)
class Holdout:
    """Selects the examples that a client holds out of training.

    A client with n examples holds out `share` n of them, rounded up or down at random, with a mean
    of exactly `share` n. It never holds out all: a client with a single example trains on it and
    measures nothing. The random numbers are a hash of the run's seed, the client's number of
    examples, and its first and last example, so the split is the same in every round.

    Attributes:
        share: Fraction of held-out examples in [0, 1); with 0 no example is held out, and all are
            measured.
    """

    share: float = 0.0
    seed: int = 0

    @property
    def is_active(self) -> bool:
        """Whether measured and trained examples differ."""
        return self.share > 0

    def split(self, clients: Clients) -> tuple[Clients, Clients]:
        """Returns the clients twice: with their held-out, and with their training examples.

        The training examples keep their order.
        """
        seed = client_seeds(tf.constant([self.seed, _NO_ROUND], tf.int32), clients)
        num_examples, capacity = clients.num_examples, clients.capacity
        bits = uniform_bits(seed, _ROUNDING)
        num_kept_out = tf.minimum(
            self._scaled_by_share(num_examples, bits), _all_but_one(num_examples)
        )
        num_trained = num_examples - num_kept_out
        min_kept_out = tf.minimum(self._scaled_by_share(capacity), _all_but_one(capacity))
        drawn = random_order(seed, num_examples, capacity)
        kept_out = dataclasses.replace(
            clients,
            num_examples=num_kept_out,
            # Compute bounds only from the capacity, as XLA needs static shapes.
            capacity=tf.minimum(min_kept_out + 1, _all_but_one(capacity)),
            order=drawn,
        )
        trained = dataclasses.replace(
            clients,
            num_examples=num_trained,
            capacity=capacity - min_kept_out,
            order=_without_first(drawn, num_kept_out, num_examples),
        )
        return kept_out, trained

    def training(self, clients: Clients) -> Clients:
        """Returns the clients with their training examples."""
        return self.split(clients)[1] if self.is_active else clients

    def trained_part(
        self, counts: Sequence[float], kept_out: Optional[Sequence[float]] = None
    ) -> tuple[float, ...]:
        """Returns the expected numbers of trained examples by domain; all if none are held out.

        Args:
            counts: Number of examples of each domain.
            kept_out: Number of held-out examples of each domain; None to assume the fraction
                `share`, which is too high for clients with fewer than 1 / (1 - share) examples.
        """
        if not self.is_active:
            return tuple(counts)
        return tuple(n - k for n, k in zip(counts, self.measured_part(counts, kept_out)))

    def measured_part(
        self, counts: Sequence[float], kept_out: Optional[Sequence[float]] = None
    ) -> tuple[float, ...]:
        """Returns the expected numbers of measured examples by domain; all if none are held out."""
        if not self.is_active:
            return tuple(counts)
        return tuple(self.share * n for n in counts) if kept_out is None else tuple(kept_out)

    def _scaled_by_share(self, numbers: tf.Tensor, bits: int = 0) -> tf.Tensor:
        # Use integer arithmetic, which every compiler rounds in the same way.
        share = tf.constant(round(self.share * 2**UNIFORM_BITS), tf.int64)
        scaled = tf.cast(numbers, tf.int64) * share + tf.cast(bits, tf.int64)
        shifted = tf.bitwise.right_shift(scaled, tf.constant(UNIFORM_BITS, tf.int64))
        return tf.cast(shifted, tf.int32)


def _all_but_one(numbers: tf.Tensor) -> tf.Tensor:
    return tf.maximum(numbers, 1) - 1


def _without_first(order: tf.Tensor, num_first: tf.Tensor, num_examples: tf.Tensor) -> tf.Tensor:
    """Returns an order without its first `num_first` positions: sorted, and padded with zeros."""
    slots = tf.range(tf.shape(order)[-1])
    first, all_ = num_first[..., tf.newaxis], num_examples[..., tf.newaxis]
    is_left = (slots >= first) & (slots < all_)
    ascending = tf.sort(tf.where(is_left, order, tf.int32.max), axis=-1)
    return tf.where(slots < all_ - first, ascending, 0)


@dataclasses.dataclass(frozen=True)
class HoldoutOptions(Options):
    """Options of algorithms that may measure losses on held-out examples.

    Attributes:
        measured_share: Fraction of each client's examples that are held out of training, to measure
            the losses on which the algorithm acts. With 0, clients train and measure on all
            examples.
    """

    measured_share: Annotated[float, Within(least=0.0, below=1.0)] = 0.0

    def holdout(self, seed: int) -> Holdout:
        """Returns the holdout of a run; without held-out examples it is equal for all seeds."""
        return Holdout(self.measured_share, seed) if self.measured_share else NO_HOLDOUT


NO_HOLDOUT = Holdout()


@dataclasses.dataclass(frozen=True)
class LossOptions(HoldoutOptions):
    """Options of algorithms that do not need losses at w, so that they can measure while training.

    Attributes:
        measure_losses: When clients measure the losses on which the algorithm acts: in a separate
            pass over their examples (before_training); or, at no cost, during the first epoch of
            training, each example before the step of its batch (while_training).
    """

    measure_losses: Literal["before_training", "while_training"] = "before_training"

    def __post_init__(self) -> None:
        """Rejects a holdout if losses are measured while training."""
        super().__post_init__()
        if self.is_measured_while_training and self.measured_share > 0:
            expected = "before_training with measured_share, whose examples are not trained on"
            raise self.error("measure_losses", expected)

    @property
    def is_measured_while_training(self) -> bool:
        """Whether losses are measured during the first epoch of training."""
        return self.measure_losses == "while_training"


def measure_domains(
    model: Model, num_domains: int, weights: ModelWeights, clients: Clients, holdout: Holdout
) -> tuple[DomainSums, Clients]:
    """Measures clients on their held-out examples or, without a holdout, on all examples.

    CLIENT lines 2 to 6 of Algorithm 1.

    Args:
        num_domains: Number of domains p.
        weights: w, the same for every client.
        clients: The clients with all of their examples.
        holdout: Selects the held-out examples.

    Returns:
        The sums over the measured examples, and the clients with their training examples.
    """
    if not holdout.is_active:
        return domain_sums(model, num_domains, weights, clients), clients
    kept_out, training = holdout.split(clients)
    sums = domain_sums(model, num_domains, weights, kept_out)
    return sums._replace(trained=domain_counts(num_domains, training)), training
