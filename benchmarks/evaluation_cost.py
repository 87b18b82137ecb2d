"""Times evaluations with all that they sum beside those of losses and metrics alone.

    .venv/bin/python -m benchmarks.evaluation_cost

Both take turns in one process, on the same clients, from weights to a report: the digits, and the
next-word LSTM of Reddi et al. 2021 on random sentences. What counts is the ratio of the processor
seconds.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from tabulate import tabulate

from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.computations.evaluation import measurement_of_model
from tff_agnostic.data.clients import InMemoryClients, in_parts
from tff_agnostic.metrics.evaluation_report import evaluation_report
from tff_agnostic.models import next_word_lstm
from tff_agnostic.run.evaluation import Evaluator, prepared_evaluation
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext

_CLIENTS, _SENTENCES, _DOMAINS = 20, 8, 4
_WARM = 3


def sentences() -> Task:
    """Returns a task of random sentences in the ids of the model's vocabulary."""
    model, rng = next_word_lstm(), np.random.default_rng(0)
    clients = {}
    for k in range(_CLIENTS):
        ids = rng.integers(1, 10_000, size=[_SENTENCES, 21]).astype(np.int32)
        domain_id = rng.integers(_DOMAINS, size=_SENTENCES).astype(np.int32)
        clients[str(k)] = {"x": ids[:, :-1], "y": ids[:, 1:], "domain_id": domain_id}
    found = InMemoryClients(clients)
    return Task(tuple(map(str, range(_DOMAINS))), found, found, model)


def ways(task: Task, runtime: CohortRuntime) -> tuple[Callable[[], object], Callable[[], object]]:
    """Returns what evaluates the initial model: losses and metrics alone, and all."""
    weights = task.model.initial_weights
    alone = runtime.measurement(measurement_of_model(task.model, task.num_domains), PlainSum())
    evaluate = prepared_evaluation(runtime, task, PlainSum(), None)
    evaluator = Evaluator(task, evaluate)

    def losses_and_metrics() -> object:
        clients = (task.test.read(name) for name in task.test.client_ids)
        found = alone(weights, in_parts(clients))
        return evaluation_report(task.model, task.domain_names, found.output)

    return losses_and_metrics, lambda: evaluator(weights, on_all=True)


def seconds(task: Task, runtime: CohortRuntime, turns: int) -> np.ndarray:
    """Returns the processor seconds of each turn and way, [turns, 2]."""
    both, found = ways(task, runtime), np.zeros([turns + _WARM, 2])
    for turn in range(turns + _WARM):
        # Which one is first changes, too.
        for way in (0, 1) if turn % 2 else (1, 0):
            began = time.process_time()
            both[way]()
            found[turn, way] = time.process_time() - began
    return found[_WARM:]


def main() -> None:
    """Prints medians, their ratio, and the quartiles of the ratio of turns side by side."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=41)
    turns = parser.parse_args().turns
    digits = load_task("digits", {}, TaskContext(seed=0))
    rows = []
    with CohortRuntime() as runtime:
        for name, task, share in (("digits", digits, 1.0), ("next-word LSTM", sentences(), 0.25)):
            found = seconds(task, runtime, max(5, int(turns * share)))
            low, high = np.percentile(found[:, 1] / found[:, 0], [25, 75])
            alone, all_ = np.median(found, axis=0)
            times = [f"{1000 * alone:.1f}", f"{1000 * all_:.1f}"]
            rows.append([name, *times, f"{all_ / alone:.3f}", f"{low:.3f} to {high:.3f}"])
    headers = ["", "losses and metrics, ms", "all, ms", "ratio", "middle half of the turns"]
    print(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
