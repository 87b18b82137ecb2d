"""What commands import before they have work to do."""

import subprocess
import sys

import pytest

from tests.setup.checkout import ROOT

# Seconds each, of a processor. TensorFlow Federated alone takes two.
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


@pytest.mark.parametrize("command", _COMMANDS)
def test_help_loads_no_large_package(command):
    assert _loaded(command, "--help") == []


@pytest.mark.parametrize(
    "flags",
    [["--raunds=1"], ["--rounds=-1"], ["--task=digits", "--adult_ridge=1"]],
    ids=["unknown", "out of range", "without effect"],
)
def test_a_refused_flag_loads_no_large_package(flags):
    assert _loaded("train", *flags) == []


def test_flags_of_absl_that_would_do_nothing_are_refused():
    done = subprocess.run(
        [sys.executable, "-m", "binaries.train", "--only_check_args"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.strip() == "error: Unknown command line flag 'only_check_args'"
