"""Connects server and nodes by Flower: channel, ServerApp, nodes' tasks, registration of nodes.

Only this module imports flwr. `serve`, `register` and `start_run` call internals of Flower 1.41,
which may change in any release.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import httpx
from cryptography.hazmat.primitives import serialization
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.cli.build import build_fab_from_files
from flwr.cli.cli_client_interceptor import CliClientHttpInterceptor
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.server import ServerApp
from flwr.serverapp import Grid
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from fleet.app_files import app_files
from fleet.errors import ERRORS
from fleet.members import Exchange
from fleet.server import FleetServer
from fleet.settings import read_server_settings
from fleet.wire import refused, request_tag, tagged
from plan_runner.errors import PlanError, reason

EVENTS, SERVING = "events.jsonl", "serving"

_LOG = logging.getLogger(__name__)
_KIND = "fleet"
_TYPE = f"query.{_KIND}"
# Maximum number of bytes in a config record. Larger contents are sent as arrays, which Flower
# splits.
_MAX_RECORD_BYTES = 1_000_000
# Seconds between polls for answers. SuperNodes poll every three seconds, so more frequent polls
# cost processor time and hardly shorten an exchange.
_POLL_SECONDS = 0.5
_NODES_SECONDS = 1.0
_TASK_SECONDS = 0.4
_TASK = "flwr-clientapp"
_ACQUIRE = frozenset(("/flwr.proto.Runtime/AcquireTask",))


class FlowerChannel:
    """A `members.Channel` over Flower's grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        # Unanswered requests, keyed by Flower's message id.
        self._waiting: dict[str, _Sent] = {}
        self._nodes: list[str] = []
        self._looked = self._pulled = -_NODES_SECONDS

    def nodes(self) -> list[str]:
        """Returns Flower's ids of the reachable nodes."""
        if time.monotonic() >= self._looked + _NODES_SECONDS:
            self._nodes = [str(node) for node in self._grid.get_node_ids()]
            self._looked = time.monotonic()
        return self._nodes

    def send(self, requests: Mapping[str, bytes], timeout: float) -> None:
        """See `members.Channel.send`."""
        names = list(requests)
        messages = [
            Message(_record(requests[name]), int(name), _TYPE, ttl=timeout) for name in names
        ]
        until = time.monotonic() + timeout
        for name, key in zip(names, self._grid.push_messages(messages)):
            if key is not None:
                self._waiting[key] = _Sent(name, until, request_tag(requests[name]))

    def receive(self) -> list[tuple[str, bytes]]:
        """See `members.Channel.receive`."""
        now = time.monotonic()
        self._waiting = {key: sent for key, sent in self._waiting.items() if sent.until > now}
        if not self._waiting or now < self._pulled + _POLL_SECONDS:
            return []
        answers = []
        for reply in self._grid.pull_messages(list(self._waiting)):
            sent = self._waiting.pop(reply.metadata.reply_to_message_id, None)
            if sent is None:
                continue
            if reply.has_error():
                # Flower answers for a node from which no answer will come.
                words = refused(f"no answer, Flower reports: {reply.error.reason}")
                answers.append((sent.node, tagged(words, sent.tag)))
            else:
                answers.append((sent.node, _content(reply)))
        self._pulled = time.monotonic()
        return answers


class _Sent(NamedTuple):
    """An unanswered request, with its deadline on the monotonic clock."""

    node: str
    until: float
    tag: str


