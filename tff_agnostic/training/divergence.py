"""Errors for rounds and evaluations in which no client has finite values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.later import tf
from tff_agnostic.computations.domain_losses import example_measures
from tff_agnostic.models.model import Examples, Model, ModelWeights

# Words that the message of `Diverged` contains; the program replaces them by names of flags.
LEARNING_RATES = "the learning rate of the clients or of the server"
# Maximum number of clients on which the untrained model is checked.
_MAX_CLIENTS = 10


class Diverged(UserError):
    """No client had finite values; other settings may keep the values finite."""


def diverged(
    round_num: int,
    num_non_finite: int,
    num_clients: int,
    model: Model,
    clients: Iterable[Examples],
) -> UserError:
    """Returns the error for a round or evaluation in which no client has finite values.

    The error is a `Diverged`, or another `UserError` if the untrained model's values are not finite
    either.

    Args:
        num_non_finite: Number of clients with non-finite values.
        num_clients: Number of clients in the round or evaluation.
        model: The model with its initial weights.
        clients: Some clients of the round or evaluation.
    """
    clients_text = f"{num_non_finite} of {counted(num_clients, 'client')}"
    problem = f"no client's numbers could be used (those of {clients_text} are not finite)"
    never_finite = _never_finite(model, itertools.islice(clients, _MAX_CLIENTS))
    if never_finite is not None:
        return UserError(
            f"round {round_num}: {problem}: with the weights before any training, {never_finite} "
            "is not finite either; look at the model, its loss and the data: no learning rate "
            "fixes it"
        )
    return Diverged(f"round {round_num}: the model has diverged: {problem}; lower {LEARNING_RATES}")


def _never_finite(model: Model, clients: Iterable[Examples]) -> Optional[str]:
    """Returns the name of a value that is not finite for any client before training, or None."""
    spec = tf.nest.map_structure(
        lambda w: tf.TensorSpec(np.shape(w), np.asarray(w).dtype), model.initial_weights
    )
    are_finite = tf.function(
        lambda weights, examples: _are_finite(model, weights, examples),
        input_signature=[spec, {key: model.example_spec[key] for key in ("x", "y")}],
        autograph=False,
    )
    results = [
        are_finite(model.initial_weights, {key: client[key] for key in ("x", "y")})
        for client in clients
        if len(client["domain_id"])
    ]
    names = results[0] if results else {}
    return next((name for name in names if not any(result[name] for result in results)), None)


def _are_finite(model: Model, weights: ModelWeights, examples: Examples) -> Mapping[str, Any]:
    """Returns whether each value that a client computes is finite, by the value's name."""
    trainable = [tf.convert_to_tensor(w) for w in weights.trainable]
    with tf.GradientTape() as tape:
        tape.watch(trainable)
        losses, predictions = model.example_losses(
            ModelWeights(trainable, weights.non_trainable),
            examples,
            training=True,
            seed=tf.zeros([2], tf.int32),
        )
        loss = tf.reduce_mean(losses)
    gradient = tape.gradient(loss, trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    measures = example_measures(model, examples, losses, predictions)
    values = {
        "the loss": [loss],
        **{f"the metric {name}": list(sums) for name, sums in measures.metrics.items()},
        "the gradient of the loss": [tf.convert_to_tensor(g) for g in gradient],
    }
    return {
        name: tf.reduce_all([tf.reduce_all(tf.math.is_finite(part)) for part in parts])
        for name, parts in values.items()
    }
