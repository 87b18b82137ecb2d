"""IDX files of MNIST, Fashion-MNIST and EMNIST: images and labels in two files, or four.

The files name no clients: examples are dealt to clients of equal size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import Verbatim
from tff_agnostic.data.store_format import LABEL, Record
from tff_agnostic.importing import source
from tff_agnostic.importing.cells import CellError, Labels
from tff_agnostic.importing.images import PIXELS, unit_interval
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import Format, ReadLog, RecordError, SourceExample, hash64

_IMAGES, _LABELS = "images", "labels"
_UNSIGNED_BYTE = 8
_BLOCK = 1024
# Bytes of a block: the sizes that a file claims must not decide how much memory is allocated.
_MAX_BLOCK = 1 << 24


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[SourceExample]:
    """Yields the images of all files, a block of them in memory at a time."""
    kept = {label: i for i, label in enumerate(options.classes)}
    labels = Labels(options)
    for images_path, labels_path in _pairs(paths):
        split = _split_of(images_path.name)
        name = source.place_of(images_path, paths)
        deal = _Deal(options, split or "client")
        for start, images, numbers in _blocks(images_path, labels_path, options, log):
            values = unit_interval(images)
            for i, number in enumerate(numbers.tolist()):
                log.num_records += 1
                place = f"{name} image {start + i}"
                if kept and number not in kept:
                    log.skip("class that is not in classes")
                    continue
                try:
                    label = labels.class_of(kept[number] if kept else number)
                except CellError as e:
                    log.bad(RecordError(place, e.reason, e.detail))
                    continue
                record = Record(
                    deal.next_client(),
                    options.domain_name or _class_name(options, label, number),
                    {PIXELS: values[i], LABEL: label},
                    split,
                )
                yield SourceExample(record, place)


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns the files of images and of labels."""
    return [path for pair in _pairs(paths) for path in pair]


def check(options: ImportOptions) -> None:
    """Raises a `UserError` if classes are named twice, or not as many as are kept."""
    classes = options.classes
    if len(set(classes)) < len(classes):
        raise options.error("classes", "different labels", Verbatim(list(classes)))
    if classes and options.class_names and len(classes) != len(options.class_names):
        expected = f"{len(classes)} names, as classes has"
        raise options.error("class_names", expected, Verbatim(len(options.class_names)))


def _class_name(options: ImportOptions, label: int, number: int) -> str:
    return options.class_names[label] if options.class_names else str(number)


class _Deal:
    """Deals like cards: of each N examples every client gets one, in a random order."""

    def __init__(self, options: ImportOptions, prefix: str) -> None:
        self._seed = [options.seed, hash64(prefix)]
        self._size = options.num_clients
        self._digits = len(str(self._size - 1))
        self._prefix = prefix
        self._count = 0
        self._order = np.empty([0], np.int64)

    def next_client(self) -> str:
        turn, position = divmod(self._count, self._size)
        if position == 0:
            self._order = np.random.default_rng([*self._seed, turn]).permutation(self._size)
        self._count += 1
        return f"{self._prefix}_{self._order[position]:0{self._digits}d}"


def _pairs(paths: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Returns the files of images, each with that of its labels."""
    found = source.expand(paths, ("-ubyte", "-ubyte.gz", ".idx", ".idx.gz"))
    pairs = []
    for images in (path for path in found if _IMAGES in path.name):
        name = images.name.replace(_IMAGES, _LABELS).replace("idx3", "idx1")
        plain = name[: -len(".gz")] if name.endswith(".gz") else name
        labels = [images.with_name(n) for n in (plain, f"{plain}.gz")]
        there = [path for path in labels if path.is_file()]
        packed = images.with_name(f"{images.name}.gz")
        if packed in found:
            raise UserError(
                f"{packed}: expected these images once, found {images.name} as well: name the "
                "files of images with input=FILE,..."
            )
        if not there:
            raise UserError(f"{images}: expected labels in {plain} next to it, found none")
        pairs.append((images, there[0]))
    if not pairs:
        raise UserError(
            f"{', '.join(map(str, paths))}: expected files such as train-images-idx3-ubyte, found "
            "none"
        )
    return pairs


def _split_of(name: str) -> Optional[str]:
    if "train" in name:
        return "train"
    return "test" if "t10k" in name or "test" in name else None


def _blocks(
    images_path: Path, labels_path: Path, options: ImportOptions, log: ReadLog
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    with (
        source.open_input(images_path, options, log) as images,
        source.open_input(labels_path, options, log) as labels,
    ):
        shape = _header(images, images_path, 3)
        (count,) = _header(labels, labels_path, 1)
        if shape[0] != count:
            raise UserError(
                f"{labels_path}: expected {shape[0]} labels, as there are images, found {count}"
            )
        image_size = math.prod(shape[1:])
        if not 0 < image_size <= options.max_pixels:
            raise UserError(
                f"{images_path}: expected images of 1 to {options.max_pixels} pixels "
                f"(max_pixels), found {shape[1]} x {shape[2]}"
            )
        images.check_claimed(count * image_size)
        labels.check_claimed(count)
        block = max(1, min(_BLOCK, _MAX_BLOCK // image_size))
        for start in range(0, count, block):
            size = min(block, count - start)
            images.end_record()
            labels.end_record()
            yield (
                start,
                _array(images, images_path, (size, *shape[1:])),
                _array(labels, labels_path, (size,)),
            )
        _check_end(images, images_path, count)
        _check_end(labels, labels_path, count)


def _header(file: IO[bytes], path: Path, dimensions: int) -> tuple[int, ...]:
    with source.reading_errors(path):
        start = file.read(4)
    if start != bytes([0, 0, _UNSIGNED_BYTE, dimensions]):
        raise UserError(
            f"{path}: expected an IDX file of bytes with {dimensions} dimensions, found one that "
            f"starts with {start.hex(' ') or 'nothing'}"
        )
    return tuple(_array(file, path, (4 * dimensions,)).view(">u4").tolist())


def _array(file: IO[bytes], path: Path, shape: tuple[int, ...]) -> np.ndarray:
    size = math.prod(shape)
    with source.reading_errors(path):
        content = file.read(size)
    if len(content) < size:
        raise UserError(
            f"{path}: expected {size} more bytes, found {len(content)}: it is truncated"
        )
    return np.frombuffer(content, np.uint8).reshape(shape)


def _check_end(file: IO[bytes], path: Path, count: int) -> None:
    with source.reading_errors(path):
        more = file.read(1)
    if more:
        raise UserError(f"{path}: expected the end after {count} entries, found more bytes")


FORMAT = Format(
    summary="IDX files of MNIST, Fashion-MNIST or EMNIST; domains are the classes",
    read=source.in_rows(read),
    find_inputs=find_inputs,
    check=check,
)
