"""The next-word model for Stack Overflow of Reddi et al. 2021, and that of Mohri et al. 2019."""

import functools
from typing import Optional

import tensorflow as tf

from tff_agnostic.models.functional import Model
from tff_agnostic.models.keras import model_from_keras, with_seed
from tff_agnostic.models.lstm import LSTM
from tff_agnostic.models.sentences import SentenceLoss, sentence_spec
from tff_agnostic.models.text_metrics import text_metrics
from tff_agnostic.text_ids import TokenIds


def next_word_lstm(
    vocabulary_size: int = 10_000,
    embedding: int = 96,
    units: int = 670,
    layers: int = 1,
    sequence_length: int = 20,
    expected_length: Optional[float] = None,
    seed: int = 0,
) -> Model:
    """Returns a next-word LSTM: x int32 [n, T] ids, y int32 [n, T] the ids that follow.

    Ids are those of `TokenIds`. Predictions are scores, float32 [n, T, vocabulary_size + 4]. With
    the defaults it is the model of Reddi et al. 2021, which Ro et al. 2021 train: 4,050,748
    parameters.

    Padding stands after the words of a sentence. A position whose y is padding is in no loss, no
    metric and no gradient. As the model sees the past only, what x holds there is of no consequence
    either, and no mask has to be carried through the LSTM.

    The loss is that of `SentenceLoss`; metrics are perplexity and both in-vocabulary accuracies.
    Models that differ in their seeds only are equal: runtimes trace one of them.

    Args:
        vocabulary_size: Number of words.
        embedding: Size of the word vectors, and of the layer after each LSTM.
        units: Units of each LSTM.
        layers: Number of LSTMs.
        sequence_length: T.
        expected_length: Divide the summed loss of a sentence by this; None for the mean.
        seed: Seeds the initial weights.
    """
    policy = tf.keras.mixed_precision.global_policy().name
    sizes = (TokenIds(vocabulary_size), embedding, units, layers, sequence_length)
    model = _next_word_lstm(*sizes, expected_length, policy)
    return with_seed(model, functools.partial(_build, *sizes), seed)


def two_layer_lstm(
    vocabulary_size: int = 10_000,
    embedding: int = 96,
    units: int = 256,
    sequence_length: int = 20,
    expected_length: Optional[float] = None,
    seed: int = 0,
) -> Model:
    """Returns the two-layer LSTM of Mohri et al. 2019, section 5: `next_word_lstm` with two layers.

    The paper gives the vocabulary of 10,000 words and the number of layers, not their sizes: those
    here are our choice. 2,703,060 parameters with the defaults. Arguments are those of
    `next_word_lstm`.
    """
    return next_word_lstm(
        vocabulary_size, embedding, units, 2, sequence_length, expected_length, seed
    )


@functools.lru_cache(maxsize=8)
def _next_word_lstm(
    ids: TokenIds,
    embedding: int,
    units: int,
    layers: int,
    sequence_length: int,
    expected_length: Optional[float],
    policy: str,
) -> Model:
    del policy  # Keras' own, part of the key.
    return model_from_keras(
        functools.partial(_build, ids, embedding, units, layers, sequence_length),
        loss=SentenceLoss(expected_length),
        example_spec=sentence_spec(sequence_length),
        metrics=text_metrics(ids, sequence_length),
    )


def _build(
    ids: TokenIds, embedding: int, units: int, layers: int, sequence_length: int
) -> tf.keras.Model:
    tokens = tf.keras.Input([sequence_length], dtype=tf.int32)
    hidden = tf.keras.layers.Embedding(ids.num_ids, embedding)(tokens)
    for _ in range(layers):
        hidden = LSTM(units, return_sequences=True)(hidden)
        hidden = _DenseOverSteps(embedding)(hidden)
    return tf.keras.Model(tokens, _DenseOverSteps(ids.num_ids)(hidden))


class _DenseOverSteps(tf.keras.layers.Dense):
    """A dense layer on [n, T, in] whose product and bias TensorFlow can fuse, as it can on rows."""

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Returns [n, T, units]."""
        rows = super().call(tf.reshape(inputs, [-1, inputs.shape[-1]]))
        return tf.reshape(rows, [-1, inputs.shape[1], self.units])
