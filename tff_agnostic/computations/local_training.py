"""Local SGD, and one full gradient, over the examples of each client."""

import dataclasses
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_agnostic.computations.clients import (
    ClientGroup,
    PerClient,
    batch_positions,
    example_order,
    one_client,
)
from tff_agnostic.computations.domain_losses import (
    DomainSums,
    add_by_domain,
    domain_counts,
    measure_examples,
    zero_sums,
)
from tff_agnostic.models.model import Examples, Model, ModelWeights
from tff_agnostic.registry import Registry
from tff_agnostic.settings import Settings, setting
from tff_agnostic.stateless_random import fold_in, stateless_seed

_BATCH_SIZE = 256


def _by_client(beta: tf.Tensor, batch_weight: tf.Tensor) -> tf.Tensor:
    del batch_weight
    return beta


def _by_batch(beta: tf.Tensor, batch_weight: tf.Tensor) -> tf.Tensor:
    del beta
    return batch_weight


# (beta^k, sum of alpha over the batch) -> divisor of the batch's weighted loss. "client" is line 10
# as printed: one epoch is about one step on the client's mean loss. "batch" is the mean over the
# batch, as in McMahan et al. 2017: as many such steps as there are batches.
NORMALIZERS = Registry("batch normalizer", {"client": _by_client, "batch": _by_batch})


@dataclasses.dataclass(frozen=True)
class LocalTrainingOptions(Settings):
    """How a client trains; part of the settings of every algorithm whose clients train.

    Attributes:
        client_learning_rate: gamma_w of plain SGD (CLIENT line 10); positive.
        client_epochs: E.
        batch_size: B; the last batch of an epoch may be smaller.
        batch_normalizer: Member of `NORMALIZERS`: what the weighted loss of a batch is divided by.
        shuffle: Draw a new order of the examples for each epoch; otherwise they keep theirs.
    """

    client_learning_rate: float = setting(0.1, "gamma_w of the clients' SGD.", positive=True)
    client_epochs: int = setting(
        1,
        "E, passes over a client's data in a round.",
        at_least=1,
        # A round is not interrupted, and one of more would not end.
        at_most=100_000,
    )
    batch_size: int = setting(
        20,
        "B, examples of one SGD step; a client with fewer takes all of them at once.",
        at_least=1,
    )
    batch_normalizer: str = setting(
        "client",
        "What a batch's loss is divided by: the weight of the whole client (as in Ro et al. 2021: "
        "one epoch is about one step on the client's mean loss), or the batch's own (as in "
        "McMahan et al. 2017: as many such steps as there are batches).",
        choices=NORMALIZERS,
    )
    shuffle: bool = setting(True, "Whether clients shuffle their examples before each epoch.")


