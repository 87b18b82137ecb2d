"""Devices, lanes (threads with a device each), cohorts' shards, and numbers of traces."""

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support import golden
from tests.support.algorithms import build
from tests.support.clients import cohort
from tests.support.comparing import assert_identical
from tests.support.marks import usually
from tests.support.options import options_in_mode
from tff_agnostic.base.later import tf
from tff_agnostic.computations import PlainSum
from tff_agnostic.computations.round import Round, traced_specs
from tff_agnostic.models import Model, logistic_regression
from tff_agnostic.runtimes.client_work import ClientWork, CompiledClientWork
from tff_agnostic.runtimes.cohort import CohortRuntime
from tff_agnostic.runtimes.devices import (
    DEVICES,
    MAX_STREAMED_SHARDS,
    DeviceThreads,
    default_num_lanes,
    one_thread_per_operation,
    streamed_shards,
    sum_in_order,
    vectorised_shards,
)
from tff_agnostic.runtimes.options import CohortOptions

_CPU = "/device:CPU:0"
_TIMEOUT_SECONDS = 60.0


@pytest.fixture(params=[1, 2, 5])
def lanes(request):
    lanes = DeviceThreads([_CPU], request.param)
    yield lanes
    lanes.close()


def test_results_have_the_items_order(lanes):
    assert list(lanes.map_in_order(lambda k: k, [])) == []
    assert list(lanes.map_in_order(lambda k: k * k, range(50))) == [k * k for k in range(50)]


def test_result_order_ignores_completion_order():
    """The first item finishes only after the last item, which the other lane runs."""
    lanes, last_is_done = DeviceThreads([_CPU], 2), threading.Event()

    def fn(k: int) -> int:
        if k == 0:
            assert last_is_done.wait(_TIMEOUT_SECONDS)
        if k == 3:
            last_is_done.set()
        return k

    assert list(lanes.map_in_order(fn, range(4))) == [0, 1, 2, 3]
    lanes.close()


def test_exception_is_raised_when_its_item_is_due(lanes):
    def fn(k: int) -> int:
        if k == 3:
            raise KeyError("three")
        return k

    result = []
    with pytest.raises(KeyError, match="three"):
        for value in lanes.map_in_order(fn, range(100)):
            result.append(value)
    assert result == [0, 1, 2]
    assert list(lanes.map_in_order(lambda k: k, range(9))) == list(range(9))


def test_exception_cancels_pending_items(lanes):
    seen = []

    def fn(k: int) -> None:
        seen.append(k)
        raise ValueError(k)

    with pytest.raises(ValueError, match="0"):
        list(lanes.map_in_order(fn, range(1000)))
    lanes.close()
    assert len(seen) <= 2 * lanes.num_lanes


def test_items_are_taken_lazily(lanes):
    """At most twice as many items as lanes are in memory."""
    taken = []

    def items():
        for k in range(40):
            taken.append(k)
            yield k

    for done, _ in enumerate(lanes.map_in_order(lambda k: k, items()), start=1):
        assert len(taken) <= done + 2 * lanes.num_lanes


@pytest.mark.slow
def test_running_items_do_not_exceed_lanes(lanes):
    lock, running, most = threading.Lock(), [0], [0]

    def fn(_: int) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        tf.reduce_sum(tf.random.stateless_normal([1000], [1, 2]))
        with lock:
            running[0] -= 1

    list(lanes.map_in_order(fn, range(60)))
    assert 1 <= most[0] <= lanes.num_lanes


def test_all_lanes_run_at_once():
    """Each item waits for the other items, so with fewer lanes the test would hang."""
    lanes, barrier = DeviceThreads([_CPU], 3), threading.Barrier(3)
    list(lanes.map_in_order(lambda _: barrier.wait(_TIMEOUT_SECONDS), range(3)))
    lanes.close()


def test_lanes_share_devices_evenly(monkeypatch):
    entered = threading.local()

    @contextlib.contextmanager
    def device(name: str) -> Iterator[None]:
        entered.device = name
        yield

    monkeypatch.setattr(tf, "device", device)
    lanes, barrier = DeviceThreads(["first", "second"], 4), threading.Barrier(4)

    def lane_and_device(_: int) -> tuple[str, str]:
        barrier.wait(_TIMEOUT_SECONDS)
        return threading.current_thread().name, entered.device

    before, after = (dict(lanes.map_in_order(lane_and_device, range(4))) for _ in range(2))
    assert before == after
    assert sorted(before.values()) == ["first", "first", "second", "second"]
    lanes.close()


def test_closing_lanes_ends_their_threads():
    lanes = DeviceThreads([_CPU], 3)
    used = set(lanes.map_in_order(lambda _: threading.current_thread(), range(10)))
    lanes.close()
    assert not any(thread.is_alive() for thread in used)
    with pytest.raises(RuntimeError):
        list(lanes.map_in_order(lambda k: k, [1]))


