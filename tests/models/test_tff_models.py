"""Conversions of TFF's models to this package's models, and back."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.support import tff_models
from tests.support.keras_zoo import classification
from tff_agnostic import models
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations.tff_bridge.models import restore_keras_classes
from tff_agnostic.models.model import ModelWeights

_SEED = tf.constant([0, 1], tf.int32)
_BUILDERS = {
    "functional": tff_models.functional,
    "keras": tff_models.from_keras,
    "variables of Keras": lambda: tff_models.variables_from_keras,
    "variables": lambda: tff_models.HandWritten,
    "variables of a functional model": lambda: (
        lambda: tff.learning.models.model_from_functional(tff_models.functional())
    ),
}


def _examples(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(size)
    return {
        "x": rng.normal(size=[size, tff_models.FEATURES]).astype(np.float32),
        "y": rng.integers(tff_models.CLASSES, size=size).astype(np.int32),
    }


def _softmax_losses(kernel, bias, x, y):
    """Returns the losses of softmax regression and their kernel gradients, in float64."""
    logits = x.astype(np.float64) @ kernel + bias
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    losses = -np.log(shares[np.arange(len(y)), y])
    shares[np.arange(len(y)), y] -= 1
    return losses, np.einsum("nf,nc->nfc", x, shares)


@pytest.fixture(autouse=True)
def _keras_as_it_was():
    """Restores Keras: TFF builds Keras models in graphs, which breaks other tests' models."""
    yield
    restore_keras_classes()


@pytest.mark.nightly_cases(but=["variables", "functional"])
@pytest.mark.slow
@pytest.mark.parametrize("name", _BUILDERS)
def test_converted_model_has_per_example_losses(name):
    tff_model = _BUILDERS[name]()
    model = models.from_tff(tff_model)
    if name == "functional":
        for result, weight in zip(model.initial_weights.trainable, tff_model.initial_weights[0]):
            np.testing.assert_array_equal(result, weight)
    rng = np.random.default_rng(3)
    kernel = rng.normal(size=[tff_models.FEATURES, tff_models.CLASSES]).astype(np.float32)
    bias = rng.normal(size=[tff_models.CLASSES]).astype(np.float32)
    examples, scale = _examples(6), rng.uniform(size=6).astype(np.float32)

    @tf.function
    def weighted(kernel):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            weights = ModelWeights([kernel, tf.constant(bias)], [])
            losses, _ = model.example_losses(weights, examples, training=True, seed=_SEED)
            objective = tf.reduce_sum(scale * losses)
        return losses, tape.gradient(objective, kernel)

    losses, gradient = weighted(tf.constant(kernel))
    expected, gradients = _softmax_losses(kernel, bias, **examples)
    np.testing.assert_allclose(losses, expected, atol=2e-6)
    np.testing.assert_allclose(gradient, np.einsum("n,nfc->fc", scale, gradients), atol=1e-5)


def _returns_existing_model():
    model = tff_models.HandWritten()
    return lambda: model


_REFUSED = {
    "mean of its examples' losses, without which domains cannot be weighted": (
        lambda: tff_models.functional(reduce=tf.reduce_sum)
    ),
    "do not depend on the others of its batch": lambda: tff_models.functional(
        predict=lambda kernel, bias, x: (x - tf.reduce_mean(x, 0)) @ kernel + bias
    ),
    "as batch normalisation does": lambda: (
        lambda: tff_models.variables_from_keras(tf.keras.layers.BatchNormalization)
    ),
    "without its own random numbers": lambda: tff_models.from_keras(tf.keras.layers.Dropout(0.5)),
    "a known shape": lambda: tff_models.functional(
        spec=(tf.TensorSpec(None), tff_models.INPUT_SPEC[1])
    ),
    "inputs and labels": lambda: tff_models.functional(spec=tff_models.INPUT_SPEC[:1]),
    "one number per batch": lambda: tff_models.functional(reduce=tf.identity),
    "creates all weights of its model": _returns_existing_model,
    "found a built model": tff_models.HandWritten,
    "use models.model_from_keras": tf.keras.Sequential,
    "found dict": dict,
}


