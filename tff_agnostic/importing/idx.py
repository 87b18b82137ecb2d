"""Reader of MNIST, Fashion-MNIST and EMNIST: pairs of IDX files with images and labels.

The files do not name clients: the import deals the examples to clients of equal size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

import numpy as np
import pyarrow as pa

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import Verbatim
from tff_agnostic.data.store_format import LABEL
from tff_agnostic.importing import files
from tff_agnostic.importing.cells import Labels
from tff_agnostic.importing.columns import converted
from tff_agnostic.importing.files import InputFile
from tff_agnostic.importing.images import PIXELS, unit_interval
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import Format, ReadLog, Rows, hash64

_UNSIGNED_BYTE = 8
# Limits of a block, so that the sizes that a file claims do not determine the memory.
_MAX_IMAGES, _MAX_BYTES = 1024, 1 << 24


def read(options: ImportOptions, paths: Sequence[Path], log: ReadLog) -> Iterator[Rows]:
    """Yields the images of all files, with one block in memory at a time."""
    labels, kept = Labels(options), {label: i for i, label in enumerate(options.classes)}
    for images_path, labels_path in _pairs(paths):
        split = _file_split(images_path.name)
        name = files.input_place(images_path, paths)
        clients = _dealt(options, split or "client")
        for start, images, numbers in _blocks(images_path, labels_path, options, log):
            if options.max_records is not None:
                numbers = numbers[: options.max_records - log.num_records]
            log.num_records += len(numbers)
            is_kept = np.isin(numbers, options.classes) if kept else np.ones(len(numbers), bool)
            for _ in range(len(numbers) - int(is_kept.sum())):
                log.skip("class that is not in classes")
            cells = [kept.get(number, number) for number in numbers.tolist()]
            classes, errors = converted(pa.array(cells, pa.int64()), labels.class_number, LABEL)
            for row in sorted({*errors} & {*np.flatnonzero(is_kept).tolist()}):
                log.bad(f"{name} image {start + row}", errors[row])
                is_kept[row] = False
            rows = np.flatnonzero(is_kept)
            domains = [
                options.domain_name or (options.class_names[k] if options.class_names else str(n))
                for k, n in zip(classes[rows], numbers[rows].tolist())
            ]
            if len(rows):
                yield Rows(
                    client=pa.array(itertools.islice(clients, len(rows)), pa.string()),
                    domain=pa.array(domains, pa.string()),
                    split=pa.array([split] * len(rows), pa.string()),
                    features={
                        PIXELS: unit_interval(images[rows]),
                        LABEL: classes[rows].astype(np.int64),
                    },
                    place=[f"{name} image {start + k}" for k in rows.tolist()].__getitem__,
                )


def find_inputs(paths: Sequence[Path]) -> list[Path]:
    """Returns the image files and the label files."""
    return [path for pair in _pairs(paths) for path in pair]


def check(options: ImportOptions) -> None:
    """Raises an `OptionError` if `classes` has duplicates, or `class_names` has another length."""
    classes = options.classes
    if len(set(classes)) < len(classes):
        raise options.error("classes", "different labels", Verbatim(list(classes)))
    if classes and options.class_names and len(classes) != len(options.class_names):
        expected = f"{len(classes)} names, as classes has"
        raise options.error("class_names", expected, Verbatim(len(options.class_names)))


def _dealt(options: ImportOptions, prefix: str) -> Iterator[str]:
    """Yields the client of each example: endless passes over all clients, in random orders."""
    seed, size = [options.seed, hash64(prefix)], options.num_clients
    digits = len(str(size - 1))
    for turn in itertools.count():
        for k in np.random.default_rng([*seed, turn]).permutation(size).tolist():
            yield f"{prefix}_{k:0{digits}d}"


def _pairs(paths: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Returns pairs of an image file and its label file."""
    inputs = files.expand(paths, ("-ubyte", "-ubyte.gz", ".idx", ".idx.gz"))
    pairs = []
    for images in (path for path in inputs if "images" in path.name):
        packed = images.with_name(f"{images.name}.gz")
        if packed in inputs:
            raise UserError(
                f"{packed}: expected these images once, found {images.name} as well: name the "
                "files of images with input=FILE,..."
            )
        name = images.name.replace("images", "labels").replace("idx3", "idx1")
        plain = images.with_name(name.removesuffix(".gz"))
        labels = [path for path in (plain, plain.with_name(f"{plain.name}.gz")) if path.is_file()]
        if not labels:
            raise UserError(f"{images}: expected labels in {plain.name} next to it, found none")
        pairs.append((images, labels[0]))
    if not pairs:
        raise UserError(
            f"{', '.join(map(str, paths))}: expected files such as train-images-idx3-ubyte, found "
            "none"
        )
    return pairs


def _file_split(name: str) -> Optional[str]:
    if "train" in name:
        return "train"
    return "test" if "t10k" in name or "test" in name else None


def _blocks(
    images_path: Path, labels_path: Path, options: ImportOptions, log: ReadLog
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yields blocks as (index of the first image, images, labels)."""
    with (
        files.open_input(images_path, options, log) as images,
        files.open_input(labels_path, options, log) as labels,
    ):
        count, *shape = _header(images, images_path, 3)
        (num_labels,) = _header(labels, labels_path, 1)
        if count != num_labels:
            raise UserError(
                f"{labels_path}: expected {count} labels, as there are images, found {num_labels}"
            )
        size = math.prod(shape)
        if not 0 < size <= options.max_pixels:
            raise UserError(
                f"{images_path}: expected images of 1 to {options.max_pixels} pixels "
                f"(max_pixels), found {shape[0]} x {shape[1]}"
            )
        images.limits.check_claimed(count * size)
        labels.limits.check_claimed(count)
        for start in range(0, count, block := max(1, min(_MAX_IMAGES, _MAX_BYTES // size))):
            if log.num_records == options.max_records:
                return
            images.limits.end_record()
            labels.limits.end_record()
            n = min(block, count - start)
            pixels = _bytes(images, images_path, n * size).reshape(n, *shape)
            yield start, pixels, _bytes(labels, labels_path, n)
        for file, path in ((images, images_path), (labels, labels_path)):
            if _read(file, path, 1):
                raise UserError(f"{path}: expected the end after {count} entries, found more bytes")


def _header(file: InputFile, path: Path, dimensions: int) -> list[int]:
    start = _read(file, path, 4)
    if start != bytes([0, 0, _UNSIGNED_BYTE, dimensions]):
        raise UserError(
            f"{path}: expected an IDX file of bytes with {dimensions} dimensions, found one that "
            f"starts with {start.hex(' ') or 'nothing'}"
        )
    sizes: list[int] = _bytes(file, path, 4 * dimensions).view(">u4").tolist()
    return sizes


def _read(file: InputFile, path: Path, size: int) -> bytes:
    with files.reading_errors(path):
        return file.read(size)


def _bytes(file: InputFile, path: Path, size: int) -> np.ndarray:
    content = _read(file, path, size)
    if len(content) < size:
        raise UserError(
            f"{path}: expected {size} more bytes, found {len(content)}: it is truncated"
        )
    return np.frombuffer(content, np.uint8)


FORMAT = Format(
    read=read,
    find_inputs=find_inputs,
    check=check,
)
