"""Rounds that tests of the ray runtime compare between processes; run, it writes the cohort's.

The cohort runtime's bits are those of a process that runs each operation in one thread, which
TensorFlow has to be told before its first operation: in a test's own process it is too late.
"""

import pickle
import sys
from typing import Any

import numpy as np

from tests.algorithms.cases import build
from tests.computations.harness import random_client, run_rounds, to_numpy
from tff_agnostic.computations import PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.models import logistic_regression

NUM_DOMAINS = 3
# Features and classes: a model that is run in step, and one that is large enough to be streamed.
SIZES = {"vectorised": (4, 3), "streamed": (400, 300)}
# With the numbers of workers that are compared: those cost seconds, for each to load what it runs.
CASES = {
    ("vectorised", "plain"): (1, 4),
    ("vectorised", "secure"): (2,),
    ("streamed", "plain"): (1, 2, 4),
    ("streamed", "secure"): (2,),
}
OPTIONS = {"max_clients_in_step": 2}
_AGGREGATIONS = {"plain": PlainSum(), "secure": SecureSum(SecureSumOptions(max_examples=50))}


def training(runtime: Any, mode: str, aggregation: str = "plain") -> Any:
    """Prepares rounds of a model which runs in a mode by default."""
    model = logistic_regression(*SIZES[mode])
    algorithm = build("agnostic_fed_avg", model, NUM_DOMAINS, client_learning_rate=0.5)
    return runtime.training(algorithm, _AGGREGATIONS[aggregation])


def cohort(mode: str, num: int, size: int = 20) -> list[dict[str, np.ndarray]]:
    """Returns clients of uneven sizes."""
    rng = np.random.default_rng(num)
    sizes = rng.integers(size // 2, size, num)
    return [random_client(rng, int(n), range(NUM_DOMAINS), *SIZES[mode]) for n in sizes]


def leaves(state: Any) -> list[np.ndarray]:
    """Returns the arrays of a structure."""
    import tensorflow as tf

    return [np.asarray(leaf) for leaf in tf.nest.flatten(to_numpy(state))]


def three_rounds(runtime: Any, mode: str, aggregation: str) -> list[np.ndarray]:
    """Returns the arrays of the last state and of all metrics."""
    cohorts = [cohort(mode, num) for num in (9, 5, 12)]
    return leaves(run_rounds(training(runtime, mode, aggregation), cohorts))


if __name__ == "__main__":
    from tff_agnostic.runtimes.cohort import CohortRuntime
    from tff_agnostic.runtimes.options import RuntimeOptions

    with CohortRuntime(RuntimeOptions(**OPTIONS)) as running:
        results = {case: three_rounds(running, *case) for case in CASES}
    with open(sys.argv[1], "wb") as file:
        pickle.dump(results, file)
