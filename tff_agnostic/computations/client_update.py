"""CLIENT of Algorithm 1 (Ro et al. 2021): the domain pass, local training, what is returned."""

import dataclasses
from typing import Any, Callable

import tensorflow as tf

from tff_agnostic.computations.client_group import ClientGroup, Each, one_client
from tff_agnostic.computations.domain_pass import add_at, domain_pass
from tff_agnostic.computations.local_training import LocalTrainingParams, local_training
from tff_agnostic.computations.seeds import client_seeds
from tff_agnostic.computations.structures import (
    ClientCounts,
    ClientInput,
    ClientOutput,
    DomainSums,
    all_finite,
)
from tff_agnostic.models.functional import Model, ModelWeights


@dataclasses.dataclass(frozen=True)
class ClientUpdateOf:
    """One of the functions below with its parameters, as `FederatedAlgorithm` wants it.

    It equals another with the same function and parameters, so that runtimes need not trace both.
    """

    fn: Callable[..., ClientOutput]
    model: Model
    num_domains: int
    params: LocalTrainingParams

    def __call__(
        self, client_input: ClientInput, clients: ClientGroup, each: Each = one_client
    ) -> ClientOutput:
        """Returns what each client sends."""
        return self.fn(self.model, self.num_domains, self.params, client_input, clients, each)


def client_update(
    model: Model,
    num_domains: int,
    params: LocalTrainingParams,
    client_input: ClientInput,
    clients: ClientGroup,
    each: Each = one_client,
) -> ClientOutput:
    """CLIENT of Algorithm 1.

    A client without examples, or whose update, weight or losses are not finite, adds nothing to any
    sum but the count of such clients.
    """
    weights, alpha, round_seed = client_input
    # L^k, N^k
    sums = domain_pass(model, num_domains, weights, clients, params.domain_pass_batch_size, each)
    # beta^k
    beta = each(lambda n_k: client_weight(alpha, n_k), sums.counts)
    seed = client_seeds(round_seed, clients)
    # w^k
    trained, _ = local_training(model, params, weights, clients, alpha, beta, seed, each)
    return client_outputs(weights, trained, beta, sums, clients, each)


def client_update_without_domain_pass(
    model: Model,
    num_domains: int,
    params: LocalTrainingParams,
    client_input: ClientInput,
    clients: ClientGroup,
    each: Each = one_client,
) -> ClientOutput:
    """The same where alpha never moves, so that no loss at w has to be known.

    Losses and metrics are those of the first epoch, each example's before its batch's step.
    """
    weights, alpha, round_seed = client_input
    counts = _domain_counts(num_domains, clients)
    beta = each(lambda n_k: client_weight(alpha, n_k), counts)
    seed = client_seeds(round_seed, clients)
    trained, sums = local_training(
        model, params, weights, clients, alpha, beta, seed, each, measured_domains=num_domains
    )
    return client_outputs(weights, trained, beta, sums, clients, each)


def client_weight(alpha: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """CLIENT line 6: beta^k = sum_i alpha_i N_i^k, float32 scalar."""
    return tf.reduce_sum(alpha * tf.cast(counts, tf.float32))


def client_outputs(
    weights: ModelWeights,
    trained: list[tf.Tensor],
    beta: tf.Tensor,
    sums: DomainSums,
    clients: ClientGroup,
    each: Each,
) -> ClientOutput:
    """CLIENT line 13: what each client returns, or zeros if any of it is not finite."""

    def of_client(trained: list[tf.Tensor], beta: tf.Tensor, sums: DomainSums) -> Any:
        weighted_delta = [beta * (w - w_k) for w, w_k in zip(weights.trainable, trained)]
        finite = all_finite([weighted_delta, beta, sums.losses, sums.metric_sums])
        return weighted_delta, finite

    weighted_delta, is_finite = each(of_client, trained, beta, sums)
    is_empty = tf.equal(clients.num_examples, 0)
    is_finite |= is_empty
    output = ClientOutput(
        weighted_delta, beta, sums.losses, sums.counts, sums.metric_sums, _no_clients(beta)
    )
    kept = _zeros_unless(is_finite & ~is_empty, output)

    def one_if(condition: tf.Tensor) -> tf.Tensor:
        return tf.cast(condition, tf.int64)

    return kept._replace(
        clients=ClientCounts(
            contributed=one_if(is_finite & (kept.beta > 0)),
            zero_weight=one_if(is_finite & ~is_empty & (kept.beta <= 0)),
            empty=one_if(is_empty),
            non_finite=one_if(~is_finite),
        )
    )


def _zeros_unless(is_kept: tf.Tensor, output: ClientOutput) -> ClientOutput:
    """Returns an output with zeros in place of all values of clients that are not kept."""

    def masked(value: tf.Tensor) -> tf.Tensor:
        rank_difference = value.shape.rank - is_kept.shape.rank
        shape = tf.concat([tf.shape(is_kept), [1] * rank_difference], axis=0)
        return tf.where(tf.reshape(is_kept, shape), value, tf.zeros_like(value))

    # Nearly always all are kept, and then nothing need be copied.
    return tf.cond(
        tf.reduce_all(is_kept),
        lambda: output,
        lambda: tf.nest.map_structure(masked, output),
    )


def _domain_counts(num_domains: int, clients: ClientGroup) -> tf.Tensor:
    positions = tf.range(clients.capacity)
    ids, counted = clients.take(positions)["domain_id"], clients.has(positions)
    shape = tf.concat([tf.shape(clients.num_examples), [num_domains]], axis=0)
    return add_at(tf.zeros(shape, tf.int64), ids, tf.cast(counted, tf.int64))


def _no_clients(beta: tf.Tensor) -> ClientCounts:
    zeros = tf.zeros_like(beta, tf.int64)
    return ClientCounts(zeros, zeros, zeros, zeros)
