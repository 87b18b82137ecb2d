"""The script `run`: setup and start of commands, with substitutes for uv and Python."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).absolute().parents[2]

# The only programs on PATH, so that `run` finds no uv and no Python of this machine.
_TOOLS = (
    "awk",
    "basename",
    "bash",
    "cat",
    "cmp",
    "cp",
    "dirname",
    "env",
    "install",
    "ln",
    "mkdir",
    "readlink",
)
# A substitute for uv, which links to this Python and installs nothing.
_UV = """#!/usr/bin/env bash
echo "$*" >>"$STATE/uv"
if [[ $1 == venv ]]; then
  mkdir -p "${!#}/bin" "${!#}/lib/python3.11/site-packages"
  ln -s "$REAL_PYTHON" "${!#}/bin/python"
elif [[ -e $STATE/install_fails ]]; then
  echo "no network" >&2
  exit 1
fi
"""
_COMMANDS = """import json, os, signal, sys

if os.environ.get("WAIT"):
    print(flush=True)
    signal.pause()
print(json.dumps([sys.argv[2:], os.getcwd(), sys.stdin.read(), os.environ.get("PYTHONPATH")]))
sys.exit(int(os.environ.get("EXIT_CODE", "0")))
"""


class Checkout:
    """A copy of `run` with one command, on a machine with neither uv nor a Python."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin, self.state = (folder / n for n in ("a checkout", "bin", "state"))
        for made in (self.root / "binaries", self.bin, self.state):
            made.mkdir(parents=True)
        shutil.copy(ROOT / "run", self.root)
        (self.root / "requirements.lock").write_text("one==1\n")
        (self.root / "binaries" / "train.py").write_text('"""Trains a model."""\n')
        (self.root / "binaries" / "__main__.py").write_text(_COMMANDS)
        (self.root / "binaries" / "_private.py").touch()
        for tool in _TOOLS:
            result = shutil.which(tool)
            assert result, tool
            (self.bin / tool).symlink_to(result)

    def add(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, *arguments, command=None, environment=(), **options):
        ours = {"PATH": str(self.bin), "STATE": str(self.state), "REAL_PYTHON": sys.executable}
        return subprocess.Popen(
            [command or self.root / "run", *arguments],
            env={**ours, **dict(environment)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **{"cwd": self.state, **options},
        )

    def run(self, *arguments, text="", **options):
        """Returns the exit status, standard output and standard error of `run`."""
        process = self.start(*arguments, **options)
        output, errors = process.communicate(text)
        return process.returncode, output, errors

    def calls(self) -> list[str]:
        return (self.state / "uv").read_text().splitlines()


@pytest.fixture
def bare(tmp_path: Path) -> Checkout:
    """A checkout on a machine with neither uv nor a Python."""
    return Checkout(tmp_path)


@pytest.fixture
def checkout(bare: Checkout) -> Checkout:
    bare.add("uv", _UV)
    return bare


def test_help_needs_no_environment(bare):
    status, output, _ = bare.run("--help")
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert status == 0 and "train Trains a model" in lines
    assert "private" not in output and "__main__" not in output
    assert not (bare.root / ".venv").exists()


@pytest.mark.parametrize("command", ["tran", "_private", "../run"])
def test_rejects_unknown_command(bare, command):
    status, output, errors = bare.run(command)
    assert (status, output) == (2, "")
    assert errors == f"run: no command '{command}' ('./run help' lists them)\n"


def test_missing_uv_and_pip_are_reported(bare):
    bare.add("python3", "#!/usr/bin/env bash\necho 'No module named pip' >&2\nexit 1\n")
    status, output, errors = bare.run("train")
    assert (status, output) == (2, "")
    assert errors.startswith("run: needs uv, or a Python 3 with pip") and errors.count("\n") == 1


def test_run_gets_uv_by_pip(bare):
    python = """#!/usr/bin/env bash
while (($#)); do [[ $1 != --target ]] || target=$2; shift; done
[[ -z ${target:-} ]] || { mkdir -p "$target/bin" && cp "$STATE/stub" "$target/bin/uv"; }
"""
    bare.add("python3", python)
    bare.add("../state/stub", _UV)
    status, _, errors = bare.run("train")
    assert status == 0, errors
    assert (bare.root / ".uv" / "bin" / "uv").is_file()


def test_first_use_and_another_lock_set_up(checkout):
    status, output, errors = checkout.run("train")
    assert status == 0 and json.loads(output)
    assert errors.startswith("run: setting up .venv from requirements.lock (")
    assert checkout.run("train")[2] == ""
    made, installed = checkout.calls()
    assert made.startswith("venv ") and "--python cpython@3.11" in made
    assert "--require-hashes" in installed and installed.endswith("requirements.lock")
    (checkout.root / "requirements.lock").write_text("one==2\n")
    assert checkout.run("train")[0] == 0
    assert len(checkout.calls()) == 3


def test_next_use_continues_a_failed_setup(checkout):
    (checkout.state / "install_fails").touch()
    status, output, errors = checkout.run("train")
    assert (status, output) == (1, "")
    assert errors.splitlines()[-1].startswith("run: set-up failed (see above)")
    (checkout.state / "install_fails").unlink()
    assert checkout.run("train")[0] == 0
    assert len(checkout.calls()) == 3


def test_platform_of_today_has_a_separate_environment(checkout):
    assert checkout.run("train", environment={"TFF_AGNOSTIC_PLATFORM": "today"})[0] == 0
    assert not (checkout.root / ".venv").exists()
    assert "--python cpython@3.13" in checkout.calls()[0]
    status, _, errors = checkout.run("train", environment={"TFF_AGNOSTIC_PLATFORM": "new"})
    expected = "run: TFF_AGNOSTIC_PLATFORM: expected reference or today, found new\n"
    assert (status, errors) == (2, expected)


def test_arguments_input_and_exit_status_stay_unchanged(checkout):
    arguments = ["--name=a b", "", "*", "$HOME", "it's", '"', "--", "-x", "a\nb", "\\"]
    environment = {"EXIT_CODE": "77", "PYTHONPATH": "/mine"}
    status, output, _ = checkout.run("train", *arguments, text="a\nb\n", environment=environment)
    expected = [arguments, str(checkout.state), "a\nb\n", f"{checkout.root}:/mine"]
    assert (status, json.loads(output)) == (77, expected)


def test_run_works_through_symlinks(checkout):
    direct = checkout.state / "tff run"
    direct.symlink_to(checkout.root / "run")
    relative = checkout.bin / "again"
    relative.symlink_to(os.path.relpath(direct, checkout.bin))
    for link in (direct, relative):
        assert checkout.run("train", command=link)[0] == 0
    assert len(checkout.calls()) == 2


def test_signals_reach_the_command(checkout):
    process = checkout.start("train", environment={"WAIT": "1"})
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM


@pytest.mark.parametrize("command", [(), ("demo",)])
def test_fleet_help_needs_no_environment(bare, command):
    shutil.copytree(ROOT / "fleet", bare.root / "fleet")
    shutil.copytree(ROOT / "plan_runner", bare.root / "plan_runner")
    bare.add("python3", f'#!/usr/bin/env bash\nexec {sys.executable} -S "$@"\n')
    status, output, errors = bare.run("fleet", *command, "--help")
    assert (status, errors) == (0, "")
    assert output.startswith(" ".join(("usage: fleet", *command)))
    assert not (bare.root / ".venv-fleet").exists()
