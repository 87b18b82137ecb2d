"""A fleet's processes on Flower, over TLS; skipped without Flower.

    .venv-fleet/bin/python -m pytest tests/fleet/test_live.py

Each test starts processes that take minutes on a busy machine.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fleet import demo, keys
from fleet.settings import manifest_sha256
from fleet.wire import Kind, Message, decoded
from plan_runner.errors import PlanError
from tests.fleet.comparison import equals_run_plan
from tests.fleet.killed_demo import NODE, SERVER, SUPERLINK, killed_demo
from tests.plan_runner.exports import rehash, write_clients, write_export
from tests.plan_runner.plans import secure_plan
from tests.support.processes import default_signals, wait_until

pytest.importorskip("flwr", reason="flwr is in the fleet's environment only")

_NAMES = ("ann", "bob", "cyd", "dee")
_MODULE = (sys.executable, "-m", "fleet")
# Environment variable that all processes of a fleet inherit.
_MARK = "PLAN_RUNNER_TEST_MARK"


class Live(NamedTuple):
    """A server that waits for nodes, and one connected node.

    Attributes:
        folder: Folder of keys, settings, states and logs; see `demo`.
        filter: HOST:PORT that nodes connect to.
        superlink: HOST:PORT of the SuperLink on loopback.
    """

    folder: Path
    filter: str
    superlink: str

    @property
    def authority(self) -> Path:
        return self.folder / _NAMES[0] / keys.AUTHORITY


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns an export with secure sums and a folder of clients."""
    folder = tmp_path_factory.mktemp("inputs")
    export = write_export(folder / "export", secure_plan(), "secure")
    rehash(export, privacy={"maximum_clients_per_round": 6})
    examples = {name: [(1.0, number + 2)] for number, name in enumerate(_NAMES)}
    return export, write_clients(folder / "clients", examples)


