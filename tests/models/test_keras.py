"""Models from Keras match Keras itself in outputs, losses and gradients."""

import functools
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf

from tests.support.keras_zoo import KINDS, Kind, classification
from tests.support.marks import usually
from tff_agnostic.base.later import tff
from tff_agnostic.models import Model
from tff_agnostic.models.keras_platform import KERAS_3, keras_platform
from tff_agnostic.models.model import ModelWeights

_SEED = np.array([3, 4], np.int32)


def examples(kind: Kind, n: int = 7) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"x": kind.x(rng, n), "y": kind.y(rng, n)}


def _keras_twin(kind: Kind, seed: int = 0) -> tf.keras.Model:
    tf.keras.utils.set_random_seed(seed)
    return kind.build()


def _moved(weights: ModelWeights) -> ModelWeights:
    """Returns the weights plus random numbers."""
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


# Masking is tested by own_recurrent_layers, which is cheaper to trace.
_NAMES = [name for name in KINDS if name != "lstm_with_masking"]


@pytest.mark.parametrize("name", _NAMES)
def test_initial_weights_equal_seeded_keras(name):
    kind = KINDS[name]
    model, twin = kind.model(seed=5), _keras_twin(kind, seed=5)
    for value, variable in zip(
        model.initial_weights.trainable, twin.trainable_weights, strict=True
    ):
        np.testing.assert_array_equal(value, variable.numpy())
    assert model.num_parameters == sum(int(tf.size(v)) for v in twin.trainable_weights)


@pytest.mark.nightly_cases(
    "lstm_with_dropout", "own_recurrent_layers", "stacked_cells", "attention", "tied_embedding"
)
@pytest.mark.slow_cases(but=["tied_variable", "frozen_normalization", "two_inputs"])
@pytest.mark.parametrize("name", _NAMES)
def test_losses_and_gradients_match_keras(name):
    kind = KINDS[name]
    model, twin, batch = kind.model(), _keras_twin(kind), examples(kind)
    weights = _moved(model.initial_weights)
    _set(twin, weights)

    @functools.partial(tf.function, autograph=False)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense_with_dropout", "weights_in_lists", "lstm_with_dropout"])
def test_calls_do_not_change_the_model(name):
    """The Keras model must not retain a tensor of one call until the next call."""
    kind = KINDS[name]
    model, batch = kind.model(), examples(kind)

    def losses(weights: ModelWeights, training: bool) -> np.ndarray:
        call = tf.function(
            lambda w: model.example_losses(ModelWeights(*w), batch, training, _SEED),
            autograph=False,
        )
        return call(tf.nest.map_structure(tf.constant, tuple(weights)))[0].numpy()

    first = losses(model.initial_weights, training=False)
    losses(_moved(model.initial_weights), training=True)
    np.testing.assert_array_equal(losses(model.initial_weights, training=False), first)


def test_failing_call_does_not_change_the_model():
    kind = KINDS["dense"]
    model, batch = kind.model(), examples(kind)
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
def test_tff_computation_matches_tensorflow(tff_runtime, name):
    kind = KINDS[name]
    model, batch = kind.model(), examples(kind)
    weights = _moved(model.initial_weights)

    def compute_gradients(trainable: Any, non_trainable: Any, data: Any) -> Any:
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
    computation = tff.tensorflow.computation(compute_gradients, [*types, tff.to_type(specs)])
    losses, gradients = computation(*arguments)
    expected_losses, expected_gradients = tf.function(compute_gradients, autograph=False)(
        *tf.nest.map_structure(tf.constant, arguments)
    )
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5, atol=1e-6)
    for gradient, expected in zip(gradients, expected_gradients):
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


# --- Random layers, such as dropout, depend on the call's seed only


layers = tf.keras.layers

