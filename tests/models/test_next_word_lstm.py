"""The next-word model of Reddi et al. 2021."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tff_agnostic.models import (
    Model,
    SentenceLoss,
    keyboard_cifg,
    next_word_lstm,
    two_layer_lstm,
)
from tff_agnostic.models.keras import computing_in
from tff_agnostic.models.lstm import LSTM
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.models.word_layers import DenseOverSteps

_SEED = np.array([0, 0], np.int32)
# Sentences of 5, 2, 0 and 4 words; 0 is padding.
_X = np.array([[12, 3, 4, 5, 9], [12, 7, 0, 0, 0], [0] * 5, [12, 1, 1, 6, 0]], np.int32)
_Y = np.array([[3, 4, 5, 9, 13], [7, 13, 0, 0, 0], [0] * 5, [1, 1, 6, 2, 0]], np.int32)


def _small(**kwargs: Any) -> Model:
    return next_word_lstm(vocabulary_size=10, embedding=3, units=4, sequence_length=5, **kwargs)


def _weights(model: Model) -> list[tf.Tensor]:
    rng = np.random.default_rng(0)
    return [
        tf.constant(rng.normal(size=w.shape), tf.float32) for w in model.initial_weights.trainable
    ]


def _losses_and_gradients(model: Model, weights: Any, x: Any, y: Any) -> tuple:
    with tf.GradientTape() as tape:
        tape.watch(weights)
        losses, scores = model.example_losses(
            ModelWeights(weights, []), {"x": x, "y": y}, True, _SEED
        )
        objective = tf.reduce_sum(losses)
    return losses, scores, tape.gradient(objective, weights)


@pytest.mark.slow
def test_next_word_models_have_papers_parameter_counts():
    assert next_word_lstm().num_parameters == 4_050_748
    embedding, scores = 10_004 * 96, 96 * 10_004 + 10_004
    layer = (96 + 256 + 1) * 4 * 256 + (256 + 1) * 96
    assert two_layer_lstm().num_parameters == embedding + 2 * layer + scores == 2_703_060
    small = two_layer_lstm(vocabulary_size=10, embedding=3, units=4, sequence_length=5)
    assert small == _small(layers=2)


@pytest.mark.slow
def test_scores_equal_keras_with_equal_weights():
    model = _small()
    keras = tf.keras.Sequential(
        [
            tf.keras.Input([5], dtype=tf.int32),
            tf.keras.layers.Embedding(14, 3, mask_zero=True),
            tf.keras.layers.LSTM(4, return_sequences=True),
            tf.keras.layers.Dense(3),
            tf.keras.layers.Dense(14),
        ]
    )
    weights = _weights(model)
    keras.set_weights(weights)
    _, scores, _ = _losses_and_gradients(model, weights, _X, _Y)
    real = _Y > 0
    np.testing.assert_allclose(scores.numpy()[real], keras(_X).numpy()[real], atol=1e-5)


@pytest.mark.parametrize("expected_length", [None, 2.5])
def test_loss_divides_by_words_or_expected_length(expected_length):
    scores = np.random.default_rng(0).normal(size=[*_Y.shape, 14])
    losses = SentenceLoss(expected_length)(_Y, tf.constant(scores, tf.float32))
    logs = scores - np.log(np.sum(np.exp(scores), axis=-1, keepdims=True))
    for n, labels in enumerate(_Y):
        total = -sum(logs[n, t, y] for t, y in enumerate(labels) if y)
        length = expected_length or max(1, np.count_nonzero(labels))
        assert float(losses[n]) == pytest.approx(total / length, rel=1e-5)
    assert _small(expected_length=expected_length).loss == SentenceLoss(expected_length)


def test_metrics_are_text_metrics():
    assert [(m.name, m.max_denominator) for m in _small().metrics] == [
        ("perplexity", 5),
        ("in_vocab_accuracy", 5),
        ("accuracy_without_out_of_vocab_or_end_of_sentence", 5),
    ]


@pytest.mark.parametrize("arguments", [{}, {"expected_length": 3.0}, {"layers": 2}, None], ids=str)
def test_padding_ids_do_not_change_results(arguments):
    if arguments is None:
        model = keyboard_cifg(10, units=4, projection=3, sequence_length=5)
    else:
        model = _small(**arguments)
    weights = _weights(model)
    moved = np.where(_Y > 0, _X, np.array([[8, 9, 10, 11, 13]], np.int32))
    results = []
    for x in (_X, moved):
        losses, scores, gradients = _losses_and_gradients(model, weights, x, _Y)
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        measured = [metric.per_example(tf.constant(_Y), scores) for metric in model.metrics]
        results.append([losses, *(value for pair in measured for value in pair), *dense])
    for actual, expected in zip(*results):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.slow
def test_longer_padding_does_not_change_results():
    model = _small()
    longer = next_word_lstm(vocabulary_size=10, embedding=3, units=4, sequence_length=9)
    weights = _weights(model)
    padded = [np.pad(values, [(0, 0), (0, 4)]) for values in (_X, _Y)]
    losses, _, gradients = _losses_and_gradients(model, weights, _X, _Y)
    padded_losses, _, padded_gradients = _losses_and_gradients(longer, weights, *padded)
    np.testing.assert_allclose(padded_losses, losses, rtol=1e-6)
    for actual, expected in zip(padded_gradients, gradients):
        np.testing.assert_allclose(
            tf.convert_to_tensor(actual), tf.convert_to_tensor(expected), atol=1e-6
        )


@pytest.mark.parametrize("traced", [False, True])
def test_embedding_gradient_is_sparse(traced):
    call = partial(_losses_and_gradients, model := _small())
    call = tf.function(call) if traced else call
    _, _, gradients = call(_weights(model), tf.constant(_X), tf.constant(_Y))
    assert isinstance(gradients[0], tf.IndexedSlices)
    assert gradients[0].values.shape == [_X.size, 3]
    np.testing.assert_array_equal(gradients[0].indices, _X.ravel())
    assert not any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients[1:])


@pytest.mark.slow
def test_vectorised_clients_equal_single_clients():
    model = _small()
    rng = np.random.default_rng(0)
    weights = [
        tf.constant(rng.normal(size=[3, *w.shape]), tf.float32)
        for w in model.initial_weights.trainable
    ]
    x, y = (tf.constant(rng.permuted(np.stack([v] * 3), axis=1)) for v in (_X, _Y))

    def client(arguments: tuple) -> list:
        losses, _, gradients = _losses_and_gradients(model, *arguments)
        return [losses, *map(tf.convert_to_tensor, gradients)]

    vectorised = tf.function(
        lambda *all_clients: tf.vectorized_map(client, all_clients, fallback_to_while_loop=False)
    )(weights, x, y)
    for k in range(3):
        for actual, expected in zip(vectorised, client(([w[k] for w in weights], x[k], y[k]))):
            np.testing.assert_allclose(actual[k], expected, atol=1e-5)


@pytest.mark.slow
def test_model_equality_ignores_seeds():
    model = _small(seed=3)
    assert model == _small(seed=4)
    assert hash(model) == hash(_small(seed=4))
    for other in (_small(layers=2), _small(expected_length=2.0)):
        assert model != other
    with computing_in("mixed_bfloat16"):
        assert model != _small(seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3])
def test_seeded_weights_ignore_earlier_models(seed):
    sizes = {"vocabulary_size": 5, "embedding": 3, "units": 4, "sequence_length": 2}
    next_word_lstm(**sizes, seed=7)
    model = next_word_lstm(**sizes, seed=seed)
    tf.keras.utils.set_random_seed(seed)
    tokens = tf.keras.Input([2], dtype=tf.int32)
    # Keras 3 chooses a layer's seed when the layer is created.
    layers = [tf.keras.layers.Embedding(9, 3), LSTM(4, return_sequences=True)]
    layers += [DenseOverSteps(3), DenseOverSteps(9)]
    built = tf.keras.Sequential([tokens, *layers])
    for value, weight in zip(model.initial_weights.trainable, built.get_weights(), strict=True):
        np.testing.assert_array_equal(value, weight)
    other = next_word_lstm(**sizes, seed=seed + 1).initial_weights.trainable[0]
    assert not np.array_equal(model.initial_weights.trainable[0], other)