def test_default_lanes_follow_devices(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    assert default_num_lanes(["/device:CPU:0"]) == 3
    assert default_num_lanes([f"/device:CPU:{k}" for k in range(5)]) == 5
    assert default_num_lanes(["/device:GPU:0"]) == 2
    assert default_num_lanes(["/device:GPU:0", "/device:GPU:1"]) == 4


def _pretend(monkeypatch, *names: str) -> None:
    devices = [SimpleNamespace(name=name, device_type=name.split(":")[1]) for name in names]
    monkeypatch.setattr(
        tf.config,
        "list_logical_devices",
        lambda kind=None: [d for d in devices if kind in (None, d.device_type)],
    )


def test_auto_selects_all_gpus_or_the_cpu(monkeypatch):
    cpu, gpus = "/device:CPU:0", [f"/device:GPU:{k}" for k in range(2)]
    _pretend(monkeypatch, cpu)
    assert DEVICES["auto"]() == [cpu]
    _pretend(monkeypatch, cpu, *gpus)
    assert DEVICES["auto"]() == DEVICES["gpu"]() == gpus
    assert DEVICES["cpu"]() == [cpu]
    # Auto never selects a TPU, which needs XLA.
    _pretend(monkeypatch, cpu, "/device:TPU:0")
    assert DEVICES["auto"]() == [cpu]
    assert DEVICES["tpu"]() == ["/device:TPU:0"]


@pytest.mark.parametrize(
    ("kind", "hint"),
    [("gpu", 'a driver and "pip install tensorflow[and-cuda]=='), ("tpu", "only on its host")],
)
def test_absent_device_names_available_ones(monkeypatch, kind, hint):
    _pretend(monkeypatch, "/device:CPU:0", "/device:CPU:1")
    message = golden.refusal(DEVICES[kind])
    assert message.startswith(f"device: expected a {kind.upper()} that TensorFlow sees, found only")
    assert hint in message


def test_late_thread_setting_is_ignored():
    tf.zeros([1])
    before = tf.config.threading.get_intra_op_parallelism_threads()
    one_thread_per_operation()
    assert tf.config.threading.get_intra_op_parallelism_threads() == before


def test_values_are_summed_from_left_to_right():
    assert sum_in_order("abcd", lambda a, b: f"({a}{b})") == "(((ab)c)d)"
    assert sum_in_order([3], lambda a, b: a + b) == 3
    assert sum_in_order([], lambda a, b: a + b) is None


# --- Tests of how cohorts are divided into shards


# A shard may have this many rows of padding, or this fraction of its rows if that is more.
_FREE_ROWS, _MAX_FRACTION = 2048, 0.25


def _random_sizes(seed: int) -> list[int]:
    """Returns random sizes of a cohort's clients, which can be empty, equal or very different."""
    rng = np.random.default_rng(seed)
    sizes = rng.lognormal(mean=rng.uniform(0, 6), sigma=rng.uniform(0, 2), size=rng.integers(1, 90))
    return [int(size) for size in sizes]


_SIZES = [
    *map(_random_sizes, range(40)),
    [0],
    [0, 0, 0],
    [7] * 50,
    [100_000, 1, 1, 1],
    list(range(200)),
    [],
]


def _padding(sizes: list[int], shard: tuple[int, ...]) -> tuple[int, int]:
    """Returns the numbers of padding rows and of all rows in a shard."""
    rows = [sizes[k] for k in shard]
    return max(rows) * len(rows) - sum(rows), max(rows) * len(rows)


@pytest.mark.parametrize("max_clients", [1, 2, 7, 256])
def test_vectorised_shards_contain_each_client_within_bounds(max_clients):
    for sizes in _SIZES:
        shards = vectorised_shards(sizes, max_clients)
        # Clients are sorted by size, so that similar sizes share a shard.
        in_order = [k for shard in shards for k in shard]
        assert sorted(in_order) == list(range(len(sizes)))
        assert [sizes[k] for k in in_order] == sorted(sizes, reverse=True)
        for shard in shards:
            assert 1 <= len(shard) <= max_clients
            padding, rows = _padding(sizes, shard)
            assert padding <= max(_FREE_ROWS, _MAX_FRACTION * rows)


def test_vectorised_shards_are_few_and_nearly_equal():
    assert [len(shard) for shard in vectorised_shards([10] * 10, 4)] == [4, 4, 2]
    assert [len(shard) for shard in vectorised_shards([10] * 9, 8)] == [5, 4]
    assert [len(shard) for shard in vectorised_shards([10] * 8, 8)] == [8]
    # Next to a client with 100,000 rows, each small client would add 99,999 rows of padding.
    assert vectorised_shards([1, 100_000, 1, 1], 4) == [(1,), (0, 2, 3)]
    # Equal sizes keep the cohort's order.
    assert vectorised_shards([5, 9, 5, 9], 2) == [(1, 3), (0, 2)]


@pytest.mark.parametrize("num_clients", [0, 1, 2, 31, 32, 33, 100, 10_000])
def test_streamed_shards_keep_order_and_are_even(num_clients):
    shards = streamed_shards(num_clients)
    assert [k for shard in shards for k in shard] == list(range(num_clients))
    lengths = [len(shard) for shard in shards]
    assert len(shards) == min(num_clients, MAX_STREAMED_SHARDS)
    assert max(lengths, default=0) - min(lengths, default=0) <= 1


def test_shards_contain_python_integers():
    """The integers are sent to workers and used as indices of lists."""
    for shards in (streamed_shards(3), vectorised_shards([1, 2, 3], 2)):
        assert {type(k) for shard in shards for k in shard} == {int}


# --- The cohort runtime traces equal work once


def _counting_model(num_classes: int = 3) -> tuple[Model, list[int]]:
    """Returns a model, and a list that grows with each trace of its predictions."""
    model, traces = logistic_regression(4, num_classes), []

    def predict(*arguments: Any) -> Any:
        traces.append(1)
        return model.predict(*arguments)

    return dataclasses.replace(model, predict=predict), traces


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["auto", "streamed", "vectorised"])
def test_rounds_and_evaluations_are_traced_once(mode):
    model, traces = _counting_model()
    with CohortRuntime(options_in_mode(mode, 3)) as runtime:
        training = runtime.training(build("agnostic_fed_avg", model), PlainSum())
        evaluate = runtime.evaluation(model, 3, PlainSum())

        def run(state: Any, *sizes: int) -> Any:
            clients = cohort(sizes=sizes)
            evaluate(state.algorithm.weights, [clients])
            return training.next(state, clients)[0]

        state = run(training.initialize(), 5)
        first = len(traces)
        assert first > 0
        for sizes in ((5,), (7, 1), (0,), (), (100, 3, 3, 20, 1), tuple(range(40))):
            state = run(state, *sizes)
        assert len(traces) == first


