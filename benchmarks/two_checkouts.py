"""Compares the times of AgnosticFedAvg in two checkouts, with alternating starts and rounds.

    .venv/bin/python -m benchmarks.two_checkouts BEFORE NOW --workload=logistic
    .venv/bin/python -m benchmarks.two_checkouts . . --environments .venv .venv-today

Each checkout runs a workload of `./run benchmark` in a separate process, with its own environment.
The two checkouts may be the same, with different environments. The results are ratios of the
processes' processor seconds and clock seconds. The time of a first round includes the start of the
process and the imports.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from benchmarks.timing.workloads import WORKLOADS, Workload
from tff_agnostic.base.errors import counted

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Minimum seconds of a timed item, as the clock of processor time ticks every 10 ms.
_ITEM_SECONDS = 0.5


class _Side:
    """A process that runs one checkout's rounds; see `benchmarks.timing.side`."""

    def __init__(self, checkout: Path, environment: str, workload: Workload) -> None:
        self._checkout, self._start = checkout, time.perf_counter()
        self._process = subprocess.Popen(
            [
                str(checkout / environment / "bin/python"),
                *("-W", "ignore", "-m", "benchmarks.timing.own_side"),
                f"--workload={workload.to_json()}",
                *("--algorithm=agnostic_fed_avg", "--runtime=cohort"),
            ],
            cwd=checkout,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def play(self, rounds: int) -> tuple[float, float]:
        """Runs rounds; returns the mean processor and clock seconds of a round."""
        before, seconds = self._processor_seconds(), 0.0
        for _ in range(rounds):
            assert self._process.stdin is not None
            self._process.stdin.write("\n")
            self._process.stdin.flush()
            seconds += self._answer()["seconds"]
        return (self._processor_seconds() - before) / rounds, seconds / rounds

    def first(self) -> tuple[float, float]:
        """Returns processor and clock seconds from the process's start to its first round's end."""
        self.play(1)
        return self._processor_seconds(), time.perf_counter() - self._start

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"{self._checkout}: the side ended with status {self._process.wait()}")
        answer: dict[str, float] = json.loads(line)
        return answer

    def _processor_seconds(self) -> float:
        stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / _TICKS_PER_SECOND


def main(arguments: Sequence[str]) -> None:
    """Runs the rounds, and prints medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("now", type=Path)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="logistic")
    parser.add_argument("--rounds", type=int, default=20, help="items of each side that count")
    parser.add_argument("--starts", type=int, default=3, help="first rounds of each side")
    parser.add_argument(
        "--environments",
        nargs=2,
        metavar=("BEFORE", "NOW"),
        default=(".venv", ".venv"),
        help="folders of the two, within their checkouts",
    )
    given = parser.parse_args(arguments)
    for name in ("rounds", "starts"):
        if getattr(given, name) < 1:
            parser.error(f"--{name}: expected at least 1, found {getattr(given, name)}")
    workload = WORKLOADS[given.workload]
    checkouts = [
        (checkout.resolve(), environment)
        for checkout, environment in zip((given.before, given.now), given.environments)
    ]
    firsts: list[list[tuple[float, float]]] = [[], []]
    for start in range(given.starts):
        sides: list[_Side] = []
        for k in (0, 1) if start % 2 else (1, 0):
            side = _Side(*checkouts[k], workload)
            sides.insert(k, side)
            firsts[k].append(side.first())
        if start < given.starts - 1:
            for side in sides:
                side.close()
    fastest = min(side.play(1)[1] for side in sides)
    per_item = max(1, round(_ITEM_SECONDS / fastest))
    seconds: list[list[tuple[float, float]]] = [[], []]
    for item in range(given.rounds):
        for k in (0, 1) if item % 2 else (1, 0):
            seconds[k].append(sides[k].play(per_item))
    for side in sides:
        side.close()
    rows = []
    for what, measured in (("first round", firsts), ("round", seconds)):
        for name, column in (("processor s", 0), ("clock s", 1)):
            before, now = (statistics.median(item[column] for item in side) for side in measured)
            rows.append([f"{what}, {name}", f"{before:.4f}", f"{now:.4f}", f"{now / before:.3f}"])
    print(
        f"{given.workload}: medians of {counted(given.starts, 'start')} and of {given.rounds} x "
        f"{counted(per_item, 'round')}, in turn"
    )
    print(tabulate(rows, ["", "before", "now", "ratio"], tablefmt="github"))


if __name__ == "__main__":
    main(sys.argv[1:])
