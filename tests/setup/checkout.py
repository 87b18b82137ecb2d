"""A copy of `run` and its tools, in a folder where Python and uv are stand-ins."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional, Union

from tests.processes import default_signals

ROOT = Path(__file__).absolute().parents[2]

# Only these come from the machine, so that its own Pythons are out of sight.
SYSTEM_TOOLS = [
    "awk",
    "bash",
    "cat",
    "chmod",
    "cp",
    "dirname",
    "env",
    "find",
    "flock",
    "ln",
    "mkdir",
    "mktemp",
    "mv",
    "nproc",
    "readlink",
    "rm",
    "sha256sum",
    "sleep",
    "tail",
    "uname",
]

# A real Python, but for what it says of itself and the pip that it brings.
STUB_PYTHON = """#!/usr/bin/env bash
if [[ $1 == -I ]]; then shift; fi
case "$1 $2" in
  -c*_base_executable*) echo "{implementation} {version} $(readlink -f "$0")" && exit ;;
  "-m ensurepip") exit ;;
  "-m pip" | "-m venv") exit 1 ;;
esac
exec "{real_python}" "$@"
"""

# Finds what is on PATH, makes a link for an environment, and installs nothing.
STUB_UV = """#!/usr/bin/env bash
set -e
last=${!#}
case "$1 $2" in
  --version*) echo "uv 0.0.1" ;;
  "python find") command -v "python${last#cpython@}" ;;
  venv*)
    while [[ $1 != --python ]]; do shift; done
    version=$("$2" -I -c _base_executable) && version=${version#* } && version=${version%% *}
    mkdir -p "$last/bin" "$last/lib/python$version/site-packages"
    ln -s "$2" "$last/bin/python"
    ;;
  "pip install")
    echo "$*" >>"$STUB_STATE/installs"
    for word in {1..20}; do echo "line $word"; done
    if [[ -e $STUB_STATE/install_fails ]]; then exit 1; fi
    if [[ -e $STUB_STATE/install_is_slow ]]; then sleep 0.5; fi
    if [[ -e $STUB_STATE/install_hangs ]]; then
      echo $$ >"$STUB_STATE/install_pid"
      exec sleep 600
    fi
    ;;
esac
"""

BINARY = '''"""{description}."""

import json
import os
import re
import sys

code = int(os.environ.get("EXIT_CODE", "0"))
if os.environ.get("WAIT_FOR_SIGNAL"):
    import signal

    print(os.getpid(), flush=True)
    signal.pause()
keep = ("PYTHONPATH", "PYTHONWARNINGS", "TF_CPP_MIN_LOG_LEVEL", "PYTHONHOME")
print(json.dumps({{
    "name": "{name}",
    "argv": sys.argv[1:],
    "cwd": os.getcwd(),
    "stdin": "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read(),
    "environment": {{key: os.environ.get(key) for key in keep}},
}}))
sys.exit(code)
'''


FAKE_BAZEL = """
echo "$*" >>"$STUB_STATE/bazel_calls"
for word; do
  case $word in
    help) echo "--host_javabase" && exit ;;
    build) [[ ! -e $STUB_STATE/build_fails ]] || exit 1 ;;
    test) [[ ! -e $STUB_STATE/test_fails ]] || exit 3 ;;
  esac
done
"""


class Checkout:
    """A copy of the set-up's files in a folder of its own, with a PATH of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "a checkout"
        self.bin = folder / "bin"
        self.state = folder / "state"
        self.home = folder / "home"
        for made in (self.root, self.bin, self.state, self.home, self.root / "binaries"):
            made.mkdir()
        shutil.copy(ROOT / "run", self.root)
        shutil.copytree(ROOT / "tools", self.root / "tools")
        (self.root / "requirements.lock").write_text("one==1\n")
        fleet = self.root / "plan_runner" / "fleet"
        fleet.mkdir(parents=True)
        for folder in (fleet.parent, fleet):
            (folder / "__init__.py").touch()
        (fleet / "requirements.lock").write_text("two==1\n")
        (fleet / "__main__.py").write_text(BINARY.format(name="fleet", description="A fleet"))
        (self.root / "binaries" / "__init__.py").touch()
        shutil.copy(ROOT / "binaries" / "__main__.py", self.root / "binaries")
        (self.root / "binaries" / "_private.py").touch()
        for name, description in (("train", "Trains a model"), ("compare", "Compares two runs")):
            text = BINARY.format(name=name, description=description)
            (self.root / "binaries" / f"{name}.py").write_text(text)
        for tool in SYSTEM_TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.bin / tool).symlink_to(found)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": str(self.bin),
            "HOME": str(self.home),
            "STUB_STATE": str(self.state),
        }

    def add_python(
        self, path: Union[str, Path], version: str = "3.11", implementation: str = "cpython"
    ) -> Path:
        if not isinstance(path, Path):
            path = self.bin / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            STUB_PYTHON.format(
                version=version,
                implementation=implementation,
                real_python=sys.executable,
            )
        )
        path.chmod(0o755)
        return path

    def add_uv(self) -> None:
        (self.bin / "uv").write_text(STUB_UV)
        (self.bin / "uv").chmod(0o755)

    def add_script(self, name: str, text: str) -> None:
        path = self.bin / name
        if path.is_symlink():
            path.unlink()
        path.write_text("#!/usr/bin/env bash\n" + text)
        path.chmod(0o755)

    def start(
        self, *arguments: str, command: Optional[Path] = None, **options: Any
    ) -> "subprocess.Popen[str]":
        environment = {**self.environment, **options.pop("environment", {})}
        options.setdefault("cwd", self.home)
        options.setdefault("stdin", subprocess.DEVNULL)
        with default_signals():
            return subprocess.Popen(
                [str(command or self.root / "run"), *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
                **options,
            )

    def run(
        self, *arguments: str, text: Optional[str] = None, **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        if text is not None:
            options["stdin"] = subprocess.PIPE
        process = self.start(*arguments, **options)
        output, errors = process.communicate(text)
        return subprocess.CompletedProcess(arguments, process.returncode, output, errors)

    @property
    def installs(self) -> int:
        calls = self.state / "installs"
        return len(calls.read_text().splitlines()) if calls.exists() else 0


def told(result: "subprocess.CompletedProcess[str]") -> list[str]:
    """The lines of standard error, without those of every 30 seconds of a slow set-up."""
    lines = result.stderr.splitlines()
    return [line for line in lines if not re.fullmatch(r"run: .*, \d+ s so far", line)]


def one_line(result: "subprocess.CompletedProcess[str]") -> str:
    lines = told(result)
    assert len(lines) == 1, result.stderr
    assert result.stdout == ""
    return lines[0]
