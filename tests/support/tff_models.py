"""TFF models for tests, written like the examples in TFF's documentation."""

import collections
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

FEATURES, CLASSES = 4, 3
INPUT_SPEC = (tf.TensorSpec([None, FEATURES], tf.float32), tf.TensorSpec([None], tf.int32))


def keras_model(*layers: Any) -> tf.keras.Model:
    """Returns a Keras model of `layers` and a linear layer with constant initial weights."""
    dense = tf.keras.layers.Dense(CLASSES, kernel_initializer=tf.keras.initializers.Constant(0.1))
    return tf.keras.Sequential([tf.keras.Input([FEATURES]), *layers, dense])


def cross_entropy() -> tf.keras.losses.Loss:
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def from_keras(*layers: Any) -> Any:
    """Returns the functional model to which TFF converts a Keras model."""
    return tff.learning.models.functional_model_from_keras(
        keras_model(*layers), cross_entropy(), INPUT_SPEC
    )


def _mean(losses: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(losses)


def functional(reduce: Any = _mean, predict: Any = None, spec: Any = INPUT_SPEC) -> Any:
    """Returns a functional softmax regression without Keras.

    Args:
        reduce: Called with the losses of a batch; returns the loss of the batch.
        predict: Called with (kernel, bias, x); returns logits.
        spec: Specs of the inputs and labels.
    """

    @tf.function
    def predict_on_batch(weights: Any, x: Any, training: bool = True) -> tf.Tensor:
        del training
        (kernel, bias), _ = weights
        return x @ kernel + bias if predict is None else predict(kernel, bias, x)

    def loss(output: Any, label: Any, sample_weight: Any = None) -> tf.Tensor:
        del sample_weight
        return reduce(tf.nn.sparse_softmax_cross_entropy_with_logits(label, output))

    rng = np.random.default_rng(1)
    kernel = rng.normal(0, 0.3, [FEATURES, CLASSES]).astype(np.float32)
    return tff.learning.models.FunctionalModel(
        initial_weights=((kernel, np.zeros([CLASSES], np.float32)), ()),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=loss,
        input_spec=spec,
    )


def variables_from_keras(*layers: Any) -> Any:
    """Returns the VariableModel to which TFF converts a Keras model, with a metric."""
    return tff.learning.models.from_keras_model(
        keras_model(*[layer() for layer in layers]),
        loss=cross_entropy(),
        input_spec=collections.OrderedDict(x=INPUT_SPEC[0], y=INPUT_SPEC[1]),
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
    )


class HandWritten(tff.learning.models.VariableModel):
    """Softmax regression that counts its losses and examples in its own variables."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self._kernel = tf.Variable(rng.normal(0, 0.3, [FEATURES, CLASSES]).astype(np.float32))
        self._bias = tf.Variable(tf.zeros([CLASSES]))
        self._loss_sum = tf.Variable(0.0, trainable=False)
        self._num_examples = tf.Variable(0, trainable=False)

    trainable_variables = property(lambda self: [self._kernel, self._bias])
    non_trainable_variables = property(lambda self: [])
    local_variables = property(lambda self: [self._loss_sum, self._num_examples])
    input_spec = property(lambda self: INPUT_SPEC)

    @tf.function
    def predict_on_batch(self, batch_input: Any, training: bool = True) -> tf.Tensor:
        del training
        return tf.matmul(batch_input, self._kernel) + self._bias

    @tf.function
    def forward_pass(self, batch_input: Any, training: bool = True) -> Any:
        x, y = batch_input
        logits = self.predict_on_batch(x, training)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        self._num_examples.assign_add(tf.shape(y)[0])
        self._loss_sum.assign_add(loss * tf.cast(tf.shape(y)[0], tf.float32))
        return tff.learning.models.BatchOutput(
            loss=loss, predictions=logits, num_examples=tf.shape(y)[0]
        )

    @tf.function
    def report_local_unfinalized_metrics(self) -> Any:
        return collections.OrderedDict(
            loss=[self._loss_sum, tf.cast(self._num_examples, tf.float32)]
        )

    def metric_finalizers(self) -> Any:
        return collections.OrderedDict(loss=tf.function(lambda x: x[0] / x[1]))

    @tf.function
    def reset_metrics(self) -> None:
        for variable in self.local_variables:
            variable.assign(tf.zeros_like(variable))
