"""Classes of texts: word vectors, averaged or read by an LSTM, and a linear classifier."""

from __future__ import annotations

import dataclasses
import functools
from typing import Callable

from tff_agnostic.later import tf
from tff_agnostic.models.keras import model_from_keras, with_seed
from tff_agnostic.models.losses import sparse_cross_entropy
from tff_agnostic.models.metrics import accuracy
from tff_agnostic.models.model import Model
from tff_agnostic.registry import Registry
from tff_agnostic.text_ids import TokenIds


@dataclasses.dataclass(frozen=True)
class TextNetwork:
    """The layers of a text classifier.

    Attributes:
        pooling: A name of `POOLINGS`: how the words of a text become one vector.
        embedding: Size of the word vectors.
        units: Units of the LSTM, where there is one.
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

    Ids are those of `TokenIds`; padding, 0, stands after the words and is in no vector. With the
    mean of the word vectors it is the classifier of Joulin et al. 2017, "Bag of tricks for
    efficient text classification", without n-grams; a text without words is a vector of zeros.
    Models that differ in their seeds only are equal: runtimes trace one of them.

    Args:
        sequence_length: T.
        seed: Seeds the initial weights.
    """
    policy = tf.keras.mixed_precision.global_policy().name
    sizes = (num_classes, TokenIds(vocabulary_size), sequence_length)
    model = _text_classifier(network, *sizes, policy)
    return with_seed(model, functools.partial(_build, network, *sizes), seed)


@functools.lru_cache(maxsize=8)
def _text_classifier(
    network: TextNetwork, num_classes: int, ids: TokenIds, sequence_length: int, policy: str
) -> Model:
    del policy  # Keras' own, part of the key.
    return model_from_keras(
        functools.partial(_build, network, num_classes, ids, sequence_length),
        loss=sparse_cross_entropy,
        example_spec={
            "x": tf.TensorSpec([None, sequence_length], tf.int32),
            "y": tf.TensorSpec([None], tf.int32),
        },
        metrics=[accuracy()],
    )


def _build(
    network: TextNetwork, num_classes: int, ids: TokenIds, sequence_length: int
) -> tf.keras.Model:
    tokens = tf.keras.Input([sequence_length], dtype=tf.int32)
    vectors = tf.keras.layers.Embedding(ids.num_ids, network.embedding, mask_zero=True)(tokens)
    pooled = POOLINGS[network.pooling](network.units)(vectors)
    return tf.keras.Model(tokens, tf.keras.layers.Dense(num_classes)(pooled))


def _mean(units: int) -> tf.keras.layers.Layer:
    from tff_agnostic.models.word_layers import MeanOfWords

    del units
    return MeanOfWords()


def _lstm(units: int) -> tf.keras.layers.Layer:
    from tff_agnostic.models.lstm import LSTM

    return LSTM(units)


# Units -> the layer that makes a vector of a text's word vectors.
POOLINGS: Registry[Callable[[int], tf.keras.layers.Layer]] = Registry(
    "pooling", {"mean": _mean, "lstm": _lstm}
)