@pytest.mark.nightly
@pytest.mark.parametrize(("num_classes", "is_kept"), [(3, True), (300_000, False)])
def test_small_models_are_traced_once_per_process(num_classes, is_kept):
    model, traces = _counting_model(num_classes)
    counts = []
    for _ in range(2):
        with CohortRuntime(CohortOptions(client_mode="streamed")) as runtime:
            training = runtime.training(build("agnostic_fed_avg", model), PlainSum())
            training.next(training.initialize(), cohort(sizes=(5,)))
        counts.append(len(traces))
    assert counts[0] > 0
    assert (counts[1] == counts[0]) == is_kept


@pytest.mark.slow
def test_algorithms_with_different_lambda_rates_share_a_trace():
    model, traces = _counting_model()
    lambdas, counts = [], []
    with CohortRuntime(CohortOptions(client_mode="streamed")) as runtime:
        for rate in (0.1, 0.4):
            algorithm = build("agnostic_fed_avg", model, lambda_learning_rate=rate)
            training = runtime.training(algorithm, PlainSum())
            state = training.initialize()
            # The losses of the initial model are equal in all domains.
            for _ in range(2):
                state, _ = training.next(state, cohort(sizes=(9, 7)))
            lambdas.append(state.algorithm.memory.lambda_)
            counts.append(len(traces))
    assert counts[0] == counts[1] > 0
    assert np.any(lambdas[0] != lambdas[1])


# Each algorithm has a different kind of client work.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    usually(["agnostic_fed_avg"], ["agnostic_fed_avg", "fed_avg_sub", "q_ffl", "stochastic_afl"]),
)
def test_trials_share_a_trace(name):
    model, traces = _counting_model()
    with CohortRuntime(CohortOptions(client_mode="streamed")) as runtime:

        def weights_and_traces(**settings: Any) -> tuple[Any, int]:
            before = len(traces)
            algorithm = build(name, model, client_shuffle=False, cohort_share=1.0, **settings)
            training = runtime.training(algorithm, PlainSum())
            state, _ = training.next(training.initialize(), cohort(sizes=(9, 7)))
            return state.algorithm.weights, len(traces) - before

        first, num_first = weights_and_traces()
        assert num_first > 0
        again, num_again = weights_and_traces(seed=5)
        assert num_again == 0
        # Without shuffling and sampling, the seed does not change results.
        assert_identical(again, first)
        # Each algorithm has one of these two settings, which change its trace.
        other, num_other = weights_and_traces(client_learning_rate=1.0, sample_size=3)
        assert num_other > 0
        assert not np.allclose(other.trainable[0], first.trainable[0])


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["streamed", "vectorised"])
def test_simultaneous_threads_trace_once(mode):
    """Keras layers and TensorFlow's vectoriser are not thread-safe, so only one lane may trace."""
    model, traces = _counting_model()
    compiled = []

    def num_traces(num_threads: int) -> int:
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

    alone = num_traces(1)
    assert alone > 0
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert num_traces(16) == alone
    finally:
        sys.setswitchinterval(switch)
    assert [len(functions) for functions in compiled] == [1, 1]
