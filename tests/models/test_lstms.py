"""LSTM against Keras, CIFG against its formulas, and the keyboard model of Hard et al. 2018."""

from typing import Any, Optional

import numpy as np
import pytest
import tensorflow as tf

from tests.models.recurrent_harness import (
    MASKS,
    assert_all_close,
    outputs_and_gradients,
    random_weights,
    sequences,
)
from tests.support.algorithms import build
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.models import CIFG, LSTM, Model, keyboard_cifg, next_word_lstm
from tff_agnostic.models.cifg import cifg
from tff_agnostic.models.keras_platform import keras_platform
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.options import CohortOptions

_MASKS = ("no_mask", "right", "left", "middle")


def _with_twin(
    units: int, features: int, **kwargs
) -> tuple[tf.keras.layers.Layer, tf.keras.layers.Layer]:
    layer, twin = LSTM(units, **kwargs), tf.keras.layers.LSTM(units, **kwargs)
    for each in (layer, twin):
        each.set_weights(random_weights(each, features))
    return layer, twin


@pytest.mark.slow_cases("long")
@pytest.mark.parametrize(
    ("mask", "shape", "dtype", "return_sequences"),
    [
        *((MASKS[name], [4, 6, 3], "float64", True) for name in _MASKS),
        (MASKS["middle"], [4, 6, 3], "float32", False),
        (None, [1, 1, 1], "float64", True),
        # Sequences of more than 64 steps run in a loop.
        (np.random.default_rng(0).random([2, 70]) < 0.7, [2, 70, 3], "float64", True),
    ],
    ids=[*_MASKS, "last", "single", "long"],
)
def test_masked_lstm_equals_keras(mask, shape, dtype, return_sequences):
    layer, twin = _with_twin(5, shape[-1], return_sequences=return_sequences, dtype=dtype)
    data = sequences(shape, dtype, mask)
    assert_all_close(outputs_and_gradients(layer, data), outputs_and_gradients(twin, data))


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"unit_forget_bias": False, "bias_initializer": "ones"},
        {"kernel_initializer": "he_normal", "recurrent_initializer": "glorot_normal"},
    ],
    ids=["defaults", "ones", "normal"],
)
def test_seeded_lstm_weights_equal_keras(arguments):
    weights = []
    for kind in (LSTM, tf.keras.layers.LSTM):
        tf.keras.utils.set_random_seed(7)
        layer = kind(5, **arguments)
        layer.build((None, None, 3))
        weights.append(layer.get_weights())
    for value, expected in zip(*weights):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.slow
def test_lstm_second_derivatives_equal_keras():
    layer, twin = _with_twin(4, 3, dtype="float64")
    x = tf.constant(sequences([2, 5, 3]).x)

    def second(layer: tf.keras.layers.Layer) -> list[tf.Tensor]:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                objective = tf.reduce_sum(layer(x) ** 3)
            gradients = inner.gradient(objective, [x, *layer.trainable_weights])
            objective = tf.add_n([tf.reduce_sum(gradient**2) for gradient in gradients])
        return outer.gradient(objective, [x, *layer.trainable_weights])

    expected = second(twin)
    assert_all_close(second(layer), expected)
    assert_all_close(tf.function(second)(layer), expected)


@pytest.mark.slow
def test_masked_lstm_stack_equals_keras():
    """The embedding creates the mask, which passes through all layers."""

    def build(lstm) -> tf.keras.Model:
        return tf.keras.Sequential(
            [
                tf.keras.Input([6], dtype=tf.int32),
                tf.keras.layers.Embedding(11, 4, mask_zero=True),
                lstm(5, return_sequences=True),
                lstm(3),
                tf.keras.layers.Dense(2),
            ]
        )

    model, twin = build(LSTM), build(tf.keras.layers.LSTM)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    twin.set_weights(model.get_weights())
    tokens = np.array([[3, 0, 4, 0, 0, 1], [0, 0, 2, 9, 0, 0], [0] * 6, [1, 2, 3, 4, 5, 6]])
    np.testing.assert_allclose(model(tokens), twin(tokens), atol=1e-5)


# --- CIFG


def _numpy_cifg(
    x: np.ndarray, mask: Optional[np.ndarray], W: Any, U: Any, b: Any, P: Any = None
) -> np.ndarray:
    """Returns the outputs of the CIFG formulas, computed gate by gate."""

    def sigmoid(z: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-z))

    u = len(b) // 3
    P = np.eye(u) if P is None else P
    outputs = []
    for n, sequence in enumerate(x):
        r, c = np.zeros(P.shape[1]), np.zeros(u)
        outputs.append([])
        for t, x_t in enumerate(sequence):
            if mask is None or mask[n, t]:
                z_f, z_g, z_o = (
                    x_t @ W[:, gate] + r @ U[:, gate] + b[gate]
                    for gate in (slice(0, u), slice(u, 2 * u), slice(2 * u, 3 * u))
                )
                forget = sigmoid(z_f)
                c = forget * c + (1 - forget) * np.tanh(z_g)
                r = (sigmoid(z_o) * np.tanh(c)) @ P
            outputs[-1].append(r)
    return np.array(outputs)


