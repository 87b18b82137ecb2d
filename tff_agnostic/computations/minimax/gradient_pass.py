"""A gradient of the weighted loss, and the losses of each domain, in one pass over the examples."""

from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_agnostic.computations.client_group import (
    ClientGroup,
    PerClient,
    batch_positions,
    one_client,
)
from tff_agnostic.computations.client_update import domain_counts
from tff_agnostic.computations.domain_pass import add_by_domain, measure_examples, zero_sums
from tff_agnostic.computations.seeds import example_order, fold_in, stateless_seed
from tff_agnostic.computations.structures import DomainSums
from tff_agnostic.models.functional import Examples, Model, ModelWeights

_BATCH_SIZE = 256


class GradientPass(NamedTuple):
    """What a client has measured at w.

    Attributes:
        gradient: Gradient of sum_j alpha_{i(j)} loss_j over its examples j of domains i(j), like
            the trainable weights.
        sums: Losses, counts and metric sums of each domain.
    """

    gradient: list[tf.Tensor]
    sums: DomainSums


def gradient_pass(
    model: Model,
    num_domains: int,
    weights: ModelWeights,
    clients: ClientGroup,
    alpha: tf.Tensor,
    seed: tf.Tensor,
    per_client: PerClient = one_client,
    sample_size: Optional[int] = None,
    batch_size: int = _BATCH_SIZE,
) -> GradientPass:
    """Returns each client's gradient at `weights`, and what was measured on the way.

    The model is in training mode: dropout is active in both, from `seed`.

    Args:
        model: The model.
        num_domains: p.
        weights: w, the same for every client.
        clients: One client, or many in step.
        alpha: Scale of each domain, float32 [p].
        seed: Seed of each client in this round, int64.
        per_client: How functions of one client are applied.
        sample_size: Examples of a client that are drawn, without replacement; all if None. Sums and
            gradients are then those of the sample times n_k over its size, so that their means over
            all draws are those of all examples; counts remain those of all examples.
        batch_size: Examples of a client per step; bounds the memory only.
    """
    used = clients.limited(sample_size)
    order = example_order(clients, seed, shuffle=sample_size is not None)
    inflation = tf.math.divide_no_nan(
        tf.cast(clients.num_examples, tf.float32), tf.cast(used.num_examples, tf.float32)
    )

    def add_batch(start: tf.Tensor, so_far: GradientPass) -> tuple[tf.Tensor, GradientPass]:
        positions = batch_positions(start, batch_size, used.capacity, per_client)
        counted = used.has(positions)
        last = tf.maximum(used.capacity - 1, 0)
        batch = clients.take(tf.gather(order, tf.minimum(positions, last), axis=-1))
        scale = tf.gather(alpha, batch["domain_id"]) * tf.cast(counted, tf.float32)

        def of_client(
            batch: Examples, scale: tf.Tensor, seed: tf.Tensor, gradient: list[tf.Tensor]
        ) -> Any:
            trainable = [tf.convert_to_tensor(w) for w in weights.trainable]
            with tf.GradientTape() as tape:
                tape.watch(trainable)
                losses, predictions = model.example_losses(
                    ModelWeights(trainable, weights.non_trainable),
                    batch,
                    training=True,
                    seed=stateless_seed(seed),
                )
                objective = tf.reduce_sum(scale * losses) * model.loss_scale
            steps = tape.gradient(
                objective, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            total = [
                g + tf.convert_to_tensor(step) / model.loss_scale
                for g, step in zip(gradient, steps)
            ]
            return total, measure_examples(model, batch, losses, predictions)

        gradient, measured = per_client(
            of_client, batch, scale, fold_in(seed, start), so_far.gradient
        )
        sums = add_by_domain(so_far.sums, batch["domain_id"], counted, measured)
        return start + batch_size, GradientPass(gradient, sums)

    zeros = per_client(
        lambda _: [tf.zeros_like(tf.convert_to_tensor(w)) for w in weights.trainable],
        clients.num_examples,
    )
    _, found = tf.while_loop(
        lambda start, _: start < used.capacity,
        add_batch,
        (tf.constant(0), GradientPass(zeros, zero_sums(model, num_domains, clients))),
    )
    if sample_size is None:
        return found

    def inflated(values: Any, factor: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda value: value * factor, values)

    gradient = per_client(inflated, found.gradient, inflation)
    losses = per_client(inflated, found.sums.losses, inflation)
    metric_sums = per_client(inflated, found.sums.metric_sums, inflation)
    counts = domain_counts(num_domains, clients)
    return GradientPass(gradient, DomainSums(losses, counts, metric_sums))
