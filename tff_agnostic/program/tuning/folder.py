"""The folder of a search: whose it is, and whether this search may go on or join in there."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.errors import UserError
from tff_agnostic.files import (
    folder_lock,
    is_new_or_empty,
    make_folder,
    read_json,
    write_errors,
    write_json,
)
from tff_agnostic.program.tuning.arm import SearchedArm
from tff_agnostic.program.tuning.studies import Method
from tff_agnostic.tasks.task import Task

_FORMAT = 1
# By this file the folder of a search is known.
OWN_FILE = "tuning.json"


def identity(
    arms: Mapping[str, SearchedArm],
    method: Method,
    objective: str,
    seeds: tuple[int, ...],
    task: Task,
) -> dict[str, Any]:
    """Returns what makes a search this one; its budget may change.

    Args:
        arms: The algorithms, by their names.
        method: How trials are drawn and judged.
        objective: Name of the objective.
        seeds: Of the runs of each trial.
        task: The task, loaded; the algorithms were built for it.
    """
    first = next(iter(arms.values()))
    specs = {name: arm.spec({}, seeds[0]) for name, arm in arms.items()}
    # A user's algorithm, or a model to start from, may be another one by the same name.
    files = {
        name: {k: v for k, v in spec.fingerprint(task).items() if k not in task.fingerprint}
        for name, spec in specs.items()
    }
    return {
        "format": _FORMAT,
        "task": first.task,
        "objective": objective,
        "seeds": list(seeds),
        "sampler": method.sampler,
        "pruner": method.pruner,
        "prune_after": method.warm_up,
        "fingerprint": dict(task.fingerprint),
        "files": files,
        "search": {
            name: {flag: of.text for flag, of in arm.dimensions.items()}
            for name, arm in arms.items()
        },
        "settings": {name: spec.flags() for name, spec in specs.items()},
    }


def check_folder(folder: Path, wanted: Mapping[str, Any], resume: bool) -> None:
    """Checks that a search may use the folder; writes nothing.

    Args:
        folder: The folder.
        wanted: See `identity`.
        resume: Whether to go on with the search there, or to join in.

    Raises:
        UserError: If it holds something else, another search, or one that is not to be resumed.
    """
    with write_errors(folder):
        if is_new_or_empty(folder):
            return
    path = folder / OWN_FILE
    if not path.exists():
        raise UserError(
            f"--output_dir: expected a new or empty folder or that of a search, found {folder} "
            "with other content"
        )
    different = _difference(read_json(path), wanted)
    if different is not None:
        raise UserError(f"--output_dir: {folder} holds another search: {different}")
    if not resume:
        raise UserError(
            f"--output_dir: {folder} holds this search already: add --resume to go on with it or "
            "to join in, or choose another folder"
        )


def claim_folder(folder: Path, wanted: Mapping[str, Any], resume: bool) -> None:
    """Makes the folder that of a search; of several processes the first one does.

    Raises:
        UserError: As `check_folder` does.
    """
    make_folder(folder)
    with folder_lock(folder, wait=True):
        # Again: another process may have been faster.
        check_folder(folder, wanted, resume)
        if not (folder / OWN_FILE).exists():
            write_json(folder / OWN_FILE, dict(wanted))


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> Optional[str]:
    """Returns the first difference, in the order of what is here; None if there is none."""
    before, now = dict(_flat(there)), dict(_flat(here))
    name = next((n for n in {**now, **before} if before.get(n) != now.get(n)), None)
    if name is None:
        return None
    return f"{name} was {before.get(name)!r:.100} there, and is {now.get(name)!r:.100} here"


def _flat(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}: ")
        else:
            yield f"{prefix}{name}", value
