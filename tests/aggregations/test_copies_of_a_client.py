"""Clients that hold the same examples add separate noise, in shards of a cohort."""

from typing import Any

import numpy as np
import pytest

from tests.aggregations.sums import LIMITS, private_sum
from tests.computations.harness import make_client, run_rounds
from tests.options import make_options
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.models import logistic_regression
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.options import CohortOptions

_COPIES, _ROUNDS = 9, 10


@pytest.mark.slow
def test_noise_of_copies_has_the_variance_of_clients():
    """Copies with one noise among them would have their number times as much variance."""
    inner = SecureSum(make_options(SecureSumOptions, **LIMITS, secure_min_clients=1))
    # Three steps in the bound: whole numbers of noise are small ones.
    settings: dict[str, Any] = {"integer_clip": 3.0, "clip_norm": 0.1}
    aggregation = private_sum("distributed", inner, 2.0, float(_COPIES), **settings)
    # Steps are divided by a number of examples that is public, and not by a noisy sum.
    problem = Problem(logistic_regression(31, 16), ("0", "1", "2"), 0, (float(_COPIES),) * 3)
    spec = ALGORITHMS["fed_avg"]
    algorithm = spec.build(problem, make_options(spec.options, client_learning_rate=1e-9))
    client = make_client(np.ones([3, 31]), [0, 1, 2], [0, 1, 2])
    # Shards of four: a client's number in its shard is not its number in the cohort.
    options = CohortOptions(client_mode="vectorised", max_clients_in_step=4)
    with CohortRuntime(options) as runtime:
        training = runtime.training(algorithm, aggregation)
        variance = {}
        for size in (1, _COPIES):
            state, steps = training.initialize(), []
            for _ in range(_ROUNDS):
                before = state
                state, _ = run_rounds(training, [[client] * size], before)
                moved = [w - v for w, v in zip(_weights(state), _weights(before))]
                steps.append(np.concatenate([np.ravel(part) for part in moved]))
            variance[size] = np.var(steps)
            assert variance[size] > 0
    # Of 5,120 draws each: a standard error of 3%.
    assert variance[_COPIES] / variance[1] == pytest.approx(_COPIES, rel=0.15)


def _weights(state: Any) -> list[np.ndarray]:
    return [np.asarray(weight) for weight in state.algorithm.weights.trainable]
