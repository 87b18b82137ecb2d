"""The model of Spanish keyboards of Ro et al. 2021, which is that of Hard et al. 2018."""

import functools
from typing import Any, Optional

import tensorflow as tf

from tff_agnostic.models.cifg import CIFG
from tff_agnostic.models.functional import Model
from tff_agnostic.models.keras import model_from_keras, with_seed
from tff_agnostic.models.sentences import SentenceLoss, sentence_spec
from tff_agnostic.models.text_metrics import text_metrics
from tff_agnostic.text_ids import TokenIds


def keyboard_cifg(
    vocabulary_size: int = 10_000,
    units: int = 670,
    projection: int = 96,
    sequence_length: int = 20,
    expected_length: Optional[float] = None,
    embedding_scale: float = 0.05,
    seed: int = 0,
) -> Model:
    """Returns a next-word CIFG with tied embeddings: x int32 [n, T] ids, y the ids that follow.

    One CIFG layer whose state is projected to the size of the word vectors; the score of a word is
    the product of that projection with the word's vector, and a bias. 1,422,638 parameters with the
    defaults, about the 1.4 million of Hard et al. 2018, "Federated learning for mobile keyboard
    prediction". Ids, padding, loss, metrics and equality are those of `next_word_lstm`; predictions
    are scores, float32 [n, T, vocabulary_size + 4].

    Args:
        vocabulary_size: Number of words.
        units: Units of the CIFG.
        projection: Size of its projection, and of the word vectors.
        sequence_length: T.
        expected_length: Divide the summed loss of a sentence by this; None for the mean.
        embedding_scale: Word vectors start at random in [-embedding_scale, embedding_scale]; 0.05
            is what Keras starts embeddings with. As scores are products with them, training leaves
            its first plateau sooner with larger ones.
        seed: Seeds the initial weights.
    """
    policy = tf.keras.mixed_precision.global_policy().name
    sizes = (TokenIds(vocabulary_size), units, projection, sequence_length, embedding_scale)
    model = _keyboard_cifg(*sizes, expected_length, policy)
    return with_seed(model, functools.partial(_build, *sizes), seed)


@functools.lru_cache(maxsize=8)
def _keyboard_cifg(
    ids: TokenIds,
    units: int,
    projection: int,
    sequence_length: int,
    embedding_scale: float,
    expected_length: Optional[float],
    policy: str,
) -> Model:
    del policy  # Keras' own, part of the key.
    return model_from_keras(
        functools.partial(_build, ids, units, projection, sequence_length, embedding_scale),
        loss=SentenceLoss(expected_length),
        example_spec=sentence_spec(sequence_length),
        metrics=text_metrics(ids, sequence_length),
    )


def _build(
    ids: TokenIds, units: int, projection: int, sequence_length: int, embedding_scale: float
) -> tf.keras.Model:
    tokens = tf.keras.Input([sequence_length], dtype=tf.int32)
    start = tf.keras.initializers.RandomUniform(-embedding_scale, embedding_scale)
    words = _TiedEmbedding(ids.num_ids, projection, embeddings_initializer=start)
    state = CIFG(units, projection_units=projection, return_sequences=True)(words(tokens))
    return tf.keras.Model(tokens, words(state, as_scores=True))


class _TiedEmbedding(tf.keras.layers.Embedding):
    """Word vectors that also tell how well a state fits each word."""

    def build(self, input_shape: Any) -> None:
        """Creates the vectors, and a bias of each word."""
        super().build(input_shape)
        self.bias = self.add_weight(name="bias", shape=[self.input_dim], initializer="zeros")

    def call(self, inputs: tf.Tensor, as_scores: bool = False) -> tf.Tensor:
        """Vectors [n, T, size] of ids [n, T]; or of states [n, T, size] scores [n, T, ids]."""
        if not as_scores:
            return super().call(inputs)
        rows = tf.reshape(inputs, [-1, inputs.shape[-1]])
        scores = tf.nn.bias_add(tf.matmul(rows, self.embeddings, transpose_b=True), self.bias)
        return tf.reshape(scores, [-1, inputs.shape[1], self.input_dim])
