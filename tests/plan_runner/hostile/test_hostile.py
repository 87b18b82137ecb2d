"""Hostile exports raise one-line errors, within limits and without side effects."""

import json
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from plan_runner.kernel import find_kernel
from tests.plan_runner.harness import TRUST_WITHOUT_SANDBOX, call
from tests.plan_runner.hostile.files import FILES
from tests.plan_runner.hostile.graphs import GRAPHS
from tests.plan_runner.hostile.spoiling import Stage
from tests.support.commands import ROOT, tree
from tests.support.marks import usually

HOSTILE = {**FILES, **GRAPHS}
_ENDED = [name for name, case in HOSTILE.items() if case.stage is Stage.ENDED]
_LIMIT_BYTES = 2_000_000_000
# On a busy machine, Python and TensorFlow start within these seconds.
_START_SECONDS = 60

# Script that verifies exports which the runner must reject before it imports TensorFlow.
_EARLY = """
import json, sys
from tests.plan_runner.harness import call
outcomes = {name: call(*arguments) for name, arguments in json.load(sys.stdin).items()}
print(json.dumps([outcomes, "tensorflow" in sys.modules]))
"""
# Script that runs a command and writes its exit status and peak memory. A child's peak is at least
# its parent's memory, so the parent must be small.
_MEASURED = """
import json, os, subprocess, sys
_, state, usage = os.wait4(subprocess.Popen(sys.argv[2:]).pid, 0)
with open(sys.argv[1], "w") as file:
    json.dump([os.waitstatus_to_exitcode(state), usage.ru_maxrss], file)
"""


@pytest.fixture(scope="module", autouse=True)
def kernel():
    """Builds the kernel before the tests measure memory."""
    find_kernel()


@pytest.fixture
def spoiled(exports, tmp_path):
    """Returns a function that writes a hostile export and returns the flags to verify it."""

    def make(name: str) -> list[str]:
        folder = tmp_path / re.sub(r"\W", "_", name) / "export"
        shutil.copytree(exports["daf"], folder)
        HOSTILE[name].spoil(folder)
        return [f"--plan={folder}", "--verify", *HOSTILE[name].flags]

    return make


def _assert_refused(name: str, status: int, out: str, err: str) -> None:
    case = HOSTILE[name]
    assert status == case.status, (name, out, err)
    error = err if status == 2 else out.splitlines()[-1] + "\n"
    assert case.message in error, name
    assert error.count("\n") == 1 and len(error) < 1000, name
    assert error.startswith("error: " if status == 2 else "NOT verified: ")
    assert error.replace("\n", "").isprintable()
    assert "verified bit for bit" not in out


@pytest.mark.slow
def test_early_errors_need_no_tensorflow(spoiled, tmp_path):
    asked = {name: spoiled(name) for name, case in HOSTILE.items() if case.stage is Stage.EARLY}
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
    outcomes, has_tensorflow = json.loads(finished.stdout)
    assert not has_tensorflow
    assert peak_kb * 1024 < _LIMIT_BYTES / 2
    for name, outcome in outcomes.items():
        _assert_refused(name, *outcome)
    assert _names(tmp_path) == before


@pytest.mark.parametrize(
    "name", [n for n, case in HOSTILE.items() if case.stage in (Stage.UNPLAYED, Stage.PLAYED)]
)
def test_hostile_graphs_and_rounds_raise(spoiled, tmp_path, name):
    arguments = spoiled(name)
    before = tree(tmp_path)
    _assert_refused(name, *call(*arguments))
    assert tree(tmp_path) == before


@pytest.mark.nightly_cases("a tensor that grows", "examples that sleep")
@pytest.mark.slow
@pytest.mark.parametrize("name", usually(["examples that sleep", "a tensor that grows"], _ENDED))
def test_endless_graphs_are_killed_within_limits(spoiled, tmp_path, name):
    _assert_harmless(name, spoiled(name), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in _ENDED])
def test_command_rejects_every_hostile_export(spoiled, tmp_path, name):
    _assert_harmless(name, spoiled(name), tmp_path)


def _assert_harmless(name, arguments, tmp_path) -> None:
    """Verifies an export by the command; checks its time, memory and files."""
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
    assert time.monotonic() - began < sum(limits) + _START_SECONDS
    # The peak includes child processes.
    assert peak_kb * 1024 <= _LIMIT_BYTES
    assert _names(tmp_path) == before


def _names(folder) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))
