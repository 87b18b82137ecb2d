"""The TFF runtime: contexts, and a worker that dies or has ended."""

import os
import signal
import threading

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.support.clients import random_client
from tff_agnostic.algorithms import build_agnostic_fed_avg
from tff_agnostic.models import logistic_regression
from tff_agnostic.runtimes.tff import TffRuntime, TffWorker, create_context


def test_runtime_restores_previous_context():
    stack = tff.framework.get_context_stack()
    before = stack.current
    with TffRuntime():
        assert stack.current is not before
    assert stack.current is before


@pytest.mark.nightly
def test_killed_worker_raises_error():
    """TFF itself would send requests to the dead worker forever."""
    context_stack, rng = tff.framework.get_context_stack(), np.random.default_rng(0)
    cohort = [random_client(rng, int(size), range(3)) for size in rng.integers(1, 300, 40)]
    with TffWorker() as worker, context_stack.install(create_context(worker)):
        process = build_agnostic_fed_avg(logistic_regression(4, 3), 3)
        state = process.initialize()
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
