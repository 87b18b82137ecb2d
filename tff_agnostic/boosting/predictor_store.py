"""Storage of an ensemble's predictors in arrays, at the server and in messages of C predictors.

With one architecture, each weight of all predictors is one stacked array, and a message contains
rows of these arrays. With several architectures, one flat array contains all weights of the first
predictor, then of the second, and so on. A message then contains the weights of C predictors in
sequence, followed by each predictor's architecture and the position of its first weight. The
receiver branches on the architecture. The message has space for the C largest predictors, so that
its size is the same in every round; no predictor is padded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tff_agnostic.base.later import tf
from tff_agnostic.models.model import Model, ModelWeights

# Arrays that contain the weights of predictors, at the server or in a message.
Stacks = Sequence["tf.Tensor"]

_FLOAT_BYTES = _INT_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A predictor's function of its weights; equal architectures are traced once.

    Attributes:
        model: Model of the predictor.
        from_scores: Whether the model predicts scores. The distribution is then their softmax, or
            the sigmoid of a single score.
    """

    model: Model
    from_scores: bool

    def predictions(self, weights: ModelWeights, x: Any) -> tf.Tensor:
        """Returns distributions or numbers, float32 [n, ...], for n examples."""
        predictions = self.model.predict(weights, x, False, tf.zeros([2], tf.int32))
        predictions = tf.cast(predictions, tf.float32)
        if not self.from_scores:
            return predictions
        is_one = predictions.shape.rank == 1 or predictions.shape[-1] == 1
        return tf.sigmoid(predictions) if is_one else tf.nn.softmax(predictions)

    def weights(self, arrays: Sequence[Any]) -> ModelWeights:
        """Converts arrays, trainable weights first, to `ModelWeights`."""
        count = len(self.model.initial_weights.trainable)
        return ModelWeights(list(arrays[:count]), list(arrays[count:]))

    def arrays(self) -> list[np.ndarray]:
        """Returns arrays of the weights' shapes and dtypes."""
        return _leaves(self.model.initial_weights)

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(array.size for array in self.arrays())


class PredictorStore(Protocol):
    """Storage of q predictors.

    It is a frozen dataclass, so that computations with equal stores are traced once.
    """

    def stacked(self, predictors: Sequence[ModelWeights]) -> list[np.ndarray]:
        """Returns the arrays that contain all predictors, from each predictor's weights."""

    def chosen(self, stacks: Stacks, indices: tf.Tensor) -> list[tf.Tensor]:
        """Returns a message's arrays for the predictors of given indices, int32 [C]."""

    def num_bytes(self, count: int) -> int:
        """Returns the size in bytes of a message with `count` predictors."""

    def predictions(self, stacks: Stacks, x: Any) -> list[tf.Tensor]:
        """Returns outputs for n examples: of all predictors, or of the predictors in a message."""


@dataclasses.dataclass(frozen=True)
class OneArchitecture:
    """Storage of predictors with one architecture: an array [q, ...] per weight."""

    architecture: Architecture

    def stacked(self, predictors: Sequence[ModelWeights]) -> list[np.ndarray]:
        """See `PredictorStore`: one array per weight, trainable weights first."""
        return [np.stack(arrays) for arrays in zip(*map(_leaves, predictors))]

    def chosen(self, stacks: Stacks, indices: tf.Tensor) -> list[tf.Tensor]:
        """See `PredictorStore`."""
        return [tf.gather(stack, indices) for stack in stacks]

    def num_bytes(self, count: int) -> int:
        """See `PredictorStore`."""
        return count * sum(array.nbytes for array in self.architecture.arrays())

    def predictions(self, stacks: Stacks, x: Any) -> list[tf.Tensor]:
        """See `PredictorStore`."""
        # Loop in Python, as C is small and TensorFlow cannot vectorise every model.
        return [
            self.architecture.predictions(self.architecture.weights([s[k] for s in stacks]), x)
            for k in range(stacks[0].shape[0])
        ]


