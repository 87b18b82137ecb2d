"""Compares the times of rounds of Stochastic-AFL with the per-domain and the weighted gradient.

    .venv/bin/python -m benchmarks.gradient_cost

Rounds with either gradient alternate in one process, on the same clients. The result is the ratio
of their times.
"""

import dataclasses
import time

import numpy as np
from tabulate import tabulate

from benchmarks.timing.workloads import logistic, make_clients
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.algorithms import Problem
from tff_agnostic.algorithms.saddle_point import all_domains, drawn_by_lambda
from tff_agnostic.algorithms.stochastic_afl import StochasticAflOptions, stochastic_afl
from tff_agnostic.models import logistic_regression
from tff_agnostic.runtimes.cohort import CohortRuntime

_CLIENTS, _EXAMPLES = 100, 200
_DOMAINS = (2, 10, 100)
_ROUNDS, _WARM = 60, 5
_GRADIENTS = {"per_domain": all_domains, "weighted": drawn_by_lambda}


def seconds(num_domains: int, runtime: CohortRuntime) -> dict[str, np.ndarray]:
    """Returns each round's seconds, keyed by the gradient's name."""
    workload = dataclasses.replace(logistic(_CLIENTS, num_domains), examples=_EXAMPLES)
    cohort = make_clients(workload)
    names = tuple(map(str, range(num_domains)))
    counts = (_CLIENTS * _EXAMPLES / num_domains,) * num_domains
    (num_features,) = workload.features
    model = logistic_regression(num_features, workload.classes)
    problem = Problem(model, names, 0, counts)
    trainings, states = {}, {}
    for gradient, estimate in _GRADIENTS.items():
        algorithm = stochastic_afl(problem, StochasticAflOptions(), weights_gradient=estimate)
        trainings[gradient] = runtime.training(algorithm, PlainSum())
        states[gradient] = trainings[gradient].initialize()
    took: dict[str, list[float]] = {gradient: [] for gradient in _GRADIENTS}
    for turn in range(_WARM + _ROUNDS):
        for gradient in np.roll(list(_GRADIENTS), turn):
            start = time.perf_counter()
            states[gradient], _ = trainings[gradient].next(states[gradient], cohort)
            took[gradient].append(time.perf_counter() - start)
    return {gradient: np.array(times[_WARM:]) for gradient, times in took.items()}


def main() -> None:
    """Prints the ratio of the median times, and quartiles of the ratios of paired rounds."""
    rows = []
    with CohortRuntime() as runtime:
        for num_domains in _DOMAINS:
            took = seconds(num_domains, runtime)
            ratios = took["per_domain"] / took["weighted"]
            medians = np.median(took["per_domain"]) / np.median(took["weighted"])
            low, high = np.percentile(ratios, [25, 75])
            rows.append([num_domains, f"{medians:.2f}", f"{low:.2f} to {high:.2f}"])
    headers = ["domains", "per-domain / weighted, medians", "middle half of the pairs of rounds"]
    print(tabulate(rows, headers=headers, tablefmt="github", disable_numparse=True))


if __name__ == "__main__":
    main()
