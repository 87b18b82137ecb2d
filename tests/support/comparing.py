"""Comparisons of nested structures of arrays."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf


def to_tensors(structure: Any) -> Any:
    return tf.nest.map_structure(tf.convert_to_tensor, structure)


def to_numpy(structure: Any) -> Any:
    return tf.nest.map_structure(lambda value: np.asarray(value), structure)


def flat(arrays: Iterable[Any]) -> np.ndarray:
    """Returns the values of all arrays as one vector."""
    return np.concatenate([np.ravel(array) for array in arrays])


def assert_all_close(actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-7) -> None:
    tf.nest.assert_same_structure(actual, expected)
    for a, e in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        np.testing.assert_allclose(np.asarray(a), np.asarray(e), rtol=rtol, atol=atol)


def assert_identical(actual: Any, expected: Any) -> None:
    """Compares two structures leaf by leaf and bit for bit; NaN equals NaN."""
    tf.nest.assert_same_structure(actual, expected)
    for a, e in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(e))
