"""Properties of all recurrent layers."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.models.recurrent_harness import (
    LAYERS,
    MASKS,
    Sequences,
    assert_all_close,
    outputs_and_gradients,
    random_weights,
    sequences,
)
from tests.support.marks import usually
from tff_agnostic.base.later import tff
from tff_agnostic.models import CIFG, LSTM, Model, lstm, model_from_keras
from tff_agnostic.models.model import ModelWeights

_SEED = np.array([0, 0], np.int32)


@pytest.fixture(params=LAYERS.values(), ids=LAYERS)
def make_layer(request):
    def make(features: int = 3, dtype: str = "float64", **kwargs: Any) -> tf.keras.layers.Layer:
        layer = request.param(dtype=dtype, **kwargs)
        layer.set_weights(random_weights(layer, features))
        return layer

    return make


def _traced(layer: tf.keras.layers.Layer, data: Sequences, x_spec: tf.TensorSpec) -> Any:
    """Returns `outputs_and_gradients` as a concrete function of x."""
    mask = None if data.mask is None else tf.constant(data.mask)

    def call(x: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = layer(x, mask=mask)
            objective = data.objective(tf.ensure_shape(outputs, [*data.x.shape[:2], None]))
        return [outputs, *tape.gradient(objective, [x, *layer.trainable_weights])]

    return tf.function(call, autograph=False).get_concrete_function(x_spec)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "mask"),
    [([None, None, 3], "no_mask"), ([None, 6, 3], "middle"), ([4, None, 3], "middle")],
    ids=str,
)
def test_traced_layer_equals_eager_layer(make_layer, shape, mask):
    """If the batch size or the length is unknown, time steps run in a loop."""
    layer = make_layer(return_sequences=True)
    data = sequences([4, 6, 3], mask=MASKS[mask])
    call = _traced(layer, data, tf.TensorSpec(shape, tf.float64))
    actual = [value.numpy() for value in call(tf.constant(data.x))]
    assert_all_close(actual, outputs_and_gradients(layer, data))


@pytest.mark.parametrize(
    ("return_sequences", "mask"), [*((True, mask) for mask in MASKS), (False, "middle")], ids=str
)
def test_loop_equals_unrolled_steps(make_layer, return_sequences, mask, monkeypatch):
    layer = make_layer(return_sequences=return_sequences)
    data = sequences([4, 6, 3], mask=MASKS[mask])
    unrolled = outputs_and_gradients(layer, data)
    monkeypatch.setattr(lstm, "MAX_UNROLLED_STEPS", 0)
    assert_all_close(outputs_and_gradients(layer, data), unrolled)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [None, MASKS["middle"]], ids=["no_mask", "middle"])
def test_each_weight_gradient_is_one_matrix_product(make_layer, mask):
    """The number of matrix products must not depend on the number of time steps."""
    layer = make_layer(features=7, return_sequences=True)
    data = sequences([4, 6, 7], mask=mask)
    graph = _traced(layer, data, tf.TensorSpec(data.x.shape, data.x.dtype)).graph
    operations = graph.get_operations()
    products, transposed = (
        [tuple(op.outputs[0].shape) for op in operations if op.type == kind]
        for kind in ("MatMul", "Transpose")
    )
    for weight in layer.weights:
        if len(weight.shape) == 2:
            # The bias gradient is computed as one more row of the kernel gradient.
            rows = weight.shape[0] + (weight is layer.kernel)
            assert products.count((rows, weight.shape[1])) == 1, weight.name
    # One product transforms the inputs of all steps, and one computes their gradient.
    assert products.count((4 * 6, layer.kernel.shape[1])) == 1
    assert products.count((4 * 6, 7)) == 1
    # The other products transform the state in each step, forward and backward.
    rest = [shape for shape in products if 4 in shape]
    matrices = sum(len(weight.shape) == 2 for weight in layer.weights)
    assert len(rest) == 2 * 6 * (matrices - 1)
    assert len(products) == len(rest) + matrices + 2
    # Recurrent weights are transposed once for all steps.
    assert transposed.count(tuple(reversed(layer.recurrent_kernel.shape))) <= 1
    for op in operations:
        if op.type == "MatMul" and op.outputs[0].shape[0] == 4:
            assert not op.get_attr("transpose_a") and not op.get_attr("transpose_b")


@pytest.mark.parametrize("mask", [MASKS["right"], MASKS["left"], MASKS["middle"]])
def test_masked_steps_do_not_change_outputs(make_layer, mask):
    layer = make_layer(return_sequences=True)
    first = sequences([4, 6, 3], mask=mask)
    moved = first._replace(x=np.where(mask[:, :, np.newaxis], first.x, first.x + 100))
    results = outputs_and_gradients(layer, first)
    for actual, expected in zip(outputs_and_gradients(layer, moved), results):
        np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(results[1][~mask], 0)


def test_layer_passes_its_mask_only_if_returning_sequences(make_layer):
    x, mask = tf.constant(sequences([4, 6, 3]).x), tf.constant(MASKS["right"])
    np.testing.assert_array_equal(make_layer(return_sequences=True)(x, mask=mask)._keras_mask, mask)
    assert getattr(make_layer()(x, mask=mask), "_keras_mask", None) is None


def test_single_output_equals_last_output_of_sequence(make_layer):
    data = sequences([4, 6, 3], mask=MASKS["middle"])
    last, all_outputs = (
        make_layer(return_sequences=flag)(data.x, mask=data.mask).numpy() for flag in (False, True)
    )
    np.testing.assert_array_equal(last, all_outputs[:, -1])


def test_layer_config_restores_the_layer(make_layer):
    layer = make_layer(
        dtype="float32",
        name="words",
        return_sequences=True,
        kernel_initializer=tf.keras.initializers.RandomNormal(seed=3),
        recurrent_initializer="glorot_normal",
        bias_initializer=tf.keras.initializers.Constant(0.2),
        unit_forget_bias=False,
        trainable=False,
    )
    config = layer.get_config()
    copy = type(layer).from_config(config)
    assert copy.get_config() == config
    copy.build((None, None, 3))
    for weight, built in zip(copy.weights, layer.weights):
        assert weight.shape == built.shape
        assert not copy.trainable_weights
    np.testing.assert_array_equal(copy.bias, np.full(copy.bias.shape, 0.2, np.float32))


@pytest.mark.slow
def test_saved_model_loads_without_custom_objects(make_layer, tmp_path):
    layer = make_layer(dtype="float32", return_sequences=True)
    model = tf.keras.Sequential([tf.keras.Input([6, 3]), layer])
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    x = sequences([4, 6, 3], "float32").x
    np.testing.assert_array_equal(loaded(x), model(x))


def _functional(make_layer: Any, length: int = 6) -> Model:
    def build() -> tf.keras.Model:
        tokens = tf.keras.Input([length], dtype=tf.int32)
        embedded = tf.keras.layers.Embedding(11, 3, mask_zero=True)(tokens)
        states = make_layer(dtype="float32")(embedded)
        return tf.keras.Model(tokens, tf.keras.layers.Dense(4)(states))

    return model_from_keras(
        build,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none"),
        example_spec={
            "x": tf.TensorSpec([None, length], tf.int32),
            "y": tf.TensorSpec([None], tf.int32),
        },
    )


def _losses_and_gradients(model: Model, trainable: Any, x: tf.Tensor, y: tf.Tensor) -> list:
    trainable = list(trainable)
    with tf.GradientTape() as tape:
        tape.watch(trainable)
        losses, _ = model.example_losses(ModelWeights(trainable, []), {"x": x, "y": y}, True, _SEED)
        objective = tf.reduce_sum(losses)
    gradients = tape.gradient(objective, trainable)
    return [losses, *(tf.convert_to_tensor(gradient) for gradient in gradients)]


def _clients(model: Model, count: int, length: int) -> tuple[list[np.ndarray], Any, Any]:
    """Returns weights, padded tokens and labels of `count` clients."""
    rng = np.random.default_rng(3)
    weights = [
        rng.normal(size=[count, *w.shape]).astype(np.float32)
        for w in model.initial_weights.trainable
    ]
    tokens = rng.integers(0, 11, size=[count, 4, length]).astype(np.int32)
    return weights, tokens, rng.integers(0, 4, size=[count, 4]).astype(np.int32)


# `tf.vectorized_map` traces the clients even in eager mode.
@pytest.mark.nightly_cases("cifg_with_projection-loop")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_layer", "length"),
    usually(
        [(LAYERS["cifg"], 3), (LAYERS["cifg_with_projection"], 66)],
        [(LAYERS["cifg"], 3), (LAYERS["lstm"], 66), (LAYERS["cifg_with_projection"], 66)],
    ),
    ids=["cifg-unrolled", "lstm-loop", "cifg_with_projection-loop"],
    indirect=["make_layer"],
)
def test_vectorised_clients_equal_single_clients(make_layer, length):
    model = _functional(make_layer, length)
    weights, x, y = _clients(model, 3, length)

    def all_clients(weights: Any, x: tf.Tensor, y: tf.Tensor) -> Any:
        return tf.vectorized_map(
            lambda client: _losses_and_gradients(model, *client),
            (weights, x, y),
            fallback_to_while_loop=False,
        )

    arguments = tf.nest.map_structure(tf.constant, (weights, x, y))
    vectorised = tf.function(all_clients)(*arguments)
    for k in range(3):
        expected = _losses_and_gradients(model, [w[k] for w in arguments[0]], x[k], y[k])
        actual = [value[k].numpy() for value in vectorised]
        assert_all_close(actual, [value.numpy() for value in expected])


@pytest.mark.nightly_cases(but=["cifg-unrolled"])
@pytest.mark.slow
@pytest.mark.parametrize("length", [6, 66], ids=["unrolled", "loop"])
def test_layer_runs_in_a_tff_computation(tff_runtime, make_layer, length):
    model = _functional(make_layer, length)
    (weights, x, y) = _clients(model, 1, length)
    weights, x, y = [w[0] for w in weights], x[0], y[0]
    types = (
        tff.to_type([tff.TensorType(w.dtype, w.shape) for w in weights]),
        tff.TensorType(np.int32, [None, length]),
        tff.TensorType(np.int32, [None]),
    )
    computation = tff.tensorflow.computation(
        lambda weights, x, y: _losses_and_gradients(model, weights, x, y), types
    )
    expected = _losses_and_gradients(model, [tf.constant(w) for w in weights], x, y)
    actual = [np.asarray(value) for value in computation(weights, x, y)]
    assert_all_close(actual, [value.numpy() for value in expected])


def test_mixed_precision_keeps_float32_weights(make_layer):
    x = sequences([4, 6, 3], "float32").x
    layer = make_layer(dtype=tf.keras.mixed_precision.Policy("mixed_bfloat16"))
    assert {tf.as_dtype(weight.dtype) for weight in layer.weights} == {tf.float32}
    with tf.GradientTape() as tape:
        outputs = layer(x)
        objective = tf.reduce_sum(tf.cast(outputs, tf.float32))
    assert outputs.dtype == tf.bfloat16
    assert {g.dtype for g in tape.gradient(objective, layer.trainable_weights)} == {tf.float32}
    np.testing.assert_allclose(
        tf.cast(outputs, tf.float32), make_layer(dtype="float32")(x), atol=0.05
    )


@pytest.mark.parametrize("kind", [LSTM, CIFG, lambda units: CIFG(5, projection_units=units)])
@pytest.mark.parametrize("units", [0, 2.0, True])
def test_invalid_units_raise(kind, units):
    with pytest.raises(ValueError, match=r"units: expected a positive whole number, found"):
        kind(units)


@pytest.mark.parametrize("kind", [LSTM, CIFG])
def test_inputs_with_unsupported_shapes_raise(kind):
    with pytest.raises(ValueError, match="expected ndim=3, found ndim=2"):
        kind(3, name="words")(tf.zeros([4, 5]))
    with pytest.raises(ValueError, match=r"'words': the last axis of its inputs has no known size"):
        kind(3, name="words")(tf.keras.Input([6, None]))
