"""The folder of a run: what is where, and whose it is."""

import re
from pathlib import Path
from typing import Any

from tff_agnostic.errors import UserError
from tff_agnostic.program.files import make_folder, read_json, write_json
from tff_agnostic.program.run_spec import RunSpec, from_flags


class RunFolder:
    """Paths of a run's files.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.csv"
        self.result = path / "result.json"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"
        self.plots = path / "plots"

    def claim(self, spec: RunSpec, resume: bool) -> None:
        """Makes the folder that of a run, or checks that it is.

        A resumed run may have more rounds than before; everything else has to be as it was.

        Raises:
            UserError: If the folder holds another run, a run that is not to be resumed or other
                files, or cannot be written.
        """
        flags = spec.flags()
        if self.config.exists():
            self._check_same(flags, resume)
        elif self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise UserError(
                f"--output_dir: expected a new or empty folder or that of a run, found {self.path} "
                "with other content"
            )
        make_folder(self.path)
        write_json(self.config, flags)

    def spec(self) -> RunSpec:
        """Returns the run that the folder holds.

        Raises:
            UserError: If there is none, or it was written by another version.
        """
        flags = read_json(self.config)
        try:
            return from_flags(flags)
        except (KeyError, TypeError) as e:
            raise UserError(f"{self.config}: expected every flag of a run, {e} is missing") from e

    def _check_same(self, flags: dict[str, Any], resume: bool) -> None:
        there = read_json(self.config)
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


def default_folder(parent: Path, name: str, resume: bool) -> Path:
    """Returns the folder to use where the user named none: parent/name-001, -002 and so on.

    Args:
        parent: Where runs are collected.
        name: Name of this kind of run.
        resume: Whether to return the newest folder of that name, if there is one.
    """
    pattern = re.compile(re.escape(name) + r"-(\d+)")
    siblings = parent.iterdir() if parent.is_dir() else ()
    numbers = [int(m[1]) for m in (pattern.fullmatch(p.name) for p in siblings) if m]
    newest = max(numbers, default=0)
    return parent / f"{name}-{newest if resume and newest else newest + 1:03d}"
