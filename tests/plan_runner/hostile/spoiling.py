"""Damaged and hostile exports, created by changing a valid export."""

import enum
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.plan_runner.exports import rehash

ROUND = "conformance/round_1.npz"
CLIENT = "conformance/clients/ann.tfrecord"


class Stage(enum.Enum):
    """The stage at which the runner rejects an export."""

    EARLY = "before TensorFlow is imported"
    UNPLAYED = "before a graph is run"
    PLAYED = "while a round is run"
    ENDED = "by killing the process that runs it"


class Hostile(NamedTuple):
    """A hostile export.

    Attributes:
        spoil: Changes a valid export with plain sums.
        message: Part of the error.
        stage: Stage at which the runner rejects the export.
        flags: Additional flags of the runner.
        status: Exit status of the runner.
    """

    spoil: Callable[[Path], Any]
    message: str
    stage: Stage = Stage.EARLY
    flags: tuple[str, ...] = ()
    status: int = 2


def manifest(**changes: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return spoil


def replaced(name: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return spoil


def moved_out(name: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        outside = folder.parent / "outside"
        (folder / name).rename(outside)
        (folder / name).symlink_to(outside)

    return spoil


def swapped(one: str, other: str) -> Callable[[Path], None]:
    """Returns a function that swaps two files and updates the manifest."""

    def spoil(folder: Path) -> None:
        first, second = (folder / one).read_bytes(), (folder / other).read_bytes()
        (folder / one).write_bytes(second)
        (folder / other).write_bytes(first)
        rehash(folder)

    return spoil


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / name).write_bytes(change((folder / name).read_bytes()))
        rehash(folder)

    return spoil
