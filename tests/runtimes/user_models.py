"""Small models as users write them, for texts, tables and images."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_agnostic.models import ModelData

_T, _WORDS = 3, 6
_IDS = _WORDS + 4
_TOKENS = tf.TensorSpec([None, _T], tf.int32)
_CLASS = tf.TensorSpec([None], tf.int32)
_NUMBER = tf.TensorSpec([None], tf.float32)


class UserModel(NamedTuple):
    """A user's file with a model, and random data for the model.

    Attributes:
        data: Argument of the file's `build_model`.
        code: Lines of `build_model`.
        can_be_vectorised: Whether TensorFlow can vectorise the model.
    """

    data: ModelData
    code: str
    can_be_vectorised: bool = True

    def source(self) -> str:
        """Returns the content of the file."""
        lines = "\n".join(f"    {line}" for line in self.code.strip().splitlines())
        return f"{_IMPORTS}\n\ndef build_model(data):\n{lines}\n"

    def client(self, rng: np.random.Generator, size: int, num_domains: int) -> dict[str, Any]:
        """Returns a client with `size` random examples."""
        data = self.data
        x = _texts(rng, size) if data.vocabulary_size else _drawn(rng, size, data.x_spec)
        if data.predicts_next_words:
            y: np.ndarray = np.concatenate([x[:, 1:], np.zeros([size, 1], np.int32)], axis=1)
        elif data.num_classes is None:
            y = rng.normal(size=size).astype(np.float32)
        else:
            y = rng.integers(data.num_classes, size=size).astype(np.int32)
        domain_id = rng.integers(num_domains, size=size).astype(np.int32)
        return {"x": x, "y": y, "domain_id": domain_id}


_IMPORTS = """\
import tensorflow as tf
from tff_agnostic.models import LSTM, SentenceLoss

layers, losses = tf.keras.layers, tf.keras.losses
of_classes = losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
"""


def _texts(rng: np.random.Generator, size: int) -> np.ndarray:
    words = rng.integers(1, _IDS, size=[size, _T])
    lengths = rng.integers(1, _T + 1, size=[size, 1])
    return np.where(np.arange(_T) < lengths, words, 0).astype(np.int32)


def _drawn(rng: np.random.Generator, size: int, spec: Any) -> Any:
    if isinstance(spec, dict):
        return {name: _drawn(rng, size, part) for name, part in spec.items()}
    shape = [size, *spec.shape[1:]]
    # The ids 0 to 3 are for three values of a category, and for other values.
    values = rng.integers(4, size=shape) if spec.dtype.is_integer else rng.normal(size=shape)
    return values.astype(spec.dtype.as_numpy_dtype)


def _data(x: Any, y: tf.TensorSpec, **more: Any) -> ModelData:
    return ModelData(x, y, ("a", "b", "c"), **more)


_LABELLED = _data(_TOKENS, _CLASS, num_classes=3, vocabulary_size=_WORDS)
_SENTENCES = _data(_TOKENS, _TOKENS, vocabulary_size=_WORDS)
_INPUTS = {"x": tf.TensorSpec([None, 2], tf.float32), "job": _CLASS, "town": _CLASS}
_CATEGORIES = {"job": ("a", "b", "c"), "town": ("d", "e", "f")}
_IMAGES = {
    "photo": tf.TensorSpec([None, 4, 4, 1], tf.float32),
    "x": tf.TensorSpec([None, 2], tf.float32),
}

_WORDS_IN = """
x = tf.keras.Input(data.x_shape, dtype=data.x_dtype)
vectors = layers.Embedding(data.num_ids, 4, mask_zero=True)(x)
"""
_INPUTS_BY_NAME = """
inputs = {n: tf.keras.Input(s, dtype=data.x_dtype[n]) for n, s in data.x_shape.items()}
"""
_CLASSES_OUT = """
return tf.keras.Model(x, layers.Dense(data.num_classes)(state)), of_classes
"""
_WORDS_OUT = """
return tf.keras.Model(x, layers.Dense(data.num_ids)(states)), SentenceLoss()
"""

USER_MODELS = {
    "fast LSTM of next words": UserModel(
        _SENTENCES, _WORDS_IN + "states = LSTM(3, return_sequences=True)(vectors)" + _WORDS_OUT
    ),
    "Transformer of next words": UserModel(
        _SENTENCES,
        _WORDS_IN
        + "seen = layers.MultiHeadAttention(2, 2)(vectors, vectors, use_causal_mask=True)\n"
        + "states = layers.LayerNormalization()(vectors + seen)"
        + _WORDS_OUT,
    ),
    "bidirectional GRU of texts": UserModel(
        _LABELLED,
        _WORDS_IN + "state = layers.Bidirectional(layers.GRU(2))(vectors)" + _CLASSES_OUT,
        can_be_vectorised=False,
    ),
    "Transformer of texts": UserModel(
        _LABELLED,
        _WORDS_IN
        + "seen = layers.MultiHeadAttention(2, 2)(vectors, vectors)\n"
        # Adding by + would drop the mask.
        + "states = layers.LayerNormalization()(layers.Add()([vectors, seen]))\n"
        + "state = layers.GlobalAveragePooling1D()(states)"
        + _CLASSES_OUT,
    ),
    "ratings of texts": UserModel(
        _data(_TOKENS, _NUMBER, vocabulary_size=_WORDS, label_range=(-3.0, 3.0)),
        _WORDS_IN
        + "score = layers.Dense(1)(layers.GlobalAveragePooling1D()(vectors))\n"
        + 'return tf.keras.Model(x, score), losses.Huber(reduction="none")',
    ),
    "two classes of embedded categories": UserModel(
        _data(_INPUTS, _CLASS, num_classes=2, categories=_CATEGORIES),
        _INPUTS_BY_NAME
        + "parts = [layers.Embedding(len(v) + 1, 2)(inputs[n]) for n, v in data.categories.items()]"
        + '\nscore = layers.Dense(1)(layers.Concatenate()([inputs["x"], *parts]))\n'
        + "loss = losses.BinaryCrossentropy(from_logits=True, reduction='none')\n"
        + "return tf.keras.Model(inputs, score), loss",
    ),
    "a number of one vector": UserModel(
        _data(_INPUTS["x"], _NUMBER, label_range=(-3.0, 3.0)),
        "x = tf.keras.Input(data.x_shape)\n"
        + 'hidden = layers.Dense(3, "tanh", kernel_regularizer="l2")(x)\n'
        + "noisy = layers.GaussianNoise(0.1)(layers.Dropout(0.2)(hidden))\n"
        + "score = layers.Dense(1)(noisy)\n"
        + 'return tf.keras.Model(x, score), losses.MeanSquaredError(reduction="none")',
    ),
    "images and numbers": UserModel(
        _data(_IMAGES, _CLASS, num_classes=3),
        _INPUTS_BY_NAME
        + 'image = layers.Flatten()(layers.Conv2D(2, 3)(inputs["photo"]))\n'
        + 'scores = layers.Dense(3)(layers.Concatenate()([image, inputs["x"]]))\n'
        + "return tf.keras.Model(inputs, scores), of_classes",
    ),
    "a subclass": UserModel(
        _data(_INPUTS["x"], _CLASS, num_classes=3),
        "class Mine(tf.keras.Model):\n"
        + "    def __init__(self):\n"
        + "        super().__init__()\n"
        + "        self.scores = layers.Dense(data.num_classes)\n"
        + "    def call(self, x):\n"
        + "        return self.scores(tf.sin(x))\n"
        + "return Mine(), of_classes",
    ),
}
