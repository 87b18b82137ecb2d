"""A fleet on one machine: server and nodes are processes with their own keys, connected by TLS."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fleet import keys
from fleet.launch import Events, Processes, check_room
from fleet.node_noise.noise import parse_node_noise
from fleet.node_noise.server_noise import parse_server_noise
from fleet.settings import manifest_sha256
from plan_runner.errors import PlanError, counted
from plan_runner.export import SERVER_STATE, SUFFIX, read_manifest

_MODULE = (sys.executable, "-m", "fleet")
_LOOK_SECONDS = 0.1
# Maximum seconds without output from the server. The server's own timeouts are shorter, and their
# messages state the cause.
_QUIET_SECONDS = 600.0
_SERVER_TOML = """\
export = {export}
roster = "roster.toml"
state = "state"
min_clients = {min_clients}
keeps_sums = {keeps_sums}
rest_rounds = 0
{cohort_size}
[timeouts]
nodes = 300
work = 300
stage = 180
patience = 3
"""
_NODE_TOML = """\
export = {export}
manifest_sha256 = "{sha256}"
identity = "identity.key"
roster = "roster.toml"
state = "state"
min_clients = {min_clients}
data = {{ tfrecord = {data} }}
"""


class Demo:
    """A fleet on this machine, with one node per client file of a folder.

    Attributes:
        names: Names of the nodes.
        state: Folder of the server's state.
        exchanges: The server's events that describe its exchanges with nodes.

    Args:
        folder: New folder for keys, settings, states and logs.
    """

    def __init__(
        self,
        export: Path,
        clients: Path,
        nodes: int,
        rounds: int,
        folder: Path,
        report: Callable[[str], None],
        weaker_privacy: bool = False,
    ) -> None:
        self._folder, self._rounds, self._report = folder, rounds, report
        self._weaker = ["--weaker_privacy"] * weaker_privacy
        files = sorted(clients.glob(f"*{SUFFIX}"))[:nodes]
        if len(files) < nodes:
            raise PlanError(
                f"{clients}: expected {counted(nodes, 'client')} NAME{SUFFIX}, found {len(files)}"
            )
        manifest = read_manifest(export)
        noise = parse_node_noise(manifest)
        if noise is not None and nodes < noise.min_clients:
            raise PlanError(
                f"--nodes: expected at least {noise.min_clients}, the minimum for the plan's "
                f"noise, found {nodes}"
            )
        if noise is not None and not weaker_privacy and rounds > len(noise.claimed):
            raise PlanError(
                f"--rounds: expected at most {len(noise.claimed)}, as in the export's account of "
                f"epsilon, found {rounds}"
            )
        self.names = named_clients(files, folder / "clients", report)
        # A plan with server noise defines how cohorts are sampled.
        draws_all = weaker_privacy or parse_server_noise(manifest) is None
        write_settings(folder, export.resolve(), self.names, draws_all)
        self.state = folder / "server" / "state"
        self._ports = free_ports(2 + len(self.names))
        self._events = Events(self.state / "events.jsonl")
        self.exchanges: list[dict[str, Any]] = []
        self._processes: Processes

    def run(self) -> None:
        """Runs all rounds; reports their progress and a table of the exchanges."""
        with Processes(self._folder / "processes") as self._processes:
            self._start()
            self._watch()
        for line in _table(self.exchanges):
            self._report(line)
        rounds = counted(self._rounds, "round")
        self._report(f"state after {rounds}: {self.state / SERVER_STATE}")

    def _start(self) -> None:
        server = self._folder / "server"
        self._processes.start(
            *("server", *_MODULE, "server", f"--keys={server}"),
            *(f"--settings={server / 'server.toml'}", f"--rounds={self._rounds}"),
            *(f"--port={self._ports[0]}", f"--superlink_port={self._ports[1]}"),
            *self._weaker,
        )
        until = time.monotonic() + _QUIET_SECONDS
        while "nodes may come" not in self._processes.printed("server"):
            if self._processes.status("server") is not None:
                raise PlanError(f"server: {self._processes.last_output('server')}")
            self._check_time(until)
        for name in self.names:
            self.start_node(name)
        self._report(
            f"server and {counted(len(self.names), 'node')}, each with its own processes and "
            f"keys: {self._folder}"
        )

    def start_node(self, name: str) -> None:
        """Starts a node."""
        folder, port = self._folder / name, self._ports[2 + self.names.index(name)]
        self._processes.start(
            *(name, *_MODULE, "node", f"--keys={folder}", f"--settings={folder / 'node.toml'}"),
            *(f"--server=127.0.0.1:{self._ports[0]}", f"--port={port}"),
        )

    def _watch(self) -> None:
        until = time.monotonic() + _QUIET_SECONDS
        while self._processes.status("server") is None:
            if self.hear():
                until = time.monotonic() + _QUIET_SECONDS
            for name in self.names:
                if self._processes.has(name) and self._processes.status(name) is not None:
                    raise PlanError(f"node {name}: {self._processes.last_output(name)}")
            self._check_time(until)
        self.hear()
        if self._processes.status("server") != 0:
            raise PlanError(self._processes.last_output("server"))

    def hear(self) -> list[dict[str, Any]]:
        """Reports the server's new events, and returns them."""
        events = self._events.new()
        for event in events:
            if "line" in event:
                self._report(event["line"])
            if "exchange" in event:
                self.exchanges.append(event)
        return events

    def _check_time(self, until: float) -> None:
        if time.monotonic() > until:
            last = self._processes.last_output("server")
            raise PlanError(
                f"server: expected output within {_QUIET_SECONDS:g} s, found none after: {last}"
            )
        time.sleep(_LOOK_SECONDS)


