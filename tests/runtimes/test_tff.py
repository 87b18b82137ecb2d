"""The TFF runtime: contexts, structures of results, memory, and a worker that dies."""

import os
import signal
import threading

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.runtimes.processes import resident_mb
from tests.support.algorithms import build
from tests.support.clients import random_client
from tests.support.comparing import assert_all_close, assert_identical
from tests.support.rounds import EagerTraining, run_rounds
from tff_agnostic.algorithms import build_agnostic_fed_avg
from tff_agnostic.base.options import Options
from tff_agnostic.computations import PlainSum, RunState
from tff_agnostic.models import logistic_regression
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.runtimes.tff import TffRuntime, TffWorker, create_context


def _algorithm():
    return build("agnostic_fed_avg", client_learning_rate=0.5)


def _cohort(seed: int = 0, num: int = 5, size: int = 12) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [random_client(rng, int(rng.integers(1, size)), range(3)) for _ in range(num)]


@pytest.fixture(scope="module")
def training(tff_runtime):
    """A training that this module shares, since TFF compiles it for seconds."""
    return tff_runtime.training(_algorithm(), PlainSum())


@pytest.mark.nightly
def test_rounds_equal_eager_training(training):
    cohorts = [_cohort(seed, num=1 + seed % 4) for seed in range(6)]
    state, _ = run_rounds(training, cohorts)
    expected, _ = run_rounds(EagerTraining(_algorithm()), cohorts)
    assert_all_close(state, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.nightly
def test_states_are_numpy_named_tuples(training):
    for state in (training.initialize(), training.next(training.initialize(), _cohort())[0]):
        assert isinstance(state, RunState)
        assert isinstance(state.algorithm.weights.trainable[0], np.ndarray)
        assert isinstance(state.algorithm.memory.lambda_, np.ndarray)


@pytest.mark.nightly
def test_column_order_does_not_matter(training):
    state, cohort = training.initialize(), _cohort()
    reordered = [{key: c[key] for key in ("domain_id", "y", "x")} for c in cohort]
    with_extra = [{**c, "comment": np.zeros(3)} for c in cohort]
    expected = training.next(state, cohort)
    assert_identical(training.next(state, reordered), expected)
    assert_identical(training.next(state, with_extra), expected)


def test_runtime_restores_previous_context():
    stack = tff.framework.get_context_stack()
    before = stack.current
    with TffRuntime():
        assert stack.current is not before
    assert stack.current is before


@pytest.mark.nightly
def test_runtime_can_be_entered_again():
    runtime = RUNTIMES["tff"].build(Options())
    states = []
    for _ in range(2):
        with runtime:
            training = runtime.training(_algorithm(), PlainSum())
            states.append(training.next(training.initialize(), _cohort())[0])
    assert_identical(states[0], states[1])


@pytest.mark.nightly
def test_prepared_rounds_do_not_run_after_close():
    """TFF's default context would start a worker that never exits."""
    with TffRuntime() as runtime:
        algorithm = _algorithm()
        training = runtime.training(algorithm, PlainSum())
        evaluation = runtime.evaluation(logistic_regression(4, 3), 3, PlainSum())
        state = training.initialize()
    for call in (
        training.initialize,
        lambda: training.next(state, _cohort()),
        lambda: evaluation(state.algorithm.weights, [_cohort()]),
    ):
        with pytest.raises(RuntimeError, match="TFF's worker is not running"):
            call()


@pytest.mark.nightly
def test_killed_worker_raises_error():
    """TFF itself would send requests to the dead worker forever."""
    with TffWorker() as worker, _installed(worker):
        process = build_agnostic_fed_avg(logistic_regression(4, 3), 3)
        state, cohort = process.initialize(), _cohort(num=40, size=300)
        process.next(state, cohort)
        killer = threading.Timer(0.2, os.kill, (worker.pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(RuntimeError, match=r"TFF's worker has ended \(SIGKILL\)") as error:
            for _ in range(1000):
                process.next(state, cohort)
        assert "\n" not in str(error.value)
        with pytest.raises(RuntimeError, match="TFF's worker has ended"):
            process.next(state, cohort)
        killer.join()


@pytest.mark.nightly
def test_ended_worker_raises_error():
    with TffWorker() as worker:
        context = create_context(worker)
    process = build_agnostic_fed_avg(logistic_regression(4, 3), 3)
    with tff.framework.get_context_stack().install(context):  # noqa: SIM117
        with pytest.raises(RuntimeError, match="TFF's worker is not running"):
            process.initialize()


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_rounds():
    """Leaked states would add 16 MB per 40 rounds, and leaked examples 38 MB.

    A leak adds memory in each quarter of the rounds; an allocator's reserve grows in only one.
    """
    rng = np.random.default_rng(0)
    cohort = [random_client(rng, 60, range(3), num_features=2000, num_classes=50) for _ in range(4)]
    sizes = []
    with TffWorker() as worker, _installed(worker):
        process = build_agnostic_fed_avg(logistic_regression(2000, 50), 3)
        state = process.initialize()
        for _ in range(4):
            for _ in range(40):
                state = process.next(state, cohort).state
            sizes.append([resident_mb(worker.pid), resident_mb(os.getpid())])
    worker_growth, python_growth = np.diff(sizes, axis=0).T
    assert min(worker_growth) < 8
    assert min(python_growth) < 8


def _installed(worker: TffWorker):
    return tff.framework.get_context_stack().install(create_context(worker))
