"""A fleet on this machine: every part is a process with its own keys, over TLS."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet import keys
from fleet.launch import Events, Processes, check_room
from fleet.node_noise.noise import NodeNoise, noise_of_export
from fleet.node_noise.server_noise import server_noise_of_export
from fleet.settings import manifest_sha256
from plan_runner.errors import PlanError, counted
from plan_runner.export import SERVER_STATE, SUFFIX

_MODULE = (sys.executable, "-m", "fleet")
_LOOK_SECONDS = 0.1
# Seconds without news of the server; its own timeouts are shorter, and have messages of their own.
_QUIET_SECONDS = 600.0
_TIMEOUTS = (
    "nodes = 300\nhello = 60\nkeys = 180\nshares = 180\nwork = 300\nvote = 180\nopening = 180\n"
    "patience = 3\n"
)


def demo(
    export: Path,
    clients: Path,
    nodes: int,
    rounds: int,
    folder: Path,
    tell: Callable[[str], None],
    store: Path | None = None,
    weaker_privacy: bool = False,
) -> None:
    """Runs rounds with a client of a folder on each node.

    Args:
        folder: New folder for keys, settings, states and logs.
        store: Client store from which the nodes read the clients with the files' names.
        weaker_privacy: See `server.FleetServer`.
    """
    names = prepare(export, clients, nodes, rounds, folder, tell, store, weaker_privacy)
    with Processes(folder / "processes") as processes:
        running = RunningDemo(folder, names, rounds, processes, tell, weaker_privacy)
        running.start()
        running.watch()
    for line in _table(running.exchanges):
        tell(line)
    tell(f"state after {counted(rounds, 'round')}: {running.state / SERVER_STATE}")


def prepare(
    export: Path,
    clients: Path,
    nodes: int,
    rounds: int,
    folder: Path,
    tell: Callable[[str], None],
    store: Path | None = None,
    weaker_privacy: bool = False,
) -> list[str]:
    """Writes keys, settings and examples of a demo; returns the nodes' names. See `demo`."""
    files = sorted(clients.glob(f"*{SUFFIX}"))[:nodes]
    if len(files) < nodes:
        raise PlanError(
            f"{clients}: expected {counted(nodes, 'client')} NAME{SUFFIX}, found {len(files)}"
        )
    sha256 = manifest_sha256(export)
    noise = noise_of_export(export, sha256)
    if noise is not None and nodes < noise.fewest_clients:
        raise PlanError(
            f"--nodes: expected at least {noise.fewest_clients}, whose noise together is the "
            f"plan's, found {nodes}"
        )
    if noise is not None and not weaker_privacy and rounds > len(noise.claimed):
        raise PlanError(
            f"--rounds: expected at most {len(noise.claimed)}, as far as the export's account of "
            f"epsilon goes, found {rounds}"
        )
    copies = folder / "clients"
    names = named_clients(files, copies, tell)
    places = [_place(copies / f"{name}{SUFFIX}") for name in names]
    if store is not None:
        places = [_place_in_store(store.resolve(), file) for file in files]
    # Otherwise the plan draws the cohorts, and the settings have no size.
    draws_all = weaker_privacy or server_noise_of_export(export, sha256) is None
    _write_settings(folder, export.resolve(), dict(zip(names, places)), noise, draws_all)
    return names