class _Events:
    """A `server.Listener` that writes JSON lines for the process that started the run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, **event: Any) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    def line(self, text: str) -> None:
        self.write(line=text)

    def exchange(self, kind: str, round_number: int, exchange: Exchange) -> None:
        self.write(kind=kind, round=round_number, exchange=vars(exchange))

    def step(self, done: str) -> None:
        """Writes no event, because the round journal already contains the steps."""


server_app = ServerApp()


@server_app.main()
def _main(grid: Grid, context: Context) -> None:
    settings = read_server_settings(Path(str(context.run_config["settings"])))
    settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    events = _Events(settings.state / EVENTS)
    with serving(settings.state):
        events.write(pid=os.getpid())
        try:
            weaker = bool(context.run_config["weaker_privacy"])
            server = FleetServer(settings, FlowerChannel(grid), events, weaker_privacy=weaker)
            with contextlib.closing(server):
                server.run(int(context.run_config["rounds"]))
        except ERRORS as e:
            events.write(error=str(e))
            raise
        except Exception as e:
            # Flower does not show a ServerApp's output to the user.
            events.write(line=f"the ServerApp fails: {type(e).__name__}: {reason(e)}")
            raise
        events.write(done=server.completed)


@contextlib.contextmanager
def serving(state: Path, wait: bool = True) -> Iterator[None]:
    """Holds the lock that prevents a second ServerApp on the same state.

    Raises:
        BlockingIOError: Another process has the lock, and `wait` is False.
    """
    with open(state / SERVING, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


def serve(answer: Callable[[bytes], bytes], address: str, secret: bytes) -> None:
    """Answers the messages of a SuperNode in process-isolation mode until this process exits.

    The run's Flower app bundle is neither unpacked nor loaded.

    Args:
        answer: Called with a message; returns the answer.
        address: HOST:PORT of the SuperNode's Runtime API, on loopback.
        secret: Secret that authenticates this process to the SuperNode.
    """
    signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_ACQUIRE)
    version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
    asking = RuntimeHttpClient.from_server_address(address, True, None, [version, signed])
    arrived: _Arrived = queue.SimpleQueue()
    while True:
        try:
            acquired = asking.AcquireTask(AcquireTaskRequest(supported_task_types=[_TASK]))
        except httpx.HTTPError as e:
            # Wait for the SuperNode, which `launch.run_node` restarts.
            _LOG.info("no SuperNode: %s", reason(e))
            time.sleep(1)
            continue
        if acquired.token:
            # If a run ends before a message is complete, the SuperNode keeps the task, and pulling
            # the message may block for hours. Pull in a thread, so that other tasks proceed.
            task = _Task(address, acquired.token)
            threading.Thread(target=task.pull, args=(arrived,), daemon=True).start()
        with contextlib.suppress(queue.Empty):
            task, message, context = arrived.get(timeout=_TASK_SECONDS)
            task.finish(message, context, answer)


class _Task:
    """A task of a SuperNode: a message to answer."""

    def __init__(self, address: str, token: str) -> None:
        version = RuntimeVersionHttpInterceptor(component_name="flwr-clientapp")
        signed = RuntimeTokenHttpInterceptor(token)
        self._client = RuntimeHttpClient.from_server_address(address, True, None, [version, signed])
        self._beating = HeartbeatSender(make_task_heartbeat_fn_http(self._client))
        self._beating.start()

    def pull(self, arrived: _Arrived) -> None:
        """Waits for the message, in a thread, and adds it to the queue."""
        try:
            message, context, _, _ = pull_task_input(self._client)
        # An error in one task must not end the other tasks.
        except Exception as e:
            _LOG.warning("a task is lost: %s", reason(e))
            self._end(None, "failed", "the node could not read the message")
        else:
            arrived.put((self, message, context))

    def finish(self, message: Message, context: Context, answer: Callable[[bytes], bytes]) -> None:
        """Answers the message, and ends the task."""
        status, details = "failed", "the node could not answer"
        try:
            reply = Message(_record(answer(_content(message))), reply_to=message)
            push_message(self._client, reply, context)
            status, details = "completed", ""
        # An error in one task must not end the other tasks.
        except Exception as e:
            _LOG.warning("a task is lost: %s", reason(e))
        finally:
            self._end(context, status, details)

    def _end(self, context: Optional[Context], status: str, details: str) -> None:
        push_task_output(self._client, context, status, details)
        self._beating.stop()
        self._client.close()


_Arrived = queue.SimpleQueue[tuple[_Task, Message, Context]]


@contextlib.contextmanager
def control(address: str, authority: Path) -> Iterator[ControlHttpClient]:
    """Yields a client of the SuperLink, for registering nodes and starting runs."""
    client = ControlHttpClient.from_server_address(
        address,
        False,
        authority.read_bytes(),
        [CliClientHttpInterceptor(), RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
    )
    try:
        yield client
    except httpx.HTTPError as e:
        raise PlanError(f"{address}: the SuperLink rejected a request: {reason(e)}") from e
    finally:
        client.close()


def register(client: ControlHttpClient, logins: Sequence[Path]) -> None:
    """Registers nodes with the SuperLink, and skips registered nodes.

    Args:
        client: Client that `control` yields.
        logins: Files NAME.pub with the nodes' public keys.
    """
    for path in logins:
        key = public_key_to_bytes(serialization.load_ssh_public_key(path.read_bytes()))
        try:
            client.RegisterNode(RegisterNodeRequest(public_key=key, name=path.stem))
        except httpx.HTTPStatusError as e:
            if "already in use" not in e.response.text:
                raise


def start_run(
    client: ControlHttpClient,
    manifest: str,
    settings: Path,
    rounds: int,
    weaker_privacy: bool = False,
) -> int:
    """Starts the ServerApp, and returns Flower's run id."""
    files = {name: text.encode() for name, text in app_files(manifest).items()}
    content, _ = build_fab_from_files(files)
    fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
    config = user_config_to_proto(
        {"settings": str(settings.resolve()), "rounds": rounds, "weaker_privacy": weaker_privacy}
    )
    answer = client.StartRun(StartRunRequest(fab=fab_to_proto(fab), override_config=config))
    if not answer.HasField("run_id"):
        raise PlanError("the SuperLink did not start the run")
    return int(answer.run_id)


def _record(content: bytes) -> RecordDict:
    if len(content) <= _MAX_RECORD_BYTES:
        return RecordDict({_KIND: ConfigRecord({"bytes": content})})
    array = Array(dtype="uint8", shape=(len(content),), stype="bytes", data=content)
    return RecordDict({_KIND: ArrayRecord({"bytes": array})})


def _content(message: Message) -> bytes:
    record: Optional[Any] = message.content.get(_KIND)
    value = record.get("bytes") if record is not None else None
    content = value.data if isinstance(value, Array) else value
    return content if isinstance(content, bytes) else b""
