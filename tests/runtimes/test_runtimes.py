"""Every runtime keeps the contract of `Runtime`: results, arguments, failures and memory."""

import gc
import os

import grpc
import numpy as np
import pytest
import tensorflow as tf

from tests.runtimes.processes import resident_mb
from tests.support.algorithms import build
from tests.support.clients import cohort, empty_client, random_client
from tests.support.comparing import assert_identical
from tests.support.models import random_weights
from tests.support.processes import child_processes
from tests.support.rounds import run_rounds
from tests.support.runtimes import running_runtimes
from tff_agnostic.base.errors import ExecutionError
from tff_agnostic.computations import PlainSum, RunState
from tff_agnostic.computations.evaluation import EvaluationOutput
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.runtimes.registry import RUNTIMES

_MODEL = logistic_regression(4, 3)
_WEIGHTS = random_weights(2)
_CLIENTS = cohort(2, sizes=(9, 1, 30, 4, 13))


@pytest.fixture(scope="module", params=["tff", "streamed", "vectorised"])
def runtime(request):
    with running_runtimes(request) as get:
        yield get(request.param)


@pytest.fixture(scope="module")
def training(runtime):
    return runtime.training(build("agnostic_fed_avg"), PlainSum())


@pytest.fixture(scope="module")
def plain(runtime):
    return runtime.evaluation(_MODEL, 3, PlainSum())


@pytest.mark.nightly
def test_empty_cohort_sums_to_zeros(training, plain):
    """The first cohort is empty, so that no client's work has been traced."""
    state = training.initialize()
    after, report = training.next(state, [])
    assert_identical(after.algorithm, state.algorithm)
    assert sum(report["clients"].values()) == 0
    output = plain(_WEIGHTS, []).output
    assert all(np.all(leaf == 0) for leaf in tf.nest.flatten(output))


@pytest.mark.nightly
def test_results_are_numpy_arrays(training, plain):
    state, report = training.next(training.initialize(), [*cohort(), empty_client()])
    output = plain(_WEIGHTS, [_CLIENTS]).output
    assert isinstance(state, RunState)
    assert isinstance(state.algorithm.weights, ModelWeights)
    assert isinstance(output, EvaluationOutput)
    leaves = tf.nest.flatten((training.initialize(), state, report, output))
    assert all(isinstance(leaf, (np.ndarray, np.generic)) for leaf in leaves)


@pytest.mark.nightly
def test_column_order_does_not_matter(training):
    state = training.initialize()
    reordered = [{key: c[key] for key in ("domain_id", "y", "x")} for c in cohort()]
    with_extra = [{**c, "comment": np.array(["of", "any", "type"])} for c in cohort()]
    expected = training.next(state, cohort())
    assert_identical(training.next(state, reordered), expected)
    assert_identical(training.next(state, with_extra), expected)


@pytest.mark.nightly
def test_rounds_do_not_change_their_arguments(training):
    state, clients = training.initialize(), cohort()
    copies = tf.nest.map_structure(np.copy, (state, clients))
    training.next(state, clients)
    assert_identical((state, clients), copies)


@pytest.mark.nightly
def test_evaluations_between_rounds_keep_results(training, plain):
    expected, _ = run_rounds(training, [cohort(0), cohort(1)])
    state = training.initialize()
    for seed in range(2):
        plain(state.algorithm.weights, [cohort(7)])
        state, _ = training.next(state, cohort(seed))
    assert_identical(state, expected)


@pytest.mark.slow
def test_runtime_survives_failing_round(training):
    state, clients = training.initialize(), cohort()
    expected = training.next(state, clients)
    # Domain 99 is out of range.
    wrong = {**clients[0], "domain_id": np.full(len(clients[0]["y"]), 99, np.int32)}
    with pytest.raises((tf.errors.InvalidArgumentError, grpc.RpcError)):
        training.next(state, [*clients, wrong])
    assert_identical(training.next(state, clients), expected)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["cohort", "tff"])
def test_prepared_rounds_run_only_inside_the_runtime(name):
    """A prepared round also runs after the runtime has been entered again."""
    runtime = RUNTIMES[name].build(RUNTIMES[name].options())
    training = runtime.training(build("agnostic_fed_avg"), PlainSum())
    evaluation = runtime.evaluation(_MODEL, 3, PlainSum())
    results = []
    for _ in range(2):
        with runtime:
            results.append(run_rounds(training, [cohort()]))
    assert_identical(*results)
    state, _ = results[0]
    # TFF's default context would start a worker that never exits.
    computed_by_tff = (training.initialize,) if name == "tff" else ()
    for call in (
        *computed_by_tff,
        lambda: training.next(state, cohort()),
        lambda: training.next(state, []),
        lambda: evaluation(_WEIGHTS, [_CLIENTS]),
    ):
        with pytest.raises(ExecutionError, match=r"is not running$"):
            call()


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_rounds(runtime):
    """Leaked states would add 16 MB per 40 rounds, and leaked examples 38 MB.

    A leak adds memory in each quarter of the rounds; an allocator's reserve grows in only one.
    """
    rng = np.random.default_rng(0)
    clients = [random_client(rng, 60, range(3), 2000, 50) for _ in range(4)]
    model = logistic_regression(2000, 50)
    training = runtime.training(build("agnostic_fed_avg", model), PlainSum())
    evaluate = runtime.evaluation(model, 3, PlainSum())
    state = training.initialize()
    processes, sizes = [os.getpid(), *child_processes(os.getpid())], []
    for _ in range(4):
        for _ in range(40):
            state, _ = training.next(state, clients)
        evaluate(state.algorithm.weights, [clients])
        gc.collect()
        sizes.append([resident_mb(process) for process in processes])
    assert max(np.min(np.diff(sizes, axis=0), axis=0)) < 8
