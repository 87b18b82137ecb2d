"""The folder that a run's results are published to."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from plan_runner.errors import PlanError

STATE = "server_state.ckpt"
METRICS = "metrics.jsonl"

# The state of a plan with noise holds its key.
_OWNER_ONLY = 0o600


@contextlib.contextmanager
def results_folder(folder: Path) -> Iterator[None]:
    """Makes the folder for a run's results, and removes it again if the first round fails.

    Raises:
        PlanError: If it holds something, or cannot be made.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = next(folder.iterdir(), None)
    except OSError as e:
        raise PlanError(f"{folder}: expected a folder, cannot make it ({e.strerror})") from e
    if found is not None:
        raise PlanError(f"{folder}: expected a new or empty folder, found {found.name} in it")
    try:
        yield
    except BaseException:
        # Only empty folders can be removed so; the innermost is first.
        with contextlib.suppress(OSError):
            for path in made:
                path.rmdir()
        raise


def publish(results: Path, folder: Path) -> None:
    """Copies a round's results so that a reader finds whole files or none.

    Args:
        results: What `results.write_results` has written.
        folder: Where to; files of an earlier round are replaced.

    Raises:
        PlanError: If they cannot be written.
    """
    names = (METRICS, STATE)
    try:
        with tempfile.TemporaryDirectory(prefix=".plan_runner_", dir=folder) as partial:
            for name in names:
                shutil.copyfile(results / name, Path(partial) / name)
                _sync(Path(partial) / name)
            # Before it is where others see it: only the owner sees the folder of the copies.
            (Path(partial) / STATE).chmod(_OWNER_ONLY)
            for name in names:
                os.replace(Path(partial) / name, folder / name)
    except OSError as e:
        raise PlanError(f"{folder}: cannot write: {e.strerror}") from e


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
