"""Helper that starts plain_tensorflow.py."""

import os
import subprocess
import sys
from pathlib import Path


def ask_plain_tensorflow(folder: Path) -> None:
    """Runs `plain_tensorflow.py` on a folder, in a process without this package."""
    script = Path(__file__).with_name("plain_tensorflow.py")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    finished = subprocess.run(
        [sys.executable, str(script), str(folder)],
        env={**environment, "TF_CPP_MIN_LOG_LEVEL": "3"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
