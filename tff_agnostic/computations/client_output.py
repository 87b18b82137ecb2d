"""Output of a client after training: its fields, their bounds, and zeros if it is not finite."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Annotated, Any, Callable, NamedTuple, Optional

from tff_agnostic.aggregations.aggregation import Bound, ClientLimits
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OneOf, Options
from tff_agnostic.base.registry import Registry
from tff_agnostic.computations.clients import Clients
from tff_agnostic.computations.domain_losses import (
    NO_HOLDOUT,
    DomainSums,
    Holdout,
    MetricSums,
    domain_sums_bounds,
)
from tff_agnostic.models.model import Model, ModelWeights

# Placeholder for the field `clients` of an output, which `zero_if_not_finite` replaces.
UNCOUNTED: Any = ()

# Maximum client weight if a round's weights sum to about 1, as with lambda. A weight can exceed 1
# if the client's domains were rarer in earlier rounds.
MAX_ROUND_SHARE = 10.0

# Functions from a client's number of examples n_k to its weight p_k, up to a common factor.
CLIENT_WEIGHTINGS = Registry(
    "client weighting", {"examples": lambda n: n, "equal": lambda n: tf.ones_like(n)}
)


class ClientCounts(NamedTuple):
    """Outcome of one client: exactly one field is 1, the others are 0; int64 scalars.

    Attributes:
        contributed: 1 for a client with a positive weight.
        zero_weight: 1 for a client that has examples, but the weight 0 in this round's average.
        empty: 1 for a client without examples.
        non_finite: 1 for a client with a non-finite update, weight or loss; all other values of its
            output were set to zero.
    """

    contributed: tf.Tensor
    zero_weight: tf.Tensor
    empty: tf.Tensor
    non_finite: tf.Tensor


class TrainingOutput(NamedTuple):
    """A client's output after training; the server only sees the sum of each field.

    Attributes:
        weighted_delta: Weighted update beta^k (w - w^k), with the structure of the trainable
            weights.
        beta: Weight of the client, float32 scalar.
        extra: Further values that the algorithm sums, a named tuple; () if there are none.
        domain_losses: Total loss of each domain's examples, float32 [p], at w or during the first
            epoch of training. With a holdout, losses, counts and metrics cover only the held-out
            examples.
        domain_counts: Number of examples of each domain, int64 [p].
        metric_sums: Numerator and denominator of each metric by domain, float32 [p] each.
        clients: Outcome of the client, a count of 1 in one field.
        trained_counts: Number of trained examples of each domain, int64 [p]; () without a holdout.
    """

    weighted_delta: list[tf.Tensor]
    beta: tf.Tensor
    extra: Any
    domain_losses: tf.Tensor
    domain_counts: tf.Tensor
    metric_sums: OrderedDict[str, MetricSums]
    clients: ClientCounts
    trained_counts: Any = ()

    @property
    def domain_sums(self) -> DomainSums:
        """Losses, counts and metric sums by domain."""
        return DomainSums(
            self.domain_losses, self.domain_counts, self.metric_sums, self.trained_counts
        )


def client_weight(alpha: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Returns beta^k = sum_i alpha_i N_i^k (CLIENT line 6), float32 scalar."""
    return tf.reduce_sum(alpha * tf.cast(counts, tf.float32))


def training_output(
    weights: ModelWeights,
    trained: list[tf.Tensor],
    beta: tf.Tensor,
    sums: DomainSums,
    clients: Clients,
) -> TrainingOutput:
    """Returns the output of each client after training (CLIENT line 13).

    A client without examples, or with non-finite values, adds only zeros and a count in
    `ClientCounts`.

    Args:
        weights: Weights w at the start of training.
        trained: Trained weights w^k.
        beta: Client weight beta^k.
        sums: Losses, counts and metric sums of each domain.
    """

    def weighted_delta(trained: list[tf.Tensor], beta: tf.Tensor) -> list[tf.Tensor]:
        return [beta * (w - w_k) for w, w_k in zip(weights.trainable, trained)]

    return update_output(clients.map(weighted_delta, trained, beta), beta, sums, clients)


def update_output(
    weighted_delta: list[tf.Tensor],
    beta: tf.Tensor,
    sums: DomainSums,
    clients: Clients,
    extra: Any = (),
) -> TrainingOutput:
    """Returns each client's output, from its weighted update; see `training_output`."""
    output = _training_output(weighted_delta, beta, sums, UNCOUNTED, extra)
    sound: TrainingOutput = zero_if_not_finite(output, beta, clients)
    return sound


