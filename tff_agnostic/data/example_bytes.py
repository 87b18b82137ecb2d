"""Examples of a store as bytes, a serialized `tf.train.Example` each, without TensorFlow.

The bytes are those of `SerializeToString(deterministic=True)` in protobuf 4.25: features sorted by
name, but "x10" before "x1". Field numbers are of TensorFlow's example.proto and feature.proto.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tff_agnostic.data.store_format import Value

# A field's number times 8, plus 2 for a value with a length.
_FEATURES = _FEATURE_ENTRY = _NAME = _VALUE = b"\x0a"
_FEATURE, _FLOAT_LIST, _INT_LIST, _BYTES_LIST = b"\x12", b"\x12", b"\x1a", b"\x0a"
_SEVEN_BITS = 0x7F
_PACKAGE = "tensorflow"
_LISTS = (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List"))


class ExampleSerializer:
    """Serializes the features of one example after another.

    What an example shares with the one before it, such as the title of a post whose sentences they
    are, is not converted again.
    """

    def __init__(self) -> None:
        self._last: dict[str, Value] = {}
        self._entries: dict[str, bytes] = {}
        self._order: tuple[str, ...] = ()

    def __call__(self, features: Mapping[str, Value]) -> bytes:
        """Returns the bytes of an example; equal features give equal bytes."""
        entries = self._updated(features)
        return _with_length(_FEATURES, b"".join([entries[name] for name in self._order]))

    def with_texts(
        self, features: Mapping[str, Value], name: str, texts: Iterable[str]
    ) -> Iterator[bytes]:
        """Yields the bytes of examples that differ in the text of one feature only."""
        entries = self._updated({**features, name: ""})
        before = b"".join([entries[other] for other in self._order if _rank(other) < _rank(name)])
        after = b"".join([entries[other] for other in self._order if _rank(other) > _rank(name)])
        for text in texts:
            value = text.encode()
            content = b"".join((before, _head_of_text(name, len(value)), value, after))
            yield b"".join((_FEATURES, _varint(len(content)), content))

    def _updated(self, features: Mapping[str, Value]) -> Mapping[str, bytes]:
        last, entries = self._last, self._entries
        for name, value in features.items():
            # Arrays may be changed in place; strings and numbers cannot.
            if name in last and last[name] is value and not isinstance(value, np.ndarray):
                continue
            entries[name] = _entry(name, value)
            last[name] = value
        if len(entries) != len(self._order):
            self._order = tuple(sorted(entries, key=_rank))
        return entries


def _rank(name: str) -> bytes:
    # No byte of UTF-8 is as large: a name comes after those that begin with it.
    return name.encode() + b"\xff"


def _entry(name: str, value: Value) -> bytes:
    if isinstance(value, str):
        encoded = value.encode()
        return _head_of_text(name, len(encoded)) + encoded
    array = np.asarray(value)
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            numbers = array.astype("<f4").tobytes()
        values = _with_length(_FLOAT_LIST, _packed(numbers))
    else:
        numbers = b"".join(map(_varint, array.ravel().tolist()))
        values = _with_length(_INT_LIST, _packed(numbers))
    named = _with_length(_NAME, name.encode()) + _with_length(_FEATURE, values)
    return _with_length(_FEATURE_ENTRY, named)


def _packed(numbers: bytes) -> bytes:
    return _with_length(_VALUE, numbers) if numbers else b""


@functools.lru_cache(maxsize=1 << 14)
def _head_of_text(name: str, size: int) -> bytes:
    """Returns what stands before a text of so many bytes, the only value of a feature."""
    head = _VALUE + _varint(size)
    for mark in (_BYTES_LIST, _FEATURE):
        head = mark + _varint(len(head) + size) + head
    head = _with_length(_NAME, name.encode()) + head
    return _FEATURE_ENTRY + _varint(len(head) + size) + head


def _with_length(mark: bytes, content: bytes) -> bytes:
    return mark + _varint(len(content)) + content


@functools.lru_cache(maxsize=1 << 12)
def _varint(number: int) -> bytes:
    # Negative numbers are those of 64 bits in two's complement.
    number &= 2**64 - 1
    found = bytearray()
    while number > _SEVEN_BITS:
        found.append(number & _SEVEN_BITS | _SEVEN_BITS + 1)
        number >>= 7
    found.append(number)
    return bytes(found)


def parsed_features(serialized: bytes) -> dict[str, Value]:
    """Returns the features of a serialized example; numbers as flat arrays."""
    features: dict[str, Value] = {}
    for name, feature in example_class().FromString(serialized).features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind == "bytes_list":
            features[name] = feature.bytes_list.value[0].decode()
        elif kind == "float_list":
            features[name] = np.array(feature.float_list.value, np.float32)
        else:
            features[name] = np.array(feature.int64_list.value, np.int64)
    return features


@functools.lru_cache(maxsize=1)
def example_class() -> Any:
    """Returns a class with the methods of `tf.train.Example`, which loads no TensorFlow."""
    # Imported here, so that checks of flags need not wait for it.
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="example.proto", package=_PACKAGE, syntax="proto3"
    )

    def add(message: Any, name: str, number: int, type_: Any, of: str = "", **more: Any) -> None:
        is_message = {"type_name": f".{_PACKAGE}.{of}"} if of else {}
        more = {"label": kinds.LABEL_OPTIONAL, **more}
        message.field.add(name=name, number=number, type=type_, **is_message, **more)

    types = (kinds.TYPE_BYTES, kinds.TYPE_FLOAT, kinds.TYPE_INT64)
    for (_, name), type_ in zip(_LISTS, types):
        values = file.message_type.add(name=name)
        add(values, "value", 1, type_, label=kinds.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (field, of) in enumerate(_LISTS, start=1):
        add(feature, field, number, kinds.TYPE_MESSAGE, of, oneof_index=0)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", 1, kinds.TYPE_STRING)
    add(entry, "value", 2, kinds.TYPE_MESSAGE, "Feature")
    of = "Features.FeatureEntry"
    add(features, "feature", 1, kinds.TYPE_MESSAGE, of, label=kinds.LABEL_REPEATED)
    add(file.message_type.add(name="Example"), "features", 1, kinds.TYPE_MESSAGE, "Features")
    # A pool of its own: TensorFlow registers the same names in the default one.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))