def local_training(
    model: Model,
    options: LocalTrainingOptions,
    weights: ModelWeights,
    clients: ClientGroup,
    alpha: tf.Tensor,
    beta: tf.Tensor,
    seed: tf.Tensor,
    per_client: PerClient = one_client,
    measured_domains: Optional[int] = None,
    proximal: float = 0.0,
) -> "LocalTraining":
    """CLIENT lines 7 to 12: E epochs of SGD from `weights`.

    Args:
        model: The model.
        options: How to train.
        weights: w, where training starts, the same for every client.
        clients: One client, or many in step.
        alpha: Scale of each domain, float32 [p].
        beta: Weight of each client, float32; 0 leaves the weights as they are.
        seed: Seed of each client in this round, int64.
        per_client: How functions of one client are applied.
        measured_domains: p, to measure losses and metrics per domain in the first epoch.
        proximal: mu of a term mu / 2 ||w^k - w||^2 of the client's objective, of which each batch
            has its share (FedProx, Li et al. 2020): all of it where a batch's loss is divided by
            the batch's own weight.
    """
    normalize = NORMALIZERS[options.batch_normalizer]

    def train_batch(epoch: tf.Tensor, start: tf.Tensor, order: tf.Tensor, state: Any) -> Any:
        positions = batch_positions(start, options.batch_size, clients.capacity, per_client)
        present = clients.has(positions)
        last = clients.capacity - 1
        batch = clients.take(tf.gather(order, tf.minimum(positions, last), axis=-1))
        # alpha_i of each example's domain i. Past a client's last example it is 0, and so is the
        # gradient.
        scale = tf.gather(alpha, batch["domain_id"]) * tf.cast(present, tf.float32)
        batch_seed = fold_in(fold_in(seed, epoch), start)

        def sgd_step(
            batch: Examples,
            scale: tf.Tensor,
            beta: tf.Tensor,
            seed: tf.Tensor,
            trained: list[tf.Tensor],
        ) -> tuple[list[tf.Tensor], Any]:
            with tf.GradientTape() as tape:
                tape.watch(trained)
                losses, predictions = model.example_losses(
                    ModelWeights(trained, weights.non_trainable),
                    batch,
                    training=True,
                    seed=stateless_seed(seed),
                )
                batch_weight = tf.reduce_sum(scale)
                divisor = normalize(beta, batch_weight)
                objective = tf.math.divide_no_nan(tf.reduce_sum(scale * losses), divisor)
                # Scaled here, the gradients come out as steps: no further pass over the weights.
                objective *= options.client_learning_rate * model.loss_scale
            steps = tape.gradient(
                objective, trained, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            next_trained = [
                _minus(w, step, model.loss_scale, per_client) for w, step in zip(trained, steps)
            ]
            if proximal:
                # Of the term's gradient, mu (w^k - w): none where a client has no examples left.
                pull = (
                    options.client_learning_rate
                    * proximal
                    * tf.math.divide_no_nan(batch_weight, divisor)
                )
                next_trained = [
                    after - pull * (before - tf.convert_to_tensor(anchor))
                    for after, before, anchor in zip(next_trained, trained, weights.trainable)
                ]
            is_measured = measured_domains is not None
            return next_trained, (
                measure_examples(model, batch, losses, predictions) if is_measured else ()
            )

        trained, measured = per_client(sgd_step, batch, scale, beta, batch_seed, state.trained)
        sums = state.sums
        if measured_domains is not None:
            counted = present & tf.equal(epoch, 0)
            sums = add_by_domain(sums, batch["domain_id"], counted, measured)
        return LocalTraining(trained, sums)

    def train_epoch(epoch: tf.Tensor, state: Any) -> tuple:
        order = example_order(clients, fold_in(seed, epoch), options.shuffle)
        _, state = tf.while_loop(
            lambda start, _: start < clients.capacity,
            lambda start, state: (
                start + options.batch_size,
                train_batch(epoch, start, order, state),
            ),
            (tf.constant(0), state),
        )
        return epoch + 1, state

    initial = LocalTraining(
        per_client(
            lambda _: [tf.convert_to_tensor(w) for w in weights.trainable], clients.num_examples
        ),
        () if measured_domains is None else zero_sums(model, measured_domains, clients),
    )
    _, final = tf.while_loop(
        lambda epoch, _: epoch < options.client_epochs, train_epoch, (tf.constant(0), initial)
    )
    return final


class LocalTraining(NamedTuple):
    """What a client has after its training.

    Attributes:
        trained: w^k, the trained weights.
        sums: `DomainSums` of its examples as the first epoch met them, each with the weights before
            its batch's step; empty unless they were asked for.
    """

    trained: list[tf.Tensor]
    sums: Any


def _minus(weight: tf.Tensor, step: Any, loss_scale: float, per_client: PerClient) -> tf.Tensor:
    if isinstance(step, tf.IndexedSlices) and not (per_client.in_step or per_client.fixed_shapes):
        # The rows of an embedding that a batch has: the others need not even be read.
        return minus_rows(weight, step.indices, _unscaled(step.values, loss_scale))
    return weight - _unscaled(tf.convert_to_tensor(step), loss_scale)


def _unscaled(step: tf.Tensor, loss_scale: float) -> tf.Tensor:
    # Not divided by 1: that would be another pass over all weights.
    return step if loss_scale == 1.0 else step / loss_scale


def minus_rows(weight: tf.Tensor, rows: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns a weight [n, ...] without `values` [b, ...] in its rows [b], which may be repeated.

    What a row loses is summed first: taken away one by one, each would be rounded to the precision
    of the weight, and a step made of many small ones could be lost as a whole.
    """
    distinct, positions = tf.unique(rows)
    totals = tf.math.unsorted_segment_sum(values, positions, tf.size(distinct))
    return tf.tensor_scatter_nd_sub(weight, distinct[:, tf.newaxis], totals)


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
