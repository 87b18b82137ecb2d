"""What a round of FedBoost costs at a fixed budget C, for several numbers q of predictors.

Example: .venv/bin/python -m benchmarks.fedboost_cost.measure --predictors 10 100 1000

Predictors are random unigram models, and clients have random words. Each number of predictors has a
process of its own, so that its memory is its own.
"""

import argparse
import concurrent.futures
import multiprocessing
import resource
import time
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np
from tabulate import tabulate

from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.boosting.ensemble import EnsembleModel, ensemble
from tff_agnostic.computations.algorithm import Problem
from tff_agnostic.models.model import Examples, ModelWeights
from tff_agnostic.models.next_word import unigram_model
from tff_agnostic.runtimes.client_work import CLIENT_MODES
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.options import RuntimeOptions


class Cost(NamedTuple):
    """What rounds cost.

    Attributes:
        seconds: Of a round: the median, without the first, which traces everything.
        processor_seconds: The same of all processors together.
        bytes_sent: To each client.
        bytes_of_ensemble: Of all predictors.
        peak_mib: The most memory that the process had, in MiB.
    """

    seconds: float
    processor_seconds: float
    bytes_sent: int
    bytes_of_ensemble: int
    peak_mib: float


def random_unigrams(q: int, outcomes: int) -> EnsembleModel:
    """Returns q distributions over so many outcomes, mixed."""
    scores = np.random.default_rng(0).normal(size=[q, outcomes]).astype(np.float32)
    return ensemble(unigram_model(outcomes), [ModelWeights([row], []) for row in scores])


def random_clients(number: int, words: int, outcomes: int) -> list[Examples]:
    """Returns clients of so many words each."""
    ids = np.random.default_rng(1).integers(outcomes, size=[number, words]).astype(np.int32)
    domain = np.zeros([words], np.int32)
    return [{"x": row, "y": row, "domain_id": domain} for row in ids]


def cost(settings: argparse.Namespace, q: int) -> Cost:
    """Returns what rounds with all clients cost, with so many predictors."""
    model = random_unigrams(q, settings.outcomes)
    clients = random_clients(settings.clients, settings.words, settings.outcomes)
    spec = ALGORITHMS["fed_boost"]
    algorithm = spec.build(Problem(model, ("all",), 0), spec.options(budget=settings.budget))
    took = []
    with CohortRuntime(RuntimeOptions(client_mode=settings.client_mode)) as runtime:
        training = runtime.training(algorithm, PlainSum())
        state = training.initialize()
        for _ in range(settings.rounds + 1):
            started = time.perf_counter(), time.process_time()
            state, report = training.next(state, clients)
            took.append((time.perf_counter() - started[0], time.process_time() - started[1]))
    seconds, processor_seconds = np.median(took[1:], axis=0)
    sent = report["predictors"]
    return Cost(
        float(seconds),
        float(processor_seconds),
        int(sent["bytes_sent"]),
        int(sent["bytes_of_ensemble"]),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def _costs(settings: argparse.Namespace) -> list[Cost]:
    if len(settings.predictors) == 1:
        return [cost(settings, settings.predictors[0])]
    context = multiprocessing.get_context("spawn")
    found = []
    for q in settings.predictors:
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as process:
            found.append(process.submit(cost, settings, q).result())
    return found


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Prints a row for each number of predictors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predictors", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--outcomes", type=int, default=10_000)
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--client_mode", choices=list(CLIENT_MODES), default="auto")
    settings = parser.parse_args(argv)
    rows = [[q, *found] for q, found in zip(settings.predictors, _costs(settings))]
    headers = [
        "q",
        "seconds a round",
        "of processors",
        "bytes sent",
        "bytes of all",
        "MiB of the process",
    ]
    print(tabulate(rows, headers=headers, floatfmt=("d", ".2f", ".2f", "d", "d", ".0f")))


if __name__ == "__main__":
    main()
