"""Rounds on Ray equal the cohort runtime's rounds bit for bit, even if workers die."""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tff_agnostic
from tests.runtimes.processes import descendants, resident_mb, title, wait_for
from tests.runtimes.ray_rounds import (
    CASES,
    ENSEMBLE_CASES,
    OPTIONS,
    cohort,
    evaluated,
    leaves,
    three_rounds,
    training,
)
from tests.support.comparing import assert_identical
from tests.support.rounds import run_rounds
from tff_agnostic.base.errors import ExecutionError, UserError
from tff_agnostic.runtimes.options import RayOptions
from tff_agnostic.runtimes.registry import RUNTIMES

ray = pytest.importorskip("ray")
from tff_agnostic.runtimes.ray import RayRuntime  # noqa: E402
from tff_agnostic.runtimes.ray_pool import WorkerPool, _room_on  # noqa: E402

_ROOT = Path(__file__).resolve().parents[2]


def _options(num_workers: int) -> RayOptions:
    # Small fractions of CPUs allow several workers on a small machine.
    return RayOptions(num_workers=num_workers, cpus_per_worker=0.1, **OPTIONS)


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """Starts Ray once for this module, since starting takes seconds."""
    with RUNTIMES["ray"].build(_options(1)):
        yield


@pytest.fixture(scope="module")
def runtime(local_ray: None) -> Iterator[Any]:
    """A runtime with three workers."""
    with RUNTIMES["ray"].build(_options(3)) as running:
        yield running


@pytest.fixture(scope="module")
def cohort_results(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The cohort runtime's results, from a process with one thread per operation."""
    path = tmp_path_factory.mktemp("cohort") / "results"
    cases = map("-".join, (*CASES, *ENSEMBLE_CASES))
    command = [sys.executable, "-m", "tests.runtimes.ray_rounds", str(path), *cases]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(_ROOT)}, check=True)
    return pickle.loads(path.read_bytes())


@pytest.mark.nightly
@pytest.mark.parametrize("case", (*CASES, *ENSEMBLE_CASES), ids="-".join)
def test_three_ray_workers_match_cohort_runtime(runtime, cohort_results, case):
    assert_identical(three_rounds(training(runtime, *case), case[0]), cohort_results[case])


@pytest.mark.nightly
def test_ray_evaluation_matches_cohort_runtime(runtime, cohort_results):
    assert_identical(evaluated(runtime, "vectorised"), cohort_results["evaluation"])


@pytest.mark.nightly
def test_one_ray_worker_matches_cohort_runtime(local_ray, cohort_results):
    with RUNTIMES["ray"].build(_options(1)) as one:
        rounds = training(one, "streamed")
        result = three_rounds(rounds, "streamed")
    assert_identical(result, cohort_results["streamed", "plain", "stochastic_afl"])
    with pytest.raises(ExecutionError, match="the Ray runtime is not running"):
        rounds.next(rounds.initialize(), cohort("streamed", 2))


@pytest.mark.nightly
def test_round_without_clients_keeps_weights(runtime):
    rounds = training(runtime, "vectorised")
    initial = rounds.initialize()
    state, metrics = rounds.next(initial, [])
    assert metrics["clients"]["contributed"] == 0
    assert_identical(state.algorithm.weights, initial.algorithm.weights)


def _workers(running: bool) -> list[int]:
    # Ray names a worker's process after its running method.
    name = "ray::RayWorker.run" if running else "ray::RayWorker"
    return [pid for pid in descendants() if title(pid).startswith(name)]


@pytest.mark.nightly
def test_workers_run_at_the_commands_priority(runtime):
    three_rounds(training(runtime, "vectorised"), "vectorised")
    priorities = {os.getpriority(os.PRIO_PROCESS, pid) for pid in _workers(running=False)}
    assert priorities == {os.getpriority(os.PRIO_PROCESS, 0)}


@pytest.mark.nightly
def test_rounds_free_their_memory(runtime):
    rounds, clients = training(runtime, "streamed"), cohort("streamed", 6)
    state = rounds.initialize()
    references = ray._private.worker.global_worker.core_worker.get_all_reference_counts
    sizes, counts = [], []

    def is_settled() -> bool:
        """Returns whether 40 rounds added less memory than their states' 20 MB."""
        if len(sizes) < 2:
            return False
        growth = sum(sizes[-1][pid] - sizes[-2][pid] for pid in sizes[-1] if pid in sizes[-2])
        # Ray drops references to tasks with a delay.
        return growth < 15 and counts[-1] - counts[-2] < 40

    # Memory can still grow when workers get their first shards; with a leak it always grows.
    while not is_settled() and len(sizes) < 10:
        for _ in range(40):
            state, _ = rounds.next(state, clients)
        sizes.append({pid: resident_mb(pid) for pid in [os.getpid(), *_workers(running=False)]})
        wait_for(lambda: not _workers(running=True))
        counts.append(len(references()))
    assert is_settled(), (sizes, counts)


