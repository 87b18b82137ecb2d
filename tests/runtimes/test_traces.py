"""What the cohort runtime traces, and that it traces nothing twice."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.algorithms.cases import build
from tests.computations.harness import assert_identical, linear_model, random_client
from tff_agnostic.computations import PlainSum
from tff_agnostic.computations.round import Round, traced_specs
from tff_agnostic.models import Model
from tff_agnostic.runtimes.client_work import ClientWork, CompiledClientWork
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.options import RuntimeOptions


def _counting_model() -> tuple[Model, list[int]]:
    """A model that notes when it is traced."""
    model, traces = linear_model(), []

    def predict(weights: Any, x: Any, training: bool, seed: Any) -> Any:
        traces.append(1)
        return model.predict(weights, x, training, seed)

    counting = Model(model.initial_weights, model.example_spec, predict, model.loss)
    return counting, traces


def _scalar_cohort(*sizes: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(sum(sizes))
    columns = [random_client(rng, n, range(3), num_features=1) for n in sizes]
    return [{**c, "x": c["x"][:, 0]} for c in columns]


@pytest.mark.parametrize("mode", ["auto", "streamed", "vectorised"])
def test_no_round_and_no_evaluation_is_traced_again(mode):
    model, traces = _counting_model()
    with CohortRuntime(RuntimeOptions(client_mode=mode, max_clients_in_step=3)) as runtime:
        training = runtime.training(build("agnostic_fed_avg", model), PlainSum())
        evaluate = runtime.evaluation(model, 3, PlainSum())

        def run(state: Any, *sizes: int) -> Any:
            cohort = _scalar_cohort(*sizes)
            evaluate(state.algorithm.weights, [cohort])
            return training.next(state, cohort)[0]

        state = run(training.initialize(), 5)
        first = len(traces)
        assert first > 0
        for sizes in ((5,), (7, 1), (0,), (), (100, 3, 3, 20, 1), tuple(range(40))):
            state = run(state, *sizes)
        assert len(traces) == first


# What clients do, in four ways.
@pytest.mark.parametrize("name", ["agnostic_fed_avg", "fed_avg_sub", "q_ffl", "stochastic_afl"])
def test_trials_share_a_trace_and_algorithms_of_other_parameters_do_not(name):
    model, traces = _counting_model()
    with CohortRuntime(RuntimeOptions(client_mode="streamed")) as runtime:

        def weights_and_traces(**settings: Any) -> tuple[Any, int]:
            before = len(traces)
            algorithm = build(name, model, shuffle=False, cohort_share=1.0, **settings)
            training = runtime.training(algorithm, PlainSum())
            state, _ = training.next(training.initialize(), _scalar_cohort(9, 7))
            return state.algorithm.weights, len(traces) - before

        first, num_first = weights_and_traces()
        assert num_first > 0
        again, num_again = weights_and_traces(seed=5)
        assert num_again == 0
        # Without shuffling, and with all of the cohort, nothing is random.
        assert_identical(again, first)
        # Every algorithm has one of the two.
        other, num_other = weights_and_traces(client_learning_rate=1.0, sample_size=3)
        assert num_other > 0
        assert not np.allclose(other.trainable[0], first.trainable[0])


@pytest.mark.parametrize("mode", ["streamed", "vectorised"])
def test_of_many_threads_that_want_it_at_once_one_traces(mode):
    """Lanes do, and Keras layers and TensorFlow's vectoriser can be traced by one at a time."""
    model, traces = _counting_model()
    compiled = []

    def number_of_traces(num_threads: int) -> int:
        traces.clear()
        round_ = Round(build("agnostic_fed_avg", model), PlainSum())
        state = traced_specs(round_.initialize)
        message = traced_specs(round_.start, state)
        work = CompiledClientWork(
            ClientWork(round_.steps[0].on_clients(), message, round_.client_data_spec)
        )
        begin = threading.Barrier(num_threads)

        def trace(_: int) -> Any:
            begin.wait()
            return getattr(work, mode).traced()

        with ThreadPoolExecutor(num_threads) as threads:
            compiled.append(set(threads.map(trace, range(num_threads))))
        return len(traces)

    alone = number_of_traces(1)
    assert alone > 0
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert number_of_traces(16) == alone
    finally:
        sys.setswitchinterval(switch)
    assert [len(functions) for functions in compiled] == [1, 1]
