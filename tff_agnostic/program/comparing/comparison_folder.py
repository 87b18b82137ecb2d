"""The folder of a comparison: what may be in it, whose it is, and where its trials lie."""

import types
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.errors import UserError
from tff_agnostic.files import (
    is_new_or_empty,
    is_temporary,
    make_folder,
    read_json,
    write_errors,
    write_json,
)
from tff_agnostic.program.specs.run_folder import RunFolder
from tff_agnostic.program.specs.run_spec import RunSpec

_FORMAT = 1
# By this file a comparison's folder is known.
COMPARISON_FILE = "comparison.json"
# In it: what tables call the rows.
LABELS = "labels"
_ROWS = "rows"
# The settings of every trial are made before the first one runs.
MAX_TRIALS = 10_000
# What earlier releases, which had no such file, wrote beside the runs.
_REPORTS = ("compare.json", "compare.md", "plots")


def check_trials(trials: int) -> None:
    """Raises a `UserError` if --trials is a number of trials that cannot be made."""
    if trials < 1:
        raise UserError(f"--trials: expected at least 1, found {trials}")
    if trials > MAX_TRIALS:
        raise UserError(f"--trials: expected at most {MAX_TRIALS}, found {trials}")


def check_folder(
    specs: Mapping[str, Sequence[RunSpec]],
    folder: Path,
    resume: bool,
    other_files: Collection[str] = (),
) -> None:
    """Checks that a comparison may use the folder; writes nothing.

    Args:
        specs: The trials of each row, by its name.
        folder: The folder.
        resume: Whether to go on with the trials there.
        other_files: Names of what the caller puts beside the runs.

    Raises:
        UserError: If it holds something else, other trials, or trials that are not to be resumed.
    """
    with write_errors(folder):
        if not is_new_or_empty(folder):
            stranger = _stranger(folder, {*specs, *other_files})
            if stranger is not None:
                raise UserError(
                    "--output_dir: expected a new or empty folder or that of a comparison, found "
                    f"{stranger} in {folder}"
                )
            if not resume:
                raise UserError(
                    f"--output_dir: {folder} holds a comparison already: add --resume to go on "
                    "with it, or choose another folder"
                )
    for row, row_specs in specs.items():
        for k, spec in enumerate(row_specs):
            trial_folder(folder, row, k).check(spec, resume)


def claim(
    folder: Path, rows: Collection[str], labels: Mapping[str, str] = types.MappingProxyType({})
) -> None:
    """Makes the folder that of a comparison of these rows, beside those that are there.

    Args:
        folder: The folder.
        rows: Names of the rows.
        labels: What tables call them, where that is something else.
    """
    make_folder(folder)
    there = _content(folder)
    all_rows = list(dict.fromkeys([*there.get(_ROWS, []), *rows]))
    all_labels = {**there.get(LABELS, {}), **labels}
    content = {"format": _FORMAT, _ROWS: all_rows, LABELS: all_labels}
    write_json(folder / COMPARISON_FILE, content)


def count_open(specs: Mapping[str, Sequence[RunSpec]], folder: Path) -> int:
    """Returns how many of the trials have no result of all their rounds in the folder."""
    return sum(
        _rounds_there(trial_folder(folder, row, k).result) != spec.config.rounds
        for row, row_specs in specs.items()
        for k, spec in enumerate(row_specs)
    )


def trial_folder(folder: Path, row: str, trial: int) -> RunFolder:
    """Returns the folder of a trial of a row, counted from 0."""
    return RunFolder(folder / row / f"trial_{trial:02d}")


def _stranger(folder: Path, own: Collection[str]) -> Optional[str]:
    """Returns the name of something that no comparison puts into its folder, if there is any."""
    if not folder.is_dir():
        return folder.name
    if (folder / COMPARISON_FILE).exists():
        _content(folder)
        return None
    for path in sorted(folder.iterdir()):
        is_known = path.name in {*own, *_REPORTS} or is_temporary(path)
        if not is_known and not any(trial.is_dir() for trial in path.glob("trial_[0-9][0-9]*")):
            return path.name
    return None


def _rounds_there(result: Path) -> Any:
    return read_json(result).get("rounds") if result.exists() else None


def _content(folder: Path) -> dict[str, Any]:
    path = folder / COMPARISON_FILE
    if not path.exists():
        return {}
    content = read_json(path)
    is_whole = (
        content.get("format") == _FORMAT
        and isinstance(content.get(_ROWS), list)
        # The first release with this file had none.
        and isinstance(content.get(LABELS, {}), dict)
    )
    if not is_whole:
        raise UserError(f"{path}: expected a comparison of format {_FORMAT}, found something else")
    return content
