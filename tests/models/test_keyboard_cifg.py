"""The keyboard model of Hard et al. 2018: tied embeddings, and what they do to gradients."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.cases import build
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.models import Model, keyboard_cifg, next_word_lstm
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.options import RuntimeOptions

_IDS, _SIZE, _UNITS, _STEPS = 11, 3, 4, 5
_SEED = np.array([0, 0], np.int32)


def _small(**kwargs: Any) -> Model:
    return keyboard_cifg(_IDS - 4, units=_UNITS, projection=_SIZE, sequence_length=_STEPS, **kwargs)


def _weights() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=w.shape, scale=0.5) for w in _small().initial_weights.trainable]


def _sentences(num: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Sentences of 0 to T words: many words more than once, and padding after them."""
    rng = np.random.default_rng(seed)
    inside = np.arange(_STEPS) < rng.integers(0, _STEPS + 1, size=[num, 1])
    x, y = (np.where(inside, rng.integers(1, _IDS, size=[num, _STEPS]), 0) for _ in range(2))
    return {
        "x": x.astype(np.int32),
        "y": y.astype(np.int32),
        "domain_id": rng.integers(2, size=num).astype(np.int32),
    }


def _plain_losses(weights: list[tf.Tensor], batch: Any) -> tf.Tensor:
    """The same model in float64, word for word: every gradient of it is dense."""
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
    """Of the mean loss."""
    variables = [tf.constant(w) for w in weights]
    with tf.GradientTape() as tape:
        tape.watch(variables)
        mean = tf.reduce_mean(_plain_losses(variables, batch))
    return [gradient.numpy() for gradient in tape.gradient(mean, variables)]


def test_it_has_the_papers_number_of_parameters():
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


@pytest.mark.parametrize("scale", [0.05, 0.4])
def test_word_vectors_start_in_a_range(scale):
    vectors = _small(embedding_scale=scale).initial_weights.trainable[0]
    assert 0.8 * scale < np.max(np.abs(vectors)) <= scale


def test_losses_and_scores_are_those_of_the_formulas():
    weights, batch = _weights(), _sentences(9)
    floats = [tf.constant(w, tf.float32) for w in weights]
    losses, scores = _small().example_losses(ModelWeights(floats, []), batch, False, _SEED)
    assert scores.shape == [9, _STEPS, _IDS]
    np.testing.assert_allclose(losses, _plain_losses(weights, batch), rtol=1e-5)


@pytest.mark.parametrize("traced", [False, True])
def test_the_embeddings_gradient_is_that_of_both_its_uses(traced):
    model, batch = _small(), _sentences(9)

    def gradients(weights: list[tf.Tensor]) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weights)
            losses, _ = model.example_losses(ModelWeights(weights, []), batch, True, _SEED)
            mean = tf.reduce_mean(losses)
        return [tf.convert_to_tensor(g) for g in tape.gradient(mean, weights)]

    call = tf.function(gradients) if traced else gradients
    found = call([tf.constant(w, tf.float32) for w in _weights()])
    for actual, expected in zip(found, _plain_gradients(_weights(), batch)):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


def _plain_training(weights: list[np.ndarray], client: Any, batch_size: int) -> list[np.ndarray]:
    for start in range(0, len(client["y"]), batch_size):
        batch = {name: values[start : start + batch_size] for name, values in client.items()}
        gradients = _plain_gradients(weights, batch)
        weights = [w - 0.5 * gradient for w, gradient in zip(weights, gradients)]
    return weights


@pytest.mark.parametrize(
    ("algorithm", "mode"), [("agnostic_fed_avg", "streamed"), ("fed_avg", "vectorised")]
)
def test_a_round_is_sgd_on_the_plain_model(algorithm, mode):
    start = ModelWeights([w.astype(np.float32) for w in _weights()], [])
    cohort = [_sentences(7, seed=1), _sentences(3, seed=2), _sentences(10, seed=3)]
    for client in cohort:
        client["domain_id"][:] = 0
    settings = {"client_learning_rate": 0.5, "client_epochs": 1, "batch_normalizer": "batch"}
    built = build(algorithm, _small(), 1, shuffle=False, **settings)
    with CohortRuntime(RuntimeOptions(client_mode=mode)) as runtime:
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


def test_loss_metrics_and_specs_are_those_of_the_other_next_word_model():
    for arguments in ({}, {"expected_length": 2.5}):
        model = _small(**arguments)
        other = next_word_lstm(
            _IDS - 4, embedding=_SIZE, units=_UNITS, sequence_length=_STEPS, **arguments
        )
        assert model.loss == other.loss
        assert model.example_spec == other.example_spec
        assert [m.name for m in model.metrics] == [m.name for m in other.metrics]


def test_what_stands_in_padding_is_of_no_consequence():
    model, batch = _small(), _sentences(9)
    weights = ModelWeights([tf.constant(w, tf.float32) for w in _weights()], [])
    results = []
    for x in (batch["x"], np.where(batch["y"] > 0, batch["x"], 7).astype(np.int32)):
        losses, scores = model.example_losses(weights, {**batch, "x": x}, False, _SEED)
        measured = [metric.per_example(tf.constant(batch["y"]), scores) for metric in model.metrics]
        results.append([losses, *(value for pair in measured for value in pair)])
    for actual, expected in zip(*results):
        np.testing.assert_array_equal(actual, expected)


def test_models_of_other_seeds_are_equal_and_start_elsewhere():
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
