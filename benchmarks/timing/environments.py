"""Python environments of the peers, created on first use in the folder benchmarks/.venvs."""

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.timing.process import SideError, last_line

BENCHMARKS = Path(__file__).resolve().parents[1]
_CHECKOUT = BENCHMARKS.parent


def peer_python(name: str) -> Path:
    """Returns the Python executable of a peer's environment.

    The environment is created from requirements/NAME.txt on first use, and again after the file
    changes. Creation needs a package index.

    Raises:
        SideError: The environment cannot be created.
    """
    requirements = BENCHMARKS / "peers" / "requirements" / f"{name}.txt"
    folder = BENCHMARKS / ".venvs" / name
    complete = folder / ".complete"
    made_for = hashlib.sha256(requirements.read_bytes()).hexdigest() + sys.version
    folder.parent.mkdir(exist_ok=True)
    with _locked(folder.with_suffix(".lock")):
        if not complete.exists() or complete.read_text() != made_for:
            print(f"making {folder} (once; needs the package index)", file=sys.stderr, flush=True)
            _run([sys.executable, "-m", "venv", "--clear", str(folder)])
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            _run([*pip, "-r", str(requirements)])
            complete.write_text(made_for)
    return folder / "bin" / "python"


# Environment variables that would mix environments, or would disable Python's bytecode cache.
_NOT_PASSED_ON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")


def isolated() -> dict[str, str]:
    """Returns this process's environment, without variables that would distort measurements."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}


def side_environment() -> dict[str, str]:
    """Returns a side's environment, in which this package is importable and libraries are quiet."""
    return {
        **isolated(),
        "PYTHONPATH": str(_CHECKOUT),
        "PYTHONWARNINGS": "ignore",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as file:
        # The kernel releases the lock when this process ends, even after a crash.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str]) -> None:
    result = subprocess.run(
        command, env=isolated(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if result.returncode != 0:
        raise SideError(f"cannot be installed: {last_line(result.stdout)}")
