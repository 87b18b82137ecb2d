"""Measures the start-up of commands: their help, and an invalid flag.

    .venv/bin/python -m benchmarks.start_up [--checkout=FOLDER] [--only='train --help']

Processor seconds are the minimum over `--repetitions`, for the command and its children. Lines are
the printed lines, modules the entries of `sys.modules` at the end. Another checkout, with its own
environment, is measured in the same way: compare ratios on one machine.
"""

import argparse
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

_HERE = Path(__file__).resolve().parents[1]
_COMMANDS = {
    "train --help": ["train", "--help"],
    "train --task=digits --help": ["train", "--task=digits", "--help"],
    "train --raunds=1": ["train", "--raunds=1"],
    "train --rounds=-1": ["train", "--rounds=-1"],
    "compare --help": ["compare", "--help"],
    "privacy --help": ["privacy", "--help"],
    "report --help": ["report", "--help"],
    "run_plan --help": ["run_plan", "--help"],
}
# Exits as the command does, after printing the number of imported modules.
_SCRIPT = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_module(f"binaries.{sys.argv[0]}", run_name="__main__", alter_sys=False)
except SystemExit:
    pass
print(len(sys.modules))
"""


def _measure(checkout: Path, arguments: Sequence[str]) -> tuple[float, int, int]:
    """Returns processor seconds, lines printed and modules imported."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [str(checkout / ".venv/bin/python"), "-W", "ignore", "-c", _SCRIPT, *arguments],
        cwd=checkout,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    *printed, modules = done.stdout.splitlines()
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, len(printed), int(modules)


def main(arguments: Sequence[str]) -> None:
    """Measures each command, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, default=_HERE, help="whose commands are measured")
    parser.add_argument("--repetitions", type=int, default=3, help="how often each is measured")
    parser.add_argument("--only", choices=_COMMANDS, help="measure this one")
    given = parser.parse_args(arguments)
    if given.repetitions < 1:
        parser.error(f"--repetitions: expected at least 1, found {given.repetitions}")
    rows = []
    for name in [given.only] if given.only else _COMMANDS:
        measured = [
            _measure(given.checkout.resolve(), _COMMANDS[name]) for _ in range(given.repetitions)
        ]
        seconds, lines, modules = min(measured)
        rows.append([f"`{name}`", f"{seconds:.2f}", lines, modules])
    print(tabulate(rows, ["command", "processor s", "lines", "modules"], tablefmt="github"))


if __name__ == "__main__":
    main(sys.argv[1:])
