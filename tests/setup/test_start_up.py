"""Imports of commands before they start to work, and platforms without TFF."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).absolute().parents[2]
# Packages whose import takes seconds of processor time.
_LARGE = (
    "dp_accounting",
    "h5py",
    "jinja2",
    "matplotlib",
    "ray",
    "scipy",
    "sklearn",
    "tensorflow",
    "tensorflow_federated",
)
_COMMANDS = sorted(
    path.stem for path in (ROOT / "binaries").glob("[a-z]*.py") if not path.stem.startswith("_")
)
_SCRIPT = f"""
import runpy, sys
sys.argv = [sys.argv[1], *sys.argv[2:]]
try:
    runpy.run_module(f"binaries.{{sys.argv[0]}}", run_name="__main__", alter_sys=False)
except SystemExit:
    pass
print("loaded:", *(name for name in {_LARGE} if name in sys.modules))
"""


def _loaded(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *arguments],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("loaded:")]
    return line.split()[1:]


@pytest.mark.nightly_cases(but=["import_data", "privacy", "run_plan"])
@pytest.mark.parametrize("command", _COMMANDS)
def test_help_loads_no_large_package(command):
    assert _loaded(command, "--help") == []


@pytest.mark.slow
def test_closed_help_pipe_shows_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "binaries", "privacy", "--help"],
            cwd=ROOT,
            check=False,
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.slow
def test_rejected_flag_loads_no_large_package():
    # Flags without effect are rejected last, after unknown flags and numbers out of range.
    assert _loaded("train", "--task=digits", "--algorithm=fed_avg", "--window=3") == []


_WITHOUT_TFF = """
import importlib.abc, runpy, sys

class NoTff(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensorflow_federated":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTff())
sys.argv = ["train", *sys.argv[1:]]
runpy.run_module("binaries.train", run_name="__main__", alter_sys=False)
"""


def _train_without_tff(folder: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    command = ["--task=toy_regression", "--rounds=1", f"--output_dir={folder}", *flags]
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT_TFF, *command],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )


@pytest.mark.nightly
def test_plain_private_run_needs_no_tff(tmp_path):
    """The check that no step sends clients the noise key needs no TFF."""
    private = ("--privacy=central", "--noise_multiplier=1", "--clients_per_round=4")
    algorithm = ("--algorithm=delta_fl", "--threshold=survey")
    done = _train_without_tff(tmp_path / "run", *private, *algorithm)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "result.json").is_file()


@pytest.mark.slow
def test_missing_tff_error_says_how_to_install(tmp_path):
    done = _train_without_tff(tmp_path / "run", "--aggregation=secure")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: expected TensorFlow Federated 0.87, ")
    assert "./run without TFF_AGNOSTIC_PLATFORM, or" in line


# Packages of other projects change the process state, so they are imported first.
_GLOBAL_STATE = """
import importlib, logging, os, pkgutil, random, signal, sys, threading, warnings
import dp_accounting, h5py, jinja2, matplotlib.pyplot, numpy, optuna, ray, scipy.stats, sklearn
import sqlalchemy, tensorflow as tf, tensorflow_federated

loggers = dict(logging.root.manager.loggerDict)

def state():
    return {
        "logging": (logging.root.level, logging.root.handlers[:], logging.root.manager.disable),
        "levels": [(l.level, l.handlers[:]) for l in loggers.values() if hasattr(l, "level")],
        "warnings": warnings.filters[:],
        "environment": dict(os.environ),
        "random": (random.getstate(), repr(numpy.random.get_state())),
        "tensorflow": (
            tf.config.get_soft_device_placement(), tf.config.functions_run_eagerly(),
            tf.config.threading.get_intra_op_parallelism_threads(),
        ),
        "signals": {n: signal.getsignal(n) for n in signal.valid_signals()},
        "hooks": (sys.excepthook, threading.excepthook, sys.meta_path[:]),
        "threads": threading.active_count(),
    }

before = state()
import plan_runner, tff_agnostic
for package in (plan_runner, tff_agnostic):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        # The module for Keras 3 needs a package that is not installed here.
        if module.name != "tff_agnostic.models.keras3":
            importlib.import_module(module.name)
after = state()
print("changed:", *(name for name in before if before[name] != after[name]))
"""


@pytest.mark.nightly
def test_imports_change_no_process_state():
    done = subprocess.run(
        [sys.executable, "-c", _GLOBAL_STATE], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "changed:"


@pytest.mark.slow
def test_rejects_ineffective_absl_flags():
    done = subprocess.run(
        [sys.executable, "-m", "binaries.train", "--only_check_args"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.strip() == "error: Unknown command line flag 'only_check_args'"