@pytest.fixture(scope="module")
def live(inputs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    export, clients = inputs
    folder = tmp_path_factory.mktemp("live")
    shutil.copytree(clients, folder / "clients")
    demo.write_settings(folder, export, _NAMES)
    ports = demo.free_ports(3)
    server, node = folder / "server", folder / _NAMES[0]
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(
            _started(
                folder / "server.log",
                *("server", f"--keys={server}", f"--settings={server / 'server.toml'}"),
                *("--rounds=1", f"--port={ports[0]}", f"--superlink_port={ports[1]}"),
            )
        )
        wait_until(lambda: "has started" in log.read_text())
        log = stack.enter_context(
            _started(
                folder / "node.log",
                *("node", f"--keys={node}", f"--settings={node / 'node.toml'}"),
                *(f"--server=127.0.0.1:{ports[0]}", f"--port={ports[2]}"),
            )
        )
        wait_until(lambda: "node: ready" in log.read_text())
        yield Live(folder, f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}")


@contextlib.contextmanager
def _started(log: Path, *arguments: str, mark: str = "") -> Iterator[Path]:
    """Yields a command's log file; the command ends with the block."""
    environment = {**os.environ, _MARK: mark}
    with open(log, "wb") as file, default_signals():
        process = subprocess.Popen(
            [*_MODULE, *arguments], stdout=file, stderr=subprocess.STDOUT, env=environment
        )
    try:
        yield log
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _marked(mark: str) -> list[str]:
    """Returns the command lines of the processes that have inherited this mark."""
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{_MARK}={mark}".encode() in (process / "environ").read_bytes():
                result.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return result


# --- Attackers who have ca.crt are rejected


def test_stranger_cannot_register_nodes_or_start_runs(live, tmp_path):
    from fleet import flower

    sent = keys.make_node_keys(tmp_path / "stranger", "stranger")
    login = tmp_path / "stranger.pub"
    login.write_text(keys.read_publics([sent])[0].login)
    with pytest.raises(PlanError, match="403"), flower.control(live.filter, live.authority) as to:
        flower.register(to, [login])
    with pytest.raises(PlanError, match="403"), flower.control(live.filter, live.authority) as to:
        flower.start_run(to, "0" * 64, tmp_path / "server.toml", 1)


@pytest.mark.parametrize(("place", "status"), [("filter", 403), ("superlink", 401)])
@pytest.mark.parametrize("kind", ["flwr-serverapp", "flwr-clientapp"])
def test_stranger_cannot_acquire_tasks(live, place, status, kind):
    import httpx

    from fleet import flower

    for secret in (None, bytes(32), secrets.token_bytes(32)):
        signed = flower.RuntimeVersionHttpInterceptor(component_name="SuperExec")
        interceptors: list[Any] = [signed]
        if secret is not None:
            interceptors.append(
                flower.SuperExecAuthHttpInterceptor(
                    master_secret=secret, protected_methods=flower._ACQUIRE
                )
            )
        client = flower.RuntimeHttpClient.from_server_address(
            getattr(live, place), False, live.authority.read_bytes(), interceptors
        )
        with pytest.raises(httpx.HTTPStatusError) as caught:
            client.AcquireTask(flower.AcquireTaskRequest(supported_task_types=[kind]))
        assert caught.value.response.status_code == status
        client.close()


# --- Nodes do not run code or plans that their operator has not installed

_SERVER_APP = """
import time
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()

@app.main()
def main(grid, context):
    while not list(grid.get_node_ids()):
        time.sleep(0.2)
    node = list(grid.get_node_ids())[0]
    for number, request in enumerate({requests}):
        record = RecordDict({{"fleet": ConfigRecord({{"bytes": bytes.fromhex(request)}})}})
        (reply,) = grid.send_and_receive([Message(record, node, "query.fleet")], timeout=300)
        path = Path({folder!r}) / str(number)
        path.with_suffix(".partial").write_bytes(reply.content["fleet"]["bytes"])
        path.with_suffix(".partial").rename(path)
"""
_CLIENT_APP = """
from pathlib import Path

Path({folder!r}, "loaded").write_text("by a node")
app = 1 / 0
"""


def test_node_ignores_other_apps_and_plans(live, inputs, tmp_path, monkeypatch):
    """A user of the server's machine can start runs, but nodes execute their own plan only."""
    from fleet import flower

    hello = {"tag": "x", "sums": "", "challenge": bytes(32).hex()}
    requests = [
        b"a message of another app",
        Message(Kind.HELLO, {**hello, "manifest": "0" * 64}).encoded(),
        Message(Kind.HELLO, {**hello, "manifest": manifest_sha256(inputs[0])}).encoded(),
    ]
    files = {
        **flower.app_files("0" * 64),
        "server_app.py": _SERVER_APP.format(
            folder=str(tmp_path), requests=[request.hex() for request in requests]
        ),
        "client_app.py": _CLIENT_APP.format(folder=str(tmp_path)),
    }
    monkeypatch.setattr(flower, "app_files", lambda manifest: files)
    with flower.control(live.superlink, live.authority) as client:
        flower.start_run(client, "0" * 64, tmp_path / "server.toml", 1)
    wait_until((tmp_path / str(len(requests) - 1)).exists)
    words = []
    for number in range(len(requests)):
        answer = decoded((tmp_path / str(number)).read_bytes(), "answer")
        assert answer.kind == Kind.REFUSED
        words.append(answer.head["words"])
    assert "expected a message of this fleet" in words[0]
    assert "which the operator of this node has pinned" in words[1]
    assert "min_clients: expected int" in words[2]
    assert not (tmp_path / "loaded").exists()


# --- Complete demos


def _demo(inputs, *more: str) -> tuple[str, ...]:
    export, clients = inputs
    return ("demo", f"--export={export}", f"--clients={clients}", "--nodes=3", *more)


def test_demo_equals_run_plan_and_leaves_no_process(inputs, tmp_path):
    mark, output = secrets.token_hex(8), tmp_path / "demo"
    done = subprocess.run(
        [*_MODULE, *_demo(inputs, "--rounds=2", f"--output={output}")],
        env={**os.environ, _MARK: mark},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    state = output / "server" / "state"
    assert done.stdout.splitlines()[-1].startswith("state after 2 rounds: ")
    assert equals_run_plan(inputs[0], output / "clients", state, output, print)
    assert _marked(mark) == []


@pytest.mark.parametrize("kill", [NODE, SERVER, SUPERLINK])
def test_state_after_kill_equals_run_plan(inputs, tmp_path, kill):
    nodes = 4 if kill == NODE else 3
    assert killed_demo(*inputs, nodes, 2, kill, tmp_path / "demo", print)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_no_process(inputs, tmp_path, number):
    mark, output = secrets.token_hex(8), tmp_path / "demo"
    log = tmp_path / "demo.log"
    with open(log, "wb") as file, default_signals():
        process = subprocess.Popen(
            [*_MODULE, *_demo(inputs, "--rounds=9", f"--output={output}")],
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, _MARK: mark},
        )
    events = output / "server" / "state" / "events.jsonl"
    wait_until(lambda: process.poll() is not None or "exchange" in _text(events))
    # These are the demo, its server and nodes, Flower's processes, and workers that execute plans.
    assert len(_marked(mark)) > 3 * 4
    process.send_signal(number)
    # A second signal must not leave processes behind.
    time.sleep(0.5)
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert log.read_text().splitlines()[-1] == "interrupted"
    assert _marked(mark) == []


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
