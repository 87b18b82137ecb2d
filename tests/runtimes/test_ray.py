"""The ray runtime: the cohort runtime's bits, whatever the number of workers and their fate."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tff_agnostic
from tests.computations.harness import run_rounds
from tests.marks import selected
from tests.runtimes.processes import descendants, resident_mb, title, wait_for
from tests.runtimes.ray_rounds import (
    CASES,
    ENSEMBLE_CASES,
    NUM_DOMAINS,
    OPTIONS,
    cohort,
    evaluated,
    leaves,
    model,
    three_rounds,
    training,
)
from tff_agnostic.aggregations.aggregation import PlainSum
from tff_agnostic.errors import ExecutionError, UserError
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.ray import RayRuntime
from tff_agnostic.runtimes.registry import RUNTIMES

ray = pytest.importorskip("ray")
_ROOT = Path(__file__).resolve().parents[2]


def _options(num_workers: int) -> RuntimeOptions:
    # Workers share the CPUs of a small machine.
    return RuntimeOptions(num_workers=num_workers, cpus_per_worker=0.1, **OPTIONS)


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """One Ray, which the runtimes of this module share: starting it takes seconds."""
    with RUNTIMES["ray"](_options(1)):
        yield


@pytest.fixture(scope="module")
def of_three(local_ray: None) -> Iterator[Any]:
    """A runtime of three workers."""
    with RUNTIMES["ray"](_options(3)) as runtime:
        yield runtime


def _cohort_results(folder: Path, cases: tuple[tuple[str, ...], ...]) -> dict:
    path = folder / "results"
    command = [sys.executable, "-m", "tests.runtimes.ray_rounds", str(path), *map("-".join, cases)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(_ROOT)}, check=True)
    return pickle.loads(path.read_bytes())


_USUAL = ("vectorised", "secure", "above_mean")


@pytest.fixture(scope="module")
def cohort_results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict:
    """The cohort's: each case costs seconds of traces, and the usual tests have one."""
    cases = (_USUAL,) if selected(request, "case") == [_USUAL] else CASES
    return _cohort_results(tmp_path_factory.mktemp("cohort"), cases)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id="-".join(case), marks=() if case == _USUAL else pytest.mark.nightly)
        for case in CASES
    ],
)
def test_three_workers_give_the_bits_of_the_cohort_runtime(of_three, cohort_results, case):
    found = three_rounds(training(of_three, *case), case[0])
    _assert_identical(found, cohort_results[case])


@pytest.mark.nightly
def test_ensembles_have_the_bits_of_the_cohort_runtime(of_three, tmp_path):
    expected = _cohort_results(tmp_path, ENSEMBLE_CASES)
    for case in ENSEMBLE_CASES:
        found = three_rounds(training(of_three, *case), case[0])
        _assert_identical(found, expected[case])


@pytest.mark.nightly
def test_an_evaluation_gives_them_too(of_three, cohort_results):
    _assert_identical(evaluated(of_three, "vectorised"), cohort_results["evaluation"])


@pytest.mark.nightly
def test_one_worker_gives_them_too_and_nothing_after_its_end(local_ray, cohort_results):
    with RUNTIMES["ray"](_options(1)) as runtime:
        rounds = training(runtime, "streamed")
        found = three_rounds(rounds, "streamed")
    _assert_identical(found, cohort_results["streamed", "plain", "stochastic_afl"])
    with pytest.raises(ExecutionError, match="the Ray runtime is not running"):
        rounds.next(rounds.initialize(), cohort("streamed", 2))


@pytest.mark.nightly
def test_no_clients_add_up_to_nothing(of_three):
    rounds = training(of_three, "vectorised")
    state, metrics = rounds.next(rounds.initialize(), [])
    assert metrics["clients"]["contributed"] == 0
    initial = rounds.initialize()
    _assert_identical(leaves(state.algorithm.weights), leaves(initial.algorithm.weights))


def _workers(running: bool) -> list[int]:
    # Ray gives a worker the name of what it does.
    name = "ray::RayWorker.run" if running else "ray::RayWorker"
    return [pid for pid in descendants() if title(pid).startswith(name)]


@pytest.mark.nightly
def test_workers_are_as_urgent_as_the_command(of_three):
    three_rounds(training(of_three, "vectorised"), "vectorised")
    own = os.getpriority(os.PRIO_PROCESS, 0)
    found = {os.getpriority(os.PRIO_PROCESS, pid) for pid in _workers(running=False)}
    assert found == {own}


@pytest.mark.nightly
def test_rounds_leave_nothing_in_memory(of_three):
    rounds, clients = training(of_three, "streamed"), cohort("streamed", 6)
    state = rounds.initialize()
    references = ray._private.worker.global_worker.core_worker.get_all_reference_counts
    sizes, counts = [], []

    def is_settled() -> bool:
        """Whether the last 40 rounds left less than their states, which are 20 MB."""
        if len(sizes) < 2:
            return False
        growth = sum(sizes[-1][pid] - sizes[-2][pid] for pid in sizes[-1] if pid in sizes[-2])
        # References to tasks go with a delay.
        return growth < 15 and counts[-1] - counts[-2] < 40

    # Workers take some memory for the first shards that they get, which may be late; a leak shows
    # in every part.
    while not is_settled() and len(sizes) < 10:
        for _ in range(40):
            state, _ = rounds.next(state, clients)
        sizes.append({pid: resident_mb(pid) for pid in [os.getpid(), *_workers(running=False)]})
        wait_for(lambda: not _workers(running=True))
        counts.append(len(references()))
    assert is_settled(), (sizes, counts)


