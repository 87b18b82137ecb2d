"""Small copies of the real data that the documentation names, with fewer records."""

import gzip
import itertools
from pathlib import Path
from typing import Callable

import numpy as np

_FILES_PER_LOCALE = 40
_BYTES_PER_FILE = 900
_POSTS = 120
_IMAGES_PER_WRITER = 3
# Keep every fourth writer, because the last evaluation has all test writers.
_WRITERS_STEP = 4
_PEOPLE = 800
_GARMENTS = 600


def _spanish(source: Path, target: Path) -> None:
    for locale in source.iterdir():
        (target / locale.name).mkdir(parents=True)
        for path in sorted(locale.iterdir())[:_FILES_PER_LOCALE]:
            text = path.read_text(encoding="utf-8")[:_BYTES_PER_FILE].rpartition(" ")[0]
            (target / locale.name / path.name).write_text(text, encoding="utf-8")


def _stackexchange(source: Path, target: Path) -> None:
    for site in source.iterdir():
        (target / site.name).mkdir(parents=True)
        with open(site / "Posts.xml", encoding="utf-8") as posts:
            lines = list(itertools.islice(posts, _POSTS))
        with open(target / site.name / "Posts.xml", "w", encoding="utf-8") as small:
            small.writelines([*lines, "</posts>\n"])


def _mnist_by_writer(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    name = "mnist_by_writer.npz"
    with np.load(source / name) as archive:
        arrays = dict(archive)
    small = {}
    for split in ("train", "test"):
        writers = arrays[f"writer_{split}"]
        kept = np.unique(writers)[::_WRITERS_STEP]
        rows = np.sort(
            np.concatenate([np.flatnonzero(writers == w)[:_IMAGES_PER_WRITER] for w in kept])
        )
        small.update({f"{key}_{split}": arrays[f"{key}_{split}"][rows] for key in _KEYS})
    np.savez(target / name, **small)


def _adult(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for name in ("adult.data", "adult.test"):
        with open(source / name, encoding="ascii") as rows, open(target / name, "w") as small:
            small.writelines(itertools.islice(rows, _PEOPLE))


def _fashion_mnist(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for path in source.glob("*-ubyte.gz"):
        # An IDX file begins with a magic number, and with sizes as big-endian int32, items first.
        header, item = (16, 28 * 28) if "images" in path.name else (8, 1)
        with gzip.open(path) as file:
            start, items = file.read(header), file.read(_GARMENTS * item)
        with gzip.open(target / path.name, "wb") as small:
            small.write(start[:4] + _GARMENTS.to_bytes(4, "big") + start[8:] + items)


def _tinyshakespeare(source: Path, target: Path) -> None:
    """Keeps one speech of each speaker, because an experiment mixes models of all speakers."""
    target.mkdir(parents=True)
    first: dict[str, str] = {}
    for speech in (source / "input.txt").read_text(encoding="utf-8").split("\n\n"):
        first.setdefault(speech.partition("\n")[0], speech)
    (target / "input.txt").write_text("\n\n".join(first.values()), encoding="utf-8")


_KEYS = ("x", "y", "hsf", "writer")
_COPIES: dict[str, Callable[[Path, Path], None]] = {
    "activ_es": _spanish,
    "adult": _adult,
    "fashion_mnist": _fashion_mnist,
    "mnist_by_writer": _mnist_by_writer,
    "stackexchange": _stackexchange,
    "tinyshakespeare": _tinyshakespeare,
}


def small_copies(source: Path, target: Path) -> None:
    """Copies the available real data in `source` to the new folder `target`."""
    target.mkdir(parents=True)
    for name, copy in _COPIES.items():
        if (source / name).is_dir():
            copy(source / name, target / name)
