"""Starts, monitors and ends the processes of a server or node."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

from fleet import keys
from fleet.resident import READY
from fleet.settings import manifest_sha256, read_node_settings, read_server_settings
from plan_runner.errors import PlanError
from plan_runner.isolation import end_with_parent

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SUPERLINK = "superlink"
_ENDING_SECONDS = 10.0
# Flower retries a ServerApp that has not started within 30 seconds. A busy machine may need several
# attempts.
_START_SECONDS = 600.0
_MAX_RUNS = 20
_LOOK_SECONDS = 0.2
_ROOM_BYTES = 1 << 16
# Text in the output of a rejected SuperNode, mapped to two items: for how many seconds to retry,
# and the error message if the last retry fails. A SuperLink counts a killed node as connected for
# two minutes, and rejects its successor.
_REFUSALS = {
    "code: 2004": (
        120.0,
        "the server does not know this node's key, or another process has it: the server's "
        "operator adds the node's file NAME.public.toml by ./run fleet keys --server",
    ),
    "CERTIFICATE_VERIFY_FAILED": (
        0.0,
        "the server's certificate is not of the authority in ca.crt",
    ),
}
# Seconds after which a running SuperNode counts as accepted.
_ACCEPTED_SECONDS = 60.0


class Processes:
    """Child processes, each in its own process group; leaving the context ends all of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        # Offset of each running process's output in its log, which keeps earlier processes' output.
        self._begins: dict[str, int] = {}
        check_room(folder)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        # Ignore further signals, which would interrupt this cleanup and leave processes behind.
        previous = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM)}
        for process in self._running.values():
            _signal(process, signal.SIGTERM)
        for name in list(self._running):
            self.end(name)
        for number, handler in previous.items():
            signal.signal(number, handler)

    def start(self, name: str, *command: str) -> int:
        """Starts a program, whose output goes to NAME.log; returns the process id."""
        environment = {
            **os.environ,
            "FLWR_HOME": str(self._folder / f"{name}_home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            # Flower finds its programs on the PATH.
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
        }
        with open(self.log(name), "ab") as log:
            self._begins[name] = log.tell()
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=functools.partial(end_with_parent, os.getpid()),
            )
        return self._running[name].pid

    def has(self, name: str) -> bool:
        """Whether a process was started, and `end` was not called."""
        return name in self._running

    def log(self, name: str) -> Path:
        """Returns the path of a process's log."""
        return self._folder / f"{name}.log"

    def printed(self, name: str) -> str:
        """Returns the output of a process since its last start."""
        with open(self.log(name), "rb") as log:
            log.seek(self._begins[name])
            return log.read().decode(errors="replace")

    def status(self, name: str) -> Optional[int]:
        """Returns the exit status; None while the process runs."""
        return self._running[name].poll()

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """Ends a process and its process group."""
        process = self._running.pop(name, None)
        if process is None:
            return
        _signal(process, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_SECONDS)
        # The process's children may still run.
        _signal(process, signal.SIGKILL)
        process.wait()

    def last_output(self, name: str) -> str:
        """Returns the last error in a process's output, or the last line if there is no error.

        Raises:
            PlanError: The disk is full, and so the process failed.
        """
        check_room(self._folder)
        lines = self.printed(name).split("\n")
        errors = [line for line in lines if line.startswith("error: ")]
        last = (errors or [line for line in lines if line.strip()] or ["nothing"])[-1]
        return last.strip().removeprefix("error: ")


