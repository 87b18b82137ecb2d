"""Compares the cost of full evaluations with that of losses and metrics alone.

    .venv/bin/python -m benchmarks.evaluation_cost [--models=4]

Both take turns in one process, on the same clients, from weights to a report: the digits, and the
next-word LSTM of Reddi et al. 2021 on random sentences. The result is the ratio of the processor
seconds. `--models` times a family instead: each model by itself, and all in one pass, on the digits
and on 2,000 clients of a store that are not kept in memory.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from tabulate import tabulate

from benchmarks.timing import large_store
from benchmarks.timing.turns import take_turns
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.computations.evaluation import model_measurement
from tff_agnostic.data.clients import InMemoryClients, in_parts
from tff_agnostic.data.store_format import LABEL
from tff_agnostic.metrics.evaluation_report import evaluation_report
from tff_agnostic.models import logistic_regression, next_word_lstm
from tff_agnostic.models.model import Examples, Model, ModelWeights
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext
from tff_agnostic.training.evaluate import Evaluator, prepared_evaluation

_CLIENTS, _SENTENCES, _DOMAINS = 20, 8, 4
_STORED = 2_000
_WARM = 3

Ways = tuple[Callable[[], object], Callable[[], object]]


def different_weights(model: Model, number: int) -> list[ModelWeights]:
    """Returns weights that differ slightly from a model's initial weights."""
    initial, rng = model.initial_weights, np.random.default_rng(0)
    return [
        ModelWeights(
            [np.asarray(w + rng.normal(0, 0.01, w.shape), np.float32) for w in initial.trainable],
            initial.non_trainable,
        )
        for _ in range(number)
    ]


def sentences() -> Task:
    """Returns a task of random sentences in the ids of the model's vocabulary."""
    model, rng = next_word_lstm(), np.random.default_rng(0)
    clients = {}
    for k in range(_CLIENTS):
        ids = rng.integers(1, 10_000, size=[_SENTENCES, 21]).astype(np.int32)
        domain_id = rng.integers(_DOMAINS, size=_SENTENCES).astype(np.int32)
        clients[str(k)] = {"x": ids[:, :-1], "y": ids[:, 1:], "domain_id": domain_id}
    in_memory = InMemoryClients(clients)
    return Task(tuple(map(str, range(_DOMAINS))), in_memory, in_memory, model)


def stored(path: Path) -> Task:
    """Writes a store; returns a task with its clients, which are read in each pass."""
    large_store.write_store(path, _STORED)
    clients = large_store.training_clients(path, _examples, max_kept_bytes=0)
    return Task(large_store.DOMAINS, clients, clients, logistic_regression(8, 2))


def _examples(_: str, columns: Mapping[str, np.ndarray]) -> Examples:
    labels = columns[LABEL].astype(np.int32)
    return {"x": columns["x"], "y": labels, "domain_id": np.zeros_like(labels)}


def ways(task: Task, runtime: CohortRuntime) -> Ways:
    """Returns functions that evaluate the initial model: losses and metrics alone, and fully."""
    weights = task.model.initial_weights
    alone = runtime.measurement(model_measurement(task.model, task.num_domains), PlainSum())
    evaluate = prepared_evaluation(runtime, task, PlainSum())
    evaluator = Evaluator(task, evaluate)

    def losses_and_metrics() -> object:
        clients = (task.test.read(name) for name in task.test.client_ids)
        measured = alone(weights, in_parts(clients))
        return evaluation_report(task.model, task.domain_names, measured.output)

    return losses_and_metrics, lambda: evaluator(weights, on_all=True)


def family_ways(task: Task, runtime: CohortRuntime, num_models: int) -> Ways:
    """Returns functions that evaluate models: each by itself, and all in one pass."""
    models = {
        str(k): weights for k, weights in enumerate(different_weights(task.model, num_models))
    }
    evaluator = Evaluator(task, prepared_evaluation(runtime, task, PlainSum()))

    def by_itself() -> object:
        return [evaluator(weights, on_all=True) for weights in models.values()]

    return by_itself, lambda: evaluator.evaluate_models(models, True, None)


def main() -> None:
    """Prints medians, their ratio, and the quartiles of the ratios of paired turns."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=41)
    parser.add_argument("--models", type=int, help="Time a family of so many models.")
    turns, num_models = (given := parser.parse_args()).turns, given.models
    digits = load_task("digits", {}, TaskContext(seed=0))
    rows = []
    with CohortRuntime() as runtime, tempfile.TemporaryDirectory() as folder:
        if num_models is None:
            both = ["losses and metrics", "all"]
            cases = [("digits", ways(digits, runtime), turns)]
            cases.append(("next-word LSTM", ways(sentences(), runtime), max(5, turns // 4)))
        else:
            both = ["each by itself", "in one pass"]
            in_store = stored(Path(folder) / "clients.store")
            cases = [("digits", family_ways(digits, runtime, num_models), turns)]
            cases.append(("a store", family_ways(in_store, runtime, num_models), turns))
        for name, both_ways, num_turns in cases:
            took = take_turns(dict(zip(both, both_ways)), num_turns, _WARM)
            first, second = (seconds[:, 1] for seconds in took.values())
            low, high = np.percentile(second / first, [25, 75])
            alone, all_ = np.median(first), np.median(second)
            times = [f"{1000 * alone:.1f}", f"{1000 * all_:.1f}"]
            rows.append([name, *times, f"{all_ / alone:.3f}", f"{low:.3f} to {high:.3f}"])
    headers = ["", *(f"{way}, ms" for way in both), "ratio", "middle half of the turns"]
    print(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
