"""Frozen layers: which weights are trained, and equal predictions."""

import numpy as np
import pytest
import tensorflow as tf

from tests.support import golden, keras_zoo
from tests.support.models import linear_model
from tff_agnostic.aggregations.aggregation import ClientLimits
from tff_agnostic.computations.client_output import training_bounds
from tff_agnostic.models.keras import LastLayer, as_in_keras, freeze, last_layer, with_frozen
from tff_agnostic.models.model import Model, ModelWeights

_SEED = np.zeros(2, np.int32)


def _model(name: str = "dense") -> Model:
    return keras_zoo.KINDS[name].model()


@pytest.mark.parametrize("frozen", [(), (0,), (3,), (0, 2), (1, 2, 3)])
def test_weights_return_to_their_order_in_keras(frozen):
    weights = ModelWeights(["a", "b", "c", "d"], ["e"])
    result = with_frozen(weights, frozen)
    assert result.non_trainable == [*("abcd"[k] for k in frozen), "e"]
    assert sorted([*result.trainable, *result.non_trainable]) == list("abcde")
    assert as_in_keras(result, frozen) == weights


def test_frozen_weights_keep_predictions_without_gradients():
    # An earlier layer must not change the names of the model's layers.
    tf.keras.layers.Dense(1)
    model = _model()
    result = freeze(model, ["dense"])
    assert result.frozen == (0, 1)
    x = np.random.default_rng(0).normal(size=[4, 5]).astype(np.float32)
    expected = model.predict(model.initial_weights, x, False, _SEED)
    np.testing.assert_array_equal(result.predict(result.initial_weights, x, False, _SEED), expected)
    assert result.num_parameters == 7 * 3 + 3
    # Clients do not send the frozen kernel and bias.
    bounds = training_bounds(result)(ClientLimits())
    assert len(bounds.weighted_delta) == 2


def test_regularizer_excludes_frozen_weights():
    """The model has l2 on its first layer's kernel and l1 on its second layer's bias."""
    model = _model()
    weights = [w + np.float32(1) for w in model.initial_weights.trainable]
    _, _, kernel, bias = weights
    assert float(model.regularizer(weights)) > 0.01 * np.sum(weights[0] ** 2)
    result = freeze(model, ["dense"]).regularizer([kernel, bias])
    assert float(result) == pytest.approx(0.01 * np.abs(bias).sum(), rel=1e-6)
    assert freeze(model, ["dense_1"]).regularizer is not None
    assert freeze(_model("convolutional"), ["conv*"]).regularizer is None


def test_equal_frozen_layers_give_equal_models():
    model = _model()
    assert freeze(model, ["dense"]) == freeze(model, ["dens?", "dense"])
    assert hash(freeze(model, ["dense"])) == hash(freeze(model, ["dense"]))
    assert freeze(model, ["dense"]) != freeze(model, ["dense_1"])
    assert freeze(model, ["dense"]) != model
    assert freeze(model, []) is model


@pytest.mark.parametrize(
    ("frozen", "expected", "others"),
    [
        ((), "dense_1", ("dense",)),
        # `others` omits layers that are already frozen.
        (("dense",), "dense_1", ()),
        (("dense_1",), "dense", ()),
    ],
)
def test_last_layer_is_the_last_trainable_layer(frozen, expected, others):
    result = last_layer(freeze(_model(), frozen))
    assert result == LastLayer(expected, others)
    alone = freeze(_model(), (*frozen, *result.others))
    (layer,) = (a for a in alone.keras_model.layers if a.name == expected)
    shapes = [tuple(weight.shape) for weight in layer.trainable_weights]
    assert [weight.shape for weight in alone.initial_weights.trainable] == shapes


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["dense", "dence*"], "layers with weights to train, or patterns of them (dense, dense_1)"),
        (["dense*"], "some layers to stay trainable, found all that have weights: dense, dense_1"),
    ],
)
def test_invalid_frozen_layers_raise(patterns, message):
    refusal = golden.refusal(freeze, _model(), patterns)
    assert refusal.startswith(f"frozen_layers: expected {message}")


def test_freezing_a_model_without_keras_raises():
    message = golden.refusal(freeze, linear_model(), ["dense"])
    assert message.startswith("frozen_layers: expected a task with a Keras model")
