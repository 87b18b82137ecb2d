"""The overhead over FedAvg of every algorithm, every kind of sum, and evaluations.

All rows take turns in one process, on the cohort of a workload. The results are ratios of seconds,
and of processor seconds, which depend less on other work on the machine.
"""

import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.evaluation_cost import different_weights, ways
from benchmarks.private_cost import sums_without_and_with_noise
from benchmarks.timing.own_side import MODELS
from benchmarks.timing.results import Price
from benchmarks.timing.turns import take_turns, training_turn
from benchmarks.timing.workloads import Workload, make_clients
from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.base.errors import UserError
from tff_agnostic.boosting.alpha import BoostOptions
from tff_agnostic.boosting.ensemble import ensemble
from tff_agnostic.computations.algorithm import Algorithm, AlgorithmSpec
from tff_agnostic.data.clients import InMemoryClients
from tff_agnostic.models.model import Model
from tff_agnostic.program.options.flags import build
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.tasks.task import Task

FED_AVG, AGNOSTIC = "fed_avg", "agnostic_fed_avg"
_EVALUATION = "evaluation: losses and metrics"
_PREDICTORS = 4
_WARM = 2
# Changed settings of additional rows, by algorithm.
_VARIANTS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    AGNOSTIC: ({"lambda_baselines": (1.0, 1.0)},),
    "delta_fl": ({"theta": (0.1, 0.5, 0.8, 1.0)}, {"threshold": "tracked"}),
}


@dataclasses.dataclass(frozen=True)
class _Row:
    """A row of the table; each call of `turn` is one measurement."""

    title: str
    baseline: str
    turn: Callable[[], object]


def prices(
    workload: Workload, names: Sequence[str], rounds: int, say: Callable[[str], None]
) -> list[Price]:
    """Times FedAvg, the algorithms, the kinds of sums, and full evaluations.

    Args:
        workload: The cohort and its model.
        names: Names of the algorithms.
        rounds: Number of measured turns of each row.
        say: Called with progress lines.
    """
    with CohortRuntime() as runtime:
        rows: list[_Row] = []
        for row in _rows(workload, names, runtime):
            # Compile before the measured turns.
            for _ in range(_WARM):
                row.turn()
            say(f"{row.title} is ready")
            rows.append(row)
        took = take_turns({row.title: row.turn for row in rows}, rounds, say=say)
    medians = {title: np.median(seconds, axis=0) for title, seconds in took.items()}
    result = [_price(row, medians) for row in rows]
    # TensorFlow's functions print errors if Python collects them at its end.
    rows.clear()
    gc.collect()
    return result


def chosen_algorithms(names: Sequence[str]) -> list[str]:
    """Returns the names of the chosen algorithms; "all" stands for the registry.

    Raises:
        UserError: If a name is unknown or repeated.
    """
    if list(names) == ["all"]:
        return list(ALGORITHMS)
    if not names or len(set(names)) < len(names):
        raise UserError(f"--algorithms: expected different names, found {','.join(names)!r}")
    for name in names:
        ALGORITHMS.given("--algorithms", name)
    return list(names)


def _price(row: _Row, medians: Mapping[str, np.ndarray]) -> Price:
    ratio, processor_ratio = medians[row.title] / medians[row.baseline]
    seconds = float(medians[row.title][0])
    return Price(row.title, row.baseline, seconds, float(ratio), float(processor_ratio))


def _rows(workload: Workload, names: Sequence[str], runtime: CohortRuntime) -> Iterator[_Row]:
    # Keep the metrics, as in a run: evaluations sum them.
    model = MODELS[workload.model](workload)
    clients = make_clients(workload)

    def training_row(title: str, algorithm: Algorithm, aggregation: Aggregation) -> _Row:
        return _Row(title, FED_AVG, training_turn(runtime, algorithm, aggregation, clients))

    for name in [FED_AVG, *(name for name in names if name != FED_AVG)]:
        for changes in ({}, *_VARIANTS.get(name, ())):
            title = ", ".join([name, *(f"{key}={_text(value)}" for key, value in changes.items())])
            yield training_row(title, _algorithm(name, changes, model, workload), PlainSum())
    sums = sums_without_and_with_noise(workload.clients, workload.examples)
    for name in (FED_AVG, AGNOSTIC) if AGNOSTIC in names else (FED_AVG,):
        algorithm = _algorithm(name, {}, model, workload)
        for what, aggregation in sums.items():
            if not isinstance(aggregation, PlainSum):
                yield training_row(f"{name}, sums: {what}", algorithm, aggregation)
    task = _task(model, clients, workload.domains)
    alone, with_all = ways(task, runtime)
    yield _Row(_EVALUATION, _EVALUATION, alone)
    yield _Row("evaluation: all that it sums", _EVALUATION, with_all)


def _algorithm(
    name: str, changes: Mapping[str, Any], model: Model, workload: Workload
) -> Algorithm:
    spec = ALGORITHMS[name]
    if issubclass(spec.options, BoostOptions):
        model = ensemble(model, different_weights(model, _PREDICTORS))
    settings = {
        "client_learning_rate": workload.learning_rate,
        "client_batch_size": workload.batch_size,
        # The mean over the batch, as in the peers.
        "client_normalizer": "batch",
        "target_domain": "0",
    }
    problem = Problem.numbered(model, workload.domains)
    return spec.build(problem, build(spec.options, dict(**_taken(spec, settings), **changes)))


def _taken(spec: AlgorithmSpec, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that apply to an algorithm."""
    names = {field.name for field in dataclasses.fields(spec.options)}
    return {name: value for name, value in settings.items() if name in names}


def _task(model: Model, clients: Sequence[Mapping[str, Any]], domains: int) -> Task:
    in_memory = InMemoryClients({str(k): dict(client) for k, client in enumerate(clients)})
    return Task(tuple(map(str, range(domains))), in_memory, in_memory, model)


def _text(value: Any) -> str:
    return ":".join(map(str, value)) if isinstance(value, tuple) else str(value)
