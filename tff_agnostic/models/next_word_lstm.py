"""The next-word model for Stack Overflow of Reddi et al. 2021."""

from typing import Optional

import tensorflow as tf

from tff_agnostic.models.functional import Model
from tff_agnostic.models.keras import model_from_keras
from tff_agnostic.models.losses import sparse_cross_entropy
from tff_agnostic.models.lstm import LSTM
from tff_agnostic.models.metrics import Metric


def next_word_lstm(
    vocabulary_size: int = 10_000,
    num_special_ids: int = 4,
    embedding: int = 96,
    units: int = 670,
    layers: int = 1,
    sequence_length: int = 20,
    expected_length: Optional[float] = None,
    seed: int = 0,
) -> Model:
    """Returns a next-word LSTM: x int32 [n, T] token ids, y int32 [n, T] the ids that follow.

    Predictions are scores, float32 [n, T, vocabulary_size + num_special_ids]. With the defaults it
    is the model of Reddi et al. 2021, which Ro et al. 2021 train: 4,050,748 parameters.

    Id 0 is padding and stands after the words of a sentence. A position whose y is 0 is in no loss,
    no metric and no gradient. As the model sees the past only, what x holds there is of no
    consequence either, and no mask has to be carried through the LSTM.

    One example is a sentence: alpha, beta and the domains' counts count sentences, and a sentence
    has one loss. By default it is the mean of the cross-entropy over the sentence's words. The loss
    of a domain is then one of predicting a word, whatever the length of the domain's sentences: a
    sum would hand the weight lambda to the domain with the longer ones. With `expected_length` it
    is the sum over the sentence divided by that constant, as in FedJAX: every word has the same
    weight, as it has in perplexity. A sentence without words has the loss 0.

    Args:
        vocabulary_size: Number of words.
        num_special_ids: Number of ids for padding, unknown words, begin and end of sentence.
        embedding: Size of the word vectors, and of the layer after each LSTM.
        units: Units of each LSTM.
        layers: Number of LSTMs.
        sequence_length: T.
        expected_length: Divide the summed loss of a sentence by this; None for the mean.
        seed: Seeds the initial weights.
    """
    num_ids = vocabulary_size + num_special_ids

    def build() -> tf.keras.Model:
        tokens = tf.keras.Input([sequence_length], dtype=tf.int32)
        hidden = tf.keras.layers.Embedding(num_ids, embedding)(tokens)
        for _ in range(layers):
            hidden = LSTM(units, return_sequences=True)(hidden)
            hidden = _DenseOverSteps(embedding)(hidden)
        return tf.keras.Model(tokens, _DenseOverSteps(num_ids)(hidden))

    def loss(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
        per_word = sparse_cross_entropy(tf.reshape(labels, [-1]), tf.reshape(scores, [-1, num_ids]))
        is_word = _is_word(labels)
        total = tf.reduce_sum(tf.reshape(per_word, tf.shape(labels)) * is_word, axis=1)
        if expected_length is not None:
            return total / expected_length
        return tf.math.divide_no_nan(total, tf.reduce_sum(is_word, axis=1))

    def correct_words(labels: tf.Tensor, scores: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        is_word = _is_word(labels)
        predicted = tf.argmax(scores, axis=-1, output_type=labels.dtype)
        correct = tf.cast(tf.equal(predicted, labels), tf.float32) * is_word
        return tf.reduce_sum(correct, axis=1), tf.reduce_sum(is_word, axis=1)

    spec = tf.TensorSpec([None, sequence_length], tf.int32)
    longest = float(sequence_length)
    return model_from_keras(
        build,
        loss=loss,
        example_spec={"x": spec, "y": spec},
        metrics=[Metric("accuracy", correct_words, max_numerator=longest, max_denominator=longest)],
        seed=seed,
    )


class _DenseOverSteps(tf.keras.layers.Dense):
    """A dense layer on [n, T, in] whose product and bias TensorFlow can fuse, as it can on rows."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns [n, T, units]."""
        rows = super().call(tf.reshape(inputs, [-1, inputs.shape[-1]]))
        return tf.reshape(rows, [-1, inputs.shape[1], self.units])


def _is_word(labels: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.not_equal(labels, 0), tf.float32)
