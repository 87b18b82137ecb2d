"""Functional models against Keras itself: outputs, losses and gradients."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.models.keras_zoo import KINDS, Kind
from tests.selection import usually
from tff_agnostic.models import Model, model_from_keras
from tff_agnostic.models.model import ModelWeights

_SEED = np.array([3, 4], np.int32)


def make(kind: Kind, seed: int = 0) -> Model:
    return model_from_keras(
        kind.build, loss=kind.loss, example_spec={"x": kind.x_spec, "y": kind.y_spec}, seed=seed
    )


def examples(kind: Kind, n: int = 7) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"x": kind.x(rng, n), "y": kind.y(rng, n)}


def _keras_twin(kind: Kind, seed: int = 0) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(seed)
    return kind.build()


def _moved(weights: ModelWeights) -> ModelWeights:
    """Weights other than those that the Keras model inside holds."""
    rng = np.random.default_rng(1)
    return ModelWeights(
        [w + rng.normal(size=w.shape).astype(np.float32) * 0.3 for w in weights.trainable],
        [w + rng.random(w.shape).astype(np.float32) for w in weights.non_trainable],
    )


def _set(keras_model: tf.keras.Model, weights: ModelWeights) -> None:
    for variables, values in zip(
        (keras_model.trainable_weights, keras_model.non_trainable_weights), weights
    ):
        for variable, value in zip(variables, values):
            variable.assign(value)


# What takes long to trace has a shorter twin.
_USUAL = [name for name in KINDS if name != "lstm_with_masking"]


@pytest.fixture(params=usually(_USUAL, KINDS))
def kind(request) -> Kind:
    return KINDS[request.param]


def test_initial_weights_are_those_of_keras_after_seeding(kind):
    model, twin = make(kind, seed=5), _keras_twin(kind, seed=5)
    assert len(model.initial_weights.trainable) == len(twin.trainable_weights)
    for value, variable in zip(model.initial_weights.trainable, twin.trainable_weights):
        np.testing.assert_array_equal(value, variable.numpy())
    assert model.num_parameters == sum(int(tf.size(v)) for v in twin.trainable_weights)


def test_losses_and_gradients_at_other_weights_are_those_of_keras(kind):
    model, twin, batch = make(kind), _keras_twin(kind), examples(kind)
    weights = _moved(model.initial_weights)
    _set(twin, weights)

    @tf.function
    def functional(trainable: Any, non_trainable: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            losses, predictions = model.example_losses(
                ModelWeights(trainable, non_trainable), batch, False, _SEED
            )
            objective = tf.reduce_mean(losses)
        return predictions, losses, tape.gradient(objective, trainable)

    predictions, losses, gradients = functional(*tf.nest.map_structure(tf.constant, tuple(weights)))

    with tf.GradientTape() as tape:
        expected_predictions = twin(batch["x"], training=False)
        penalty = tf.add_n([*twin.losses, 0.0])
        expected_losses = kind.loss(batch["y"], expected_predictions) + penalty
        objective = tf.reduce_mean(expected_losses)
    expected_gradients = tape.gradient(objective, twin.trainable_weights)

    assert losses.shape == [7]
    np.testing.assert_allclose(predictions, expected_predictions, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5, atol=1e-6)
    for gradient, expected in zip(gradients, expected_gradients):
        np.testing.assert_allclose(
            tf.convert_to_tensor(gradient), tf.convert_to_tensor(expected), rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("name", ["dense_with_dropout", "weights_in_lists", "lstm_with_dropout"])
def test_calls_leave_the_model_as_it_was(name):
    """Tensors of one call must not stay behind in the Keras model for the next one."""
    kind = KINDS[name]
    model, batch = make(kind), examples(kind)

    def losses(weights: ModelWeights, training: bool) -> np.ndarray:
        call = tf.function(lambda w: model.example_losses(ModelWeights(*w), batch, training, _SEED))
        return call(tf.nest.map_structure(tf.constant, tuple(weights)))[0].numpy()

    first = losses(model.initial_weights, training=False)
    losses(_moved(model.initial_weights), training=True)
    np.testing.assert_array_equal(losses(model.initial_weights, training=False), first)


def test_a_failing_call_leaves_the_model_as_it_was():
    kind = KINDS["dense"]
    model, batch = make(kind), examples(kind)
    before = model.predict(model.initial_weights, batch["x"], False, _SEED)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        model.predict(_moved(model.initial_weights), np.zeros([2, 9], np.float32), False, _SEED)
    after = model.predict(model.initial_weights, batch["x"], False, _SEED)
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    "name",
    usually(
        ["tied_variable", "two_inputs"],
        [
            "dense",
            "convolutional",
            "lstm_with_masking",
            "weights_in_lists",
            "tied_variable",
            "two_inputs",
        ],
    ),
)
def test_it_runs_in_a_tff_computation(tff_runtime, name):
    kind = KINDS[name]
    model, batch = make(kind), examples(kind)
    weights = _moved(model.initial_weights)

    def gradients_of(trainable: Any, non_trainable: Any, data: Any) -> Any:
        trainable = list(trainable)
        with tf.GradientTape() as tape:
            tape.watch(trainable)
            losses, _ = model.example_losses(
                ModelWeights(trainable, list(non_trainable)), data, True, _SEED
            )
            objective = tf.reduce_mean(losses)
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(objective, trainable)]
        return losses, gradients

    arguments = ([*weights.trainable], [*weights.non_trainable], batch)
    specs = tf.nest.map_structure(
        lambda value: tff.TensorType(value.dtype, [None, *value.shape[1:]]), batch
    )
    types = [tff.to_type([tff.TensorType(w.dtype, w.shape) for w in ws]) for ws in arguments[:2]]
    computation = tff.tensorflow.computation(gradients_of, [*types, tff.to_type(specs)])
    losses, gradients = computation(*arguments)
    expected_losses, expected_gradients = tf.function(gradients_of)(
        *tf.nest.map_structure(tf.constant, arguments)
    )
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5, atol=1e-6)
    for gradient, expected in zip(gradients, expected_gradients):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)
