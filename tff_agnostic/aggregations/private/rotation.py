"""Randomised Hadamard transforms, which spread a vector evenly over its coordinates.

y = H D x / sqrt(p), with H the Hadamard matrix of p rows, a power of two, and random signs D. Norms
stay, and each coordinate of y is sub-Gaussian with the variance |x|^2 / p (Kairouz, Liu, Steinke
2021, section 4), so that integers of fewer bits hold it. Signs are public.
"""

import numpy as np
import tensorflow as tf

from tff_agnostic.computations.seeds import fold_in

# Larger factors take more multiplications, smaller ones more passes over the vector.
_MAX_FACTOR = 32


def padded_size(size: int) -> int:
    """Returns the least power of two that is no smaller."""
    return 1 << max(size - 1, 0).bit_length()


def random_signs(seed: tf.Tensor, size: int) -> tf.Tensor:
    """Returns 1 or -1 by chance, float64 [size], from an int64 scalar."""
    bits = tf.bitwise.bitwise_and(fold_in(seed, tf.range(size)), tf.constant(1, tf.int64))
    return tf.cast(1 - 2 * bits, tf.float64)


def rotated(vector: tf.Tensor, signs: tf.Tensor) -> tf.Tensor:
    """Returns H D x / sqrt(p), [p], of x [d] with zeros up to p.

    Args:
        vector: x, float32 or float64 [d], d at most p.
        signs: The diagonal of D, float64 [p]; p is a power of two.
    """
    padding = signs.shape[0] - vector.shape[0]
    return _hadamard(tf.pad(vector, [[0, padding]]) * tf.cast(signs, vector.dtype))


def rotated_back(vector: tf.Tensor, signs: tf.Tensor) -> tf.Tensor:
    """Returns D H y / sqrt(p), the inverse, float64 [p]."""
    return _hadamard(vector) * signs


def _hadamard(vector: tf.Tensor) -> tf.Tensor:
    # H of p rows is a Kronecker product of smaller ones: each factor works on the last digits of
    # the index, which then become its first ones.
    size = left = vector.shape[0]
    while left > 1:
        factor = min(left, _MAX_FACTOR)
        matrix = tf.constant(_matrix(factor) / np.sqrt(factor), vector.dtype)
        vector = tf.transpose(tf.matmul(tf.reshape(vector, [size // factor, factor]), matrix))
        left //= factor
    return tf.reshape(vector, [size])


def _matrix(size: int) -> np.ndarray:
    """Returns the Hadamard matrix (Sylvester)."""
    matrix = np.ones([1, 1])
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix
