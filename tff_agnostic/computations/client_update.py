"""CLIENT of Algorithm 1 (Ro et al. 2021): the domain pass, local training, what is returned."""

import tensorflow as tf

from tff_agnostic.computations.domain_pass import domain_pass
from tff_agnostic.computations.local_training import LocalTrainingParams, local_training
from tff_agnostic.computations.seeds import fingerprint, fold_in
from tff_agnostic.computations.structures import (
    ClientCounts,
    ClientInput,
    ClientOutput,
    all_finite,
)
from tff_agnostic.models.functional import Examples, Model, num_examples


def client_update(
    model: Model,
    num_domains: int,
    params: LocalTrainingParams,
    client_input: ClientInput,
    examples: Examples,
) -> ClientOutput:
    """CLIENT of Algorithm 1 on one client's data.

    A client without examples, or whose update, weight or losses are not finite, adds nothing to any
    sum but the count of such clients.
    """
    weights, alpha, round_seed = client_input
    # L^k, N^k
    sums = domain_pass(model, num_domains, weights, examples, params.domain_pass_batch_size)
    # beta^k
    beta = tf.tensordot(alpha, tf.cast(sums.counts, tf.float32), axes=1)
    seed = fold_in(round_seed, fingerprint(examples))
    # w^k
    trained = local_training(model, params, weights, examples, alpha, beta, seed)

    weighted_delta = [beta * (w - w_k) for w, w_k in zip(weights.trainable, trained)]
    output = ClientOutput(
        weighted_delta, beta, sums.losses, sums.counts, sums.metric_sums, _no_clients()
    )
    is_empty = tf.equal(num_examples(examples), 0)
    is_finite = all_finite([weighted_delta, beta, sums.losses, sums.metric_sums])
    kept = tf.nest.map_structure(
        lambda value: tf.where(is_finite, value, tf.zeros_like(value)), output
    )

    def one_if(condition: tf.Tensor) -> tf.Tensor:
        return tf.cast(condition, tf.int64)

    return kept._replace(
        clients=ClientCounts(
            contributed=one_if(is_finite & (beta > 0)),
            zero_weight=one_if(is_finite & ~is_empty & (beta <= 0)),
            empty=one_if(is_empty),
            non_finite=one_if(~is_finite),
        )
    )


def _no_clients() -> ClientCounts:
    zero = tf.constant(0, tf.int64)
    return ClientCounts(zero, zero, zero, zero)
