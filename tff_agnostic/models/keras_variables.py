"""Finds the weights and random generators of a Keras model, and swaps them for tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Optional

from tff_agnostic.later import tf

# Keras' own bookkeeping of a layer's variables; its forward pass never reads them.
_BOOKKEEPING = frozenset(
    {"_trainable_weights", "_non_trainable_weights", "_self_tracked_trackables"}
)

Slot = tuple[dict[str, Any], str, Any]
# A variable, the indices of the weights that it holds, and the dtype its layer computes in.
WeightSlot = tuple[Slot, list[int], Optional[str]]


def name_layers_afresh() -> None:
    """Lets Keras count the layers that have no name of their own from the start again.

    They have the same names then in every process, and in every trial of one.
    """
    tf.keras.backend.reset_uids()


def layers_of(keras_model: tf.keras.Model) -> list[tf.Module]:
    """Returns the model and all layers in it."""
    # `submodules` would also walk into Keras' dropout mask caches, and fails there.
    return list(keras_model._flatten_layers())


def find_weight_slots(
    keras_model: tf.keras.Model, weights: Sequence[tf.Variable]
) -> list[WeightSlot]:
    """Finds every attribute that holds weights, with the indices of the weights it holds.

    A slot is an attribute that holds either one variable or a list of variables.
    """
    index_of = {id(w): i for i, w in enumerate(weights)}
    slots: list[WeightSlot] = []
    for module in layers_of(keras_model):
        attributes = vars(module)
        dtype = getattr(module, "compute_dtype", None)
        for name, value in attributes.items():
            if name in _BOOKKEEPING:
                continue
            if id(value) in index_of:
                slots.append(((attributes, name, value), [index_of[id(value)]], dtype))
            elif isinstance(value, (list, tuple)) and value:
                indices = [index_of.get(id(v), -1) for v in value]
                if min(indices) >= 0:
                    slots.append(((attributes, name, value), indices, dtype))
    found = {i for _, indices, _ in slots for i in indices}
    missing = [w.name for i, w in enumerate(weights) if i not in found]
    if missing:
        raise ValueError(
            "every weight must be an attribute of a layer, or in a list that is one; these are "
            f"not: {', '.join(missing)}"
        )
    return slots


def find_random_slots(keras_model: tf.keras.Model) -> list[Slot]:
    """Finds every attribute that holds the random generator of a layer."""
    return [
        (vars(module), "_random_generator", vars(module)["_random_generator"])
        for module in layers_of(keras_model)
        if "_random_generator" in vars(module)
    ]


@contextlib.contextmanager
def swapped(slots: Sequence[WeightSlot], values: Sequence[tf.Tensor]) -> Iterator[None]:
    """Puts tensors, one for each weight, in the place of weights for as long as it lasts."""
    replacements = []
    for (_, _, original), indices, dtype in slots:
        chosen = [_in_dtype(values[i], dtype) for i in indices]
        replacements.append(chosen if isinstance(original, (list, tuple)) else chosen[0])
    with swapped_each([slot for slot, _, _ in slots], replacements):
        yield


@contextlib.contextmanager
def swapped_each(slots: Sequence[Slot], replacements: Sequence[Any]) -> Iterator[None]:
    """Puts a replacement into each slot, for as long as it lasts."""
    # The attribute dictionaries are written directly: Keras' __setattr__ would track the tensors.
    for (attributes, name, _), replacement in zip(slots, replacements):
        attributes[name] = replacement
    try:
        yield
    finally:
        for attributes, name, original in slots:
            attributes[name] = original


def _in_dtype(value: tf.Tensor, dtype: Optional[str]) -> tf.Tensor:
    # Keras does so when a layer of mixed precision reads one of its variables.
    own = tf.as_dtype(value.dtype)
    if dtype is None or own == dtype or not own.is_floating:
        return value
    return tf.cast(value, dtype)


class StatelessGenerator:
    """The part of `keras.backend.RandomGenerator` that layers use, from a stateless seed."""

    def __init__(self, seed: tf.Tensor, layer_index: int) -> None:
        self._seed = tf.random.experimental.stateless_fold_in(seed, layer_index)
        self._calls = 0

    def _next_seed(self) -> tf.Tensor:
        self._calls += 1
        return tf.random.experimental.stateless_fold_in(self._seed, self._calls)

    def make_seed_for_stateless_op(self) -> tf.Tensor:
        """Returns a seed that no other call gets, int32 [2]."""
        return self._next_seed()

    def dropout(self, inputs: tf.Tensor, rate: float, noise_shape: Any = None) -> tf.Tensor:
        """Returns inputs with a fraction `rate` set to 0, and the others scaled up."""
        return tf.nn.experimental.stateless_dropout(
            inputs, rate=rate, noise_shape=noise_shape, seed=self._next_seed()
        )

    def random_uniform(
        self, shape: Any, minval: float = 0.0, maxval: Any = None, dtype: Any = None, **_: Any
    ) -> tf.Tensor:
        """Draws uniform values."""
        high = 1.0 if maxval is None else maxval
        return tf.random.stateless_uniform(
            shape, self._next_seed(), minval, high, dtype or tf.float32
        )

    def random_normal(
        self, shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = None, **_: Any
    ) -> tf.Tensor:
        """Draws normal values."""
        return tf.random.stateless_normal(
            shape, self._next_seed(), mean, stddev, dtype or tf.float32
        )

    def truncated_normal(
        self, shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = None, **_: Any
    ) -> tf.Tensor:
        """Draws normal values within two standard deviations."""
        return tf.random.stateless_truncated_normal(
            shape, self._next_seed(), mean, stddev, dtype or tf.float32
        )