@pytest.fixture(scope="module")
def undisturbed(runtime):
    """A training on three workers, its cohorts, and the arrays of its results."""
    cohorts = [cohort("streamed", 8, size=300)] * 2
    rounds = training(runtime, "streamed")
    return rounds, cohorts, leaves(run_rounds(rounds, cohorts))


def _kill_running_worker(killed: list[int]) -> threading.Thread:
    def has_killed() -> bool:
        running = _workers(running=True)
        for pid in running[-1:]:
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        return bool(running)

    thread = threading.Thread(target=wait_for, args=(has_killed,))
    thread.start()
    return thread


@pytest.mark.slow
def test_results_survive_workers_killed_in_rounds(runtime, undisturbed):
    rounds, cohorts, expected = undisturbed
    runtime.take_events()
    killed: list[int] = []
    state, metrics = rounds.initialize(), []
    for clients in cohorts:
        killer = _kill_running_worker(killed)
        state, report = rounds.next(state, clients)
        killer.join()
        metrics.append(report)
    assert len(set(killed)) == len(cohorts)
    assert_identical(leaves((state, metrics)), expected)
    # If the last worker died after its last shard, only the next round would report it.
    events = runtime.take_events()
    assert len(events) >= len(cohorts) - 1
    assert all(event.startswith("ray: worker ") and " died" in event for event in events)
    assert runtime.take_events() == []


@pytest.mark.slow
def test_results_survive_workers_killed_between_rounds(runtime, undisturbed):
    rounds, cohorts, expected = undisturbed
    state, metrics = rounds.initialize(), []
    for k, clients in enumerate(cohorts):
        state, report = rounds.next(state, clients)
        metrics.append(report)
        for pid in _workers(running=False) if k == 0 else ():
            os.kill(pid, signal.SIGKILL)
    assert_identical(leaves((state, metrics)), expected)
    assert wait_for(lambda: len(_workers(running=False)) == 3)


@pytest.mark.nightly
def test_shard_that_kills_every_worker_raises_error(local_ray):
    pool = WorkerPool(_options(1), start_seconds=120)
    pool.start(1)

    def submit(actor: Any, index: int) -> Any:
        ray.kill(actor)
        # The actor may still answer before it dies.
        with pytest.raises(ray.exceptions.RayActorError):
            while True:
                ray.get(actor.versions.remote())
        return actor.versions.remote()

    try:
        with pytest.raises(ExecutionError, match="died 5 times over the same clients") as error:
            list(pool.results(1, submit))
        assert "\n" not in str(error.value)
        assert len(pool.events) == 5
    finally:
        pool.close()


@pytest.mark.slow
def test_rejects_more_workers_than_clients():
    runtime = RayRuntime(_options(3))
    runtime.check_clients_per_round(3)
    with pytest.raises(UserError, match=r"num_workers: .*clients_per_round = 2, found 3"):
        runtime.check_clients_per_round(2)


@pytest.mark.parametrize(("gpus", "workers"), [({}, 0), ({"GPU": 1.0}, 2), ({"GPU": 9.0}, 4)])
def test_node_has_room_for_its_cpus_and_gpus(gpus, workers):
    options = RayOptions(cpus_per_worker=2, gpus_per_worker=0.5)
    assert _room_on({"CPU": 8.0, **gpus}, options) == workers


@pytest.mark.slow
def test_rejects_more_workers_than_resources(local_ray):
    options = RayOptions(num_workers=1000, cpus_per_worker=4)
    with pytest.raises(UserError, match=r"num_workers: expected at most \d+ with 4 CPUs .* 1000: "):
        RUNTIMES["ray"].build(options).__enter__()
    with pytest.raises(UserError, match=r"at most 0 with 1 CPUs and 64 GPUs each, found none: "):
        RUNTIMES["ray"].build(RayOptions(gpus_per_worker=64)).__enter__()


@pytest.mark.nightly
def test_rejects_worker_with_another_package_version(local_ray, monkeypatch):
    monkeypatch.setattr(tff_agnostic, "__version__", "0.0.7")
    with RUNTIMES["ray"].build(_options(1)) as one:
        rounds = training(one, "streamed")
        with pytest.raises(UserError, match=r"expected .* tff_agnostic 0\.0\.7, found Pyt") as e:
            rounds.next(rounds.initialize(), cohort("streamed", 2))
    assert "\n" not in str(e.value)


@pytest.mark.slow
def test_worker_that_starts_too_late_raises_error(local_ray):
    with RayRuntime(_options(1), start_seconds=0.01) as one:
        rounds = training(one, "streamed")
        with pytest.raises(ExecutionError, match=r"no Ray worker has started") as e:
            rounds.next(rounds.initialize(), cohort("streamed", 2))
    assert "\n" not in str(e.value)


@pytest.mark.nightly
def test_ray_keeps_sigterm_handler(local_ray):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
