"""Calls that take turns in one process, so that other work on the machine slows all equally."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.computations.algorithm import Algorithm
from tff_agnostic.models.model import Examples
from tff_agnostic.runtimes.cohort import CohortRuntime


def take_turns(
    calls: Mapping[str, Callable[[], object]],
    turns: int,
    warm: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, np.ndarray]:
    """Returns seconds and processor seconds of each turn of each call, [turns, 2].

    Args:
        calls: The calls by name; their order rotates.
        turns: Number of measured turns.
        warm: Number of earlier turns that do not count, as they compile.
        say: Called with progress lines.
    """
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for turn in range(warm + turns):
        for name in np.roll(list(calls), turn):
            start = time.perf_counter(), time.process_time()
            calls[name]()
            took[name].append((time.perf_counter() - start[0], time.process_time() - start[1]))
        say(f"turn {turn + 1}/{warm + turns}")
    return {name: np.array(seconds[warm:]) for name, seconds in took.items()}


def training_turn(
    runtime: CohortRuntime,
    algorithm: Algorithm,
    aggregation: Aggregation,
    cohort: Sequence[Examples],
) -> Callable[[], None]:
    """Returns a function that runs the next round on a cohort."""
    training = runtime.training(algorithm, aggregation)
    state: Any = training.initialize()

    def turn() -> None:
        nonlocal state
        state, _ = training.next(state, cohort)

    return turn
