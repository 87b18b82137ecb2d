"""A newcomer's environment: the variables HOME and PATH, and README's interpreter."""

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Optional

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"
_ENDED = "# ended"
# Runs several scripts as `python SCRIPT` does, and imports TensorFlow only once.
_SESSION = f"""
import os, runpy, sys
for line in sys.stdin:
    script = line.rstrip("\\n")
    os.chdir(os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")
    print({_ENDED!r}, flush=True)
"""


def environment(home: Path) -> dict[str, str]:
    """Returns an environment without variables for Python, TensorFlow or this package."""
    return {"HOME": str(home), "PATH": os.environ["PATH"]}


class Session:
    """An interpreter that runs scripts; after a failed script, another interpreter starts.

    Args:
        home: Folder of the user, in which the interpreter starts.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._errors = home / "stderr"
        self._process: Optional[subprocess.Popen[str]] = None

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        if self._process is not None:
            self._process.communicate()

    def run(self, script: Path) -> str:
        """Runs a script in its folder; returns its output."""
        if self._process is None or self._process.poll() is not None:
            with open(self._errors, "w") as errors:
                self._process = subprocess.Popen(
                    [PYTHON, "-c", _SESSION],
                    cwd=self._home,
                    env=environment(self._home),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )
        assert self._process.stdin is not None and self._process.stdout is not None
        print(script, file=self._process.stdin, flush=True)
        printed = ""
        for line in self._process.stdout:
            if line == f"{_ENDED}\n":
                return printed
            printed += line
        self._process.wait()
        raise AssertionError(f"{script} failed:\n{self._errors.read_text()}")
