"""Client work on local examples: SGD, or one gradient over all examples."""

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

# Functions (beta^k, sum of alpha over the batch) -> divisor of the batch's weighted loss. "client"
# is line 10 of Ro et al. 2021: all steps of an epoch amount to about one step on the client's mean
# loss. "batch" gives the mean over the batch (McMahan et al. 2017): each batch takes a full step.
_NORMALIZERS: Mapping[str, Callable[[tf.Tensor, tf.Tensor], tf.Tensor]] = {
    "client": lambda beta, batch_weight: beta,
    "batch": lambda beta, batch_weight: batch_weight,
}


@dataclasses.dataclass(frozen=True)
class ClientTraining(Options):
    """Options of local training.

    Attributes:
        learning_rate: Learning rate of the clients' SGD (gamma_w).
        epochs: Passes over a client's examples in a round (E).
        batch_size: Number of examples in an SGD step (B); a client with fewer examples uses all in
            one step.
        normalizer: Divisor of a batch's loss: the client's weight, so that all steps of an epoch
            amount to about one step (client; Ro et al. 2021), or the batch's weight, so that each
            batch is a full step (batch; McMahan et al. 2017).
        shuffle: Whether clients shuffle their examples before each epoch.
        schedule: Schedule of gamma_w over the rounds.

    Source:
        McMahan et al. 2017, ClientUpdate; Ro et al. 2021, Algorithm 1, lines 6 to 10 of the client.

    Example:
        >>> ClientTraining(learning_rate=0.3, batch_size=8, normalizer="batch").rate
        Rate(first=0.3, schedule=Constant())
    """

    learning_rate: Annotated[float, Within(above=0)] = 0.1
    epochs: Annotated[int, Within(least=1, most=100_000)] = 1
    batch_size: Annotated[int, Within(least=1)] = 20
    normalizer: Literal["client", "batch"] = "client"
    shuffle: bool = True
    schedule: Schedule = Constant()

    @property
    def rate(self) -> Rate:
        """Learning rate gamma_w by round."""
        return Rate(self.learning_rate, self.schedule)


class LocalTraining(NamedTuple):
    """Result of a client's training.

    Attributes:
        trained: w^k, the trained weights.
        sums: `DomainSums` of the first epoch, in which each example is measured before its batch's
            step; () if not requested.
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
    """Runs E epochs of SGD from `weights` (CLIENT lines 7 to 12).

    Args:
        weights: Weights w at the start of training, the same for every client.
        clients: The clients with their training examples.
        alpha: Scale of each domain, float32 [p].
        beta: Weight of each client, float32; with 0 the model does not change.
        measured_domains: Number of domains p, to measure losses and metrics per domain in the first
            epoch; None to skip.
        proximal: mu of a term mu / 2 ||w^k - w||^2 of the client's objective (FedProx, Li et al.
            2020). With the normalizer "client" each batch has its fraction of the term; with
            "batch", the full term.
    """
    normalize = _NORMALIZERS[options.normalizer]
    # gamma_t, times the loss scale
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
            # Scale the loss by the rate, so that gradients already are steps: this saves a
            # pass over the weights.
            objective *= rate
        steps = tape.gradient(
            objective, trained, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        next_trained = [
            _minus(w, step, model.loss_scale, clients.map_) for w, step in zip(trained, steps)
        ]
        if proximal:
            # Step along the proximal term's gradient mu (w^k - w); 0 without examples.
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
            # Scale each example by its domain's alpha, and by 0 past a client's last example.
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
        # Change only the embedding rows that a batch uses; other rows are not even read.
        return minus_rows(weight, step.indices, _unscaled(step.values, loss_scale))
    return weight - _unscaled(tf.convert_to_tensor(step), loss_scale)


def _unscaled(step: tf.Tensor, loss_scale: float) -> tf.Tensor:
    # Avoid a division by 1, which would be another pass over all weights.
    return step if loss_scale == 1.0 else step / loss_scale


def minus_rows(weight: tf.Tensor, rows: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Subtracts `values` [b, ...] from `rows` [b] of a weight [n, ...]; rows may be repeated.

    Values of the same row are summed first. Subtracted one by one, each would be rounded to the
    weight's precision, so that many small values could vanish.
    """
    distinct, positions = tf.unique(rows)
    totals = tf.math.unsorted_segment_sum(values, positions, tf.size(distinct))
    return tf.tensor_scatter_nd_sub(weight, distinct[:, tf.newaxis], totals)


class GradientPass(NamedTuple):
    """Gradient and sums of a client at w.

    Attributes:
        gradient: Gradient of the client's total loss, in which each example is scaled by its
            domain's alpha; in the structure of the trainable weights.
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
    """Returns each client's gradient at `weights`, with the losses and counts of the same pass.

    The model is in training mode: dropout affects gradient and losses.

    Args:
        num_domains: Number of domains p.
        weights: w, the same for every client.
        clients: The clients with their training examples.
        alpha: Scale of each domain, float32 [p].
        sample_size: Number of examples to draw per client, without replacement; all if None. Losses
            and gradients of the sample are scaled by n_k over the sample size, which makes them
            unbiased; counts cover all examples.
        batch_size: Examples of a client per step; affects only memory.
    """
    used = clients.limited(sample_size)
    order = clients.example_order(clients.seed, shuffle=sample_size is not None)
    inflation = tf.math.divide_no_nan(
        tf.cast(clients.num_examples, tf.float32), tf.cast(used.num_examples, tf.float32)
    )

    def client_gradient(
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
        gradient, measures = clients.map(client_gradient, examples, scale, seed, so_far.gradient)
        sums = add_to_domains(so_far.sums, examples["domain_id"], batch.is_present, measures)
        return GradientPass(gradient, sums)

    zeros = clients.map(
        lambda _: [tf.zeros_like(tf.convert_to_tensor(w)) for w in weights.trainable],
        clients.num_examples,
    )
    initial = GradientPass(zeros, zero_sums(model, num_domains, clients))
    result: GradientPass = used.fold_batches(batch_size, add_batch, initial)
    if sample_size is None:
        return result

    def inflated(values: Any, factor: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda value: value * factor, values)

    return GradientPass(
        clients.map(inflated, result.gradient, inflation),
        DomainSums(
            losses=clients.map(inflated, result.sums.losses, inflation),
            counts=domain_counts(num_domains, clients),
            metric_sums=clients.map(inflated, result.sums.metric_sums, inflation),
        ),
    )
