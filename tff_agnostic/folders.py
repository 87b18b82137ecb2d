"""Folders that are there whole or not at all, and numbered ones for what a command writes."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from tff_agnostic.errors import UserError
from tff_agnostic.files import make_folder, temporary_path, write_errors
from tff_agnostic.later import tf


def check_free(folder: Path, flag: str) -> None:
    """Checks that a folder is new or empty."""
    with write_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{flag}: expected a new or empty folder, found {folder}")


@contextlib.contextmanager
def new_folder(folder: Path, flag: str) -> Iterator[Path]:
    """Yields a folder that takes the place of `folder` when the block ends without exception."""
    check_free(folder, flag)
    parent = folder.absolute().parent
    partial = temporary_path(folder.absolute())
    with write_errors(folder):
        missing = [path for path in (parent, *parent.parents) if not path.exists()]
        try:
            partial.mkdir(parents=True)
            yield partial
            os.replace(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            for path in missing:
                # Stays where it is not empty.
                with contextlib.suppress(OSError):
                    path.rmdir()


@contextlib.contextmanager
def tensorflow_writes() -> Iterator[None]:
    """Turns what TensorFlow raises where it cannot write a file into an `OSError`.

    TensorFlow does not log what it writes: the folder is often a temporary one, as in `new_folder`.
    """
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    except tf.errors.OpError as e:
        # "PATH; REASON [Op:NAME]", and perhaps more lines.
        line = e.message.splitlines()[0]
        raise OSError(line.partition(" [Op:")[0].rpartition("; ")[2]) from e
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def output_folder(given: Optional[Path], parent: Path, name: str, resume: bool) -> Iterator[Path]:
    """Yields the folder for what is written while entered.

    Commands that start at the same time have different ones. One in which nothing was written is
    taken away again.

    Args:
        given: The folder that the user named, if they did: it is yielded as it is.
        parent: Where folders without a name of their own are collected.
        name: Name of this kind of folder.
        resume: Whether to go on in the newest folder of that name, if there is one.
    """
    known = _newest_used(parent, name) if resume and given is None else given
    if known is not None:
        yield known
        return
    had_parent = parent.exists()
    path = claimed_folder(parent, name)
    try:
        yield path
    finally:
        # Only empty folders can be removed so.
        with contextlib.suppress(OSError):
            path.rmdir()
            if not had_parent:
                parent.rmdir()


def claimed_folder(parent: Path, name: str) -> Path:
    """Makes and returns the folder after the last one of a name: nobody else gets the same."""
    for number in itertools.count(max(_numbered(parent, name), default=0) + 1):
        path = parent / f"{name}-{number:03d}"
        make_folder(parent)
        with write_errors(path):
            try:
                path.mkdir()
            except (FileExistsError, FileNotFoundError):
                # Somebody else was faster: to make this folder, or to remove their own parent.
                continue
            return path
    raise AssertionError("counting does not end")


def _newest_used(parent: Path, name: str) -> Optional[Path]:
    """Returns the newest folder in which there is something."""
    numbered = _numbered(parent, name)
    with write_errors(parent):
        used = [n for n, path in numbered.items() if path.is_dir() and any(path.iterdir())]
    return numbered[max(used)] if used else None


def _numbered(parent: Path, name: str) -> dict[int, Path]:
    pattern = re.compile(re.escape(name) + r"-(\d+)")
    with write_errors(parent):
        siblings = list(parent.iterdir()) if parent.is_dir() else []
    found = ((pattern.fullmatch(path.name), path) for path in siblings)
    return {int(match[1]): path for match, path in found if match}
