"""CLIENT of Algorithm 1 (Ro et al. 2021): the domain pass, local training, and what is returned."""

import dataclasses
import math
from collections import OrderedDict
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.computations.seeds import fingerprint, fold_in
from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Examples, Model, ModelWeights
from tff_agnostic.registry import Registry


class ClientInput(NamedTuple):
    """What the server broadcasts.

    Attributes:
        weights: w_{t-1}.
        alpha: Scale of each domain, float32 [p].
        seed: Seed of the round, int32 [2].
    """

    weights: ModelWeights
    alpha: tf.Tensor
    seed: tf.Tensor


class ClientCounts(NamedTuple):
    """What became of a client: exactly one field is 1, the others are 0; int64 scalars.

    Attributes:
        contributed: Its update has a positive weight.
        zero_weight: It has examples, but none of a domain with a positive weight.
        empty: It has no examples.
        non_finite: Its update, weight or losses were not finite, and were dropped.
    """

    contributed: tf.Tensor
    zero_weight: tf.Tensor
    empty: tf.Tensor
    non_finite: tf.Tensor


class ClientOutput(NamedTuple):
    """What a client sends. The server only ever sees the sum over the cohort of each field.

    Attributes:
        weighted_delta: beta^k (w - w^k), like the trainable weights.
        beta: Weight of the client, float32 scalar.
        domain_losses: Sum of the losses at w of each domain's examples, float32 [p].
        domain_counts: Number of examples of each domain, int64 [p].
        metric_sums: For each metric its numerator and denominator per domain, float32 [p] each.
        clients: What became of the client.
    """

    weighted_delta: list[tf.Tensor]
    beta: tf.Tensor
    domain_losses: tf.Tensor
    domain_counts: tf.Tensor
    metric_sums: "OrderedDict[str, MetricSums]"
    clients: ClientCounts


class MetricSums(NamedTuple):
    """Numerator and denominator of a metric per domain, float32 [p]."""

    numerator: tf.Tensor
    denominator: tf.Tensor


class DomainSums(NamedTuple):
    """Sums over the examples of each domain at given weights; see `ClientOutput`."""

    losses: tf.Tensor
    counts: tf.Tensor
    metric_sums: "OrderedDict[str, MetricSums]"


@dataclasses.dataclass(frozen=True)
class LocalTrainingParams:
    """How a client trains.

    Attributes:
        learning_rate: gamma_w of plain SGD (CLIENT line 10); positive.
        epochs: E.
        batch_size: B; the last batch of an epoch may be smaller.
        normalizer: Member of `NORMALIZERS`: what the weighted loss of a batch is divided by.
        shuffle: Draw a new order of the examples for each epoch; otherwise they keep theirs.
        domain_pass_batch_size: Examples per step of the domain pass; bounds its memory only.
    """

    learning_rate: float = 0.1
    epochs: int = 1
    batch_size: int = 20
    normalizer: str = "client"
    shuffle: bool = True
    domain_pass_batch_size: int = 256

    def __post_init__(self) -> None:
        """Checks ranges."""
        _ = NORMALIZERS[self.normalizer]
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise UserError(
                f"client learning rate: expected a positive number, found {self.learning_rate}"
            )
        for what, value in (
            ("client epochs", self.epochs),
            ("batch size", self.batch_size),
            ("domain pass batch size", self.domain_pass_batch_size),
        ):
            if value < 1:
                raise UserError(f"{what}: expected at least 1, found {value}")


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


def num_examples(examples: Examples) -> tf.Tensor:
    """Number of examples of a client, int32 scalar."""
    return tf.shape(examples["domain_id"])[0]


