"""Losses of domains from examples that clients keep out of their local training.

The domain pass of Ro et al. 2021 measures examples that are trained on: the losses of a domain with
few of them fall by heart, and lambda leaves it although it is not served well. Here each client
keeps a share of its examples apart, the same ones in every round, and measures those only.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Optional

import tensorflow as tf

from tff_agnostic.computations.client_group import ClientGroup, PerClient
from tff_agnostic.computations.client_update import domain_counts
from tff_agnostic.computations.domain_pass import domain_pass
from tff_agnostic.computations.seeds import UNIFORM_BITS, client_seeds, random_order, uniform_bits
from tff_agnostic.computations.structures import AnyDomainSums, DomainSumsApart
from tff_agnostic.models.functional import Model, ModelWeights
from tff_agnostic.settings import Settings, setting

# Seeds of a split are those of no round: it is the same in all of them.
_NO_ROUND = -1
# This use of such a seed; orders use those from 0.
_ROUNDING = -1


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