def _signal_one_that_runs(number: int, signalled: list[int]) -> threading.Thread:
    def found_and_signalled() -> bool:
        running = _workers(running=True)
        for pid in running[-1:]:
            os.kill(pid, number)
            signalled.append(pid)
        return bool(running)

    thread = threading.Thread(target=wait_for, args=(found_and_signalled,))
    thread.start()
    return thread


@pytest.mark.nightly
def test_idle_workers_that_are_killed_are_told_and_replaced(of_three):
    """One client keeps one worker busy: no shard tells that the others have died."""
    clients, large = cohort("streamed", 1, size=3000), model("streamed")
    evaluate = of_three.evaluation(large, NUM_DOMAINS, PlainSum())
    evaluate(large.initial_weights, [clients])
    assert wait_for(lambda: len(_workers(running=False)) == 3)
    busy: list[int] = []
    finder = _signal_one_that_runs(0, busy)
    while finder.is_alive():
        evaluate(large.initial_weights, [clients])
    assert len(busy) == 1
    of_three.take_events()
    for pid in set(_workers(running=False)) - set(busy):
        os.kill(pid, signal.SIGKILL)
    events: list[str] = []

    def are_told() -> bool:
        evaluate(large.initial_weights, [clients])
        events.extend(of_three.take_events())
        return len(events) >= 2

    assert wait_for(are_told)
    assert len(events) == 2
    assert all(event.startswith("ray: worker ") and " died" in event for event in events)
    assert wait_for(lambda: len(_workers(running=False)) == 3)


@pytest.fixture(scope="module")
def undisturbed(of_three):
    """A training of three workers, its cohorts, and what they lead to."""
    cohorts = [cohort("streamed", 8, size=300)] * 4
    rounds = training(of_three, "streamed")
    return rounds, cohorts, leaves(run_rounds(rounds, cohorts))


@pytest.mark.slow
def test_workers_that_are_killed_at_work_change_no_bit(of_three, undisturbed):
    rounds, cohorts, expected = undisturbed
    of_three.take_events()
    killed: list[int] = []
    state, metrics = rounds.initialize(), []
    for clients in cohorts:
        killer = _signal_one_that_runs(signal.SIGKILL, killed)
        state, of_round = rounds.next(state, clients)
        killer.join()
        metrics.append(of_round)
    assert len(set(killed)) == len(cohorts)
    _assert_identical(leaves((state, metrics)), expected)
    # The last may have died when its shard was back, which the next round would notice.
    events = of_three.take_events()
    assert len(events) >= len(cohorts) - 1
    assert all(event.startswith("ray: worker ") and "died" in event for event in events)
    assert of_three.take_events() == []


@pytest.mark.slow
def test_a_worker_that_is_slow_does_not_hold_up_the_round(of_three, undisturbed):
    rounds, cohorts, _ = undisturbed
    state = rounds.initialize()
    expected = leaves(rounds.next(state, cohorts[0]))
    of_three.take_events()
    stopped: list[int] = []
    stopper = _signal_one_that_runs(signal.SIGSTOP, stopped)
    try:
        found = leaves(rounds.next(state, cohorts[0]))
        stopper.join()
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    _assert_identical(found, expected)
    assert any("is slow" in event for event in of_three.take_events())
    _assert_identical(leaves(rounds.next(state, cohorts[0])), expected)


@pytest.mark.nightly
def test_more_workers_than_clients_are_an_error(of_three):
    of_three.check_clients_per_round(3)
    with pytest.raises(UserError, match=r"--num_workers=3: .*--clients_per_round=2"):
        of_three.check_clients_per_round(2)
    # A cohort may have fewer by chance.
    rounds = training(of_three, "vectorised")
    state, _ = rounds.next(rounds.initialize(), cohort("vectorised", 2))
    assert state.round_num == 1


@pytest.mark.slow
def test_more_workers_than_there_is_room_for_are_an_error(local_ray):
    options = RuntimeOptions(num_workers=1000, cpus_per_worker=4)
    with pytest.raises(UserError, match=r"--num_workers=1000 of --cpus_per_worker=4.* room for"):
        RUNTIMES["ray"](options).__enter__()
    with pytest.raises(UserError, match=r"--gpus_per_worker=64.* room for 0"):
        RUNTIMES["ray"](RuntimeOptions(gpus_per_worker=64)).__enter__()


@pytest.mark.nightly
def test_a_worker_with_another_version_is_an_error(local_ray, monkeypatch):
    monkeypatch.setattr(tff_agnostic, "__version__", "0.0.7")
    with RUNTIMES["ray"](_options(1)) as runtime:
        rounds = training(runtime, "streamed")
        with pytest.raises(UserError, match=r"has tff_agnostic .*, this process has 0\.0\.7") as e:
            rounds.next(rounds.initialize(), cohort("streamed", 2))
    assert "\n" not in str(e.value)


@pytest.mark.slow
def test_a_worker_that_takes_too_long_to_start_is_an_error(local_ray):
    with RayRuntime(_options(1), start_seconds=0.01) as runtime:
        rounds = training(runtime, "streamed")
        with pytest.raises(ExecutionError, match=r"no Ray worker has started") as e:
            rounds.next(rounds.initialize(), cohort("streamed", 2))
    assert "\n" not in str(e.value)


@pytest.mark.nightly
def test_sigterm_is_left_to_the_training_loop(local_ray):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def _assert_identical(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected)
    for f, e in zip(found, expected):
        np.testing.assert_array_equal(f, e)