@pytest.mark.parametrize("projection", [None, 3])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_cifg_outputs_match_the_formulas(mask, projection):
    layer = CIFG(5, projection_units=projection, return_sequences=True, dtype="float64")
    weights = random_weights(layer, 4)
    layer.set_weights(weights)
    x = sequences([4, 6, 4]).x
    expected = _numpy_cifg(x, None if mask is None else tf.constant(mask), *weights)
    assert_all_close(layer(x, mask=mask).numpy(), expected)
    last = CIFG(5, projection_units=projection, dtype="float64")
    last.build((None, None, 4))
    last.set_weights(weights)
    assert_all_close(last(x, mask=mask).numpy(), expected[:, -1])


@pytest.mark.nightly_cases(but=["none-1"])
@pytest.mark.slow
@pytest.mark.parametrize("projection", [None, 1])
@pytest.mark.parametrize(
    "mask", [None, [[1, 0, 1], [0, 1, 1]], [[0, 0, 0], [1, 1, 0]]], ids=["none", "holes", "ends"]
)
def test_cifg_gradients_equal_finite_differences(mask, projection):
    weights = random_weights(CIFG(2, projection_units=projection, dtype="float64"), 2)
    arguments = [sequences([2, 3, 2]).x, *weights]
    analytic, numeric = tf.test.compute_gradient(
        lambda x, *weights: cifg(x, None if mask is None else tf.constant(mask), *weights),
        arguments,
        delta=1e-5,
    )
    for a, n in zip(analytic, numeric):
        np.testing.assert_allclose(a, n, rtol=1e-6, atol=1e-8)


def test_cifg_weights_have_shapes():
    layer = CIFG(5, projection_units=2)
    layer.build((None, None, 3))
    names = [keras_platform().weight_name(w).split("/")[-1] for w in layer.weights]
    assert names == ["kernel", "recurrent_kernel", "bias", "projection_kernel"]
    assert [tuple(w.shape) for w in layer.weights] == [(3, 15), (2, 15), (15,), (5, 2)]


def test_cifg_forget_bias_starts_at_one():
    for unit_forget_bias, expected in ((True, [1.0, 0.0, 0.0]), (False, [0.0, 0.0, 0.0])):
        layer = CIFG(4, unit_forget_bias=unit_forget_bias)
        layer.build((None, None, 3))
        np.testing.assert_array_equal(layer.bias, np.repeat(expected, 4))


# --- Tests of the keyboard model of Hard et al. 2018, which has tied embeddings


_IDS, _SIZE, _UNITS, _STEPS = 11, 3, 4, 5
_SEED = np.array([0, 0], np.int32)


def _small(**kwargs: Any) -> Model:
    return keyboard_cifg(_IDS - 4, units=_UNITS, projection=_SIZE, sequence_length=_STEPS, **kwargs)


def _weights() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=w.shape, scale=0.5) for w in _small().initial_weights.trainable]


def _sentences(num: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Returns padded sentences of 0 to T words, with many repeated words."""
    rng = np.random.default_rng(seed)
    inside = np.arange(_STEPS) < rng.integers(0, _STEPS + 1, size=[num, 1])
    x, y = (np.where(inside, rng.integers(1, _IDS, size=[num, _STEPS]), 0) for _ in range(2))
    return {
        "x": x.astype(np.int32),
        "y": y.astype(np.int32),
        "domain_id": rng.integers(2, size=num).astype(np.int32),
    }


def _plain_losses(weights: list[tf.Tensor], batch: Any) -> tf.Tensor:
    """Returns the model's losses, transcribed in float64 with dense gradients."""
    vectors, word_bias, kernel, recurrent_kernel, bias, projection = weights
    inputs = tf.one_hot(batch["x"], _IDS, dtype=tf.float64) @ vectors
    r = tf.zeros([len(batch["x"]), _SIZE], tf.float64)
    c = tf.zeros([len(batch["x"]), _UNITS], tf.float64)
    total = tf.zeros([len(batch["x"])], tf.float64)
    for t in range(_STEPS):
        z = inputs[:, t] @ kernel + r @ recurrent_kernel + bias
        f, g, o = tf.sigmoid(z[:, :4]), tf.tanh(z[:, 4:8]), tf.sigmoid(z[:, 8:])
        c = f * c + (1 - f) * g
        r = (o * tf.tanh(c)) @ projection
        logs = tf.nn.log_softmax(r @ tf.transpose(vectors) + word_bias)
        is_word = batch["y"][:, t] > 0
        label = tf.one_hot(batch["y"][:, t], _IDS, dtype=tf.float64)
        total -= tf.reduce_sum(logs * label, axis=1) * is_word
    return tf.math.divide_no_nan(total, np.sum(batch["y"] > 0, axis=1).astype(np.float64))


def _plain_gradients(weights: list[np.ndarray], batch: Any) -> list[np.ndarray]:
    """Returns the gradients of the mean of `_plain_losses`."""
    variables = [tf.constant(w) for w in weights]
    with tf.GradientTape() as tape:
        tape.watch(variables)
        mean = tf.reduce_mean(_plain_losses(variables, batch))
    return [gradient.numpy() for gradient in tape.gradient(mean, variables)]


@pytest.mark.slow
def test_keyboard_model_has_the_papers_parameter_count():
    model = keyboard_cifg()
    embedding, biases = 10_004 * 96, 10_004
    cell = 2 * 96 * 3 * 670 + 3 * 670 + 670 * 96
    assert model.num_parameters == embedding + biases + cell == 1_422_638
    assert [w.shape for w in model.initial_weights.trainable] == [
        (10_004, 96),
        (10_004,),
        (96, 2010),
        (96, 2010),
        (2010,),
        (670, 96),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.05, 0.4])