def check_room(folder: Path) -> None:
    """Creates a folder, and checks for free space on the disk."""
    probe = folder / ".room"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(probe, "wb") as file:
            file.write(bytes(_ROOM_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as e:
        raise PlanError(
            f"{folder}: expected a folder with free space, cannot write ({e.strerror})"
        ) from e
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def run_server(
    keys_folder: Path,
    settings_file: Path,
    rounds: int,
    address: tuple[str, int],
    port: int,
    report: Callable[[str], None],
    weaker_privacy: bool = False,
) -> None:
    """Runs a server's rounds, and resumes them whenever one of Flower's processes exits.

    Args:
        keys_folder: Folder that `keys.make_server_keys` wrote.
        address: Host and port at which nodes connect.
        port: Port of the SuperLink, on loopback.
    """
    from fleet import flower

    settings = read_server_settings(settings_file)
    manifest = manifest_sha256(settings.export)
    for name in (keys.AUTHORITY, keys.CERTIFICATE):
        path = keys_folder / name
        report(f"{path}: valid until {keys.expiry(keys.read_certificate(path))}")
    check_port(*address)
    check_port("127.0.0.1", port)
    check_room(settings.state)
    events = Events(settings.state / flower.EVENTS)
    superlink = f"127.0.0.1:{port}"
    secret = str(keys_folder / keys.TASKS_SECRET)
    authority = keys_folder / keys.AUTHORITY
    certificate, key = keys_folder / keys.CERTIFICATE, keys_folder / keys.CERTIFICATE_KEY
    with Processes(settings.state / "processes") as processes:

        def start() -> None:
            pid = processes.start(
                *(SUPERLINK, "flower-superlink", "--host", "127.0.0.1", "--port", str(port)),
                *("--ssl-ca-certfile", str(authority), "--ssl-certfile", str(certificate)),
                *("--ssl-keyfile", str(key), "--superexec-auth-secret-file", secret),
                *("--enable-supernode-auth", "--isolation", "process"),
                *("--database", str(settings.state / "superlink.db")),
                "--disable-runtime-dependency-installation",
            )
            (settings.state / f"{SUPERLINK}.pid").write_text(str(pid))
            _wait_for(processes, SUPERLINK, port)
            with flower.control(superlink, authority) as client:
                flower.register(client, sorted((keys_folder / keys.NODES).glob("*.pub")))
            processes.start(
                *("superexec", "flower-superexec", "--runtime-api-address", superlink),
                *("--root-certificates", str(authority)),
                *("--superexec-auth-secret-file", secret),
            )

        processes.start(
            *("proxy", sys.executable, "-m", "fleet.proxy"),
            *("--host", address[0], "--port", str(address[1]), "--upstream", superlink),
            *("--authority", str(authority), "--certificate", str(certificate), "--key", str(key)),
        )
        start()
        _wait_for(processes, "proxy", address[1])
        report(f"server: nodes may come to {address[0]}:{address[1]}")
        for _ in range(_MAX_RUNS):
            with flower.control(superlink, authority) as client:
                number = flower.start_run(client, manifest, settings_file, rounds, weaker_privacy)
            report(f"server: run {number} has started")
            ended = _follow_run(processes, events, settings.state, report)
            if ended is None:
                return
            report(f"server: {ended} has ended; resuming")
            for name in ("superexec", SUPERLINK):
                processes.end(name)
            start()
        raise PlanError(f"{settings.state}: the server's processes have ended {_MAX_RUNS} times")


def _follow_run(
    processes: Processes, events: Events, state: Path, report: Callable[[str], None]
) -> Optional[str]:
    """Follows a run until it completes, or until a process exits, whose name is then returned."""
    from fleet import flower

    began, has_started = time.monotonic(), False
    while True:
        parts = (SUPERLINK, "superexec", "proxy")
        gone = next((name for name in parts if processes.status(name) is not None), None)
        if has_started and gone is None:
            with contextlib.suppress(BlockingIOError), flower.serving(state, wait=False):
                gone = "the ServerApp"
        for event in events.new():
            has_started = has_started or "pid" in event
            if "error" in event:
                raise PlanError(event["error"])
            if "done" in event:
                return None
            if "line" in event:
                report(event["line"])
        if gone == "proxy":
            raise PlanError(f"proxy: {processes.last_output('proxy')}")
        if gone is not None:
            return gone
        if not has_started and time.monotonic() > began + _START_SECONDS:
            raise PlanError(f"the ServerApp has not started in {_START_SECONDS:g} s")
        time.sleep(_LOOK_SECONDS)


class Events:
    """Reader of the JSON lines that another process appends to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = path.stat().st_size if path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """Returns the events since the last call."""
        if not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            file.seek(self._at)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._at += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def run_node(
    keys_folder: Path,
    settings_file: Path,
    server: tuple[str, int],
    port: int,
    report: Callable[[str], None],
) -> None:
    """Runs a node until a signal ends this process, and restarts an exited SuperNode.

    Args:
        keys_folder: Folder that `keys.make_node_keys` wrote, with the server's `ca.crt` added.
        port: Port of the SuperNode, on loopback.
    """
    read_node_settings(settings_file)
    authority = keys_folder / keys.AUTHORITY
    keys.read_certificate(authority)
    check_server(*server, authority)
    check_port("127.0.0.1", port)
    secret = str(keys_folder / keys.TASKS_SECRET)
    supernode = (
        *("flower-supernode", "--isolation", "process"),
        *("--superexec-auth-secret-file", secret, "--root-certificates", str(authority)),
        *("--auth-supernode-private-key", str(keys_folder / keys.NODE_KEY)),
        *("--superlink", f"{server[0]}:{server[1]}"),
        *("--host", "127.0.0.1", "--port", str(port)),
    )
    with Processes(settings_file.parent / "processes") as processes:

        def check_resident() -> None:
            if processes.status("resident") is not None:
                raise PlanError(processes.last_output("resident"))
            time.sleep(_LOOK_SECONDS)

        processes.start(
            *("resident", sys.executable, "-m", "fleet.resident", "--secret", secret),
            *("--settings", str(settings_file), "--address", f"127.0.0.1:{port}"),
        )
        while READY not in processes.printed("resident"):
            check_resident()
        processes.start("supernode", *supernode)
        report("node: ready")
        started = refused_since = time.monotonic()
        while True:
            check_resident()
            status = processes.status("supernode")
            if status is None:
                continue
            now = time.monotonic()
            if now > started + _ACCEPTED_SECONDS:
                refused_since = now
            for words, (seconds, meaning) in _REFUSALS.items():
                if words in processes.printed("supernode") and now >= refused_since + seconds:
                    raise PlanError(meaning)
            report(f"node: the SuperNode has ended with status {status}; it starts again")
            time.sleep(5)
            processes.end("supernode")
            processes.start("supernode", *supernode)
            started = time.monotonic()


def check_port(host: str, port: int) -> None:
    """Checks that a port is free."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as opened:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind((host, port))
    except (OSError, OverflowError) as e:
        why = getattr(e, "strerror", None) or str(e)
        raise PlanError(f"{host}:{port}: expected a free port, cannot listen ({why})") from e


def check_server(host: str, port: int, authority: Path) -> None:
    """Checks that a server listens, with a certificate that the authority issued for this host."""
    context = ssl.create_default_context(cafile=str(authority))
    where = f"{host}:{port}: expected the fleet's server"
    try:
        with socket.create_connection((host, port), 10) as plain:
            context.wrap_socket(plain, server_hostname=host).close()
    except ssl.SSLCertVerificationError as e:
        raise PlanError(f"{where}, its certificate is invalid ({e.verify_message})") from e
    except OSError as e:
        raise PlanError(f"{where}, cannot reach it ({e.strerror or e})") from e


def _wait_for(processes: Processes, name: str, port: int) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        if processes.status(name) is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(_LOOK_SECONDS)
    last = processes.last_output(name)
    raise PlanError(f"{name}: expected a process that listens on port {port}: {last}")