def _training_output(
    weighted_delta: Any, beta: Any, sums: DomainSums, clients: Any, extra: Any = ()
) -> TrainingOutput:
    domains = sums.losses, sums.counts, sums.metric_sums
    return TrainingOutput(weighted_delta, beta, extra, *domains, clients, sums.trained)


def all_finite(structure: Any) -> tf.Tensor:
    """Returns whether all real tensors in a structure are finite, a boolean scalar."""
    finite = [tf.reduce_all(tf.math.is_finite(value)) for value in tf.nest.flatten(structure)]
    return tf.reduce_all(tf.stack(finite)) if finite else tf.constant(True)


def zero_if_not_finite(output: Any, weight: tf.Tensor, clients: Clients) -> Any:
    """Sets outputs to zero for clients that could spoil a sum, and counts outcomes.

    Clients without examples, and clients with a non-finite value, could spoil a sum.

    Args:
        output: A named tuple; its field `clients` is `UNCOUNTED`, and becomes the `ClientCounts`.
        weight: Weight of each client; a client with a positive weight contributes.
    """
    is_finite = clients.map(all_finite, [v for v in tf.nest.flatten(output) if v.dtype.is_floating])
    is_empty = tf.equal(clients.num_examples, 0)
    counts = count_clients(is_finite, weight > 0, is_empty)
    kept = zero_unless(is_finite & ~is_empty, output)
    return kept._replace(clients=counts)


def count_clients(is_finite: tf.Tensor, has_weight: tf.Tensor, is_empty: tf.Tensor) -> ClientCounts:
    """Returns the outcome of each client; a client without examples never counts as non-finite."""
    is_finite |= is_empty

    def one_if(condition: tf.Tensor) -> tf.Tensor:
        return tf.cast(condition, tf.int64)

    return ClientCounts(
        contributed=one_if(is_finite & ~is_empty & has_weight),
        zero_weight=one_if(is_finite & ~is_empty & ~has_weight),
        empty=one_if(is_empty),
        non_finite=one_if(~is_finite),
    )


def zero_unless(is_kept: tf.Tensor, output: Any) -> Any:
    """Returns the output with zeros for all clients whose `is_kept` is false."""

    def masked(value: tf.Tensor) -> tf.Tensor:
        shape = [-1] * is_kept.shape.rank + [1] * (value.shape.rank - is_kept.shape.rank)
        return tf.where(tf.reshape(is_kept, shape), value, tf.zeros_like(value))

    # Avoid the copy in the usual case, in which all clients are kept.
    return tf.cond(
        tf.reduce_all(is_kept),
        lambda: output,
        lambda: tf.nest.map_structure(masked, output),
    )


def training_bounds(
    model: Model,
    max_weight: Optional[float] = None,
    expected_weight: Optional[float] = None,
    holdout: Holdout = NO_HOLDOUT,
    contributing: float = 1.0,
) -> Callable[[ClientLimits], TrainingOutput]:
    """Returns a function from a client's limits to the bounds of its `TrainingOutput`.

    Args:
        max_weight: Bound of a client's weight if the limits define none; None to use the maximum
            number of examples.
        expected_weight: Expected sum of the weights of a round; None if unknown.
        holdout: The examples that clients hold out of training.
        contributing: Expected fraction of a round's clients with a positive weight.
    """

    def bounds(limits: ClientLimits) -> TrainingOutput:
        max_beta = limits.beta(float(limits.examples) if max_weight is None else max_weight)
        # The server divides the sum of weighted deltas by the sum of weights, which gives the
        # average update.
        delta = Bound(max_beta * limits.update, signed=True, ratio="update")
        beta = Bound(
            max_beta,
            ratio="update",
            denominator=True,
            public_sum=expected_weight,
            contributing=contributing,
        )
        deltas = [delta for _ in model.initial_weights.trainable]
        sums = domain_sums_bounds(model, limits, holdout.is_active)
        return _training_output(deltas, beta, sums, client_counts_bounds())

    return bounds


def client_counts_bounds() -> ClientCounts:
    """Returns the bounds of `ClientCounts`."""
    one = Bound(1, integer=True, exclusive_group="clients")
    return ClientCounts(*[one] * len(ClientCounts._fields))


@dataclasses.dataclass(frozen=True)
class ClientWeightingOptions(Options):
    """Options of algorithms whose objective weights clients.

    Attributes:
        client_weighting: Weight of a client: its number of examples, or 1.
    """

    client_weighting: Annotated[str, OneOf(CLIENT_WEIGHTINGS)] = "examples"

    def largest_weight(self, limits: ClientLimits) -> float:
        """Returns the maximum client weight within the limits of an aggregation."""
        return 1.0 if self.client_weighting == "equal" else float(limits.examples)
