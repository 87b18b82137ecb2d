"""How the ray runtime begins and ends: Ray that is absent or away, signals, nodes that leave."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import default_signals
from tests.runtimes.processes import wait_for
from tff_agnostic.errors import UserError
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.registry import RUNTIMES

pytest.importorskip("ray")
_ROOT = Path(__file__).resolve().parents[2]

_ENDLESS = """
import signal
from tests.runtimes.ray_rounds import cohort, training
from tff_agnostic.program.interrupts import StopRequest
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.registry import RUNTIMES
with StopRequest() as stop, RUNTIMES["ray"](RuntimeOptions(num_workers=1)) as runtime:
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
from tests.computations.harness import run_rounds
from tests.runtimes.ray_rounds import cohort, leaves, training
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.registry import RUNTIMES
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
def ray_runtime(num_workers):
    return RUNTIMES["ray"](RuntimeOptions(ray_address=cluster.address, num_workers=num_workers))
try:
    # First: a process belongs to the node that it finds, which must stay.
    with ray_runtime(1):
        node = cluster.add_node(num_cpus=1)
        with ray_runtime(2) as runtime:
            rounds, cohorts = training(runtime, "streamed"), [cohort("streamed", 8, size=300)] * 4
            expected = leaves(run_rounds(rounds, cohorts))
            assert runtime.take_events() == []
            leaving = threading.Timer(0.2, cluster.remove_node, (node, False))
            leaving.start()
            found = leaves(run_rounds(rounds, cohorts))
            leaving.join()
            print(runtime.take_events())
            assert all(np.array_equal(f, e) for f, e in zip(found, expected))
            print("identical")
finally:
    cluster.shutdown()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for temporary files, with a name that is short enough for sockets in it."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as path:
        yield Path(path)


def _start(script: str, folder: Path) -> "subprocess.Popen[str]":
    with default_signals():
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", script],
            env={**os.environ, "PYTHONPATH": str(_ROOT), "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A process group, as a terminal has it for what runs in its foreground.
            start_new_session=True,
        )


def test_ctrl_c_ends_no_worker_and_a_killed_parent_leaves_nothing(folder):
    from tff_agnostic.runtimes.ray_warden import processes_of

    parent = _start(_ENDLESS, folder)
    try:
        assert parent.stdout.readline() == "None []\n"
        os.killpg(parent.pid, signal.SIGINT)
        lines = [parent.stdout.readline() for _ in range(4)]
        assert set(lines[1:]) == {f"{int(signal.SIGINT)} []\n"}
        (of_ray,) = folder.glob("tff_ray_*")
        assert len(processes_of(str(of_ray))) > 1
    finally:
        parent.kill()
        output, _ = parent.communicate()
    assert output.endswith("train and compare go on with --resume)\n")
    assert wait_for(lambda: not of_ray.exists())
    assert processes_of(str(of_ray)) == []


def test_a_node_that_leaves_changes_no_bit(folder):
    parent = _start(_TWO_NODES, folder)
    output, _ = parent.communicate()
    assert parent.returncode == 0, output
    assert "died; its clients run again" in output
    assert "\nidentical\n" in output


def test_without_ray_there_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "tff_agnostic.runtimes.ray", raising=False)
    with pytest.raises(UserError, match=r"--runtime=ray needs Ray .*pip install") as error:
        RUNTIMES["ray"](RuntimeOptions())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("address", ["nowhere", "ray://head:10001", "head:", ":6379", "head:port"])
def test_a_malformed_address_is_an_error(address):
    with pytest.raises(UserError, match="expected local, auto or HOST:PORT, found"):
        RUNTIMES["ray"](RuntimeOptions(ray_address=address)).__enter__()


@pytest.mark.parametrize("listening", [True, False])
def test_an_address_without_ray_is_an_error(monkeypatch, listening):
    from tff_agnostic.runtimes import ray_session

    monkeypatch.setattr(ray_session, "_CONNECT_SECONDS", 1.0)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        if listening:
            other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(UserError, match=f"--ray_address={address}: no Ray answers") as error:
            RUNTIMES["ray"](RuntimeOptions(ray_address=address)).__enter__()
    assert "\n" not in str(error.value)
