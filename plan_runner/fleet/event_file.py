"""Metrics of rounds as TensorBoard reads them, without TensorFlow, which the server has not.

A file is TFRecords: the length of each and its content, both with a masked CRC-32C (TensorFlow's
tensorflow/core/lib/io/record_writer.h). A record is an Event, a message of protobuf (event.proto
and summary.proto).
"""

from __future__ import annotations

import functools
import math
import os
import shutil
import struct
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

# Fields of Event, Summary and Summary.Value: numbers and wire types of protobuf.
_WALL_TIME, _STEP, _VERSION, _SUMMARY = 1 << 3 | 1, 2 << 3 | 0, 3 << 3 | 2, 5 << 3 | 2
_VALUE, _TAG, _SIMPLE_VALUE = 1 << 3 | 2, 1 << 3 | 2, 2 << 3 | 5
_VERSION_TEXT = b"brain.Event:2"
_POLYNOMIAL, _MASK = 0x82F63B78, 0xA282EAD8
_32_BITS = 0xFFFFFFFF


class EventFile:
    """The rounds of a server in a folder of their own; those of an earlier process are replaced.

    Args:
        folder: Is removed with all that is in it, and made anew.
        rounds: Those that are done; see `add`.
    """

    def __init__(self, folder: Path, rounds: Iterable[tuple[int, Mapping[str, float]]]) -> None:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        now = time.time()
        # TensorBoard knows its files by their names, and their format by the first event.
        self._path = folder / f"events.out.tfevents.{int(now)}.{os.getpid()}"
        events = [_wall_time(now) + _bytes(_VERSION, _VERSION_TEXT)]
        events += [_event(now, step, scalars) for step, scalars in rounds]
        self._path.write_bytes(b"".join(map(_record, events)))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds a round.

        Args:
            step: Its number.
            scalars: Its metrics by their tags.
        """
        with open(self._path, "ab") as file:
            file.write(_record(_event(time.time(), step, scalars)))


def _event(now: float, step: int, scalars: Mapping[str, float]) -> bytes:
    values = [
        _bytes(_TAG, tag.encode()) + bytes([_SIMPLE_VALUE]) + _float(value)
        for tag, value in scalars.items()
    ]
    summary = b"".join(_bytes(_VALUE, value) for value in values)
    return _wall_time(now) + bytes([_STEP]) + _varint(step) + _bytes(_SUMMARY, summary)


def _float(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _wall_time(now: float) -> bytes:
    return bytes([_WALL_TIME]) + struct.pack("<d", now)


def _bytes(field: int, content: bytes) -> bytes:
    return bytes([field]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    digits = []
    while value >= 128:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return b"".join([length, _masked_crc(length), content, _masked_crc(content)])


def _masked_crc(content: bytes) -> bytes:
    crc, table = _32_BITS, _crc_table()
    for byte in content:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= _32_BITS
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & _32_BITS)


@functools.cache
def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ _POLYNOMIAL * (value & 1)
        table.append(value)
    return table
