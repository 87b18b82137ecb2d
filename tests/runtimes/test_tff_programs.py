"""The program in docs/how_to/run_a_tff_program.md resumes after a kill with equal results."""

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

from tests.support.commands import ROOT
from tests.support.comparing import assert_identical

_FILE = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```", re.DOTALL | re.MULTILINE)
_ROUNDS = 6


def _start(folder: Path) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "tff_program.py", "run", str(_ROUNDS)]
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL)


def _rows(path: Path) -> dict[int, dict[str, str]]:
    """Returns a file's rows by round."""
    with open(path, newline="") as file:
        return {int(row["round"]): row for row in csv.DictReader(file)}


def _is_between_evaluations(run: Path) -> bool:
    """Returns whether the last evaluation has finished, and the next one has not started.

    TFF cannot resume a program that was killed between writing two related files.
    """
    done = max(_versions(run / "state"), default=0)
    # TFF's manager saves at the start and at the end of an evaluation.
    saved = 1 + max(_versions(run / "eval_manager"), default=-1)
    return done > 2 and done % 2 == 1 and saved == done - 1


def _versions(folder: Path) -> dict[int, Path]:
    """Returns the paths of the states that TFF's manager has saved, by version number."""
    paths = folder.iterdir() if folder.exists() else ()
    return {int(result[1]): p for p in paths if (result := re.search(r"_(\d+)$", p.name))}


@pytest.mark.nightly
def test_killed_program_resumes_to_uninterrupted_results(tmp_path):
    page = (ROOT / "docs" / "how_to" / "run_a_tff_program.md").read_text()
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in (killed, whole):
        folder.mkdir()
        for block, name in _FILE.findall(page):
            (folder / name).write_text(block)
    first = _start(killed)
    while first.poll() is None:
        time.sleep(0.02)
        first.send_signal(signal.SIGSTOP)
        if _is_between_evaluations(killed / "run"):
            break
        first.send_signal(signal.SIGCONT)
    first.send_signal(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL, "the program exited before it could be killed"
    assert _start(killed).wait() == 0
    assert _start(whole).wait() == 0
    for name, file in (("train.csv", range(1, _ROUNDS + 1)), ("evaluation.csv", (2, 4, 6))):
        result, expected = (_rows(folder / "run" / name) for folder in (killed, whole))
        assert sorted(expected) == list(file)
        # TFF writes a round's row before its state, so a kill between them can lose a row.
        assert set(result) <= set(expected)
        assert len(set(expected) - set(result)) <= 1
    columns = _rows(whole / "run" / "train.csv")[1]
    assert {"model_metrics/loss", "clients/contributed", "domain_weights/lambda"} <= set(columns)
    states = [_last_state(folder) for folder in (killed, whole)]
    assert len(states[0]) > 5
    assert_identical(*states)


def _last_state(folder: Path) -> list[np.ndarray]:
    """Returns the arrays of the last state that TFF's manager saved."""
    states = _versions(folder / "run" / "state")
    path = states[max(states)]
    return [np.asarray(value) for value in tf.nest.flatten(tf.saved_model.load(str(path))())]
