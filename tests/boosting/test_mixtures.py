"""Ensembles as models: outputs, losses and gradients equal NumPy's and TensorFlow's."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.references import fed_boost as reference
from tests.support.clients import single
from tff_agnostic.base.errors import UserError
from tff_agnostic.boosting.alpha import BoostBroadcast, client_work
from tff_agnostic.boosting.ensemble import EnsembleModel, ensemble
from tff_agnostic.boosting.mixture_losses import MIXTURE_LOSSES
from tff_agnostic.boosting.sampling import SentPredictors
from tff_agnostic.models import Model, logistic_regression, model_from_keras, next_word_lstm
from tff_agnostic.models.metrics import ColumnLoss, SentenceLoss, binary_accuracy
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.models.next_word import unigram_model

_RNG = np.random.default_rng(0)
# Like the paper's alpha~, these weights do not sum to 1.
_ALPHA = np.array([0.6, 0.1, 0.7], np.float32)
_SEED = tf.zeros([2], tf.int32)


def _dense(units: int, activation: Any, loss: Any, y: tf.TensorSpec, **more: Any) -> Model:
    """Returns a Keras model with one layer, whose activation is given by name."""

    def build() -> tf.keras.Model:
        layer = tf.keras.layers.Dense(units, activation)
        return tf.keras.Sequential([tf.keras.Input([4]), layer])

    specs = {"x": tf.TensorSpec([None, 4], tf.float32), "y": y}
    return model_from_keras(build, loss=loss, example_spec=specs, **more)


_losses = tf.keras.losses
_CLASS = tf.TensorSpec([None], tf.int32)


def _regression(outputs: int, loss: Any) -> Model:
    return _dense(outputs, None, loss, tf.TensorSpec([None, outputs], tf.float32))


def _probabilities_model() -> Model:
    loss = _losses.SparseCategoricalCrossentropy(reduction="none")
    return _dense(3, "softmax", loss, _CLASS)


def _two_classes() -> Model:
    loss = ColumnLoss(_losses.BinaryCrossentropy(reduction="none"))
    return _dense(1, "sigmoid", loss, _CLASS, metrics=[binary_accuracy(False)])


_NEXT_WORD = next_word_lstm(2, embedding=3, units=4, sequence_length=4)
_LENGTH = 5.0
_MODELS = {
    "words": lambda: unigram_model(5),
    "scores": lambda: logistic_regression(4, 3),
    "probabilities": _probabilities_model,
    "numbers": lambda: _regression(2, _losses.MeanSquaredError(reduction="none")),
    "sentences": lambda: _NEXT_WORD,
    "sentences of a length": lambda: dataclasses.replace(_NEXT_WORD, loss=SentenceLoss(_LENGTH)),
    "probability of a class": _two_classes,
}


def _predictors(model: Model) -> list[ModelWeights]:
    rng = np.random.default_rng(1)
    weights = model.initial_weights.trainable
    return [
        ModelWeights([rng.normal(size=np.shape(w)).astype(np.float32) for w in weights], [])
        for _ in range(3)
    ]


def _examples(kind: str, n: int = 6) -> tuple[np.ndarray, np.ndarray]:
    if kind == "words":
        words = _RNG.integers(5, size=n).astype(np.int32)
        return words, words
    if kind.startswith("sentences"):
        x, y = _RNG.integers(1, 6, size=[2, n, 4]).astype(np.int32)
        # Sentences end with padding; the last sentence is only padding.
        y[np.arange(4) >= np.array([4, 1, 2, 3, 4, 0])[:n, np.newaxis]] = 0
        return x, y
    x = _RNG.normal(size=[n, 4]).astype(np.float32)
    if kind == "numbers":
        return x, _RNG.normal(size=[n, 2]).astype(np.float32)
    return x, _RNG.integers(2 if "of a class" in kind else 3, size=n).astype(np.int32)


def _outputs(kind: str, predictors: list[ModelWeights], x: np.ndarray) -> np.ndarray:
    """Returns each predictor's outputs, [n, q, numbers], or [n, T, q, ids] for sentences."""
    if kind.startswith("sentences"):
        predicted = [_NEXT_WORD.predict(p, tf.constant(x), False, _SEED) for p in predictors]
        scores = np.stack([np.asarray(p, np.float64) for p in predicted], axis=2)
    elif kind == "words":
        scores = np.stack([p.trainable[0] for p in predictors])[np.newaxis].repeat(len(x), axis=0)
    else:
        scores = np.stack([x @ p.trainable[0] + p.trainable[1] for p in predictors], axis=1)
    if kind == "numbers":
        return scores
    if "of a class" in kind:
        scores = np.concatenate([np.zeros_like(scores), scores], axis=2)
    return np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)