@dataclasses.dataclass(frozen=True)
class SeveralArchitectures:
    """Storage of predictors with several architectures: one float32 array contains all weights.

    Attributes:
        architectures: The distinct architectures.
        kinds: Index of each predictor's architecture.
    """

    architectures: tuple[Architecture, ...]
    kinds: tuple[int, ...]

    def stacked(self, predictors: Sequence[ModelWeights]) -> list[np.ndarray]:
        """See `PredictorStore`: one float32 array, which must hold all weights exactly."""
        arrays = [array for predictor in predictors for array in _leaves(predictor)]
        return [np.concatenate([array.astype(np.float32).ravel() for array in arrays])]

    def chosen(self, stacks: Stacks, indices: tf.Tensor) -> list[tf.Tensor]:
        """See `PredictorStore`: weights, architectures, and the position of each first weight."""
        (weights,) = stacks
        sizes = tf.gather(tf.constant(self._sizes(), tf.int32), indices)
        ends = tf.cumsum(sizes)
        offsets = ends - sizes
        positions = tf.range(self._room(indices.shape[0]))
        # The predictor at each position in the message; padding after the last predictor counts as
        # part of it.
        place = tf.minimum(tf.searchsorted(ends, positions, side="right"), indices.shape[0] - 1)
        starts = tf.gather(tf.constant(self._starts(), tf.int32), indices)
        source = tf.gather(starts - offsets, place) + positions
        gathered = tf.gather(weights, tf.minimum(source, weights.shape[0] - 1))
        packed = tf.where(positions < ends[-1], gathered, 0.0)
        kinds = tf.gather(tf.constant(self.kinds, tf.int32), indices)
        return [packed, kinds, offsets]

    def num_bytes(self, count: int) -> int:
        """See `PredictorStore`."""
        return self._room(count) * _FLOAT_BYTES + 2 * count * _INT_BYTES

    def predictions(self, stacks: Stacks, x: Any) -> list[tf.Tensor]:
        """See `PredictorStore`."""
        if len(stacks) == 1:
            return [
                self._output_with(self.architectures[kind], stacks[0], start, x)
                for kind, start in zip(self.kinds, self._starts())
            ]
        packed, kinds, offsets = stacks
        return [self._output_at(packed, kinds[k], offsets[k], x) for k in range(kinds.shape[0])]

    def _output_at(self, packed: tf.Tensor, kind: tf.Tensor, start: tf.Tensor, x: Any) -> tf.Tensor:
        def chain(number: int) -> tf.Tensor:
            def output() -> tf.Tensor:
                return self._output_with(self.architectures[number], packed, start, x)

            if number + 1 == len(self.architectures):
                return output()
            # Use a chain of two-way branches, as TFLite does not support `tf.switch_case`.
            return tf.cond(tf.equal(kind, number), output, lambda: chain(number + 1))

        return chain(0)

    def _output_with(
        self, architecture: Architecture, packed: tf.Tensor, start: Any, x: Any
    ) -> Any:
        arrays = []
        for like in architecture.arrays():
            part = tf.slice(packed, [start], [like.size])
            arrays.append(tf.cast(tf.reshape(part, like.shape), like.dtype))
            start += like.size
        return architecture.predictions(architecture.weights(arrays), x)

    def _sizes(self) -> list[int]:
        return [self.architectures[kind].size for kind in self.kinds]

    def _starts(self) -> list[int]:
        sizes = self._sizes()
        return [sum(sizes[:k]) for k in range(len(sizes))]

    def _room(self, count: int) -> int:
        return sum(sorted(self._sizes())[-count:])


def store_for(architectures: Sequence[Architecture]) -> PredictorStore:
    """Returns the storage for predictors of given architectures."""
    different = tuple(dict.fromkeys(architectures))
    if len(different) == 1:
        return OneArchitecture(different[0])
    return SeveralArchitectures(different, tuple(map(different.index, architectures)))


def _leaves(weights: ModelWeights) -> list[np.ndarray]:
    return [np.asarray(array) for array in (*weights.trainable, *weights.non_trainable)]
