"""Folders that are there whole, or not at all."""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from tff_agnostic.errors import UserError
from tff_agnostic.files import temporary_path, write_errors


def check_free(folder: Path, flag: str) -> None:
    """Checks that a folder is new or empty.

    Raises:
        UserError: If it is not; the message names `flag`.
    """
    with write_errors(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{flag}: expected a new or empty folder, found {folder}")


@contextlib.contextmanager
def new_folder(folder: Path, flag: str) -> Iterator[Path]:
    """Yields a folder that takes the place of `folder` when the block ends without exception.

    Raises:
        UserError: If `folder` is not free, or cannot be written; nothing is left behind.
    """
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
