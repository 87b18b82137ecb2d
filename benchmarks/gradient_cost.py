"""Times rounds of Stochastic-AFL with the per-domain gradient and with the weighted one.

    .venv/bin/python -m benchmarks.gradient_cost

Rounds of both take turns in one process, on the same clients; the result is their ratio.
"""

import dataclasses

import numpy as np
from tabulate import tabulate

from benchmarks.timing.turns import take_turns, training_turn
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
    """Returns the seconds of each round with each gradient."""
    workload = dataclasses.replace(logistic(_CLIENTS, num_domains), examples=_EXAMPLES)
    cohort = make_clients(workload)
    names = tuple(map(str, range(num_domains)))
    counts = (_CLIENTS * _EXAMPLES / num_domains,) * num_domains
    (num_features,) = workload.features
    model = logistic_regression(num_features, workload.classes)
    problem = Problem(model, names, 0, counts)
    calls = {}
    for gradient, estimate in _GRADIENTS.items():
        algorithm = stochastic_afl(problem, StochasticAflOptions(), weights_gradient=estimate)
        calls[gradient] = training_turn(runtime, algorithm, PlainSum(), cohort)
    took = take_turns(calls, _ROUNDS, _WARM)
    return {gradient: times[:, 0] for gradient, times in took.items()}


def main() -> None:
    """Prints the ratio of the medians, and the quartiles of the ratios of paired rounds."""
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
