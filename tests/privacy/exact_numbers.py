"""A search for exact numbers about clients' data in commands' files and printed text."""

import io
import re
import struct
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

# Minimum number of digits; with fewer, a printed fraction or loss equals many other numbers.
_MIN_DIGITS = 5
# Relative error of float32 sums, compared with NumPy's float64 sums.
_TOLERANCE = 1e-6
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.]*\w)")
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?![\w,])")
_EMBEDDED = re.compile(r"data:[^\"')\s]+")
_STRINGS = re.compile(rb"[\x20-\x7e]{4,}")


def matches(
    exact: Mapping[str, float],
    folder: Path,
    streams: Mapping[str, str],
    min_digits: int = _MIN_DIGITS,
) -> list[str]:
    """Returns a line for each exact number in a file below a folder, or in a stream.

    Args:
        exact: Numbers by description; integers are counts, and need at least 4 printed digits.
        folder: Folder of the files.
        streams: Printed text by name.
        min_digits: Minimum number of printed digits of numbers that are not integers.
    """
    lines = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name, content = str(path.relative_to(folder)), path.read_bytes()
        lines += _shown(exact, name, _numbers(path.name, content), min_digits)
        lines += [
            f"{name}: {what} ({value}) as {kind}"
            for what, value in exact.items()
            if value != int(value)
            for kind, form in (("float32", "<f"), ("float64", "<d"))
            if struct.pack(form, value) in content
        ]
    for name, text in streams.items():
        lines += _shown(exact, name, _text_numbers(text), min_digits)
    return lines


def _shown(
    exact: Mapping[str, float], where: str, numbers: Iterator[str], min_digits: int
) -> list[str]:
    tokens = sorted({token.replace(",", "") for token in numbers})
    values = np.array([float(token) for token in tokens])
    units = np.array([_last_digit(token) for token in tokens])
    digits = np.array([_num_digits(token) for token in tokens])
    lines = []
    for what, value in exact.items():
        is_count = value == int(value)
        for form in {value} if is_count else {value, 100 * value}:
            tolerance = 0 if is_count else np.maximum(0.5 * units, _TOLERANCE * abs(form))
            is_near = np.abs(values - form) <= tolerance
            shown = is_near & (digits >= (4 if is_count else min_digits))
            lines += [f"{where}: {what} ({value}) as {tokens[k]}" for k in np.flatnonzero(shown)]
    return lines


def _num_digits(token: str) -> int:
    return len(re.sub(r"[eE].*|\D", "", token).lstrip("0"))


def _last_digit(token: str) -> float:
    mantissa, _, exponent = token.lower().partition("e")
    # A digest may look like a number with a huge exponent.
    power = min(int(exponent or 0), sys.float_info.max_10_exp)
    return float(10.0 ** (power - len(mantissa.partition(".")[2])))


def _numbers(name: str, content: bytes) -> Iterator[str]:
    """Yields the numbers in a file as strings; array elements have their dtype's digits."""
    if name.startswith("events.out.tfevents"):
        yield from _event_numbers(content)
    elif zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.namelist():
                yield from _numbers(member, archive.read(member))
    elif name.endswith(".npy"):
        array = np.load(io.BytesIO(content))
        if array.dtype.kind in "fiu":
            yield from map(str, np.unique(array[np.isfinite(array)]))
    else:
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = "\n".join(result.decode() for result in _STRINGS.findall(content))
        yield from _text_numbers(_EMBEDDED.sub("", text))


def _text_numbers(text: str) -> Iterator[str]:
    yield from _NUMBER.findall(text)
    yield from _THOUSANDS.findall(text)


def _event_numbers(content: bytes) -> Iterator[str]:
    from tensorboard.compat.proto.event_pb2 import Event

    start = 0
    while start < len(content):
        # A record consists of a length, the length's checksum, an event, and its checksum.
        (size,) = struct.unpack_from("<Q", content, start)
        event = Event.FromString(content[start + 12 : start + 12 + size])
        for value in event.summary.value:
            yield from map(str, np.array(value.tensor.float_val, np.float32))
        start += size + 16
