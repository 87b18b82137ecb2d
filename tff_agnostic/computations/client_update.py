"""What clients of most algorithms do: train, and send an update that spoils no sum.

The parts of CLIENT of Algorithm 1 (Ro et al. 2021) are in `domain_pass` and `local_training`; here
they are put together for algorithms without a domain pass, and an answer is made of them.
"""

from typing import Any

import tensorflow as tf

from tff_agnostic.computations.client_group import ClientGroup, PerClient, one_client
from tff_agnostic.computations.domain_pass import add_at
from tff_agnostic.computations.local_training import LocalTrainingOptions, local_training
from tff_agnostic.computations.structures import (
    AnyDomainSums,
    ClientCounts,
    TrainingBroadcast,
    TrainingOutput,
    all_finite,
    training_output,
)
from tff_agnostic.models.functional import Model, ModelWeights


def train_without_domain_pass(
    model: Model,
    num_domains: int,
    options: LocalTrainingOptions,
    broadcast: TrainingBroadcast,
    clients: ClientGroup,
    seed: tf.Tensor,
    per_client: PerClient = one_client,
    proximal: float = 0.0,
) -> TrainingOutput:
    """CLIENT where alpha never moves, so that no loss at w has to be known.

    Losses and metrics are those of the first epoch, each example's before its batch's step.
    """
    weights, alpha = broadcast
    counts = domain_counts(num_domains, clients)
    beta = per_client(lambda n_k: client_weight(alpha, n_k), counts)
    trained, sums = local_training(
        model,
        options,
        weights,
        clients,
        alpha,
        beta,
        seed,
        per_client,
        measured_domains=num_domains,
        proximal=proximal,
    )
    return training_outputs(weights, trained, beta, sums, clients, per_client)


def client_weight(alpha: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """CLIENT line 6: beta^k = sum_i alpha_i N_i^k, float32 scalar."""
    return tf.reduce_sum(alpha * tf.cast(counts, tf.float32))


def training_outputs(
    weights: ModelWeights,
    trained: list[tf.Tensor],
    beta: tf.Tensor,
    sums: AnyDomainSums,
    clients: ClientGroup,
    per_client: PerClient,
) -> Any:
    """CLIENT line 13: what each client returns, or zeros if any of it is not finite.

    It is a `TrainingOutput`, or a `TrainingOutputApart` if the sums are such.
    """

    def weighted(trained: list[tf.Tensor], beta: tf.Tensor) -> list[tf.Tensor]:
        return [beta * (w - w_k) for w, w_k in zip(weights.trainable, trained)]

    return update_outputs(per_client(weighted, trained, beta), beta, sums, clients, per_client)


def update_outputs(
    weighted_delta: list[tf.Tensor],
    beta: tf.Tensor,
    sums: AnyDomainSums,
    clients: ClientGroup,
    per_client: PerClient,
) -> Any:
    """Returns the same of updates that are weighted already.

    Args:
        weighted_delta: What each client adds to the sum, like the trainable weights.
        beta: Weight of each client.
        sums: What it has measured.
        clients: The clients.
        per_client: How functions of one client are applied.
    """
    output = training_output(weighted_delta, beta, sums, no_clients(clients))
    return only_sound(output, beta, clients, per_client)


def only_sound(output: Any, weight: tf.Tensor, clients: ClientGroup, per_client: PerClient) -> Any:
    """Returns answers in which clients that could spoil a sum add nothing but their count.

    A client without examples, or with a value that is not finite, sends zeros.

    Args:
        output: A named tuple with a field `clients` of `ClientCounts`, which is filled.
        weight: Weight of each client; where it is positive, the client contributes.
        clients: The clients.
        per_client: How functions of one client are applied.
    """
    is_finite = per_client(all_finite, [v for v in tf.nest.flatten(output) if v.dtype.is_floating])
    is_empty = tf.equal(clients.num_examples, 0)
    is_finite |= is_empty
    is_kept = is_finite & ~is_empty
    kept = zeros_unless(is_kept, output)
    has_weight = weight > 0

    def one_if(condition: tf.Tensor) -> tf.Tensor:
        return tf.cast(condition, tf.int64)

    return kept._replace(
        clients=ClientCounts(
            contributed=one_if(is_kept & has_weight),
            zero_weight=one_if(is_kept & ~has_weight),
            empty=one_if(is_empty),
            non_finite=one_if(~is_finite),
        )
    )


def zeros_unless(is_kept: tf.Tensor, output: Any) -> Any:
    """Returns an answer with zeros in place of all values of clients that are not kept."""

    def masked(value: tf.Tensor) -> tf.Tensor:
        shape = [-1] * is_kept.shape.rank + [1] * (value.shape.rank - is_kept.shape.rank)
        return tf.where(tf.reshape(is_kept, shape), value, tf.zeros_like(value))

    # Nearly always all are kept, and then nothing need be copied.
    return tf.cond(
        tf.reduce_all(is_kept),
        lambda: output,
        lambda: tf.nest.map_structure(masked, output),
    )


def domain_counts(num_domains: int, clients: ClientGroup) -> tf.Tensor:
    """Returns N^k: the number of each client's examples of each domain, int64 [p] or [G, p]."""
    positions = tf.range(clients.capacity)
    ids, counted = clients.take(positions)["domain_id"], clients.has(positions)
    shape = tf.concat([tf.shape(clients.num_examples), [num_domains]], axis=0)
    return add_at(tf.zeros(shape, tf.int64), ids, tf.cast(counted, tf.int64))


def no_clients(clients: ClientGroup) -> ClientCounts:
    """Returns counts of zero, in the shape of the clients, for `only_sound` to fill."""
    zeros = tf.cast(tf.zeros_like(clients.num_examples), tf.int64)
    return ClientCounts(zeros, zeros, zeros, zeros)