def domain_pass(
    model: Model, num_domains: int, weights: ModelWeights, examples: Examples, batch_size: int
) -> DomainSums:
    """CLIENT lines 2 to 6: losses, counts and metric sums of each domain at `weights`.

    Examples with a domain id outside [0, p) count nowhere; datasets refuse them beforehand.
    """
    n = num_examples(examples)
    zeros = tf.zeros([num_domains])
    initial = DomainSums(
        losses=zeros,
        counts=tf.zeros([num_domains], tf.int64),
        metric_sums=OrderedDict((m.name, MetricSums(zeros, zeros)) for m in model.metrics),
    )

    def add_batch(start: tf.Tensor, sums: DomainSums) -> tuple[tf.Tensor, DomainSums]:
        end = tf.minimum(start + batch_size, n)
        batch = tf.nest.map_structure(lambda column: column[start:end], examples)
        losses, predictions = model.example_losses(
            weights, batch, training=False, seed=tf.zeros([2], tf.int32)
        )

        def by_domain(values: tf.Tensor) -> tf.Tensor:
            return tf.math.unsorted_segment_sum(values, batch["domain_id"], num_domains)

        batch_sums = DomainSums(
            losses=by_domain(losses),
            counts=by_domain(tf.ones_like(batch["domain_id"], tf.int64)),
            metric_sums=OrderedDict(
                (
                    metric.name,
                    MetricSums(*map(by_domain, metric.per_example(batch["y"], predictions))),
                )
                for metric in model.metrics
            ),
        )
        return end, tf.nest.map_structure(tf.add, sums, batch_sums)

    _, sums = tf.while_loop(lambda start, _: start < n, add_batch, (tf.constant(0), initial))
    return sums


def local_training(
    model: Model,
    params: LocalTrainingParams,
    weights: ModelWeights,
    examples: Examples,
    alpha: tf.Tensor,
    beta: tf.Tensor,
    seed: tf.Tensor,
) -> list[tf.Tensor]:
    """CLIENT lines 7 to 12: E epochs of SGD from `weights`.

    Args:
        model: The model.
        params: How to train.
        weights: w, where training starts.
        examples: The client's data, n examples.
        alpha: Scale of each domain, float32 [p].
        beta: Weight of the client, float32 scalar; 0 leaves the weights as they are.
        seed: Seed of the client in this round, int32 [2].

    Returns:
        w^k, the trained weights.
    """
    optimizer = tff.learning.optimizers.build_sgdm(params.learning_rate)
    normalize = NORMALIZERS[params.normalizer]
    n = num_examples(examples)
    trainable = [tf.convert_to_tensor(w) for w in weights.trainable]
    specs = [tf.TensorSpec(w.shape, w.dtype) for w in trainable]

    def sgd_step(start: tf.Tensor, order: tf.Tensor, state: _SgdState) -> tuple:
        rows = order[start : start + params.batch_size]
        batch = tf.nest.map_structure(lambda column: tf.gather(column, rows), examples)
        scale = tf.gather(alpha, batch["domain_id"])  # alpha_i of each example's domain i
        with tf.GradientTape() as tape:
            tape.watch(state.trained)
            losses, _ = model.example_losses(
                ModelWeights(state.trained, weights.non_trainable),
                batch,
                training=True,
                seed=fold_in(seed, state.step),
            )
            objective = tf.math.divide_no_nan(
                tf.reduce_sum(scale * losses), normalize(beta, tf.reduce_sum(scale))
            )
        gradients = tape.gradient(
            objective, state.trained, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        optimizer_state, trained = optimizer.next(state.optimizer_state, state.trained, gradients)
        return start + params.batch_size, order, _SgdState(state.step + 1, trained, optimizer_state)

    def train_epoch(epoch: tf.Tensor, state: _SgdState) -> tuple:
        order = _order(n, fold_in(seed, -1 - epoch), params.shuffle)
        _, _, state = tf.while_loop(
            lambda start, *_: start < n, sgd_step, (tf.constant(0), order, state)
        )
        return epoch + 1, state

    initial = _SgdState(tf.constant(0), trainable, optimizer.initialize(specs))
    _, final = tf.while_loop(
        lambda epoch, _: epoch < params.epochs, train_epoch, (tf.constant(0), initial)
    )
    return final.trained


class _SgdState(NamedTuple):
    step: tf.Tensor
    trained: list[tf.Tensor]
    optimizer_state: Any


def _order(n: tf.Tensor, seed: tf.Tensor, shuffle: bool) -> tf.Tensor:
    if not shuffle:
        return tf.range(n)
    return tf.argsort(tf.random.stateless_uniform([n], seed), stable=True)


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
    one_if = lambda condition: tf.cast(condition, tf.int64)  # noqa: E731
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


def all_finite(structure: Any) -> tf.Tensor:
    """Returns whether every value of a structure of real tensors is finite, a boolean scalar."""
    finite = [tf.reduce_all(tf.math.is_finite(value)) for value in tf.nest.flatten(structure)]
    return tf.reduce_all(tf.stack(finite))
