"""Mixed precision: weights and sums stay float32, layers compute in 16 bits."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tff_agnostic.registry import Registry

# Keras' policy of each name, and what losses are multiplied by before gradients are taken: those of
# float16 would vanish below 6e-8 otherwise. bfloat16 has the range of float32.
_POLICIES: Registry[tuple[str, float]] = Registry(
    "precision",
    {
        "float32": ("float32", 1.0),
        "mixed_bfloat16": ("mixed_bfloat16", 1.0),
        "mixed_float16": ("mixed_float16", 1024.0),
    },
)
PRECISIONS: Registry[str] = Registry("precision", {name: name for name in _POLICIES})


@contextlib.contextmanager
def computing_in(precision: str) -> Iterator[None]:
    """Makes Keras layers that are built meanwhile compute in a precision of `PRECISIONS`."""
    policy, _ = _POLICIES[precision]
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(before)


def current_loss_scale() -> float:
    """Returns what losses of models that are built now have to be multiplied by."""
    name = tf.keras.mixed_precision.global_policy().name
    return _POLICIES[name][1] if name in _POLICIES else 1.0


def as_float32(value: tf.Tensor) -> tf.Tensor:
    """Returns a tensor of 16-bit floats as float32, and others as they are."""
    return tf.cast(value, tf.float32) if value.dtype in (tf.float16, tf.bfloat16) else value
