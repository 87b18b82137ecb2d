"""Settings that name files, as absolute paths: a run is the same wherever it was started."""

import dataclasses
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.errors import UserError
from tff_agnostic.saving.checkpoints import CHECKPOINTS, newest_checkpoint_file


def path_fields(options: Any) -> list[dataclasses.Field]:
    """Returns the fields of a dataclass of settings that name files."""
    return [field for field in dataclasses.fields(options) if field.metadata["is_path"]]


def initial_file(text: str) -> Optional[str]:
    """Returns the file that training starts from, also where a run's folder was given.

    That run may go on: what this one started from is one of its checkpoints.
    """
    path = Path(text)
    if path.is_dir():
        newest = newest_checkpoint_file(path / CHECKPOINTS)
        if newest is None:
            raise UserError(
                "--initial_model: expected a Keras model, a checkpoint or the folder of a run, "
                f"found no checkpoint in {path}"
            )
        return absolute(newest)
    if not path.is_file():
        raise UserError(f"--initial_model: expected a file or a run's folder, found none at {path}")
    return absolute(path)


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
