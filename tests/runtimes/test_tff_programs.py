"""The program of docs/how_to/run_a_tff_program.md with TFF's managers, with and without a kill."""

import csv
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.computations.harness import assert_identical

_ROOT = Path(__file__).absolute().parents[2]
_FILE = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```", re.DOTALL | re.MULTILINE)
_ROUNDS = 6


def _start(folder: Path) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "tff_program.py", "run", str(_ROUNDS)]
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL)


def _rounds(path: Path) -> list[int]:
    with open(path, newline="") as file:
        return [int(row["round"]) for row in csv.DictReader(file)]


def _is_between_evaluations(run: Path) -> bool:
    """Whether all evaluations of the rounds so far have ended, and the next one has not begun.

    TFF cannot resume a program that was killed between two of its files.
    """
    done = max(_versions(run / "state"), default=0)
    # Its manager saves the start and the end of an evaluation.
    saved = 1 + max(_versions(run / "eval_manager"), default=-1)
    return done > 2 and done % 2 == 1 and saved == done - 1


def _versions(folder: Path) -> dict[int, Path]:
    """The states that TFF's manager has saved, by their numbers."""
    paths = folder.iterdir() if folder.exists() else ()
    return {int(result[1]): p for p in paths if (result := re.search(r"_(\d+)$", p.name))}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Folders of a program that was killed and restarted, and of one that ran uninterrupted."""
    page = (_ROOT / "docs" / "how_to" / "run_a_tff_program.md").read_text()
    made = {name: tmp_path_factory.mktemp(name) for name in ("killed", "whole")}
    for folder in made.values():
        for block, name in _FILE.findall(page):
            (folder / name).write_text(block)
    first = _start(made["killed"])
    while first.poll() is None:
        time.sleep(0.02)
        first.send_signal(signal.SIGSTOP)
        if _is_between_evaluations(made["killed"] / "run"):
            break
        first.send_signal(signal.SIGCONT)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL, "it ended before it could be killed"
    assert _start(made["killed"]).wait() == 0
    assert _start(made["whole"]).wait() == 0
    return made


@pytest.mark.nightly
def test_killed_program_equals_uninterrupted_one(folders):
    for name, file in (("train.csv", range(1, _ROUNDS + 1)), ("evaluation.csv", (2, 4, 6))):
        result, expected = (_rounds(folders[k] / "run" / name) for k in ("killed", "whole"))
        assert sorted(expected) == list(file)
        # TFF saves the state of a round after its row: a kill between the two loses that row.
        assert set(result) <= set(expected)
        assert len(set(expected) - set(result)) <= 1
    states = [_last_state(folders[name]) for name in ("killed", "whole")]
    assert len(states[0]) > 5
    assert_identical(*states)


def _last_state(folder: Path) -> list[np.ndarray]:
    """The arrays of the newest state that TFF's manager saved; a kill may leave a part of one."""
    whole = _versions(folder / "run" / "state")
    path = whole[max(whole)]
    return [np.asarray(value) for value in tf.nest.flatten(tf.saved_model.load(str(path))())]