def named_clients(files: Sequence[Path], folder: Path, report: Callable[[str], None]) -> list[str]:
    """Copies clients' files to a folder, and returns the nodes' names.

    Each node has the name of its file. If one of these names, such as the title of a play, is not a
    valid node name, all nodes get numbered names instead.
    """
    names = [path.stem for path in files]
    if not all(map(keys.is_name, names)):
        names = [f"client_{number:03}" for number in range(len(files))]
        for name, file in zip(names, files):
            report(f"{name}: {file}")
    check_room(folder)
    for name, file in zip(names, files):
        shutil.copyfile(file, folder / f"{name}{SUFFIX}")
    return names


def write_settings(
    folder: Path, export: Path, names: Sequence[str], draws_all: bool = True
) -> None:
    """Writes the keys and settings of a server and its nodes.

    Args:
        folder: The fleet's folder; its subfolder `clients` contains the nodes' examples.
        draws_all: Whether to set the cohort size to the number of nodes.
    """
    sha256 = manifest_sha256(export)
    noise = parse_node_noise(read_manifest(export))
    # The server's state may contain the key of its noise, so nodes get the export without a state.
    plan = folder / "plan_of_nodes"
    shutil.copytree(export, plan)
    (plan / SERVER_STATE).unlink(missing_ok=True)
    publics = [keys.make_node_keys(folder / name, name) for name in names]
    server = folder / "server"
    keys.make_server_keys(server, ["127.0.0.1"], publics, days=2)
    # Rounds must complete even if one node fails.
    min_clients = max(3, len(names) - 1, 0 if noise is None else noise.min_clients)
    (server / "server.toml").write_text(
        _SERVER_TOML.format(
            export=_toml(export),
            min_clients=min_clients,
            keeps_sums=str(noise is not None).lower(),
            cohort_size=f"cohort_size = {len(names)}" if draws_all else "",
        )
    )
    for name in names:
        for shared in (keys.AUTHORITY, keys.ROSTER):
            shutil.copyfile(server / shared, folder / name / shared)
        data = _toml(folder / "clients" / f"{name}{SUFFIX}")
        (folder / name / "node.toml").write_text(
            _NODE_TOML.format(export=_toml(plan), sha256=sha256, min_clients=min_clients, data=data)
        )


def _toml(path: Path) -> str:
    return json.dumps(os.fspath(path), ensure_ascii=False)


def free_ports(count: int) -> list[int]:
    """Returns `count` free ports of the loopback address."""
    # Open all sockets before closing any, as the system may assign the port of a closed socket
    # again.
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listening.getsockname()[1] for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


def _table(events: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'round':>5} {'exchange':<9} {'clients':>7} {'bytes down':>11} {'bytes up':>9} seconds"
    ]
    for event in events:
        exchange = event["exchange"]
        clients = f"{exchange['answered']}/{exchange['asked']}"
        lines.append(
            f"{event['round']:>5} {exchange['stage']:<9} {clients:>7} "
            f"{exchange['bytes_down']:>11,} {exchange['bytes_up']:>9,} {exchange['seconds']:>7.1f}"
        )
    return lines