@pytest.mark.parametrize("message", _REFUSED)
def test_unsupported_tff_models_raise(message):
    with pytest.raises(UserError, match=message) as error:
        models.from_tff(_REFUSED[message]())
    assert "\n" not in str(error.value)


def test_tff_variables_with_constraints_raise():
    class Constrained(tff_models.HandWritten):
        def __init__(self) -> None:
            super().__init__()
            self._bias = tf.Variable(tf.zeros([3]), constraint=tf.keras.constraints.NonNeg())

    with pytest.raises(UserError, match=r"^models.from_tff: expected weights without constraints"):
        models.from_tff(Constrained)


@pytest.mark.slow
def test_model_for_tff_has_equal_losses(tff_runtime):
    model = models.logistic_regression(tff_models.FEATURES, tff_models.CLASSES)
    tff_model = models.to_tff(model)
    examples = _examples(7)
    weights = ModelWeights([tf.constant(w) for w in model.initial_weights.trainable], [])
    losses, predictions = model.example_losses(weights, examples, training=True, seed=_SEED)
    output = tff_model.predict_on_batch((weights.trainable, []), examples["x"], True)
    np.testing.assert_array_equal(output, predictions)
    np.testing.assert_allclose(tff_model.loss(output, examples["y"]), np.mean(losses), rtol=1e-6)
    process = tff.learning.algorithms.build_weighted_fed_avg(
        tff_model, tff.learning.optimizers.build_sgdm(0.1)
    )
    dataset = tf.data.Dataset.from_tensor_slices((examples["x"], examples["y"])).batch(3)
    metrics = process.next(process.initialize(), [dataset]).metrics["client_work"]["train"]
    assert set(metrics) >= {"loss", "accuracy"}


def test_round_trip_through_tff_keeps_losses():
    model = models.logistic_regression(tff_models.FEATURES, tff_models.CLASSES)
    again = models.from_tff(models.to_tff(model), metrics=model.metrics)
    weights = ModelWeights([tf.constant(w) for w in model.initial_weights.trainable], [])
    result, expected = (
        m.example_losses(weights, _examples(5), training=True, seed=_SEED)[0]
        for m in (again, model)
    )
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def _ours(*stack):
    def build():
        return tf.keras.Sequential(
            [tf.keras.Input([tff_models.FEATURES]), *[layer() for layer in stack]]
        )

    return classification(build, tff_models.FEATURES).model()


def test_random_layers_differ_between_batches():
    dropout, dense = tf.keras.layers.Dropout, tf.keras.layers.Dense
    tff_model = models.to_tff(_ours(lambda: dropout(0.5), lambda: dense(tff_models.CLASSES)))
    x = np.ones([20, tff_models.FEATURES], np.float32)
    first, second = (
        tff_model.predict_on_batch(tff_model.initial_weights, x, True) for _ in range(2)
    )
    assert not np.array_equal(first, second)
    still = [tff_model.predict_on_batch(tff_model.initial_weights, x, False) for _ in range(2)]
    np.testing.assert_array_equal(*still)


def test_conversion_to_tff_rejects_regularized_models():
    model = _ours(lambda: tf.keras.layers.Dense(3, kernel_regularizer="l2"))
    with pytest.raises(UserError, match="without regularizers"):
        models.to_tff(model)


@pytest.mark.slow
def test_existing_models_stay_callable_after_conversions():
    """Keras replaces the bases of its classes when TFF builds layers in a graph."""
    early = models.logistic_regression(tff_models.FEATURES, tff_models.CLASSES)
    models.from_tff(tff_models.from_keras())
    models.from_tff(tff_models.variables_from_keras)
    weights = ModelWeights([tf.constant(w) for w in early.initial_weights.trainable], [])
    assert early.predict(weights, _examples(2)["x"], True, _SEED).shape == (2, 3)
