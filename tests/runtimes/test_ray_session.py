"""How the ray runtime begins and ends: Ray that is absent or away, signals, nodes that leave."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest

from tests import golden
from tests.processes import default_signals
from tests.runtimes.processes import wait_for
from tff_agnostic.errors import ExecutionError, UserError
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.registry import RUNTIMES

pytest.importorskip("ray")
ray_token = pytest.importorskip("tff_agnostic.runtimes.ray_session")
_ROOT = Path(__file__).resolve().parents[2]

_ENDLESS = """
import signal
import ray
from tests.runtimes.ray_rounds import cohort, training
from tff_agnostic.run.process import StopRequest
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.registry import RUNTIMES
with StopRequest() as stop, RUNTIMES["ray"](RuntimeOptions(num_workers=1)) as runtime:
    rounds, clients = training(runtime, "streamed"), cohort("streamed", 4, size=200)
    state = rounds.initialize()
    address, port = ray.get_runtime_context().gcs_address, ray.nodes()[0]["NodeManagerPort"]
    print("ready", address, port, flush=True)
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


def _short_folder() -> "tempfile.TemporaryDirectory[str]":
    """A folder for temporary files, with a name that is short enough for sockets in it."""
    return tempfile.TemporaryDirectory(prefix="t", dir="/tmp")


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


class _Command(NamedTuple):
    """A process that trains without end on a Ray of its own.

    Attributes:
        process: It.
        folder: The folder of its temporary files.
        address: HOST:PORT where its Ray answers.
        node_port: Port of the process that starts workers, on that host.
    """

    process: "subprocess.Popen[str]"
    folder: Path
    address: str
    node_port: int


@pytest.fixture(scope="module")
def command() -> Iterator[_Command]:
    with _short_folder() as path:
        folder = Path(path)
        process = _start(_ENDLESS, folder)
        try:
            # On a busy machine Ray says first that it starts once more.
            ready = next((line for line in process.stdout if line.startswith("ready ")), "")
            assert ready, "it ended before its Ray was ready"
            _, address, node_port = ready.split()
            yield _Command(process, folder, address, int(node_port))
        finally:
            process.kill()
            process.wait()


_ASKS = pytest.mark.skipif(not ray_token.new_token(), reason="this Ray asks for no token")


@pytest.mark.nightly
@_ASKS
@pytest.mark.parametrize("headers", [[], [("authorization", "Bearer " + 64 * "0")]])
def test_a_ray_of_one_command_answers_nobody_else(command, headers):
    host, _, port = command.address.partition(":")
    assert host == "127.0.0.1"
    of_head = (port, "NodeInfoGcsService/GetClusterId")
    of_node = (command.node_port, "NodeManagerService/GetNodeStats")
    for port, call in (of_head, of_node):
        with grpc.insecure_channel(f"{host}:{port}") as channel:
            ask = channel.unary_unary(f"/ray.rpc.{call}")
            with pytest.raises(grpc.RpcError) as error:
                ask(b"", timeout=60, metadata=headers)
            assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.nightly
@_ASKS
def test_a_ray_that_asks_for_a_token_is_told_in_one_line(command):
    message = golden.refusal(
        lambda: RUNTIMES["ray"](RuntimeOptions(ray_address=command.address)).__enter__()
    )
    assert message.startswith(f"--ray_address={command.address}: the Ray there asks for a token")
    assert "RAY_AUTH_TOKEN_PATH" in message and "\n" not in message


@pytest.mark.slow
@_ASKS
@pytest.mark.parametrize("content", [None, "", "  \n"])
def test_a_token_that_is_not_there_is_an_error(monkeypatch, tmp_path, content):
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    ray_token.read_environment()
    try:
        with pytest.raises(UserError, match=f"RAY_AUTH_TOKEN_PATH={path}: ") as error:
            RUNTIMES["ray"](RuntimeOptions(ray_address="127.0.0.1:1")).__enter__()
    finally:
        monkeypatch.undo()
        ray_token.read_environment()
    assert "\n" not in str(error.value)


# The last one of this command: it ends it.
@pytest.mark.nightly
def test_ctrl_c_ends_no_worker_and_a_killed_parent_leaves_nothing(command):
    from tff_agnostic.runtimes.ray_warden import processes_of

    parent = command.process
    try:
        assert parent.stdout.readline() == "None []\n"
        os.killpg(parent.pid, signal.SIGINT)
        lines = iter(parent.stdout.readline, "")
        after = itertools.dropwhile(lambda line: line == "None []\n", lines)
        assert {next(after) for _ in range(3)} == {f"{int(signal.SIGINT)} []\n"}
        (of_ray,) = command.folder.glob("tff_ray_*")
        assert len(processes_of(str(of_ray))) > 1
    finally:
        parent.kill()
        output, _ = parent.communicate()
    assert output.endswith("train and compare go on with --resume)\n")
    assert wait_for(lambda: not of_ray.exists())
    assert processes_of(str(of_ray)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "seconds", "tries"),
    [("timed out during startup", 100.0, 3), ("timed out during startup", -1.0, 1), ("no", 100, 1)],
)
def test_a_ray_that_is_too_slow_is_started_again(monkeypatch, said, seconds, tries):
    ended = []

    @contextlib.contextmanager
    def own_ray(start_seconds):
        try:
            if len(ended) < 2:
                raise ExecutionError(f"Ray did not start: the node {said}")
            yield
        finally:
            ended.append(start_seconds)

    monkeypatch.setattr(ray_token, "_own_ray", own_ray)
    expected = pytest.raises(ExecutionError) if tries < 3 else contextlib.nullcontext()
    with expected, ray_token.ray_session("local", seconds):
        assert len(ended) == 2
    assert ended == [seconds] * tries


@pytest.mark.nightly
def test_a_node_that_leaves_changes_no_bit():
    with _short_folder() as folder:
        parent = _start(_TWO_NODES, Path(folder))
        output, _ = parent.communicate()
    assert parent.returncode == 0, output
    assert "died; its clients run again" in output
    assert "\nidentical\n" in output


@pytest.mark.slow
def test_without_ray_there_is_one_clear_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "tff_agnostic.runtimes.ray", raising=False)
    with pytest.raises(UserError, match=r"runtime ray needs Ray .*pip install") as error:
        RUNTIMES["ray"](RuntimeOptions())
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("address", ["nowhere", "ray://head:10001", "head:", ":6379", "head:port"])
def test_a_malformed_address_is_an_error(address):
    with pytest.raises(UserError, match="expected local, auto or HOST:PORT, found"):
        RUNTIMES["ray"](RuntimeOptions(ray_address=address)).__enter__()


@pytest.mark.slow
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
