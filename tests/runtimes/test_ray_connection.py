"""Ray's start and shutdown: a missing package, wrong addresses, signals, and nodes that leave."""

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.runtimes.processes import descendants
from tests.support.commands import ROOT
from tests.support.processes import default_signals, is_running, wait_until
from tff_agnostic.base.errors import ExecutionError, UserError
from tff_agnostic.runtimes.options import RayOptions
from tff_agnostic.runtimes.registry import RUNTIMES

ray = pytest.importorskip("ray")
from tff_agnostic.runtimes import ray as ray_runtime  # noqa: E402

_ENDLESS = """
from tests.runtimes.ray_rounds import cohort, training
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.runtimes.options import RayOptions
from tff_agnostic.runtimes.registry import RUNTIMES
with StopRequest() as stop, RUNTIMES["ray"].build(RayOptions(num_workers=1)) as runtime:
    rounds, clients = training(runtime, "streamed"), cohort("streamed", 4, size=200)
    state = rounds.initialize()
    while True:
        state, _ = rounds.next(state, clients)
        print(stop.signal_number, runtime.take_events(), flush=True)
"""

_TWO_NODES = """
import threading
import numpy as np
from ray.cluster_utils import Cluster
from tests.support.rounds import run_rounds
from tests.runtimes.ray_rounds import cohort, leaves, training
from tff_agnostic.runtimes.options import RayOptions
from tff_agnostic.runtimes.registry import RUNTIMES
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
def ray_runtime(num_workers):
    return RUNTIMES["ray"].build(RayOptions(ray_address=cluster.address, num_workers=num_workers))
try:
    # Connect before adding a node, so that this process belongs to the node that stays.
    with ray_runtime(1):
        node = cluster.add_node(num_cpus=2)
        with ray_runtime(2) as runtime:
            rounds, cohorts = training(runtime, "streamed"), [cohort("streamed", 8, size=300)] * 4
            expected = leaves(run_rounds(rounds, cohorts))
            assert runtime.take_events() == []
            leaving = threading.Timer(0.2, cluster.remove_node, (node, False))
            leaving.start()
            result = leaves(run_rounds(rounds, cohorts))
            leaving.join()
            print(runtime.take_events())
            assert all(np.array_equal(a, b) for a, b in zip(result, expected))
            print("identical")
finally:
    cluster.shutdown()
"""


def _start(script: str) -> "subprocess.Popen[str]":
    with default_signals():
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", script],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Start a process group, as a terminal does.
            start_new_session=True,
        )


@pytest.mark.nightly
def test_workers_ignore_interrupts_and_exit_on_kill():
    process = _start(_ENDLESS)
    try:
        lines: Iterator[str] = iter(process.stdout.readline, "")
        assert "None []\n" in lines
        os.killpg(process.pid, signal.SIGINT)
        after = itertools.dropwhile(lambda line: line == "None []\n", lines)
        assert {next(after) for _ in range(3)} == {f"{int(signal.SIGINT)} []\n"}
        started = descendants(process.pid)
        assert len(started) > 1
    finally:
        process.kill()
        process.communicate()
    wait_until(lambda: not any(map(is_running, started)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("message", "attempts"), [("The node timed out during startup.", 3), ("no", 1)]
)
def test_only_slow_start_of_ray_is_retried(monkeypatch, message, attempts):
    calls = []

    def init(*_, **options):
        calls.append(options["_node_ip_address"])
        raise RuntimeError(message)

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ExecutionError, match=f"Ray did not start: {message}"):
        RUNTIMES["ray"].build(RayOptions()).__enter__()
    assert calls == ["127.0.0.1"] * attempts


@pytest.mark.nightly
def test_results_survive_the_removal_of_a_node():
    process = _start(_TWO_NODES)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "died; its clients run again" in output
    assert "\nidentical\n" in output


@pytest.mark.slow
def test_missing_ray_raises_user_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "tff_agnostic.runtimes.ray", raising=False)
    with pytest.raises(UserError, match=r"runtime ray needs Ray .*pip install") as error:
        RUNTIMES["ray"].build(RayOptions())
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_address_without_ray_raises_user_error(monkeypatch):
    monkeypatch.setattr(ray_runtime, "_CONNECT_SECONDS", 1.0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        for given in (address, "auto"):
            with pytest.raises(UserError, match=f"found {address}: no answer") as error:
                RUNTIMES["ray"].build(RayOptions(ray_address=given)).__enter__()
            assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("error", [ConnectionError("no running\nRay instance"), SystemExit(15)])
def test_failed_connection_to_ray_raises_user_error(monkeypatch, error):
    def init(*_, **__):
        raise error

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    reason = " ".join(str(error).split())
    with pytest.raises(UserError, match=f"ray_address: expected .*, found auto: {reason}$"):
        RUNTIMES["ray"].build(RayOptions(ray_address="auto")).__enter__()
