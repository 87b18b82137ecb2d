"""Times rounds of Delta-FL beside those of FedAvg, and a family beside single runs of its levels.

    .venv/bin/python -m benchmarks.tail_cost writers.sqlite

The store is MNIST by writer (docs/results/delta_fl_thresholds.md has the command). All sides take
turns in one process, on the same cohorts; what counts are ratios: of seconds, and of processor
seconds, which other work on the machine changes little.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
from tabulate import tabulate

from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.computations.algorithm import Problem
from tff_agnostic.run.spec import resolve
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.tasks.task import Task

_LEVELS = (0.1, 0.5, 0.8, 1.0)
_SGD = {"client_learning_rate": 0.1, "batch_normalizer": "batch", "server_optimizer": "sgd"}
_WARM = 5
# A tracked threshold starts at a tenth of the loss, and needs as many rounds to rise to its place.
_WARM_OF_TRACKED = 30


class _Side(NamedTuple):
    """What takes turns: an algorithm with its settings."""

    algorithm: str
    settings: dict[str, Any]


def _delta_fl(*levels: float, threshold: str = "survey") -> _Side:
    return _Side("delta_fl", {"conformity": levels, "threshold": threshold})


_FED_AVG = _Side("fed_avg", {})
_THRESHOLDS = {
    "FedAvg": _FED_AVG,
    **{how: _delta_fl(0.5, threshold=how) for how in ("survey", "lagged", "tracked")},
}
# A single run of the level 1 is one of FedAvg.
_SINGLES = {
    **{f"theta = {theta:g}": _delta_fl(theta) for theta in _LEVELS if theta < 1},
    "theta = 1": _FED_AVG,
}


class _Rounds(NamedTuple):
    """How many rounds are timed, of how many clients each, and how many are left out before."""

    timed: int
    clients: int
    warm: int


def _costs(task: Task, sides: Mapping[str, _Side], rounds: _Rounds) -> dict[str, np.ndarray]:
    """Returns seconds and processor seconds of each round of each side, [rounds, 2]."""
    problem = Problem.of_numbered_domains(task.model, task.num_domains)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    rng = np.random.default_rng(0)
    with CohortRuntime() as runtime:
        trainings = {}
        for name, (algorithm, settings) in sides.items():
            spec = ALGORITHMS[algorithm]
            built = spec.build(problem, spec.options(**_SGD, server_learning_rate=1.0, **settings))
            trainings[name] = runtime.training(built, PlainSum())
        states = {name: training.initialize() for name, training in trainings.items()}
        for k in range(rounds.warm + rounds.timed):
            ids = rng.choice(task.train.client_ids, rounds.clients, replace=False)
            cohort = [task.train.read(client_id) for client_id in ids]
            for name in list(sides)[:: 1 if k % 2 else -1]:
                start, used = time.perf_counter(), time.process_time()
                states[name], _ = trainings[name].next(states[name], cohort)
                found[name].append((time.perf_counter() - start, time.process_time() - used))
    return {name: np.array(took[rounds.warm :]) for name, took in found.items()}


def _row(label: str, costs: np.ndarray, of: np.ndarray) -> list[str]:
    wall, processor = (np.median(costs[:, k]) / np.median(of[:, k]) for k in (0, 1))
    return [label, f"{wall:.2f}", f"{processor:.2f}"]


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Prints the ratios of the medians of rounds."""
    parser = argparse.ArgumentParser(prog="tail_cost", description=__doc__)
    parser.add_argument("store", type=Path, help="client store of MNIST by writer")
    parser.add_argument("--models", nargs="+", choices=("cnn", "linear"), default=["cnn", "linear"])
    parser.add_argument("--rounds", type=int, default=20, help="timed, of each side")
    parser.add_argument("--clients", type=int, default=20, help="in each round")
    settings = parser.parse_args(argv)
    rounds = _Rounds(settings.rounds, settings.clients, _WARM)
    rows = []
    for model in settings.models:
        options = {"num_classes": 10, "model": model}
        task = resolve("emnist", {}, options, None, settings.store).load_task()
        found = _costs(task, _THRESHOLDS, rounds._replace(warm=_WARM_OF_TRACKED))
        rows += [
            _row(f"{model}: {how} / FedAvg", found[how], found["FedAvg"])
            for how in _THRESHOLDS
            if how != "FedAvg"
        ]
        found = _costs(task, {**_SINGLES, "family": _delta_fl(*_LEVELS)}, rounds)
        singles = np.sum([found[name] for name in _SINGLES], axis=0)
        label = f"{model}: family / {len(_SINGLES)} single runs"
        rows.append(_row(label, found["family"], singles))
    print(tabulate(rows, ["", "seconds", "processor seconds"], "github", disable_numparse=True))


if __name__ == "__main__":
    main()
