"""Settings that name files, as absolute paths: a run is the same wherever it was started."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.errors import UserError
from tff_agnostic.saving.checkpoints import CHECKPOINTS, newest_checkpoint_file


def path_fields(options: Any) -> list[dataclasses.Field]:
    """Returns the fields of a dataclass of settings that name files."""
    return [field for field in dataclasses.fields(options) if field.metadata["is_path"]]


def initial_file(text: str) -> Optional[str]:
    """Returns the file that training starts from, also where a run's folder was given.

    Of that run it is the newest checkpoint that can be read, which it may delete when it goes on:
    who starts from it keeps a copy (`made_of`).

    Raises:
        UserError: If there is none.
    """
    path = Path(text)
    if path.is_dir():
        try:
            newest = _newest_file(path / CHECKPOINTS, _changed(path / CHECKPOINTS))
        except UserError as e:
            raise UserError(f"--initial_model: {e}") from e
        if newest is None:
            raise UserError(
                "--initial_model: expected a Keras model, a checkpoint or the folder of a run, "
                f"found no checkpoint in {path}"
            )
        return absolute(newest)
    if not path.is_file():
        raise UserError(f"--initial_model: expected a file or a run's folder, found none at {path}")
    return absolute(path)


@functools.lru_cache(maxsize=16)
def _newest_file(folder: Path, changed: int) -> Optional[Path]:
    """Reads checkpoints, and warns of damaged ones, once for all trials of a comparison."""
    del changed
    return newest_checkpoint_file(folder)


def _changed(folder: Path) -> int:
    """Returns when a file was last added to a folder or taken away, in nanoseconds."""
    return folder.stat().st_mtime_ns if folder.is_dir() else 0


def with_absolute_paths(options: Any) -> Any:
    """Returns a dataclass of settings in which every path is absolute."""
    paths = {f.name: _absolute_of(getattr(options, f.name)) for f in path_fields(options)}
    return dataclasses.replace(options, **paths) if paths else options


def _absolute_of(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(absolute(Path(text)) for text in value)
    return absolute(Path(value)) if value is not None else None


def absolute(path: Optional[Path]) -> Optional[str]:
    """Returns a path resolved: however a file is named, it is the same run."""
    return str(path.resolve()) if path is not None else None


def path_of(text: Optional[str]) -> Optional[Path]:
    """Returns the path that a setting has as text, None if it has none."""
    return Path(text) if text is not None else None