class RunningDemo:
    """The processes of a demo.

    Attributes:
        state: The server's folder for state.
        exchanges: Events of exchanges.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        rounds: int,
        processes: Processes,
        tell: Callable[[str], None],
        weaker_privacy: bool = False,
    ) -> None:
        self._weaker = ["--weaker_privacy"] * weaker_privacy
        self._folder, self._names, self._rounds, self._tell = folder, names, rounds, tell
        self._processes = processes
        self.state = folder / "server" / "state"
        self._ports = _free_ports(2 + len(names))
        self._events = Events(self.state / "events.jsonl")
        self.exchanges: list[dict[str, Any]] = []

    def start(self) -> None:
        """Starts the server and the nodes."""
        server = self._folder / "server"
        self._processes.start(
            *("server", *_MODULE, "server", f"--keys={server}"),
            *(f"--settings={server / 'server.toml'}", f"--rounds={self._rounds}"),
            *(f"--port={self._ports[0]}", f"--superlink_port={self._ports[1]}"),
            *self._weaker,
        )
        self._wait("server", "nodes may come")
        for name in self._names:
            self.start_node(name)
        self._tell(
            f"server and {counted(len(self._names), 'node')}, each with processes and keys of "
            f"its own: {self._folder}"
        )

    def start_node(self, name: str) -> None:
        """Starts a node."""
        folder, port = self._folder / name, self._ports[2 + self._names.index(name)]
        self._processes.start(
            *(name, *_MODULE, "node", f"--keys={folder}", f"--settings={folder / 'node.toml'}"),
            *(f"--server=127.0.0.1:{self._ports[0]}", f"--port={port}"),
        )

    def watch(self) -> None:
        """Watches the processes until the rounds are complete."""
        heard = time.monotonic()
        while self._processes.status("server") is None:
            if self.hear():
                heard = time.monotonic()
            for name in self._names:
                if self._processes.has(name) and self._processes.status(name) is not None:
                    raise PlanError(f"node {name}: {self._processes.last_output(name)}")
            if time.monotonic() > heard + _QUIET_SECONDS:
                raise PlanError(self._quiet("server"))
            time.sleep(_LOOK_SECONDS)
        self.hear()
        if self._processes.status("server") != 0:
            raise PlanError(self._processes.last_output("server"))

    def hear(self) -> list[dict[str, Any]]:
        """Reports the server's new events, and returns them."""
        events = self._events.new()
        for event in events:
            if "line" in event:
                self._tell(event["line"])
            if "exchange" in event:
                self.exchanges.append(event)
        return events

    def _wait(self, name: str, words: str) -> None:
        until = time.monotonic() + _QUIET_SECONDS
        while words not in self._processes.printed(name):
            if self._processes.status(name) is not None:
                raise PlanError(f"{name}: {self._processes.last_output(name)}")
            if time.monotonic() > until:
                raise PlanError(self._quiet(name))
            time.sleep(_LOOK_SECONDS)

    def _quiet(self, name: str) -> str:
        last = self._processes.last_output(name)
        return f"{name}: expected news within {_QUIET_SECONDS:g} s, found none after: {last}"


def named_clients(files: Sequence[Path], folder: Path, tell: Callable[[str], None]) -> list[str]:
    """Copies clients to files with names that nodes can have; returns the names.

    Clients of a simulation may have other names, such as the title of a play.
    """
    names = [path.stem for path in files]
    if not all(map(keys.is_name, names)):
        names = [f"client_{number:03}" for number in range(len(files))]
        for name, file in zip(names, files):
            tell(f"{name}: {file}")
    check_room(folder)
    for name, file in zip(names, files):
        with open(folder / f"{name}{SUFFIX}", "xb") as copy:
            copy.write(file.read_bytes())
    return names


def _place(file: Path) -> str:
    return f"tfrecord = {_toml(os.fspath(file))}"


def _place_in_store(store: Path, file: Path) -> str:
    # As ./run export names files of clients.
    client = urllib.parse.unquote(file.stem)
    return f"store = {_toml(os.fspath(store))}\nclient = {_toml(client)}"


def _toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _write_settings(
    folder: Path,
    export: Path,
    data: Mapping[str, str],
    noise: NodeNoise | None,
    draws_all: bool = True,
) -> None:
    """Writes keys and settings.

    Args:
        data: Lines of the table of each node's examples.
        draws_all: Whether each round waits for all nodes.
    """
    names = list(data)
    sha256 = manifest_sha256(export)
    # Nodes need no state, which may contain the key of the server's noise.
    without_state = folder / "plan_of_nodes"
    shutil.copytree(
        export,
        without_state,
        ignore=lambda at, names: {SERVER_STATE} if at == os.fspath(export) else (),
    )
    pinned = f'export = "{without_state}"\nmanifest_sha256 = "{sha256}"\n'
    publics = [keys.make_node_keys(folder / name, name) for name in names]
    server = folder / "server"
    keys.make_server_keys(server, ["127.0.0.1"], publics, days=2)
    # One node may fail.
    fewest = max(3, len(names) - 1, 0 if noise is None else noise.fewest_clients)
    common = f"min_clients = {fewest}\n"
    size = f"cohort_size = {len(names)}\n" if draws_all else ""
    (server / "server.toml").write_text(
        f'export = "{export}"\nroster = "{keys.ROSTER}"\nstate = "state"\n'
        f"{common}keeps_sums = {str(noise is not None).lower()}\nrest_rounds = 0\n{size}"
        f"[timeouts]\n{_TIMEOUTS}"
    )
    for name in names:
        node = folder / name
        for shared in (keys.AUTHORITY, keys.ROSTER):
            (node / shared).write_bytes((server / shared).read_bytes())
        (node / "node.toml").write_text(
            f'{pinned}identity = "{keys.IDENTITY}"\nroster = "{keys.ROSTER}"\nstate = "state"\n'
            f"{common}[data]\n{data[name]}\n"
        )


def _free_ports(count: int) -> list[int]:
    # All at once: a closed one could be returned again.
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
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
