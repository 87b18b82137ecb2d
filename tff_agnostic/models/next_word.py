"""Models of language: next-word networks, unigram models, and text classifiers.

`NextWordNetwork` describes a recurrent network on word ids; `next_word_lstm`, `two_layer_lstm` and
`keyboard_cifg` are models from papers.

A unigram model is a distribution over outcomes, such as words. Each example is an outcome, which is
both x and y; the prediction is the outcome's log probability. This is density estimation as in
Hamer, Mohri, Suresh 2020, section 2.

A text classifier averages word vectors, or runs an LSTM over them, and ends in a linear layer.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Callable, Optional

import numpy as np

from tff_agnostic.base.later import tf
from tff_agnostic.base.registry import Registry
from tff_agnostic.base.text_ids import TokenIds
from tff_agnostic.models.keras import model_from_keras, with_seed
from tff_agnostic.models.metrics import (
    Metric,
    SentenceLoss,
    accuracy,
    sentence_spec,
    sparse_cross_entropy,
    text_metrics,
)
from tff_agnostic.models.model import Model, ModelWeights

# Maximum -log h(x) of an outcome x, in nats, as in `models.metrics`.
_MAX_CROSS_ENTROPY = 20.0


@dataclasses.dataclass(frozen=True)
class NextWordNetwork:
    """The layers of a next-word model.

    Attributes:
        cell: A name in `CELLS`.
        embedding: Size of the word vectors, and of each recurrent layer's projected output.
        units: Units of each recurrent layer.
        layers: Number of recurrent layers.
        tied: Whether a word's score is the product of the last projection and the word's vector,
            plus a bias. If False, a dense layer with separate weights computes the scores.
        embedding_scale: Tied word vectors are initialised uniformly in [-embedding_scale,
            embedding_scale]; 0.05 is Keras' default for embeddings. With larger vectors training
            leaves its first plateau sooner, because scores are products with the vectors.
    """

    cell: str = "lstm"
    embedding: int = 96
    units: int = 670
    layers: int = 1
    tied: bool = False
    embedding_scale: float = 0.05


def next_word_model(
    network: NextWordNetwork,
    vocabulary_size: int = 10_000,
    sequence_length: int = 20,
    expected_length: Optional[float] = None,
    seed: int = 0,
) -> Model:
    """Returns a next-word model: x are word ids, int32 [n, T]; y are the next ids, int32 [n, T].

    `TokenIds` defines the ids. Predictions are scores, float32 [n, T, vocabulary_size + 4].

    Padding follows the words of a sentence. A position whose y is padding does not count in loss,
    metrics or gradient. Predictions depend on earlier positions only, so recurrent layers need no
    mask.

    The loss is `SentenceLoss`; metrics are perplexity and both in-vocabulary accuracies. Models
    that differ only in their seeds are equal, and traced once.

    Args:
        sequence_length: Number T of ids per example.
        expected_length: Divisor of a sentence's summed loss; None for the mean.
        seed: Seed of the initial weights.
    """
    ids, policy = TokenIds(vocabulary_size), tf.keras.mixed_precision.global_policy().name
    model = _next_word_model(network, ids, sequence_length, expected_length, policy)
    return with_seed(model, functools.partial(_build, network, ids, sequence_length), seed)


@functools.lru_cache(maxsize=8)
def _next_word_model(
    network: NextWordNetwork,
    ids: TokenIds,
    sequence_length: int,
    expected_length: Optional[float],
    policy: str,
) -> Model:
    del policy  # Keras' dtype policy is part of the cache key.
    return model_from_keras(
        functools.partial(_build, network, ids, sequence_length),
        loss=SentenceLoss(expected_length),
        example_spec=sentence_spec(sequence_length),
        metrics=text_metrics(ids, sequence_length),
    )


def _build(network: NextWordNetwork, ids: TokenIds, sequence_length: int) -> tf.keras.Model:
    from tff_agnostic.models.word_layers import DenseOverSteps

    tokens = tf.keras.Input([sequence_length], dtype=tf.int32)
    words = _words(network, ids)
    hidden = words(tokens)
    for _ in range(network.layers):
        for layer in CELLS[network.cell](network.units, network.embedding):
            hidden = layer(hidden)
    if network.tied:
        return tf.keras.Model(tokens, words(hidden, as_scores=True))
    return tf.keras.Model(tokens, DenseOverSteps(ids.num_ids)(hidden))


def _words(network: NextWordNetwork, ids: TokenIds) -> tf.keras.layers.Embedding:
    from tff_agnostic.models.word_layers import TiedEmbedding

    if not network.tied:
        return tf.keras.layers.Embedding(ids.num_ids, network.embedding)
    scale = network.embedding_scale
    start = tf.keras.initializers.RandomUniform(-scale, scale)
    return TiedEmbedding(ids.num_ids, network.embedding, embeddings_initializer=start)


def _lstm(units: int, size: int) -> list[tf.keras.layers.Layer]:
    from tff_agnostic.models.lstm import LSTM
    from tff_agnostic.models.word_layers import DenseOverSteps

    return [LSTM(units, return_sequences=True), DenseOverSteps(size)]


def _cifg(units: int, size: int) -> list[tf.keras.layers.Layer]:
    from tff_agnostic.models.cifg import CIFG

    return [CIFG(units, projection_units=size, return_sequences=True)]


# Functions by name of the cell: each maps (units, size of the projection) to the Keras layers that
# together form one recurrent layer.
CELLS: Registry[Callable[[int, int], list[tf.keras.layers.Layer]]] = Registry(
    "recurrent cell", {"lstm": _lstm, "cifg": _cifg}
)


def next_word_lstm(
    vocabulary_size: int = 10_000,
    embedding: int = 96,
    units: int = 670,
    layers: int = 1,
    sequence_length: int = 20,
    expected_length: Optional[float] = None,
    seed: int = 0,
) -> Model:
    """Returns a `next_word_model` with LSTM layers.

    The defaults give the model of Reddi et al. 2021, which Ro et al. 2021 train: 4,050,748
    parameters.

    Args:
        embedding: Size of the word vectors, and of the projection after each LSTM.
        sequence_length: Number T of ids per example.
        expected_length: Divisor of a sentence's summed loss; None for the mean.
        seed: Seed of the initial weights.
    """
    network = NextWordNetwork("lstm", embedding, units, layers)
    return next_word_model(network, vocabulary_size, sequence_length, expected_length, seed)


def two_layer_lstm(
    vocabulary_size: int = 10_000,
    embedding: int = 96,
    units: int = 256,
    sequence_length: int = 20,
    expected_length: Optional[float] = None,
    seed: int = 0,
) -> Model:
    """Returns the two-layer LSTM of Mohri et al. 2019, section 5: `next_word_lstm` with two layers.

    The paper specifies the vocabulary of 10,000 words and two layers, but not the layers' sizes,
    which are our choice: 2,703,060 parameters with the defaults. For arguments see
    `next_word_lstm`.
    """
    return next_word_lstm(
        vocabulary_size, embedding, units, 2, sequence_length, expected_length, seed
    )


def keyboard_cifg(
    vocabulary_size: int = 10_000,
    units: int = 670,
    projection: int = 96,
    sequence_length: int = 20,
    expected_length: Optional[float] = None,
    embedding_scale: float = 0.05,
    seed: int = 0,
) -> Model:
    """Returns a `next_word_model` with one CIFG layer and tied embeddings.

    The CIFG layer projects its state to the size of the word vectors; a word's score is the product
    of this projection and the word's vector, plus a bias. The defaults have 1,422,638 parameters,
    about the 1.4 million of Hard et al. 2018, "Federated learning for mobile keyboard prediction".

    Args:
        projection: Size of the state's projection, and of the word vectors.
        sequence_length: Number T of ids per example.
        expected_length: Divisor of a sentence's summed loss; None for the mean.
        embedding_scale: See `NextWordNetwork`.
        seed: Seed of the initial weights.
    """
    network = NextWordNetwork("cifg", projection, units, tied=True, embedding_scale=embedding_scale)
    return next_word_model(network, vocabulary_size, sequence_length, expected_length, seed)


@functools.cache
def unigram_model(num_outcomes: int) -> Model:
    """Returns a unigram model: x and y are outcomes, int32 [n]; the loss is -log h(x), in nats.

    The weights are one score per outcome, initially 0; h is their softmax. Calls with equal
    arguments return the same object, so that runtimes trace it once for all trials.
    """
    spec = tf.TensorSpec([None], tf.int32)
    return Model(
        initial_weights=ModelWeights([np.zeros([num_outcomes], np.float32)], []),
        example_spec={"x": spec, "y": spec},
        predict=_predict,
        loss=unigram_loss,
        metrics=(
            Metric(
                "perplexity",
                _cross_entropy,
                max_numerator=_MAX_CROSS_ENTROPY,
                upper=_MAX_CROSS_ENTROPY,
                higher_is_better=False,
                transform=tf.exp,
                num_bins=1001,
                shown_as="factor",
            ),
        ),
    )


def unigram_loss(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    """Returns -log h(x), float32 [n], for predictions whose first column is log h(x)."""
    del labels
    return -predictions[:, 0]


def _predict(weights: ModelWeights, x: tf.Tensor, training: bool, seed: tf.Tensor) -> tf.Tensor:
    del training, seed
    return tf.gather(tf.nn.log_softmax(weights.trainable[0]), x)[:, tf.newaxis]


def _cross_entropy(labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    losses = unigram_loss(labels, predictions)
    return losses, tf.ones(tf.shape(losses))


@dataclasses.dataclass(frozen=True)
class TextNetwork:
    """The layers of a text classifier.

    Attributes:
        pooling: A name in `POOLINGS`: how a text's word vectors become one vector.
        embedding: Size of the word vectors.
        units: Units of the LSTM, if `pooling` is "lstm".
    """

    pooling: str = "mean"
    embedding: int = 64
    units: int = 64


def text_classifier(
    network: TextNetwork,
    num_classes: int,
    vocabulary_size: int,
    sequence_length: int,
    seed: int = 0,
) -> Model:
    """Returns a text classifier: x int32 [n, T] ids, y int32 [n], cross-entropy loss.

    `TokenIds` defines the ids; padding, 0, follows the words and is ignored. With mean pooling the
    model is the classifier of Joulin et al. 2017, "Bag of tricks for efficient text
    classification", without n-grams; a text without words becomes a vector of zeros. Models that
    differ only in their seeds are equal, and traced once.

    Args:
        sequence_length: Number T of ids per example.
        seed: Seed of the initial weights.
    """
    policy = tf.keras.mixed_precision.global_policy().name
    sizes = (num_classes, TokenIds(vocabulary_size), sequence_length)
    model = _text_classifier(network, *sizes, policy)
    return with_seed(model, functools.partial(_build_classifier, network, *sizes), seed)


@functools.lru_cache(maxsize=8)
def _text_classifier(
    network: TextNetwork, num_classes: int, ids: TokenIds, sequence_length: int, policy: str
) -> Model:
    del policy  # Keras' dtype policy is part of the cache key.
    return model_from_keras(
        functools.partial(_build_classifier, network, num_classes, ids, sequence_length),
        loss=sparse_cross_entropy,
        example_spec={
            "x": tf.TensorSpec([None, sequence_length], tf.int32),
            "y": tf.TensorSpec([None], tf.int32),
        },
        metrics=[accuracy()],
    )


def _build_classifier(
    network: TextNetwork, num_classes: int, ids: TokenIds, sequence_length: int
) -> tf.keras.Model:
    tokens = tf.keras.Input([sequence_length], dtype=tf.int32)
    vectors = tf.keras.layers.Embedding(ids.num_ids, network.embedding, mask_zero=True)(tokens)
    pooled = POOLINGS[network.pooling](network.units)(vectors)
    return tf.keras.Model(tokens, tf.keras.layers.Dense(num_classes)(pooled))


def _mean(units: int) -> tf.keras.layers.Layer:
    from tff_agnostic.models.word_layers import WordMean

    del units
    return WordMean()


def _last_state(units: int) -> tf.keras.layers.Layer:
    from tff_agnostic.models.lstm import LSTM

    return LSTM(units)


# Functions by name of the pooling: each maps a number of units to the layer that reduces word
# vectors to one vector.
POOLINGS: Registry[Callable[[int], tf.keras.layers.Layer]] = Registry(
    "pooling", {"mean": _mean, "lstm": _last_state}
)
