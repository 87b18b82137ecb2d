"""Examples as stores hold them, serialized `tf.train.Example`s: parsed and described."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from tff_agnostic.data.store_format import Feature
from tff_agnostic.errors import UserError


def parse_examples(
    serialized: Sequence[bytes], features: Mapping[str, Feature], where: str
) -> dict[str, np.ndarray]:
    """Parses `tf.train.Example`s.

    Args:
        serialized: n examples.
        features: What to take from them.
        where: Whose they are, for messages.

    Returns:
        A column of each feature, [n, *shape]; strings are bytes in object arrays.

    Raises:
        UserError: If an example is damaged, or lacks a feature in that type and shape.
    """
    if not features:
        return {}
    expected = ", ".join(f"{n} ({f.dtype} {list(f.shape)})" for n, f in features.items())
    smallest = min(map(len, serialized), default=0)
    for name, feature in features.items():
        # TensorFlow reserves what a shape needs before it looks; a value takes at least a byte.
        if serialized and math.prod(feature.shape) > smallest:
            raise UserError(
                f"{where}: expected examples with {expected}, found one of {smallest} bytes, which "
                f"cannot hold {name}"
            )
    spec = {
        name: tf.io.FixedLenFeature(feature.shape, tf.as_dtype(feature.dtype))
        for name, feature in features.items()
    }
    try:
        # The operation runs on CPUs only.
        with tf.device("CPU:0"):
            columns = tf.io.parse_example(tf.constant(list(serialized), tf.string), spec)
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError) as e:
        message = " ".join(str(getattr(e, "message", e)).split())
        raise UserError(f"{where}: expected examples with {expected}, found: {message}") from e
    return {name: column.numpy() for name, column in columns.items()}


def features_of(serialized: bytes, path: Path) -> dict[str, Feature]:
    """Returns what an example holds, for stores that do not describe themselves.

    Args:
        serialized: The example.
        path: Its store, for messages.

    Raises:
        UserError: If it is no `tf.train.Example`.
    """
    try:
        example = tf.train.Example.FromString(serialized)
    except Exception as e:  # protobuf's own error type differs between its implementations.
        raise UserError(f"{path}: expected tf.train.Examples, found something else ({e})") from e
    names = {"bytes_list": "string", "int64_list": "int64", "float_list": "float32"}
    features = {}
    for name, feature in sorted(example.features.feature.items()):
        kind = feature.WhichOneof("kind")
        if kind is None:
            continue
        length = len(getattr(feature, kind).value)
        features[name] = Feature(names[kind], () if length == 1 else (length,))
    return features
