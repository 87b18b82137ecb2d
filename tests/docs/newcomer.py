"""The environment of a newcomer: HOME and PATH, an empty folder, and README's interpreter."""

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Optional

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv" / "bin" / "python"
_ENDED = "# ended"
# Runs scripts as `python SCRIPT` does, one after another: TensorFlow takes seconds to import.
_SESSION = f"""
import os, runpy, sys
for line in sys.stdin:
    script = line.rstrip("\\n")
    os.chdir(os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")
    print({_ENDED!r}, flush=True)
"""


def environment(home: Path) -> dict[str, str]:
    """Returns all variables that are set: none of Python's, TensorFlow's or this package's."""
    return {"HOME": str(home), "PATH": os.environ["PATH"]}


class Session:
    """The interpreter, as a context manager; it is started again after a script that failed.

    Args:
        home: The user's home, an empty folder, in which the interpreter starts.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._errors = home / "stderr"
        self._process: Optional[subprocess.Popen[str]] = None

    def __enter__(self) -> "Session":
        """Starts nothing yet."""
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """Ends the interpreter."""
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
