"""CLIENT of Algorithm 1 (Ro et al. 2021): the domain pass, local training, what is returned."""

import dataclasses
from typing import Any, Callable

import tensorflow as tf

from tff_agnostic.computations.client_group import ClientGroup, Each, one_client
from tff_agnostic.computations.domain_pass import domain_pass
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
    return each(
        lambda *of_client: client_output(weights, *of_client),
        trained,
        beta,
        sums,
        clients.num_examples,
    )


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
    counts = _domain_counts(num_domains, clients, each)
    beta = each(lambda n_k: client_weight(alpha, n_k), counts)
    seed = client_seeds(round_seed, clients)
    trained, sums = local_training(
        model, params, weights, clients, alpha, beta, seed, each, measured_domains=num_domains
    )
    return each(
        lambda *of_client: client_output(weights, *of_client),
        trained,
        beta,
        sums,
        clients.num_examples,
    )


def client_weight(alpha: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """CLIENT line 6: beta^k = sum_i alpha_i N_i^k, float32 scalar."""
    return tf.reduce_sum(alpha * tf.cast(counts, tf.float32))


def client_output(
    weights: ModelWeights,
    trained: list[tf.Tensor],
    beta: tf.Tensor,
    sums: DomainSums,
    num_examples: tf.Tensor,
) -> ClientOutput:
    """CLIENT line 13: what one client returns, or zeros if any of it is not finite."""
    weighted_delta = [beta * (w - w_k) for w, w_k in zip(weights.trainable, trained)]
    output = ClientOutput(
        weighted_delta, beta, sums.losses, sums.counts, sums.metric_sums, _no_clients()
    )
    is_empty = tf.equal(num_examples, 0)
    is_finite = is_empty | all_finite([weighted_delta, beta, sums.losses, sums.metric_sums])
    kept = tf.nest.map_structure(
        lambda value: tf.where(is_finite & ~is_empty, value, tf.zeros_like(value)), output
    )

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


def _domain_counts(num_domains: int, clients: ClientGroup, each: Each) -> tf.Tensor:
    positions = tf.range(clients.capacity)
    domain_ids = clients.take(positions)["domain_id"]
    return each(
        lambda ids, counted: tf.math.unsorted_segment_sum(
            tf.cast(counted, tf.int64), ids, num_domains
        ),
        domain_ids,
        clients.has(positions),
    )


def _no_clients() -> Any:
    zero = tf.constant(0, tf.int64)
    return ClientCounts(zero, zero, zero, zero)
