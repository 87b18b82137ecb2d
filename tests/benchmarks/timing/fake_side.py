"""Sides with a given behaviour: `fake_side.py --algorithm=BEHAVIOUR[:PARAMETERS]`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Callable

from benchmarks.timing.side import Side


def daemon() -> None:
    """Starts a process that outlives its parent and has left its session, as daemons do."""
    code = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(1000)"
    subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL)


SECONDS = {"slow": 1.0, "fast": 0.01}
MEMORY: list[bytes] = []
# After their first round, number 0.
BEHAVIOURS: Mapping[str, Callable[[int], Any]] = {
    "good": lambda number: None,
    "chatty": lambda number: print('noise\n{"not": "ours"}'),
    "sleepy": lambda number: time.sleep(0.05),
    "raises": lambda number: number and [][0],
    "killed": lambda number: os.kill(os.getpid(), signal.SIGKILL) if number else None,
    "hangs": lambda number: time.sleep(1000) if number else None,
    "hangs_at_once": lambda number: time.sleep(1000),
    "daemon": lambda number: daemon(),
    "grows": lambda number: MEMORY.append(b"x" * 20_000_000),
}


def main() -> None:
    side = Side.from_command_line()
    behaviour, _, parameters = side.algorithm.partition(":")
    if behaviour == "never_ready":
        time.sleep(1000)
    if behaviour == "settings":
        for setting in side.setting_rounds(side.workload.parameters, ["numpy"], ["slow", "fast"]):
            time.sleep(SECONDS[setting])
        return
    for number in side.rounds(int(parameters or side.workload.parameters), ["numpy"]):
        BEHAVIOURS[behaviour](number)


if __name__ == "__main__":
    main()
