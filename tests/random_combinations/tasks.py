"""Tiny tasks with labels of each kind, whose losses can be scaled and shifted without retracing.

The factor and the shift are frozen weights. Predictions contain them, so that the loss can apply
them.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tests.support.algorithms import random_ensemble
from tff_agnostic.models import Model, logistic_regression
from tff_agnostic.models.metrics import SentenceLoss, sparse_cross_entropy
from tff_agnostic.models.model import ModelWeights

_FEATURES, _CLASSES, _IDS, _LENGTH = 3, 3, 5, 2
_REAL = tf.TensorSpec([None, _FEATURES], tf.float32)
_CLASS = tf.TensorSpec([None], tf.int32)
_WORDS = tf.TensorSpec([None, _LENGTH], tf.int32)
# Called with a generator and a number of examples; returns the columns x and y.
_Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A linear model for one kind of labels.

    Attributes:
        specs: Specs of x and y.
        shapes: Shapes of the weights.
        draw: Called with a generator and a number; returns random examples x and y.
        scores: Called with (weights, x); returns scores, float [n, k].
        loss: Called with (labels, scores); returns losses, float [n].
        can_be_scaled: Whether the model's losses can be scaled and shifted.
    """

    specs: Mapping[str, tf.TensorSpec]
    shapes: tuple[tuple[int, ...], ...]
    draw: _Draw
    scores: Callable[[Any, Any], tf.Tensor]
    loss: Callable[[Any, Any], tf.Tensor]
    can_be_scaled: bool = True

    @property
    def has_real_inputs(self) -> bool:
        """Whether inputs are floats, which can be NaN."""
        return self.specs["x"].dtype.is_floating

    def model(self, seed: int, factor: float = 1.0, shift: float = 0.0) -> Model:
        """Returns the model with random weights and the losses factor * L + shift."""
        rng = np.random.default_rng(seed)
        weights = [rng.normal(size=shape).astype(np.float32) for shape in self.shapes]
        constants = np.array([factor, shift], np.float32)
        return Model(
            ModelWeights(weights, [constants]), self.specs, self._predict, self._shifted_loss
        )

    @functools.cached_property
    def _predict(self) -> Callable[..., tf.Tensor]:
        def predict(weights: ModelWeights, x: Any, training: bool, seed: tf.Tensor) -> tf.Tensor:
            del training, seed
            scores = self.scores(weights.trainable, x)
            constants = tf.convert_to_tensor(weights.non_trainable[0])
            columns = tf.ones_like(scores[:, :1]) * constants
            return tf.concat([scores, columns], axis=1)

        return predict

    @functools.cached_property
    def _shifted_loss(self) -> Callable[..., tf.Tensor]:
        def loss(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
            factor, shift = predictions[:, -2], predictions[:, -1]
            return factor * self.loss(labels, predictions[:, :-2]) + shift

        return loss


@dataclasses.dataclass(frozen=True, eq=False)
class EnsembleTask(Task):
    """A task of FedBoost and AFLBoost, with the package's mixture loss."""

    def model(self, seed: int, factor: float = 1.0, shift: float = 0.0) -> Model:
        """See `Task.model`."""
        del seed, factor, shift
        return random_ensemble(_ensemble_member())


@functools.cache
def _ensemble_member() -> Model:
    return logistic_regression(_FEATURES, _CLASSES)


def _real_inputs(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=[n, _FEATURES]).astype(np.float32)


def _classes(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return _real_inputs(rng, n), rng.integers(_CLASSES, size=n).astype(np.int32)


def _two_classes(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return _real_inputs(rng, n), rng.integers(2, size=n).astype(np.int32)


def _numbers(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return _real_inputs(rng, n), rng.normal(size=n).astype(np.float32)


def _sentences(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    # Sentences of one or two words; the label 0 is padding.
    x, y = rng.integers(1, _IDS, size=[2, n, _LENGTH]).astype(np.int32)
    y[:, 1] *= rng.integers(2, size=n, dtype=np.int32)
    return x, y


def _linear(weights: Any, x: tf.Tensor) -> tf.Tensor:
    return tf.matmul(x, weights[0]) + weights[1]


def _word_scores(weights: Any, x: tf.Tensor) -> tf.Tensor:
    # The gradient of `tf.gather` is sparse.
    return tf.reshape(tf.gather(weights[0], x), [-1, _LENGTH * _IDS])


def _cross_entropy(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    return sparse_cross_entropy(labels, scores)


def _logistic(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    return tf.nn.softplus(scores[:, 0]) - tf.cast(labels, tf.float32) * scores[:, 0]


def _squared(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    return tf.square(scores[:, 0] - labels)


def _sentence_losses(labels: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
    return SentenceLoss()(labels, tf.reshape(scores, [-1, _LENGTH, _IDS]))


def _specs(x: tf.TensorSpec, y: tf.TensorSpec) -> Mapping[str, tf.TensorSpec]:
    return {"x": x, "y": y}


TASKS: Mapping[str, Task] = {
    "classes": Task(
        _specs(_REAL, _CLASS),
        ((_FEATURES, _CLASSES), (_CLASSES,)),
        _classes,
        _linear,
        _cross_entropy,
    ),
    "two_classes": Task(
        _specs(_REAL, _CLASS), ((_FEATURES, 1), (1,)), _two_classes, _linear, _logistic
    ),
    "numbers": Task(
        _specs(_REAL, tf.TensorSpec([None], tf.float32)),
        ((_FEATURES, 1), (1,)),
        _numbers,
        _linear,
        _squared,
    ),
    "sentences": Task(
        _specs(_WORDS, _WORDS), ((_IDS, _IDS),), _sentences, _word_scores, _sentence_losses
    ),
}
ENSEMBLE = EnsembleTask(
    _specs(_REAL, _CLASS), (), _classes, _linear, _cross_entropy, can_be_scaled=False
)
