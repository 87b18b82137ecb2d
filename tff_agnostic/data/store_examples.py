"""Examples of a store in the making: their bytes, and the numbers in them.

An example is a serialized `tf.train.Example`, made without TensorFlow. The bytes are those of
`SerializeToString(deterministic=True)` in protobuf 4.25: features sorted by name, but "x10" before
"x1". Field numbers are of TensorFlow's example.proto and feature.proto.

Of numbers there are statistics, from one pass in bounded memory. Gaps are filled, and numbers
standardized if that is wanted.
"""

from __future__ import annotations

import functools
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, Optional

import numpy as np

from tff_agnostic.data.store_format import LABEL, TRAIN, NumberStatistics, StoreDescription, Value

# A field's number times 8, plus 2 for a value with a length.
_FEATURES = _FEATURE_ENTRY = _NAME = _VALUE = b"\x0a"
_FEATURE, _FLOAT_LIST, _INT_LIST, _BYTES_LIST = b"\x12", b"\x12", b"\x1a", b"\x0a"
_SEVEN_BITS = 0x7F
_PACKAGE = "tensorflow"
_LISTS = (("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List"))
# Of images, and vectors that are some, nobody wants statistics of each number.
_MAX_NUMBERS = 2000
_BLOCK_ROWS = 1000
# float32 NaN, as examples hold it where a number is missing.
_GAP = np.float32("nan").tobytes()

_Change = Callable[[np.ndarray], np.ndarray]
Statistics = Mapping[str, tuple[NumberStatistics, ...]]


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


def inputs_with_statistics(description: StoreDescription) -> dict[str, int]:
    """Returns the inputs of real numbers of which statistics are told, and how many they have."""
    named = {} if description.columns is None else description.columns.numbers
    sizes = {
        name: description.num_numbers(name)
        for name, feature in description.features.items()
        if feature.dtype == "float32"
        and name != LABEL
        and (name in named or len(feature.shape) == 1)
    }
    most = math.inf if description.is_standardized else _MAX_NUMBERS
    return {name: size for name, size in sizes.items() if 0 < size <= most}


def statistics_of(database: sqlite3.Connection, sizes: Mapping[str, int]) -> Statistics:
    """Returns the statistics of the training clients' numbers, by input.

    Args:
        database: A store in the making; a number is NaN in it where it is missing.
        sizes: How many numbers each input has, marks not counted.
    """
    if not sizes:
        return {}
    running = {name: RunningStatistics(size) for name, size in sizes.items()}
    message = example_class()
    rows = database.execute(
        "SELECT serialized_example_proto FROM examples WHERE split_name = ? ORDER BY rowid", [TRAIN]
    )
    while block := rows.fetchmany(_BLOCK_ROWS):
        values: dict[str, list[list[float]]] = {name: [] for name in sizes}
        for (proto,) in block:
            # A message that parses again keeps the memory of all that it ever parsed.
            example = message.FromString(proto)
            features = example.features.feature
            for name, size in sizes.items():
                values[name].append(features[name].float_list.value[:size])
        for name, of_name in values.items():
            running[name].add(np.array(of_name, np.float64))
    return {name: one.result() for name, one in running.items()}


def complete(
    database: sqlite3.Connection, sizes: Mapping[str, int], standardize_by: Optional[Statistics]
) -> None:
    """Puts 0 where a number is missing, and standardizes if that is wanted.

    Args:
        database: A store in the making.
        sizes: How many numbers each input has, marks not counted.
        standardize_by: The statistics of its inputs, by which numbers are standardized; None if
            they stay as they are.
    """
    change: dict[str, _Change] = dict.fromkeys(sizes, _filled)
    if standardize_by is not None:
        change.update({name: Standardization(standardize_by[name]) for name in sizes})
    message = example_class()

    def completed(proto: bytes) -> bytes:
        example = message.FromString(proto)
        features = example.features.feature
        for name, size in sizes.items():
            values = features[name].float_list.value
            values[:size] = change[name](np.array(values[:size], np.float32)).tolist()
        return bytes(example.SerializeToString(deterministic=True))

    database.create_function("completed", 1, completed, deterministic=True)
    where = "" if standardize_by is not None else "WHERE instr(serialized_example_proto, ?) > 0"
    database.execute(
        "UPDATE examples SET serialized_example_proto = completed(serialized_example_proto) "
        + where,
        [] if standardize_by is not None else [_GAP],
    )


def _filled(values: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(values), np.float32(0), values)


class RunningStatistics:
    """Statistics of d numbers of examples that come in blocks.

    Means and squared differences of blocks are put together by the update of Chan, Golub and
    LeVeque 1983 ("Algorithms for computing the sample variance", eq. 2.1), in float64: nothing is
    lost where a mean is large beside the deviation.

    Args:
        size: d.
    """

    def __init__(self, size: int) -> None:
        self._examples = 0
        self._count = np.zeros(size, np.int64)
        self._mean = np.zeros(size)
        # Sums of squared differences from the mean.
        self._squares = np.zeros(size)
        self._least = np.full(size, np.inf)
        self._most = np.full(size, -np.inf)

    def add(self, block: np.ndarray) -> None:
        """Adds examples.

        Args:
            block: [n, d]; NaN where a number is missing. Infinity, which training refuses, counts
                as missing too.
        """
        values = np.asarray(block, np.float64)
        is_there = np.isfinite(values)
        n = is_there.sum(axis=0)
        values = np.where(is_there, values, 0.0)
        mean = values.sum(axis=0) / np.maximum(n, 1)
        differences = np.where(is_there, values - mean, 0.0)
        squares = np.square(differences).sum(axis=0)
        total = np.maximum(self._count + n, 1)
        step = mean - self._mean
        self._squares += squares + np.square(step) * self._count * n / total
        self._mean += step * n / total
        self._count += n
        self._examples += len(values)
        self._least = np.fmin(
            self._least, np.where(is_there, values, np.inf).min(axis=0, initial=np.inf)
        )
        self._most = np.fmax(
            self._most, np.where(is_there, values, -np.inf).max(axis=0, initial=-np.inf)
        )

    def result(self) -> tuple[NumberStatistics, ...]:
        """Returns the statistics of each number."""
        return tuple(
            NumberStatistics(
                count=int(n),
                missing=self._examples - int(n),
                mean=float(mean),
                deviation=float(np.sqrt(squares / max(n, 1))),
                least=float(least) if n else None,
                most=float(most) if n else None,
            )
            for n, mean, squares, least, most in zip(
                self._count, self._mean, self._squares, self._least, self._most
            )
        )


class Standardization:
    """Brings d numbers to mean 0 and deviation 1, where the statistics are theirs.

    Args:
        statistics: Of each number.
    """

    def __init__(self, statistics: Sequence[NumberStatistics]) -> None:
        self._mean = np.array([one.mean for one in statistics])
        self._unit = np.array([one.unit for one in statistics])

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Returns float32 [..., d]; a missing number, NaN, becomes 0, which is the mean."""
        found = (np.asarray(values, np.float64) - self._mean) / self._unit
        return np.where(np.isnan(found), 0.0, found).astype(np.float32)