def test_embedding_scale_bounds_initial_embeddings(scale):
    vectors = _small(embedding_scale=scale).initial_weights.trainable[0]
    assert 0.8 * scale < np.max(np.abs(vectors)) <= scale


@pytest.mark.parametrize("traced", [False, True])
def test_gradient_of_tied_embedding_is_sum_over_uses(traced):
    model, batch = _small(), _sentences(9)

    def gradients(weights: list[tf.Tensor]) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            losses, _ = model.example_losses(ModelWeights(weights, []), batch, True, _SEED)
            mean = tf.reduce_mean(losses)
        return [tf.convert_to_tensor(g) for g in tape.gradient(mean, weights)]

    call = tf.function(gradients) if traced else gradients
    result = call([tf.constant(w, tf.float32) for w in _weights()])
    for actual, expected in zip(result, _plain_gradients(_weights(), batch)):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


def _plain_training(weights: list[np.ndarray], client: Any, batch_size: int) -> list[np.ndarray]:
    for start in range(0, len(client["y"]), batch_size):
        batch = {name: values[start : start + batch_size] for name, values in client.items()}
        gradients = _plain_gradients(weights, batch)
        weights = [w - 0.5 * gradient for w, gradient in zip(weights, gradients)]
    return weights


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "mode"), [("agnostic_fed_avg", "streamed"), ("fed_avg", "vectorised")]
)
def test_keyboard_round_equals_plain_sgd(algorithm, mode):
    start = ModelWeights([w.astype(np.float32) for w in _weights()], [])
    cohort = [_sentences(7, seed=1), _sentences(3, seed=2), _sentences(10, seed=3)]
    for client in cohort:
        client["domain_id"][:] = 0
    settings = {"client_learning_rate": 0.5, "client_epochs": 1, "client_normalizer": "batch"}
    built = build(algorithm, _small(), 1, client_shuffle=False, **settings)
    with CohortRuntime(CohortOptions(client_mode=mode)) as runtime:
        training = runtime.training(built, PlainSum())
        state = training.initialize()
        state = state._replace(algorithm=built.with_weights(state.algorithm, start))
        state, metrics = training.next(state, cohort)
    trained = [_plain_training(_weights(), client, 4) for client in cohort]
    sizes = [len(client["y"]) for client in cohort]
    for i, actual in enumerate(state.algorithm.weights.trainable):
        expected = np.average([w[i] for w in trained], axis=0, weights=sizes)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    words = sum(np.sum(client["y"] > 0) for client in cohort)
    if algorithm == "agnostic_fed_avg":
        total = sum(
            np.sum(_plain_losses(_weights(), client) * np.sum(client["y"] > 0, axis=1))
            for client in cohort
        )
        perplexity = metrics["client_work"]["train"]["perplexity"]
        np.testing.assert_allclose(perplexity, [np.exp(total / words)], rtol=1e-5)


@pytest.mark.slow
def test_keyboard_model_shares_next_word_loss_and_metrics():
    for arguments in ({}, {"expected_length": 2.5}):
        model = _small(**arguments)
        other = next_word_lstm(
            _IDS - 4, embedding=_SIZE, units=_UNITS, sequence_length=_STEPS, **arguments
        )
        assert model.loss == other.loss
        assert model.example_spec == other.example_spec
        assert [m.name for m in model.metrics] == [m.name for m in other.metrics]


@pytest.mark.slow
def test_equal_models_start_from_their_own_weights():
    first, second = _small(seed=1), _small(seed=2)
    assert first == second
    with CohortRuntime() as runtime:
        built = [build("agnostic_fed_avg", model, 2) for model in (first, second)]
        trainings = [runtime.training(algorithm, PlainSum()) for algorithm in built]
        states = [training.initialize() for training in trainings]
    for state, model in zip(states, (first, second)):
        for actual, expected in zip(
            state.algorithm.weights.trainable, model.initial_weights.trainable
        ):
            np.testing.assert_array_equal(actual, expected)
    assert not np.array_equal(
        states[0].algorithm.weights.trainable[0], states[1].algorithm.weights.trainable[0]
    )
