"""What is said where no client's numbers are finite."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tests.run.harness import make_task
from tff_agnostic.models import Metric
from tff_agnostic.run.evaluation import diverged, skipped_rounds

_TASK = make_task(("a", "b"), clients=3)
_CLIENTS = [_TASK.train.read(client_id) for client_id in _TASK.train.client_ids]
_NOTHING = {key: values[:0] for key, values in _CLIENTS[0].items()}


def _message(clients=_CLIENTS, **changed) -> str:
    model = dataclasses.replace(_TASK.model, **changed)
    return str(diverged(3, 4, 5, model, clients))


def _mean(predictions: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(predictions, axis=-1)


def test_a_model_that_was_finite_before_training_has_diverged():
    assert _message() == (
        "round 3: the model has diverged: no client returned finite numbers (4 of 5 did not); "
        "lower --client_learning_rate or --server_learning_rate"
    )


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"loss": lambda y, p: tf.math.log(0.0 * _mean(p))}, "the loss"),
        ({"loss": lambda y, p: _mean(p) / tf.cast(0 * y, tf.float32)}, "the loss"),
        ({"regularizer": lambda weights: tf.constant(np.inf)}, "the loss"),
        # Finite, and its derivative at 0 is not.
        ({"loss": lambda y, p: tf.sqrt(0.0 * _mean(p))}, "the gradient of the loss"),
        (
            {
                "metrics": (
                    Metric("ratio", lambda y, p: (_mean(p) * np.nan, tf.ones_like(_mean(p)))),
                )
            },
            "the metric ratio",
        ),
    ],
)
def test_what_was_never_finite_is_named_and_no_learning_rate(changed, what):
    assert _message(**changed) == (
        "round 3: no client returned finite numbers (4 of 5 did not): with the weights before any "
        f"training, {what} is not finite either; look at the model, its loss and the data: no "
        "learning rate mends it"
    )


def test_one_client_whose_numbers_were_finite_is_enough():
    # The examples of all others have infinite values.
    broken = [{**client, "x": client["x"] * np.float32(np.inf)} for client in _CLIENTS]
    assert "the loss is not finite either" in _message(broken)
    assert "the model has diverged" in _message([*broken, _CLIENTS[0]])
    # One without examples has none.
    assert "the loss is not finite either" in _message([*broken, _NOTHING])
    assert "the model has diverged" in _message([_NOTHING])


def test_rounds_that_were_skipped_name_the_learning_rates_that_a_run_has():
    message = skipped_rounds(["rounds", "client_learning_rate", "domain_learning_rate", "window"])
    assert message.startswith("skipped, as if no client had taken part: ")
    assert message.endswith("; lower --client_learning_rate or --domain_learning_rate")
    assert skipped_rounds(["rounds"]).endswith("was not")
