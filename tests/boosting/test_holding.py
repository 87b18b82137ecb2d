"""Predictors with several architectures in one array: their outputs and messages."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.support.clients import make_client, single, vectorised
from tests.support.comparing import assert_all_close
from tff_agnostic.base.errors import UserError
from tff_agnostic.boosting.alpha import BoostBroadcast, client_work
from tff_agnostic.boosting.ensemble import EnsembleModel, ensemble
from tff_agnostic.boosting.predictor_store import (
    Architecture,
    OneArchitecture,
    store_for,
)
from tff_agnostic.boosting.sampling import SentPredictors
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.keras import fixed_from_keras
from tff_agnostic.models.model import ModelWeights

_RNG = np.random.default_rng(3)
_X = _RNG.normal(size=[7, 4]).astype(np.float32)
_LIKE = logistic_regression(4, 3)
layers = tf.keras.layers


def _deep() -> tf.keras.Model:
    """Returns a network of probabilities, with batch normalisation."""
    stack = [layers.Dense(5, "relu"), layers.BatchNormalization(), layers.Dense(3, "softmax")]
    model = tf.keras.Sequential([tf.keras.Input([4]), *stack])
    model.set_weights([np.abs(_RNG.normal(size=w.shape)) for w in model.get_weights()])
    return model


def _shallow() -> tf.keras.Model:
    model = tf.keras.Sequential([tf.keras.Input([4]), layers.Dense(3)])
    model.set_weights([_RNG.normal(size=w.shape) for w in model.get_weights()])
    return model


class _Mixed:
    """Five predictors, alternately linear and deep."""

    def __init__(self) -> None:
        self.keras = [_shallow(), _deep(), _shallow(), _deep(), _shallow()]
        fixed = [fixed_from_keras(model, _LIKE) for model in self.keras[:2]]
        kinds = [Architecture(fixed[0], True), Architecture(fixed[1], False)]
        self.architectures = [kinds[k % 2] for k in range(5)]
        self.weights = [ModelWeights([], model.get_weights()) for model in self.keras]
        names = [f"p{k}" for k in range(5)]
        self.model: EnsembleModel = ensemble(
            _LIKE, self.weights, names, architectures=self.architectures
        )

    def expected(self) -> np.ndarray:
        """Returns Keras' outputs of the predictors for `_X`, [n, 5, classes]."""
        predicted = [model(_X, training=False) for model in self.keras]
        rows = [p if k % 2 else tf.nn.softmax(p) for k, p in enumerate(predicted)]
        return np.stack(rows, axis=1)


@pytest.fixture(scope="module")
def mixed() -> _Mixed:
    return _Mixed()


def test_predictions_equal_keras(mixed):
    held = mixed.model.members.held
    outputs = held.predictions(mixed.model.initial_weights.non_trainable, tf.constant(_X))
    np.testing.assert_allclose(np.stack(outputs, axis=1), mixed.expected(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("indices", [(3, 0), (4, 1, 2)])
def test_message_contains_chosen_predictors_with_padding(mixed, indices):
    held, (weights,) = mixed.model.members.held, mixed.model.initial_weights.non_trainable
    chosen = held.chosen([tf.constant(weights)], tf.constant(indices))
    run = tf.function(lambda message: held.predictions(message, tf.constant(_X)))
    outputs = np.stack(run(chosen), axis=1)
    np.testing.assert_allclose(outputs, mixed.expected()[:, list(indices)], rtol=1e-5, atol=1e-7)
    # A linear predictor has 15 weights, and a deep one 25 + 20 + 18 = 63.
    largest = sum(sorted([15, 63, 15, 63, 15])[-len(indices) :])
    assert chosen[0].shape == [largest]
    num_bytes = sum(np.asarray(array).nbytes for array in chosen)
    assert mixed.model.message_bytes(len(indices)) == num_bytes == 4 * largest + 8 * len(indices)
    # The weights of other predictors are not in the message.
    assert np.count_nonzero(chosen[0]) <= sum(15 if k % 2 == 0 else 63 for k in indices)


@pytest.mark.slow
def test_vectorised_clients_send_each_clients_gradient(mixed):
    model = mixed.model
    held, (weights,) = model.members.held, model.initial_weights.non_trainable
    ones = tf.ones([2])
    message = ModelWeights(
        [tf.constant([0.5, 0.3])], held.chosen([tf.constant(weights)], tf.constant([1, 4]))
    )
    broadcast = BoostBroadcast(message, SentPredictors(ones, ones, ones), tf.ones([2]))
    work = functools.partial(client_work, model=model, num_domains=2, estimator="masked", room=2)
    clients = [
        make_client(_X[:n], _RNG.integers(2, size=n), _RNG.integers(3, size=n)) for n in (7, 3)
    ]
    together = tf.function(lambda b: work(b, vectorised(clients)))(broadcast)
    outputs = mixed.expected()[:, [1, 4]]
    for k, examples in enumerate(clients):
        columns = tf.nest.map_structure(tf.constant, examples)
        alone = work(broadcast, single(columns))
        # The log loss's gradient in NumPy.
        h = outputs[np.arange(len(examples["y"])), :, examples["y"]]
        gradient = -np.sum(h / (h @ [0.5, 0.3])[:, np.newaxis], axis=0)
        np.testing.assert_allclose(alone.weighted_delta[0], gradient, rtol=1e-5)
        one = tf.nest.map_structure(lambda values, k=k: values[k], together)
        assert_all_close(one, alone, rtol=1e-5, atol=1e-6)


def test_scores_and_probabilities_are_separate_architectures():
    one = Architecture(_LIKE, True)
    assert store_for([one, Architecture(logistic_regression(4, 3), True)]) == OneArchitecture(one)
    assert len(store_for([one, Architecture(_LIKE, False)]).architectures) == 2


def test_rejects_weights_that_float32_cannot_represent(mixed):
    weights = [ModelWeights([], [w.copy() for w in p.non_trainable]) for p in mixed.weights]
    kernel = weights[1].non_trainable[0].astype(np.float64)
    weights[1].non_trainable[0] = kernel + 1e-12
    with pytest.raises(UserError, match="p1: expected weights that float32 holds exactly"):
        ensemble(_LIKE, weights, [f"p{k}" for k in range(5)], architectures=mixed.architectures)
