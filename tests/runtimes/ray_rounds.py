"""Rounds for tests of the Ray runtime, and a script that runs them in the cohort runtime.

The script's arguments are a file for the results, and cases as MODE-AGGREGATION-ALGORITHM. It runs
in a separate process, since equal bits need one thread per operation, and TensorFlow accepts this
setting only before its first operation.
"""

import functools
import pickle
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.support.algorithms import build
from tests.support.clients import random_client
from tests.support.comparing import to_numpy
from tests.support.options import make_options
from tests.support.rounds import run_rounds
from tff_agnostic.computations import Algorithm, PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.models import Model, logistic_regression

NUM_DOMAINS = 3
# Numbers of features and classes of a model that runs vectorised by default, and of a larger model
# that runs streamed.
_SIZES = {"vectorised": (4, 3), "streamed": (400, 300)}
OPTIONS: Mapping[str, Any] = {"max_clients_in_step": 2}
_AGGREGATIONS = {
    "plain": PlainSum(),
    "secure": SecureSum(make_options(SecureSumOptions, limit_examples=50)),
}
# Algorithms by mode and aggregation. The algorithm with secure sums has two steps.
_ALGORITHMS = {
    ("vectorised", "plain"): "agnostic_fed_avg",
    ("vectorised", "secure"): "above_mean",
    ("streamed", "plain"): "stochastic_afl",
}
# Baselines of excess losses, some above and some below the losses.
_SETTINGS: Mapping[str, Any] = {"agnostic_fed_avg": {"lambda_baselines": (0.9, 0.0, 2.0)}}
CASES = tuple((*case, algorithm) for case, algorithm in _ALGORITHMS.items())
# Cases whose model is an ensemble, with messages unlike those of other models.
ENSEMBLE_CASES = (
    ("vectorised", "plain", "fed_boost"),
    ("vectorised", "secure", "afl_boost"),
    ("streamed", "plain", "afl_boost"),
)


@functools.cache
def model(mode: str) -> Model:
    """Returns the model that runs in a mode by default, cached so that tests share its traces."""
    return logistic_regression(*_SIZES[mode])


@functools.cache
def _algorithm(mode: str, name: str) -> Algorithm:
    settings = _SETTINGS.get(name, {})
    return build(name, model(mode), NUM_DOMAINS, client_learning_rate=0.5, **settings)


def training(runtime: Any, mode: str, aggregation: str = "plain", algorithm: str = "") -> Any:
    """Returns the training of a mode's model, by default with the algorithm in `_ALGORITHMS`."""
    name = algorithm or _ALGORITHMS[mode, aggregation]
    return runtime.training(_algorithm(mode, name), _AGGREGATIONS[aggregation])


def cohort(mode: str, num: int, size: int = 20) -> list[dict[str, np.ndarray]]:
    """Returns clients with between size / 2 and `size` examples."""
    rng = np.random.default_rng(num)
    sizes = rng.integers(size // 2, size, num)
    return [random_client(rng, int(n), range(NUM_DOMAINS), *_SIZES[mode]) for n in sizes]


def leaves(state: Any) -> list[np.ndarray]:
    """Returns the arrays of a structure."""
    import tensorflow as tf

    return [np.asarray(leaf) for leaf in tf.nest.flatten(to_numpy(state))]


def three_rounds(rounds: Any, mode: str) -> list[np.ndarray]:
    """Runs three rounds; returns the arrays of the last state and of all metrics."""
    return leaves(run_rounds(rounds, [cohort(mode, num) for num in (9, 5, 12)]))


def evaluated(runtime: Any, mode: str) -> list[np.ndarray]:
    """Evaluates two models on clients in two parts, and returns the results' arrays."""
    evaluate = runtime.evaluation(model(mode), NUM_DOMAINS, PlainSum())
    initial = model(mode).initial_weights
    other = initial._replace(trainable=[np.full_like(w, 0.25) for w in initial.trainable])
    return leaves(evaluate.for_each([initial, other], [cohort(mode, 7), cohort(mode, 4)]))


if __name__ == "__main__":
    from tff_agnostic.runtimes.cohort import CohortRuntime
    from tff_agnostic.runtimes.options import CohortOptions

    path, *chosen = sys.argv[1:]
    cases = [tuple(case.split("-")) for case in chosen]
    with CohortRuntime(CohortOptions(**OPTIONS)) as running:
        results: dict[Any, Any] = {
            case: three_rounds(training(running, *case), case[0]) for case in cases
        }
        results["evaluation"] = evaluated(running, "vectorised")
    with open(path, "wb") as file:
        pickle.dump(results, file)
