"""Processor seconds of the parts of an AgnosticFedAvg round, measured in turn in one process.

    .venv/bin/python -m benchmarks.round_parts --workload=stackoverflow_lstm

The domain pass and each client's first local step start from the same weights. The row of the first
batch shows what a domain pass could save that takes this batch's losses from the local step.
"""

import argparse
import dataclasses
import sys
from collections.abc import Callable

import numpy as np
from tabulate import tabulate

from benchmarks.timing.own_side import MODELS
from benchmarks.timing.products import products_by_part
from benchmarks.timing.products_side import multiplier
from benchmarks.timing.turns import take_turns, training_turn
from benchmarks.timing.workloads import WORKLOADS, Workload, make_clients
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.program.options.flags import build
from tff_agnostic.runtimes.cohort import CohortRuntime

_WHOLE = "AgnosticFedAvg's round"


def parts(workload: Workload, runtime: CohortRuntime) -> dict[str, Callable[[], object]]:
    """Returns a function per part, which runs it."""
    model = dataclasses.replace(MODELS[workload.model](workload), metrics=())
    clients = make_clients(workload)
    first = [{k: v[: workload.batch_size] for k, v in client.items()} for client in clients]
    measure = runtime.evaluation(model, workload.domains, PlainSum())

    def training_round(name: str) -> Callable[[], object]:
        spec = ALGORITHMS[name]
        options = build(
            spec.options,
            dict(
                client_learning_rate=workload.learning_rate,
                client_batch_size=workload.batch_size,
                client_normalizer="batch",
            ),
        )
        algorithm = spec.build(Problem.numbered(model, workload.domains), options)
        return training_turn(runtime, algorithm, PlainSum(), clients)

    calls = {
        _WHOLE: training_round("agnostic_fed_avg"),
        "FedAvg's round": training_round("fed_avg"),
        "the domain pass": lambda: measure(model.initial_weights, [clients]),
        "the first local batch of the domain pass": lambda: measure(model.initial_weights, [first]),
    }
    for name, products in products_by_part(workload).items():
        calls[f"matrix products alone: {name}"] = multiplier(products)
    return calls


def main() -> None:
    """Prints a row for each part."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="stackoverflow_lstm", choices=list(WORKLOADS))
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    with CohortRuntime() as runtime:
        calls = parts(WORKLOADS[arguments.workload], runtime)
        took = take_turns(
            calls, arguments.turns, 1, lambda line: print(line, file=sys.stderr, flush=True)
        )
    medians = {name: float(np.median(seconds[:, 1])) for name, seconds in took.items()}
    rows = [[name, f"{s:.2f}", f"{s / medians[_WHOLE]:.2f}"] for name, s in medians.items()]
    print(tabulate(rows, ["", "processor s", "share"], "github", disable_numparse=True))


if __name__ == "__main__":
    main()
