"""The folder of a run: what is where, and whose it is."""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from absl import logging

from tff_agnostic.errors import UserError
from tff_agnostic.files import (
    is_temporary,
    make_folder,
    read_json,
    write_errors,
    write_json,
)
from tff_agnostic.program.checkpoints import Checkpoint, newest_checkpoint, read_checkpoint
from tff_agnostic.program.run_spec import RunSpec, from_flags


class RunFolder:
    """Paths of a run's files.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.fingerprint = path / "fingerprint.json"
        self.metrics = path / "metrics.csv"
        self.result = path / "result.json"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"
        self.plots = path / "plots"

    def check(self, spec: RunSpec, resume: bool) -> None:
        """Checks that a run may use the folder; writes nothing.

        A resumed run may have more rounds than before; everything else has to be as it was.

        Raises:
            UserError: If the folder holds another run, a run that is not to be resumed or other
                files, or cannot be read.
        """
        with write_errors(self.path):
            if self.config.exists():
                self._check_same(spec.flags(), resume)
            elif not is_new_or_empty(self.path):
                raise UserError(
                    "--output_dir: expected a new or empty folder or that of a run, found "
                    f"{self.path} with other content"
                )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder if need be, and keeps other processes from running in it while entered.

        Raises:
            UserError: If another process runs in it, or it cannot be made.
        """
        make_folder(self.path)
        with write_errors(self.path):
            descriptor = os.open(self.path, os.O_RDONLY)
        try:
            # The kernel takes the lock away when this process ends, however it ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UserError(f"--output_dir: another process is running in {self.path}") from None
        except OSError as e:
            # Not every file system has locks; a run must be possible there all the same.
            logging.warning("%s: cannot be kept from other processes: %s", self.path, e.strerror)
        try:
            self._remove_temporary_files()
            yield
        finally:
            os.close(descriptor)

    def check_fingerprint(self, fingerprint: Mapping[str, str]) -> None:
        """Checks that the task is made of what the folder's run was trained on; writes nothing.

        Args:
            fingerprint: `Task.fingerprint`.

        Raises:
            UserError: If the run there was trained on something else, such as another vocabulary.
        """
        there = read_json(self.fingerprint) if self.fingerprint.exists() else fingerprint
        for name in sorted({*fingerprint, *there}):
            if fingerprint.get(name) != there.get(name):
                raise UserError(
                    f"{self.path}: expected the {name} that the run there was trained with "
                    f"({there.get(name)}), found another one ({fingerprint.get(name)})"
                )

    def write_config(self, spec: RunSpec, fingerprint: Mapping[str, str]) -> None:
        """Makes the folder that of `spec`, of a task with `fingerprint`."""
        if fingerprint:
            write_json(self.fingerprint, dict(fingerprint))
        # Last: where it is, the folder belongs to a run.
        write_json(self.config, spec.flags())

    def spec(self) -> RunSpec:
        """Returns the run that the folder holds.

        Raises:
            UserError: If there is none, or it was written by another version.
        """
        flags = self._read_config()
        try:
            return from_flags(flags)
        except (KeyError, TypeError) as e:
            raise UserError(f"{self.config}: expected every flag of a run, {e} is missing") from e

    def _read_config(self) -> dict[str, Any]:
        flags = read_json(self.config)
        if not isinstance(flags, dict) or not isinstance(flags.get("rounds"), int):
            raise UserError(f"{self.config}: expected the flags of a run, found something else")
        return flags

    def _check_same(self, flags: dict[str, Any], resume: bool) -> None:
        there = self._read_config()
        different = sorted(
            name
            for name in {*flags, *there}
            if flags.get(name) != there.get(name) and name != "rounds"
        )
        if different:
            name = different[0]
            raise UserError(
                f"--output_dir: {self.path} holds another run: --{name} is {there.get(name)} there "
                f"and {flags.get(name)} here"
            )
        if not resume:
            raise UserError(
                f"--output_dir: {self.path} holds this run already: add --resume to go on with it, "
                "or choose another folder"
            )
        if flags["rounds"] < there["rounds"]:
            raise UserError(
                f"--rounds: the run in {self.path} has {there['rounds']} rounds, and a resumed run "
                f"cannot have fewer, found {flags['rounds']}"
            )

    def _remove_temporary_files(self) -> None:
        for folder in (self.path, self.checkpoints, self.plots):
            with write_errors(folder):
                for path in folder.iterdir() if folder.is_dir() else ():
                    if is_temporary(path):
                        path.unlink()


def is_new_or_empty(path: Path) -> bool:
    """Returns whether nothing is at `path`, or a folder without more than half-written files."""
    if not path.exists():
        return True
    return path.is_dir() and all(map(is_temporary, path.iterdir()))


def default_folder(parent: Path, name: str, resume: bool) -> Path:
    """Returns the folder to use where the user named none: parent/name-001, -002 and so on.

    Args:
        parent: Where runs are collected.
        name: Name of this kind of run.
        resume: Whether to return the newest folder of that name, if there is one.

    Raises:
        UserError: If `parent` cannot be read.
    """
    pattern = re.compile(re.escape(name) + r"-(\d+)")
    with write_errors(parent):
        siblings = list(parent.iterdir()) if parent.is_dir() else []
    numbers = [int(m[1]) for m in (pattern.fullmatch(p.name) for p in siblings) if m]
    newest = max(numbers, default=0)
    return parent / f"{name}-{newest if resume and newest else newest + 1:03d}"


def find_checkpoint(path: Path) -> tuple[RunFolder, Checkpoint]:
    """Returns the run that `path` belongs to, and the checkpoint that it names.

    Raises:
        UserError: If there is none, or it is damaged.
    """
    if path.is_dir():
        folder = RunFolder(path)
        return folder, newest_checkpoint(folder.checkpoints)
    return RunFolder(path.absolute().parent.parent), read_checkpoint(path)
