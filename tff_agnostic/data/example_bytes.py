"""Features as serialized `tf.train.Example`s, and back."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_agnostic.data.records import Value


class ExampleSerializer:
    """Serializes the features of one example after another; all have features of the same names.

    What an example shares with the one before it, such as the title of a post whose sentences they
    are, is not converted again.
    """

    def __init__(self) -> None:
        self._example: Any = None
        self._last: dict[str, Value] = {}

    def __call__(self, features: Mapping[str, Value]) -> bytes:
        """Returns the bytes of an example; equal features give equal bytes."""
        if self._example is None:
            # Imported here: whoever only checks flags need not wait for TensorFlow.
            from tensorflow.core.example import example_pb2

            self._example = example_pb2.Example()
        of_name = self._example.features.feature
        last = self._last
        for name, value in features.items():
            # Arrays may be changed in place; strings and numbers cannot.
            if last.get(name) is value and not isinstance(value, np.ndarray):
                continue
            _fill(of_name[name], value)
            last[name] = value
        return bytes(self._example.SerializeToString(deterministic=True))


def _fill(feature: Any, value: Value) -> None:
    if isinstance(value, str):
        feature.bytes_list.value[:] = [value.encode()]
    elif isinstance(value, int):
        feature.int64_list.value[:] = [value]
    else:
        array = np.asarray(value).ravel()
        values = feature.float_list.value if array.dtype.kind == "f" else feature.int64_list.value
        values[:] = array.tolist()


def parsed_features(serialized: bytes) -> dict[str, Value]:
    """Returns the features of a serialized example; numbers as flat arrays."""
    from tensorflow.core.example import example_pb2

    features: dict[str, Value] = {}
    for name, feature in example_pb2.Example.FromString(serialized).features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind == "bytes_list":
            features[name] = feature.bytes_list.value[0].decode()
        elif kind == "float_list":
            features[name] = np.array(feature.float_list.value, np.float32)
        else:
            features[name] = np.array(feature.int64_list.value, np.int64)
    return features
