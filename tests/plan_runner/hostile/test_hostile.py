"""What a stranger's export can do: be refused in one line, within the limits, and nothing else."""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from plan_runner.kernel import find_kernel
from tests.binaries.harness import ROOT, tree
from tests.marks import usually
from tests.plan_runner.harness import TRUST_WITHOUT_SANDBOX, call
from tests.plan_runner.hostile.files import FILES
from tests.plan_runner.hostile.graphs import GRAPHS
from tests.plan_runner.hostile.spoiling import Found

HOSTILE = {**FILES, **GRAPHS}
_ENDED = [name for name, case in HOSTILE.items() if case.found is Found.ENDED]
_LIMIT_BYTES = 2_000_000_000
# Beside the time limit of a step: Python's and TensorFlow's start, on a machine with other work.
_SECONDS_BESIDE = 60

# Plays exports in one process of its own, where all are to be refused early.
_EARLY = """
import contextlib, io, json, sys, tempfile
from pathlib import Path
from absl import flags
from plan_runner import cli
from plan_runner.play import play

def here(request, listener):
    with tempfile.TemporaryDirectory() as scratch:
        return play(request, listener, Path(scratch))

said = {}
for name, arguments in json.load(sys.stdin).items():
    values = flags.FlagValues()
    cli.define_flags(values)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.exit_status(values(["run_plan", *arguments]), values, here)
    said[name] = [status, out.getvalue(), err.getvalue()]
print(json.dumps([said, "tensorflow" in sys.modules]))
"""
# Starts a command and writes how it ended and what it took. A process of its own, since the peak of
# a new process is never below that of the one that it was made of: here a small one.
_MEASURED = """
import json, os, subprocess, sys
_, state, usage = os.wait4(subprocess.Popen(sys.argv[2:]).pid, 0)
with open(sys.argv[1], "w") as file:
    json.dump([os.waitstatus_to_exitcode(state), usage.ru_maxrss], file)
"""


@pytest.fixture(scope="module", autouse=True)
def kernel():
    """Is built before anything is measured."""
    find_kernel()


@pytest.fixture
def spoiled(exports, tmp_path):
    """Returns the flags that verify a hostile export, which is made for that."""

    def make(name: str) -> list[str]:
        folder = tmp_path / re.sub(r"\W", "_", name) / "export"
        shutil.copytree(exports["daf"], folder)
        HOSTILE[name].spoil(folder)
        return [f"--plan={folder}", "--verify", *HOSTILE[name].flags]

    return make


def _assert_refused(name: str, status: int, out: str, err: str) -> None:
    case = HOSTILE[name]
    assert status == case.status, (name, out, err)
    # A difference is told as every verification is.
    said = err if status == 2 else out.splitlines()[-1] + "\n"
    assert case.message in said, name
    assert said.count("\n") == 1 and len(said) < 1000, name
    assert said.startswith("error: " if status == 2 else "NOT verified: ")
    assert said.replace("\n", "").isprintable()
    assert "verified bit for bit" not in out


def test_there_are_many_and_most_are_refused_early():
    early = [name for name, case in HOSTILE.items() if case.found is Found.EARLY]
    assert len(HOSTILE) >= 30
    assert len(early) > len(HOSTILE) / 2


@pytest.mark.slow
def test_most_are_refused_without_tensorflow(spoiled, tmp_path):
    asked = {name: spoiled(name) for name, case in HOSTILE.items() if case.found is Found.EARLY}
    before = _names(tmp_path)
    measured = tmp_path.parent / "measured.json"
    finished = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(measured), sys.executable, "-c", _EARLY],
        input=json.dumps(asked),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    status, peak_kb = json.loads(measured.read_text())
    assert status == 0, finished.stderr
    said, has_tensorflow = json.loads(finished.stdout)
    assert not has_tensorflow
    # All of them, one after the other.
    assert peak_kb * 1024 < _LIMIT_BYTES / 2
    for name, outcome in said.items():
        _assert_refused(name, *outcome)
    assert _names(tmp_path) == before


@pytest.mark.parametrize(
    "name", [n for n, case in HOSTILE.items() if case.found in (Found.UNPLAYED, Found.PLAYED)]
)
def test_others_are_refused_when_they_are_looked_at_or_played(spoiled, tmp_path, name):
    arguments = spoiled(name)
    before = tree(tmp_path)
    _assert_refused(name, *call(*arguments))
    assert tree(tmp_path) == before


@pytest.mark.nightly_cases("a tensor that grows", "examples that sleep")
@pytest.mark.slow
@pytest.mark.parametrize("name", usually(["examples that sleep", "a tensor that grows"], _ENDED))
def test_what_only_the_end_of_its_process_stops(spoiled, tmp_path, name):
    _assert_harmless(name, spoiled(name), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in _ENDED])
def test_every_one_in_a_process(spoiled, tmp_path, name):
    _assert_harmless(name, spoiled(name), tmp_path)


def _assert_harmless(name, arguments, tmp_path) -> None:
    """Verifies by the command, as a user does, and looks at what it took and left."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    before, began = _names(tmp_path), time.monotonic()
    measured = tmp_path.parent / "measured.json"
    with open(tmp_path.parent / "out", "w+") as out, open(tmp_path.parent / "err", "w+") as err:
        subprocess.run(
            [
                *(sys.executable, "-c", _MEASURED, str(measured)),
                *(sys.executable, "-m", "plan_runner", *arguments, *TRUST_WITHOUT_SANDBOX),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            check=True,
        )
        status, peak_kb = json.loads(measured.read_text())
        out.seek(0)
        err.seek(0)
        _assert_refused(name, status, out.read(), err.read())
    limits = [float(flag.partition("=")[2]) for flag in arguments if "_seconds=" in flag]
    assert time.monotonic() - began < sum(limits) + _SECONDS_BESIDE
    # Of the command and of what it has started.
    assert peak_kb * 1024 <= _LIMIT_BYTES
    # Neither in its own folder nor where temporary files are.
    assert _names(tmp_path) == before


def _names(folder) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))
