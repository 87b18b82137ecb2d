"""Keras' weight constraints hold after each step of clients and server."""

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.algorithms import build
from tests.support.keras_zoo import Kind, classification
from tests.support.models import linear_model
from tests.support.rounds import EagerTraining, run_rounds
from tff_agnostic.algorithms import Problem
from tff_agnostic.algorithms.stochastic_afl import StochasticAflOptions, stochastic_afl
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations.clients import (
    ClientArrays,
    Clients,
    client_arrays,
    stacked_client_arrays,
    vectorised_clients,
)
from tff_agnostic.computations.local_training import ClientTraining, local_sgd
from tff_agnostic.computations.server import Adam, Momentum, ServerUpdate, Sgd
from tff_agnostic.models import to_tff
from tff_agnostic.models.keras import freeze
from tff_agnostic.models.model import ModelWeights

layers, constraints = tf.keras.layers, tf.keras.constraints
_RATE, _BATCH, _EPOCHS = 0.3, 4, 2


def _kind(constraint: Any) -> Kind:
    def build() -> tf.keras.Model:
        hidden = layers.Dense(4, activation="tanh", kernel_constraint=constraint)
        last = layers.Dense(3, bias_constraint=constraint)
        return tf.keras.Sequential([tf.keras.Input([4]), hidden, last])

    return classification(build, 4)


def _embedding() -> tf.keras.Model:
    embed = layers.Embedding(5, 3, embeddings_constraint=constraints.UnitNorm(axis=1))
    inputs = tf.keras.Input([2], dtype="int32")
    return tf.keras.Sequential([inputs, embed, layers.Flatten(), layers.Dense(3)])


_KINDS = {
    "NonNeg": _kind(constraints.NonNeg()),
    "UnitNorm": _kind(constraints.UnitNorm()),
    "UnitNorm of an embedding": classification(_embedding, 2)._replace(
        x=lambda rng, n: rng.integers(5, size=[n, 2]).astype(np.int32),
        x_spec=tf.TensorSpec([None, 2], tf.int32),
    ),
    "function": _kind(lambda w: tf.clip_by_value(w, -0.2, 0.2)),
}


def _client(kind: Kind, size: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": kind.x(rng, size), "y": kind.y(rng, size), "domain_id": np.zeros(size, np.int32)}


def _keras_weights(
    kind: Kind, weights: list[Any], client: Any, rounds: int = 1
) -> list[np.ndarray]:
    """Returns the weights after plain Keras SGD on each batch's mean loss."""
    network = kind.build()
    network.set_weights(weights)
    optimizer = tf.keras.optimizers.SGD(_RATE)
    for start in [*range(0, len(client["y"]), _BATCH)] * (_EPOCHS * rounds):
        rows = slice(start, start + _BATCH)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(kind.loss(client["y"][rows], network(client["x"][rows])))
        gradients = tape.gradient(loss, network.trainable_weights)
        optimizer.apply_gradients(zip(gradients, network.trainable_weights))
    return network.get_weights()


def _assert_close(actual: list[Any], expected: list[np.ndarray]) -> None:
    for weights, expected_weights in zip(actual, expected, strict=True):
        np.testing.assert_allclose(weights, expected_weights, atol=2e-6)


@pytest.mark.nightly_cases("UnitNorm")
@pytest.mark.slow_cases("function")
@pytest.mark.parametrize("name", _KINDS)
def test_client_training_equals_plain_keras_in_both_modes(name):
    kind = _KINDS[name]
    model = kind.model()
    weights = ModelWeights(list(map(tf.constant, model.initial_weights.trainable)), [])
    options = ClientTraining(
        learning_rate=_RATE, epochs=_EPOCHS, batch_size=_BATCH, normalizer="batch", shuffle=False
    )

    @functools.partial(tf.function, autograph=False)
    def train(arrays: ClientArrays, is_vectorised: bool) -> list[tf.Tensor]:
        modes = {"map_": vectorised_clients} if is_vectorised else {}
        clients = Clients.from_arrays(arrays, **modes).seeded(tf.constant([0, 0]))
        beta = clients.map(lambda n: tf.cast(n, tf.float32), clients.num_examples)
        return local_sgd(model, options, weights, clients, tf.ones([1]), beta).trained

    # The second client has fewer batches; its weights must not change after the last one.
    cohort = [_client(kind, 10), _client(kind, 3, seed=1)]
    expected = [_keras_weights(kind, model.initial_weights.trainable, client) for client in cohort]
    streamed = train(client_arrays({k: tf.constant(v) for k, v in cohort[0].items()}), False)
    _assert_close(streamed, expected[0])
    together = train(stacked_client_arrays(cohort), True)
    for k in range(2):
        _assert_close([w[k] for w in together], expected[k])


@pytest.mark.slow
def test_single_client_rounds_equal_plain_keras():
    kind = _KINDS["UnitNorm"]
    model = kind.model()
    training = EagerTraining(
        build(
            "agnostic_fed_avg",
            model,
            1,
            client_learning_rate=_RATE,
            client_epochs=_EPOCHS,
            client_batch_size=_BATCH,
            client_normalizer="batch",
            client_shuffle=False,
        )
    )
    client = _client(kind, 10)
    state, _ = run_rounds(training, [[client]] * 2)
    expected = _keras_weights(kind, model.initial_weights.trainable, client, rounds=2)
    _assert_close(list(state.algorithm.weights.trainable), expected)


@pytest.mark.parametrize("optimizer", [Sgd(), Momentum(), Adam()])
def test_server_step_meets_the_constraint(optimizer):
    model = _KINDS["NonNeg"].model()
    built = ServerUpdate(optimizer, learning_rate=5.0).build(model)
    weights = [tf.ones(w.shape) for w in model.initial_weights.trainable]
    specs = [tf.TensorSpec(w.shape) for w in weights]
    _, after = built.next(built.initialize(specs), weights, weights)
    # Weights of 1 with gradients of 1 move by -5 (with Adam approximately).
    constrained, free = after[0], after[1]
    np.testing.assert_array_equal(constrained, np.zeros(constrained.shape))
    assert np.all(np.asarray(free) < 0)


def test_frozen_layers_lose_their_constraint():
    model = _kind(constraints.MaxNorm(0.5)).model()
    first = model.keras_model.layers[0].name
    ones = [tf.ones(w.shape) for w in model.initial_weights.trainable]
    large = freeze(model, [first]).constraint(ones[2:])
    np.testing.assert_array_equal(large[0], ones[2])
    np.testing.assert_allclose(large[1], constraints.MaxNorm(0.5)(ones[3]))


@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        (constraints.MinMaxNorm(0.4, 0.6, rate=0.5), "MinMaxNorm"),
        (lambda w: 1 / 0, "function, which raises ZeroDivisionError"),
    ],
)
def test_rejects_constraints_that_cannot_hold(constraint, reason):
    with pytest.raises(ValueError, match=f"kernel: expected a constraint that .*, found {reason}"):
        _kind(constraint).model()


def test_stochastic_afl_and_tff_reject_constraints():
    model = _KINDS["NonNeg"].model()
    problem = Problem.numbered(model, 2)
    for convert in (lambda: stochastic_afl(problem, StochasticAflOptions()), lambda: to_tff(model)):
        with pytest.raises(UserError, match="expected a model without weight constraints"):
            convert()


def test_models_without_constraints_have_none():
    assert linear_model().constraint is None
    assert _kind(None).model().constraint is None
