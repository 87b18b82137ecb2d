"""Temporary SQLite files of stores in the making."""

import os
import sqlite3
from pathlib import Path
from typing import Optional

from tff_agnostic.errors import UserError
from tff_agnostic.files import temporary_path


class ScratchDatabase:
    """A temporary SQLite file beside a store's path.

    Args:
        path: The store.
        what: What it is for, which becomes part of its name.

    Attributes:
        path: The temporary file.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._store = path
        self.path = temporary_path(path.with_name(f"{path.name}.{what}"))

    def create(self) -> sqlite3.Connection:
        """Makes the file, and opens it.

        Raises:
            UserError: If it cannot be made.
        """
        with self.errors():
            # What a process with this id left when it was killed.
            self.path.unlink(missing_ok=True)
            connection = sqlite3.connect(self.path)
            # A crash leaves no store anyway: no journal is needed to go back.
            connection.executescript(
                "PRAGMA page_size=16384; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;"
            )
            return connection

    def errors(self) -> "_StoreErrors":
        """Returns a context in which errors of writing become a `UserError`."""
        return _StoreErrors(self._store)

    def move_to(self, path: Path) -> None:
        """Gives the file another name.

        Raises:
            UserError: If there is a file of that name.
        """
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())
        try:
            # Unlike a rename, a link does not replace what another process put there meanwhile.
            os.link(self.path, path)
        except FileExistsError:
            raise UserError(f"{path}: another process made a file there meanwhile") from None
        except OSError:
            # Not every file system has links.
            self.path.rename(path)

    def remove(self) -> None:
        """Removes the file, if it is there."""
        self.path.unlink(missing_ok=True)


class _StoreErrors:
    """Turns errors of SQLite and of the file system into a `UserError` that names the store."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: Optional[BaseException], trace: object) -> None:
        if isinstance(error, (sqlite3.Error, OSError)):
            raise UserError(f"{self._path}: cannot write the store: {error}") from error