_RANDOM_LAYERS = {
    "dropout": lambda: layers.Dropout(0.5),
    "alpha_dropout": lambda: layers.AlphaDropout(0.5),
    "gaussian_dropout": lambda: layers.GaussianDropout(0.5),
    "gaussian_noise": lambda: layers.GaussianNoise(0.5),
    "spatial_dropout": lambda: layers.SpatialDropout2D(0.5),
    "random_flip": layers.RandomFlip,
    "random_rotation": lambda: layers.RandomRotation(0.2),
    "random_contrast": lambda: layers.RandomContrast(0.5),
}
_X = np.random.default_rng(0).random([5, 4, 4, 6]).astype(np.float32)


def _unchanged(channels: int) -> tf.keras.layers.Layer:
    """Returns an identity layer that has weights, since every model needs weights."""
    return layers.Dense(channels, kernel_initializer="identity")


def _image_model(build: Callable[[], tf.keras.Model]) -> Model:
    return classification(build, [4, 4, 6]).model(
        loss=lambda labels, predictions: tf.reduce_sum(predictions, axis=[1, 2, 3])
    )


def _model(make_layer: Callable[[], Any]) -> Model:
    inputs = tf.keras.Input([4, 4, 6])
    return _image_model(lambda: tf.keras.Sequential([inputs, make_layer(), _unchanged(6)]))


def _outputs(model: Model, x: Any, *seeds: tuple[int, int], training: bool = True) -> list[Any]:
    weights = tf.nest.map_structure(tf.constant, model.initial_weights)
    call = tf.function(lambda s: model.predict(weights, x, training, s), autograph=False)
    return [call(tf.constant(seed)).numpy() for seed in seeds]


@pytest.mark.slow
@pytest.mark.parametrize("make_layer", _RANDOM_LAYERS.values(), ids=_RANDOM_LAYERS)
def test_seed_alone_determines_random_layers(make_layer):
    model, other = _model(make_layer), _model(make_layer)
    first, again, *others = _outputs(model, _X, (1, 2), (1, 2), (1, 3), (2, 2))
    np.testing.assert_array_equal(again, first)
    assert not any(np.array_equal(outputs, first) for outputs in others)
    # Keras' own seed does not matter.
    tf.keras.utils.set_random_seed(1)
    np.testing.assert_array_equal(_outputs(other, _X, (1, 2))[0], first)
    for evaluated in _outputs(model, _X, (1, 2), (9, 9), training=False):
        np.testing.assert_allclose(evaluated, _X, rtol=1e-6)


def test_layers_and_calls_have_different_dropout_masks():
    def build() -> tf.keras.Model:
        inputs = tf.keras.Input([4, 4, 6])
        first, second = layers.Dropout(0.5), layers.Dropout(0.5)
        drawn = layers.Concatenate()([first(inputs), first(inputs), second(inputs)])
        return tf.keras.Model(inputs, _unchanged(18)(drawn))

    (outputs,) = _outputs(_image_model(build), _X, (1, 2))
    masks = [part == 0 for part in np.split(outputs, 3, axis=-1)]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not np.array_equal(masks[a], masks[b])


@pytest.mark.slow
def test_dropout_drops_at_its_rate_and_rescales():
    model = _model(lambda: layers.Dropout(0.2))
    outputs = np.stack(_outputs(model, _X, *((0, i) for i in range(20))))
    kept = outputs != 0
    # Four standard deviations of a mean over 9600 entries are less than 0.02.
    assert abs(kept.mean() - 0.8) < 0.02
    scaled = np.broadcast_to(_X / 0.8, outputs.shape)
    np.testing.assert_allclose(outputs[kept], scaled[kept], rtol=1e-5)


@pytest.mark.slow
def test_seed_determines_dropout_inside_lstm():
    kind = KINDS["lstm_with_dropout"]
    x = kind.x(np.random.default_rng(0), 6)
    first, again, other = _outputs(kind.model(), x, (1, 2), (1, 2), (1, 3))
    np.testing.assert_array_equal(again, first)
    assert not np.array_equal(other, first)


# --- Models that are not pure functions of their weights are rejected


def _build(*stack: Callable[[], Any], loss: Any = None) -> Model:
    def build() -> tf.keras.Model:
        return tf.keras.Sequential([tf.keras.Input([4]), *[layer() for layer in stack]])

    return classification(build, 4).model(loss=loss)


