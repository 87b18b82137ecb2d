"""Fake sides and a quick protocol for tests of the benchmarks."""

import sys
from pathlib import Path
from typing import Optional

from benchmarks.timing.schedule import Contestant, Protocol
from benchmarks.timing.workloads import Workload

FAKE_SIDE = Path(__file__).with_name("fake_side.py")
TINY = Workload(
    name="tiny",
    model="logistic",
    clients=3,
    examples=4,
    batch_size=2,
    features=(5,),
    classes=2,
    parameters=12,
)


def command(behaviour: str) -> list[str]:
    """Returns the command line of a fake side."""
    return [
        sys.executable,
        str(FAKE_SIDE),
        f"--workload={TINY.to_json()}",
        f"--algorithm={behaviour}",
    ]


def fake(behaviour: str, title: Optional[str] = None) -> Contestant:
    return Contestant(title or behaviour, TINY.describe(), lambda: command(behaviour))


def protocol(
    folder: Path,
    rounds: int = 3,
    repeats: int = 2,
    round_limit: float = 60.0,
    messages: Optional[list[str]] = None,
) -> Protocol:
    say = (messages if messages is not None else []).append
    return Protocol(rounds, repeats, round_limit, folder, say)
