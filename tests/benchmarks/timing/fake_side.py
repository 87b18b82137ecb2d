"""A side with a given behaviour: `fake_side.py --algorithm=BEHAVIOUR[:PARAMETERS]`."""

import time
from collections.abc import Mapping
from typing import Any, Callable

from benchmarks.timing.side import Side

SECONDS = {"slow": 1.0, "fast": 0.01}
MEMORY: list[bytes] = []
# Action of each behaviour in a round; `raises` succeeds in round 0.
BEHAVIOURS: Mapping[str, Callable[[int], Any]] = {
    "good": lambda number: None,
    "sleepy": lambda number: time.sleep(0.05),
    "raises": lambda number: number and [][0],
    "grows": lambda number: MEMORY.append(b"x" * 20_000_000),
}


def main() -> None:
    side = Side.from_command_line()
    behaviour, _, parameters = side.algorithm.partition(":")
    if behaviour == "settings":
        for setting in side.setting_rounds(side.workload.parameters, ["numpy"], ["slow", "fast"]):
            time.sleep(SECONDS[setting])
        return
    for number in side.rounds(int(parameters or side.workload.parameters), ["numpy"]):
        BEHAVIOURS[behaviour](number)


if __name__ == "__main__":
    main()
