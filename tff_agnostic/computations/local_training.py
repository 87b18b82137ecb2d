"""CLIENT lines 7 to 12 of Algorithm 1 (Ro et al. 2021): E epochs of SGD on the weighted loss."""

import dataclasses
import math
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.computations.seeds import fold_in
from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Examples, Model, ModelWeights, num_examples
from tff_agnostic.registry import Registry


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
