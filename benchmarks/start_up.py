"""Measures what commands take before they have work to do: their help, and a flag they refuse.

    .venv/bin/python -m benchmarks.start_up [--checkout=FOLDER]

Processor seconds are those of the command and its children, the least of `--repetitions`. Lines are
those that it prints, modules those in `sys.modules` when it ends. Another checkout, with an
environment of its own, is measured in the same way: what counts is the ratio on one machine.
"""

import resource
import subprocess
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags
from tabulate import tabulate

_CHECKOUT = flags.DEFINE_string(
    "checkout", str(Path(__file__).resolve().parents[1]), "the folder whose commands are measured"
)
_REPETITIONS = flags.DEFINE_integer("repetitions", 3, "how often each is measured", lower_bound=1)

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
# Ends as the command does, and says last how many modules it imported.
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


def main(_: Sequence[str]) -> None:
    """Measures each command, and prints a table."""
    checkout = Path(_CHECKOUT.value).resolve()
    rows = []
    for name, arguments in _COMMANDS.items():
        measured = [_measure(checkout, arguments) for _ in range(_REPETITIONS.value)]
        seconds, lines, modules = min(measured)
        rows.append([f"`{name}`", f"{seconds:.2f}", lines, modules])
    print(tabulate(rows, ["command", "processor s", "lines", "modules"], tablefmt="github"))


if __name__ == "__main__":
    app.run(main)
