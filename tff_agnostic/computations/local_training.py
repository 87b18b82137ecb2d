"""Local SGD, and one full gradient, over the examples of each client."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Callable, Literal, NamedTuple, Optional

from tff_agnostic.base.later import tf
from tff_agnostic.base.options import Options, Within
from tff_agnostic.base.stateless_random import fold_in, stateless_seed
from tff_agnostic.computations.clients import Batch, ClientMap, Clients
from tff_agnostic.computations.domain_losses import (
    DomainSums,
    add_to_domains,
    domain_counts,
    example_measures,
    zero_sums,
)
from tff_agnostic.computations.schedules import Constant, Rate, Schedule
from tff_agnostic.models.model import Examples, Model, ModelWeights

_BATCH_SIZE = 256

# (beta^k, sum of alpha over the batch) -> divisor of the batch's weighted loss. "client" is line 10
# as printed: one epoch is about one step on the client's mean loss. "batch" is the mean over the
# batch, as in McMahan et al. 2017: as many such steps as there are batches.
_NORMALIZERS: Mapping[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "client": lambda beta, batch_weight: beta,
    "batch": lambda beta, batch_weight: batch_weight,
}


@dataclasses.dataclass(frozen=True)
class ClientTraining(Options):
    """How clients train.

    Attributes:
        learning_rate: Learning rate of the clients' SGD (gamma_w).
        epochs: Passes over a client's examples in a round (E).
        batch_size: Examples in an SGD step (B); a client with fewer takes all at once.
        normalizer: Divisor of a batch's loss: the weight of the whole client, so that an epoch is
            about one step (client; Ro et al. 2021), or of the batch, so that each batch is one
            (batch; McMahan et al. 2017).
        shuffle: Whether clients shuffle their examples before each epoch.
        schedule: How gamma_w falls from round to round.
    """

    learning_rate: Annotated[float, Within(above=0)] = 0.1
    epochs: Annotated[int, Within(least=1, most=100_000)] = 1
    batch_size: Annotated[int, Within(least=1)] = 20
    normalizer: Literal["client", "batch"] = "client"
    shuffle: bool = True
    schedule: Schedule = Constant()

    @property
    def rate(self) -> Rate:
        """gamma_w by round."""
        return Rate(self.learning_rate, self.schedule)


class LocalTraining(NamedTuple):
    """What a client has after its training.

    Attributes:
        trained: w^k, the trained weights.
        sums: `DomainSums` of its examples as the first epoch met them, each with the weights before
            its batch's step; () unless they were asked for.
    """

    trained: list[tf.Tensor]
    sums: Any


def local_sgd(
    model: Model,
    options: ClientTraining,
    weights: ModelWeights,
    clients: Clients,
    alpha: tf.Tensor,
    beta: tf.Tensor,
    measured_domains: Optional[int] = None,
    proximal: float = 0.0,
) -> LocalTraining:
    """CLIENT lines 7 to 12: E epochs of SGD from `weights`.

    Args:
        options: How to train.
        weights: w, where training starts, the same for every client.
        clients: The clients with the examples that they train on.
        alpha: Scale of each domain, float32 [p].
        beta: Weight of each client, float32; 0 leaves the weights as they are.
        measured_domains: p, to measure losses and metrics per domain in the first epoch.
        proximal: mu of a term mu / 2 ||w^k - w||^2 of the client's objective; each batch has its
            share of the term (FedProx, Li et al. 2020), and all of it where a batch's loss is
            divided by the batch's own weight.
    """
    normalize = _NORMALIZERS[options.normalizer]
    # gamma_t
    rate = options.rate.at(clients.round_num, model.loss_scale)
    proximal_rate = options.rate.at(clients.round_num, proximal)

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
            objective *= rate
        steps = tape.gradient(
            objective, trained, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        next_trained = [
            _minus(w, step, model.loss_scale, clients.map_) for w, step in zip(trained, steps)
        ]
        if proximal:
            # Of the term's gradient, mu (w^k - w): none where a client has no examples left.
            pull = proximal_rate * tf.math.divide_no_nan(batch_weight, divisor)
            next_trained = [
                after - pull * (before - tf.convert_to_tensor(anchor))
                for after, before, anchor in zip(next_trained, trained, weights.trainable)
            ]
        if model.constraint is not None:
            # A client without examples left takes no step.
            next_trained = [
                tf.where(batch_weight > 0, met, after)
                for met, after in zip(model.constraint(next_trained), next_trained)
            ]
        is_measured = measured_domains is not None
        return next_trained, (
            example_measures(model, batch, losses, predictions) if is_measured else ()
        )

    def train_epoch(epoch: tf.Tensor, state: LocalTraining) -> tuple[tf.Tensor, LocalTraining]:
        order = clients.example_order(fold_in(clients.seed, epoch), options.shuffle)

        def train_batch(batch: Batch, state: LocalTraining) -> LocalTraining:
            last = clients.capacity - 1
            examples = clients.take(tf.gather(order, tf.minimum(batch.positions, last), axis=-1))
            # alpha_i of each example's domain i. Past a client's last example it is 0, and so is
            # the gradient.
            scale = tf.gather(alpha, examples["domain_id"])
            scale *= tf.cast(batch.is_present, tf.float32)
            seed = fold_in(fold_in(clients.seed, epoch), batch.start)
            trained, measures = clients.map(sgd_step, examples, scale, beta, seed, state.trained)
            sums = state.sums
            if measured_domains is not None:
                counted = batch.is_present & tf.equal(epoch, 0)
                sums = add_to_domains(sums, examples["domain_id"], counted, measures)
            return LocalTraining(trained, sums)

        return epoch + 1, clients.fold_batches(options.batch_size, train_batch, state)

    initial = LocalTraining(
        clients.map(
            lambda _: [tf.convert_to_tensor(w) for w in weights.trainable], clients.num_examples
        ),
        () if measured_domains is None else zero_sums(model, measured_domains, clients),
    )
    _, final = tf.while_loop(
        lambda epoch, _: epoch < options.epochs, train_epoch, (tf.constant(0), initial)
    )
    return final


def _minus(weight: tf.Tensor, step: Any, loss_scale: float, map_: ClientMap) -> tf.Tensor:
    if isinstance(step, tf.IndexedSlices) and not (map_.is_vectorised or map_.fixed_shapes):
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
    clients: Clients,
    alpha: tf.Tensor,
    sample_size: Optional[int] = None,
    batch_size: int = _BATCH_SIZE,
) -> GradientPass:
    """Returns each client's gradient at `weights`, and what was measured on the way.

    The model is in training mode: dropout is active in both, from the clients' seeds.

    Args:
        num_domains: p.
        weights: w, the same for every client.
        clients: The clients with the examples that they train on.
        alpha: Scale of each domain, float32 [p].
        sample_size: Examples of a client that are drawn, without replacement; all if None. Sums and
            gradients are then those of the sample times n_k over its size, so that their means over
            all draws are those of all examples; counts remain those of all examples.
        batch_size: Examples of a client per step; bounds the memory only.
    """
    used = clients.limited(sample_size)
    order = clients.example_order(clients.seed, shuffle=sample_size is not None)
    inflation = tf.math.divide_no_nan(
        tf.cast(clients.num_examples, tf.float32), tf.cast(used.num_examples, tf.float32)
    )

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
            g + tf.convert_to_tensor(step) / model.loss_scale for g, step in zip(gradient, steps)
        ]
        return total, example_measures(model, batch, losses, predictions)

    def add_batch(batch: Batch, so_far: GradientPass) -> GradientPass:
        last = tf.maximum(used.capacity - 1, 0)
        examples = clients.take(tf.gather(order, tf.minimum(batch.positions, last), axis=-1))
        scale = tf.gather(alpha, examples["domain_id"]) * tf.cast(batch.is_present, tf.float32)
        seed = fold_in(clients.seed, batch.start)
        gradient, measures = clients.map(of_client, examples, scale, seed, so_far.gradient)
        sums = add_to_domains(so_far.sums, examples["domain_id"], batch.is_present, measures)
        return GradientPass(gradient, sums)

    zeros = clients.map(
        lambda _: [tf.zeros_like(tf.convert_to_tensor(w)) for w in weights.trainable],
        clients.num_examples,
    )
    initial = GradientPass(zeros, zero_sums(model, num_domains, clients))
    found: GradientPass = used.fold_batches(batch_size, add_batch, initial)
    if sample_size is None:
        return found

    def inflated(values: Any, factor: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda value: value * factor, values)

    return GradientPass(
        clients.map(inflated, found.gradient, inflation),
        DomainSums(
            losses=clients.map(inflated, found.sums.losses, inflation),
            counts=domain_counts(num_domains, clients),
            metric_sums=clients.map(inflated, found.sums.metric_sums, inflation),
        ),
    )
