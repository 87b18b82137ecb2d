"""Measures the times of sides in alternating rounds, so that other work slows all sides equally."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable

from benchmarks.timing.environments import side_environment
from benchmarks.timing.process import SideError, SideProcess
from benchmarks.timing.process_tree import PeakMemory
from benchmarks.timing.results import SideResult
from benchmarks.timing.side import WARM_UP_ROUNDS


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A side that is measured on a workload.

    Attributes:
        title: Name of the side in tables.
        description: Sizes of the workload.
        command: Returns the side's command line; may raise `SideError`.
    """

    title: str
    description: str
    command: Callable[[], list[str]]


@dataclasses.dataclass(frozen=True)
class Protocol:
    """Settings of a measurement.

    Attributes:
        rounds: Number of steady-state rounds per repetition.
        repeats: Number of repetitions, each with new processes.
        round_limit: Maximum seconds of a round; the first round includes the start. A slower side
            fails.
        logs: Folder for the sides' error output.
        say: Called with lines about the progress.
    """

    rounds: int
    repeats: int
    round_limit: float
    logs: Path
    say: Callable[[str], None]


def measure(contestants: Sequence[Contestant], protocol: Protocol) -> list[SideResult]:
    """Measures all contestants. After a side fails, the other sides continue without it."""
    results = [SideResult(c.title, c.description) for c in contestants]
    for repetition in range(protocol.repeats):
        with contextlib.ExitStack() as stack:
            running: list[tuple[SideProcess, SideResult]] = []
            for number, (contestant, result) in enumerate(zip(contestants, results)):
                if result.failure is None:
                    log = protocol.logs / f"{number:02}-{repetition}.log"
                    with _failing(result, protocol):
                        # The side starts while the other sides are stopped.
                        side = _start(contestant, result, protocol, log, stack)
                        running.append((side, result))
            _run_in_turn(running, protocol)
            # Close all sides first, so that they end in parallel.
            for side, _ in running:
                side.close()
    return results


def _start(
    contestant: Contestant,
    result: SideResult,
    protocol: Protocol,
    log: Path,
    stack: contextlib.ExitStack,
) -> SideProcess:
    protocol.say(f"starting {contestant.title}")
    command = contestant.command()
    side = SideProcess(command, side_environment(), log, protocol.round_limit)
    stack.enter_context(side)
    with side.released(), PeakMemory(side.pid) as memory:
        result.versions = side.ready()
        side.round()
        age = side.age
    # Append only after the first round, so that the lists have one entry per repetition.
    result.first_round.append(age)
    result.peak_bytes.append(memory.peak_bytes)
    result.seconds.append([])
    protocol.say(f"{contestant.title}: first round after {age:.1f} s")
    return side


def _run_in_turn(running: Sequence[tuple[SideProcess, SideResult]], protocol: Protocol) -> None:
    for number in range(WARM_UP_ROUNDS + protocol.rounds):
        first = number % max(1, len(running))
        for side, result in [*running[first:], *running[:first]]:
            if result.failure is None:
                with _failing(result, protocol), side.released():
                    seconds = side.round()
                    if number >= WARM_UP_ROUNDS:
                        result.seconds[-1].append(seconds)
        protocol.say(f"round {number + 1}/{WARM_UP_ROUNDS + protocol.rounds}")
    for side, result in running:
        if result.failure is None:
            # Do not time this round, because measuring the memory slows the simulator.
            with _failing(result, protocol), side.released(), PeakMemory(side.pid) as memory:
                side.round()
            result.peak_bytes[-1] = max(result.peak_bytes[-1], memory.peak_bytes)
            if side.setting:
                result.settings.append(side.setting)


@contextlib.contextmanager
def _failing(result: SideResult, protocol: Protocol) -> Iterator[None]:
    try:
        yield
    except SideError as e:
        result.failure = str(e)
        protocol.say(f"{result.title} {e}")