def _reference(kind: str, loss: str, h_all: np.ndarray, label: Any) -> tuple[float, np.ndarray]:
    """Returns an example's loss and gradient in the weights, from NumPy."""
    if kind == "numbers":
        left = _ALPHA @ h_all - label
        return np.sum(left**2), 2 * h_all @ left
    if kind.startswith("sentences"):
        words = [_reference("", loss, h, word) for h, word in zip(h_all, label) if word]
        losses, gradients = zip(*words) if words else ([0.0], [np.zeros(3)])
        length = _LENGTH if kind == "sentences of a length" else len(losses)
        return np.sum(losses) / length, np.sum(gradients, axis=0) / length
    example = reference.Example(h_all, int(label))
    at = (loss, _ALPHA, example)
    return reference.loss_at(*at), reference.gradient_at(*at)


def _made(kind: str, loss: str) -> tuple[EnsembleModel, list[ModelWeights]]:
    model = _MODELS[kind]()
    predictors = _predictors(model)
    return ensemble(model, predictors, loss=loss), predictors


_CASES = [(k, loss) for k in _MODELS for loss in MIXTURE_LOSSES if (k, loss) != ("numbers", "log")]


@pytest.mark.parametrize(("kind", "loss"), _CASES)
def test_losses_and_gradients_equal_numpy(kind, loss):
    made, predictors = _made(kind, loss)
    x, y = _examples(kind)
    h_all = _outputs(kind, predictors, x)
    outputs = made.members.outputs(made.initial_weights.non_trainable, tf.constant(x))
    actual = MIXTURE_LOSSES[loss].at(outputs, tf.constant(_ALPHA), tf.constant(y))
    for j, label in enumerate(y):
        expected, gradient = _reference(kind, loss, h_all[j], label)
        np.testing.assert_allclose(actual.losses[j], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(actual.gradients[j], gradient, rtol=1e-5, atol=1e-6)
    norms = np.broadcast_to(outputs.squared_norms(), h_all.shape[:-1])
    np.testing.assert_allclose(norms, np.sum(h_all**2, axis=-1), rtol=1e-5)


@pytest.mark.parametrize(("kind", "loss"), _CASES)
def test_model_loss_and_gradient_equal_mixture_losses(kind, loss):
    made, _ = _made(kind, loss)
    x, y = map(tf.constant, _examples(kind))
    # A single output for two classes is normalised, so normalise alpha.
    alpha = tf.constant(_ALPHA / _ALPHA.sum() if "of a class" in kind else _ALPHA)
    weights = ModelWeights([alpha], made.initial_weights.non_trainable)
    with tf.GradientTape() as tape:
        tape.watch(alpha)
        losses, _ = made.example_losses(weights, {"x": x, "y": y}, training=False, seed=_SEED)
        total = tf.reduce_sum(losses)
    outputs = made.members.outputs(weights.non_trainable, x)
    actual = MIXTURE_LOSSES[loss].at(outputs, alpha, y)
    np.testing.assert_allclose(losses, actual.losses, rtol=1e-5, atol=1e-6)
    # Two directions keep alpha's sum; the slope along the third one differs if alpha is normalised.
    directions = np.array([[1, -1, 0], [0, 1, -1], [0, 0, 1]][: 2 if "of a class" in kind else 3])
    slopes, expected = (
        directions @ np.asarray(g)
        for g in (tape.gradient(total, alpha), tf.reduce_sum(actual.gradients, axis=0))
    )
    np.testing.assert_allclose(slopes, expected, rtol=1e-4, atol=1e-5)


def test_client_sends_summed_gradient_of_sentences():
    made, predictors = _made("sentences", "log")
    x, y = _examples("sentences")
    # These sentences need several batches.
    x, y = (np.tile(column, (15, 1)) for column in (x, y))
    domain_id = (np.arange(len(x)) % 2).astype(np.int32)
    ones, alpha = tf.ones([3]), tf.constant(_ALPHA)
    broadcast = BoostBroadcast(
        ModelWeights([alpha], made.initial_weights.non_trainable),
        SentPredictors(ones, ones, ones),
        tf.constant([1.0, 0.5]),
    )
    client = single({"x": x, "y": y, "domain_id": tf.constant(domain_id)})
    answer = client_work(broadcast, client, model=made, num_domains=2, estimator="masked", room=3)
    h_all = _outputs("sentences", predictors, x)
    references = [_reference("sentences", "log", h, label) for h, label in zip(h_all, y)]
    losses, gradients = map(np.array, zip(*references))
    expected = np.where(domain_id == 0, 1, 0.5) @ gradients
    np.testing.assert_allclose(answer.weighted_delta[0], expected, rtol=1e-4)
    domain_losses = [losses[domain_id == k].sum() for k in (0, 1)]
    np.testing.assert_allclose(answer.domain_losses, domain_losses, rtol=1e-4)
    # Perplexity's denominator is the number of words, not of sentences.
    perplexity = answer.metric_sums["perplexity"]
    np.testing.assert_allclose(perplexity.denominator.numpy().sum(), np.count_nonzero(y))


@pytest.mark.parametrize("kind", ["scores", "probability of a class"])
def test_ensemble_starts_uniform_with_mixture_metrics(kind):
    made, predictors = _made(kind, "log")
    x, y = _examples(kind, n=50)
    np.testing.assert_allclose(made.initial_weights.trainable[0], [1 / 3] * 3)
    predictions = made.predict(made.initial_weights, tf.constant(x), False, _SEED)
    correct, _ = made.metrics[0].per_example(tf.constant(y), predictions)
    chosen = np.argmax(_outputs(kind, predictors, x).mean(axis=1), axis=1)
    np.testing.assert_array_equal(np.asarray(correct) > 0, chosen == y)
    # Predictions have the shape of the task's model.
    assert predictions.shape == [50, 3 if kind == "scores" else 1]
    assert made.num_parameters == made.num_predictors == 3


def test_message_bytes_count_chosen_predictors():
    made, _ = _made("scores", "log")
    assert [made.message_bytes(c) for c in (1, 2)] == [4 * (4 * 3 + 3), 8 * (4 * 3 + 3)]


def test_unigram_model_predicts_softmax_of_its_scores():
    model = unigram_model(3)
    scores = np.array([1.0, 0.0, -1.0], np.float32)
    x = tf.constant([0, 2, 2])
    predictions = model.predict(ModelWeights([scores], []), x, False, _SEED)
    h = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(model.loss(x, predictions), -np.log(h[[0, 2, 2]]), rtol=1e-6)


def test_equal_ensembles_are_equal_and_hashed_equally():
    model = logistic_regression(4, 3)
    one, other = (ensemble(model, _predictors(model), loss="log") for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != ensemble(model, _predictors(model), loss="squared")


@pytest.mark.parametrize(
    ("model_loss", "loss", "message"),
    [
        (_losses.Huber(), None, "loss Huber"),
        (ColumnLoss(_losses.BinaryCrossentropy(label_smoothing=0.1)), None, "BinaryCrossentropy"),
        (_losses.MeanSquaredError(reduction="none"), "log", "^loss: expected squared, found log"),
    ],
)
def test_rejects_losses_without_mixture_loss(model_loss, loss, message):
    model = dataclasses.replace(_MODELS["numbers"](), loss=model_loss)
    with pytest.raises(UserError, match=message):
        ensemble(model, _predictors(model), loss=loss)


def test_rejects_zero_probability_with_log_loss():
    predictors = [ModelWeights([np.array(row, np.float32)], []) for row in ([0, 1], [0, -200])]
    with pytest.raises(UserError, match="b: expected positive probabilities, found 0 of outcome 1"):
        ensemble(unigram_model(2), predictors, ["a", "b"])
    assert ensemble(unigram_model(2), predictors, ["a", "b"], loss="squared").num_predictors == 2
    predictors[1].trainable[0][0] = np.nan
    with pytest.raises(UserError, match="b: expected finite numbers"):
        ensemble(unigram_model(2), predictors, ["a", "b"])