class _InMapping(layers.Layer):
    def build(self, input_shape: Any) -> None:
        del input_shape
        self.held = {"weight": self.add_weight(name="hidden", shape=[4, 4])}

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs @ self.held["weight"]


class _InClosure(layers.Layer):
    def build(self, input_shape: Any) -> None:
        del input_shape
        self.weight = weight = self.add_weight(name="hidden", shape=[4, 4])
        self.multiply = lambda inputs: inputs @ weight

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.multiply(inputs)


class _Counting(layers.Layer):
    def build(self, input_shape: Any) -> None:
        del input_shape
        self.calls = self.add_weight(name="calls", shape=[], trainable=False)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        self.calls.assign_add(1.0)
        return inputs


class _AddsLoss(layers.Layer):
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        self.add_loss(tf.reduce_mean(inputs))
        return inputs


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (_InMapping, r"must be an attribute of a layer.*hidden"),
        # Keras 2 would use this weight's initial value in every round.
        (_InClosure, r"attributes of layers, found .*hidden"),
    ],
)
def test_weights_outside_attributes_are_used_or_rejected(layer, message):
    if keras_platform().release != KERAS_3:
        with pytest.raises(ValueError, match=message):
            _build(layer)
        return
    model = _build(layer)
    (weight,), _ = model.initial_weights
    x = tf.ones([1, 4])
    for changed in (weight, weight + 1):
        scores = model.predict(ModelWeights([changed], []), x, False, tf.zeros([2], tf.int32))
        np.testing.assert_allclose(scores, x @ changed, rtol=1e-5)


def _stateful() -> Model:
    def build() -> tf.keras.Model:
        recurrent = layers.SimpleRNN(3, stateful=True)
        return tf.keras.Sequential([tf.keras.Input(batch_shape=[2, 3, 4]), recurrent])

    return classification(build, [3, 4]).model()


_IMPURE: dict[str, tuple[Callable[[], Model], str]] = {
    "inner batch normalization": (
        lambda: _build(
            lambda: layers.Reshape([2, 2]),
            lambda: layers.TimeDistributed(layers.BatchNormalization()),
        ),
        r"updates moving averages.*GroupNormalization",
    ),
    "normalization": (
        lambda: _build(layers.Normalization, lambda: layers.Dense(3)),
        r"'normalization' is not adapted to data.*mean=data.x_mean",
    ),
    "recurrent state": (_stateful, "no state except weights"),
    "assignment": (lambda: _build(_Counting), r"not a pure function of its weights.*_counting"),
    "activity regularizer": (
        lambda: _build(lambda: layers.Dense(3, activity_regularizer="l2")),
        "activity regularizer",
    ),
    "loss of a call": (lambda: _build(_AddsLoss), "adds a loss in its call"),
    "mean loss": (
        lambda: _build(
            lambda: layers.Dense(3),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        ),
        r'one number per example.*found shape \(\).*reduction="none"',
    ),
    "no weights yet": (
        lambda: classification(lambda: tf.keras.Sequential([layers.Dense(3)]), 4).model(),
        r"[Ww]eights .*have not yet been created",
    ),
}


@pytest.mark.parametrize("case", _IMPURE)
def test_rejects_impure_models(case):
    build, message = _IMPURE[case]
    with pytest.raises(ValueError, match=message):
        build()


def test_normalization_with_given_statistics_is_accepted():
    given = {"mean": np.ones(4, np.float32), "variance": np.full(4, 4, np.float32)}
    model = _build(lambda: layers.Normalization(**given), lambda: layers.Dense(3))
    assert len(model.initial_weights.non_trainable) == 0


@pytest.mark.skipif(keras_platform().release == KERAS_3, reason="Keras 3 has no such losses")
def test_rejects_added_losses_other_than_regularizers():
    def build() -> tf.keras.Model:
        inputs = tf.keras.Input([4])
        model = tf.keras.Model(inputs, layers.Dense(3)(inputs))
        model.add_loss(lambda: tf.constant(1.0))
        return model

    with pytest.raises(ValueError, match="not a regularizer of one trainable weight"):
        classification(build, 4).model()
