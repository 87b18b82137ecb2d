"""Models that no pure function of weights can stand for are refused, and the message says why."""

from typing import Any, Callable

import pytest
import tensorflow as tf

from tests.models.keras_zoo import classification
from tff_agnostic.models import Model, model_from_keras

layers = tf.keras.layers


def _model(*stack: Callable[[], Any], loss: Any = None, features: Any = 4) -> Model:
    def build() -> tf.keras.Model:
        shape = [features] if isinstance(features, int) else features
        return tf.keras.Sequential([tf.keras.Input(shape), *[layer() for layer in stack]])

    kind = classification(build, features)
    return model_from_keras(
        build, loss=loss or kind.loss, example_spec={"x": kind.x_spec, "y": kind.y_spec}
    )


class _Square(layers.Layer):
    """Multiplies by one weight, which subclasses keep in odd places."""

    def build(self, input_shape: Any) -> None:
        del input_shape
        self.keep(self.add_weight(name="hidden", shape=[4, 4]))

    def keep(self, weight: tf.Variable) -> None:
        self.weight = weight

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs @ self.weight


class _InMapping(_Square):
    def keep(self, weight: tf.Variable) -> None:
        self.held = {"weight": weight}

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs @ self.held["weight"]


class _InNestedList(_Square):
    def keep(self, weight: tf.Variable) -> None:
        self.held = [[weight]]

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs @ self.held[0][0]


class _InAttributeAndMapping(_Square):
    def keep(self, weight: tf.Variable) -> None:
        self.weight = weight
        self.held = {"weight": weight}

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs @ self.held["weight"]


class _InClosure(_Square):
    def keep(self, weight: tf.Variable) -> None:
        self.weight = weight
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


def test_the_layer_of_these_tests_is_fine_in_itself():
    assert _model(_Square).num_parameters == 16


@pytest.mark.parametrize("layer", [_InMapping, _InNestedList])
def test_weights_that_no_attribute_holds(layer):
    with pytest.raises(ValueError, match=r"must be an attribute of a layer.*hidden"):
        _model(layer)


@pytest.mark.parametrize("layer", [_InAttributeAndMapping, _InClosure])
def test_weights_that_the_call_reaches_in_another_way(layer):
    """They would keep their first value in every round."""
    with pytest.raises(ValueError, match=r"attributes of layers only.*hidden"):
        _model(layer)


def test_batch_normalization():
    with pytest.raises(ValueError, match=r"updates moving averages.*GroupNormalization"):
        _model(layers.BatchNormalization)


def test_batch_normalization_inside_another_layer():
    with pytest.raises(ValueError, match="updates moving averages"):
        _model(
            lambda: layers.Reshape([2, 2]),
            lambda: layers.TimeDistributed(layers.BatchNormalization()),
        )


def test_recurrent_state_that_outlives_a_call():
    def build() -> tf.keras.Model:
        return tf.keras.Sequential(
            [tf.keras.Input(batch_shape=[2, 3, 4]), layers.SimpleRNN(3, stateful=True)]
        )

    kind = classification(build, [3, 4])
    with pytest.raises(ValueError, match="no other state"):
        model_from_keras(build, loss=kind.loss, example_spec={"x": kind.x_spec, "y": kind.y_spec})


def test_a_weight_that_the_call_assigns_to():
    with pytest.raises(ValueError, match=r"not a pure function of its weights.*_counting"):
        _model(_Counting)


def test_activity_regularizers():
    with pytest.raises(ValueError, match="activity regularizer"):
        _model(lambda: layers.Dense(3, activity_regularizer="l2"))


def test_losses_added_in_a_call():
    with pytest.raises(ValueError, match="adds a loss in its call"):
        _model(_AddsLoss)


def test_losses_added_to_a_model_that_are_no_regularizers():
    def build() -> tf.keras.Model:
        inputs = tf.keras.Input([4])
        model = tf.keras.Model(inputs, layers.Dense(3)(inputs))
        model.add_loss(lambda: tf.constant(1.0))
        return model

    kind = classification(build, 4)
    with pytest.raises(ValueError, match="not a regularizer of one trainable weight"):
        model_from_keras(build, loss=kind.loss, example_spec={"x": kind.x_spec, "y": kind.y_spec})


def test_a_loss_that_is_already_averaged():
    averaged = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(
        ValueError, match=r'one number per example.*found shape \(\).*reduction="none"'
    ):
        _model(lambda: layers.Dense(3), loss=averaged)


def test_a_loss_for_each_token():
    per_token = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def build() -> tf.keras.Model:
        return tf.keras.Sequential([tf.keras.Input([6]), layers.Embedding(5, 3)])

    sentences = tf.TensorSpec([None, 6], tf.int32)
    with pytest.raises(
        ValueError, match=r"expected one number per example.*found shape \(None, 6\)"
    ):
        model_from_keras(build, loss=per_token, example_spec={"x": sentences, "y": sentences})


def test_a_model_that_was_not_built():
    with pytest.raises(ValueError, match=r"Weights for model .* have not yet been created"):
        model_from_keras(
            lambda: tf.keras.Sequential([layers.Dense(3)]),
            loss=tf.keras.losses.MeanSquaredError(reduction="none"),
            example_spec={"x": tf.TensorSpec([None, 4]), "y": tf.TensorSpec([None, 3])},
        )
