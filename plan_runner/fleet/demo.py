"""A whole fleet on this machine: every part a process of its own, with its own keys, over TLS."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plan_runner.errors import PlanError
from plan_runner.export import SERVER_STATE, SUFFIX
from plan_runner.fleet import keys
from plan_runner.fleet.comparison import is_as_run_plan
from plan_runner.fleet.launch import SUPERLINK, Events, Processes, check_room
from plan_runner.fleet.settings import manifest_sha256
from plan_runner.fleet.usage import Meter
from plan_runner.private_sums.noise import NodeNoise, noise_of_export

KILLS = ("node", "server", "superlink")
_LOOK_SECONDS = 0.1
# The longest of the server's own waits is shorter: it ends them in words of its own.
_QUIET_SECONDS = 600.0
# One that was killed is waited for as long as others need, not as a busy machine might.
_TIMEOUTS = (
    "nodes = 300\nhello = 60\nkeys = 180\nshares = 180\nwork = 300\nvote = 180\nopening = 180\n"
    "patience = 3\n"
)
_METER_SECONDS = 0.5


def demo(
    export: Path,
    clients: Path,
    nodes: int,
    rounds: int,
    kill: str | None,
    folder: Path,
    tell: Callable[[str], None],
) -> bool:
    """Plays rounds with a client of the folder on each node; returns whether it is as run_plan.

    Args:
        kill: What is killed in the second round, and started again.
        folder: A new folder for keys, settings, states and logs.
    """
    files = sorted(clients.glob(f"*{SUFFIX}"))[:nodes]
    if len(files) < nodes:
        raise PlanError(f"{clients}: expected {nodes} clients NAME{SUFFIX}, found {len(files)}")
    noise = noise_of_export(export, manifest_sha256(export))
    if noise is not None and nodes < noise.fewest_clients:
        raise PlanError(
            f"--nodes: expected at least {noise.fewest_clients}, whose noise together is the "
            f"plan's, found {nodes}"
        )
    if noise is not None and rounds > len(noise.epsilons):
        raise PlanError(
            f"--rounds: expected at most {len(noise.epsilons)}, as far as the export's account of "
            f"epsilon goes, found {rounds}"
        )
    clients = folder / "clients"
    names = named_clients(files, clients, tell)
    server_port, superlink_port, *node_ports = _free_ports(2 + nodes)
    _write_settings(folder, export.resolve(), clients, names, noise)
    state = folder / "server" / "state"
    module = (sys.executable, "-m", "plan_runner.fleet")

    def node(number: int) -> tuple[str, ...]:
        own = folder / names[number]
        return (
            *(names[number], *module, "node", f"--keys={own}", f"--settings={own / 'node.toml'}"),
            *(f"--server=127.0.0.1:{server_port}", f"--port={node_ports[number]}"),
        )

    with Processes(folder / "processes") as processes:
        events = Events(state / "events.jsonl")
        processes.start(
            *("server", *module, "server", f"--keys={folder / 'server'}"),
            *(f"--settings={folder / 'server' / 'server.toml'}", f"--rounds={rounds}"),
            *(f"--port={server_port}", f"--superlink_port={superlink_port}"),
        )
        _wait(processes, "server", "nodes may come")
        for number in range(nodes):
            processes.start(*node(number))
        tell(f"server and {nodes} nodes, each with processes and keys of its own: {folder}")
        exchanges: list[dict[str, Any]] = []
        meter = Meter()

        def look(every: float = 0.0) -> None:
            meter.look([processes.id(name) for name in ("server", *names)], every)

        def heard_of(event: dict[str, Any]) -> None:
            look()
            seconds = event["exchange"]["seconds"]
            event["node"] = meter.last([processes.id(name) for name in names], seconds)
            event["server"] = meter.last([processes.id("server")], seconds)
            exchanges.append(event)

        pid, killed, heard = 0, kill is None, time.monotonic()
        while processes.status("server") is None:
            look(_METER_SECONDS)
            for event in events.new():
                heard = time.monotonic()
                pid = event.get("pid", pid)
                if "line" in event:
                    tell(event["line"])
                if "exchange" in event:
                    heard_of(event)
                if not killed and event.get("round", 0) == min(2, rounds):
                    killed = True
                    tell(f"kills the {kill}")
                    if kill == "node":
                        processes.end(names[-1], signal.SIGKILL)
                        processes.start(*node(nodes - 1))
                    else:
                        number = pid
                        if kill == "superlink":
                            number = int((state / f"{SUPERLINK}.pid").read_text())
                        os.kill(number, signal.SIGKILL)
            for name in names:
                if processes.status(name) is not None:
                    raise PlanError(f"node {name}: {processes.said(name).removeprefix('error: ')}")
            if time.monotonic() > heard + _QUIET_SECONDS:
                raise PlanError(_quiet(processes, "server"))
            time.sleep(_LOOK_SECONDS)
        for event in events.new():
            if "exchange" in event:
                heard_of(event)
        if processes.status("server") != 0:
            raise PlanError(processes.said("server").removeprefix("error: "))
    for line in _table(exchanges):
        tell(line)
    if not killed:
        raise PlanError(f"--kill={kill}: expected a round to kill it in, found none")
    return is_as_run_plan(export, clients, state, folder, tell)


def named_clients(files: Sequence[Path], folder: Path, tell: Callable[[str], None]) -> list[str]:
    """Copies clients to files that nodes can be named after; returns those names.

    A simulation's client may have any name, such as that of a text and a number.
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


def _write_settings(
    folder: Path, export: Path, clients: Path, names: Sequence[str], noise: NodeNoise | None
) -> None:
    sha256 = manifest_sha256(export)
    # Nodes need no state, which may hold the key of the server's noise.
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
    # An update, or a sum of two, may be known: the fewest are as many as can be lost in a demo.
    fewest = max(3, len(names) - 1, 0 if noise is None else noise.fewest_clients)
    common = f"min_clients = {fewest}\n"
    (server / "server.toml").write_text(
        f'export = "{export}"\nroster = "{keys.ROSTER}"\nstate = "state"\nrest_rounds = 0\n'
        f"cohort_size = {len(names)}\n{common}keeps_sums = {str(noise is not None).lower()}\n"
        f"[timeouts]\n{_TIMEOUTS}"
    )
    for name in names:
        own = folder / name
        for shared in (keys.AUTHORITY, keys.ROSTER):
            (own / shared).write_bytes((server / shared).read_bytes())
        (own / "node.toml").write_text(
            f'{pinned}identity = "{keys.IDENTITY}"\nroster = "{keys.ROSTER}"\nstate = "state"\n'
            f'{common}[data]\ntfrecord = "{clients / (name + SUFFIX)}"\n'
        )


def _free_ports(count: int) -> list[int]:
    # All at once, or one would be found twice.
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in opened]
    for one in opened:
        one.close()
    return ports


def _quiet(processes: Processes, name: str) -> str:
    said = processes.said(name)
    return f"{name}: expected to hear of it within {_QUIET_SECONDS:g} s, it said last: {said}"


def _wait(processes: Processes, name: str, words: str) -> None:
    until = time.monotonic() + _QUIET_SECONDS
    while words not in processes.log(name).read_text(errors="replace"):
        if processes.status(name) is not None:
            raise PlanError(f"{name}: {processes.said(name).removeprefix('error: ')}")
        if time.monotonic() > until:
            raise PlanError(_quiet(processes, name))
        time.sleep(_LOOK_SECONDS)


def _table(events: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'round':>5} {'exchange':<9} {'clients':>7} {'bytes down':>11} {'bytes up':>9} seconds "
        "CPU s/node CPU s, server"
    ]
    for event in events:
        found = event["exchange"]
        clients = f"{found['answered']}/{found['asked']}"
        lines.append(
            f"{event['round']:>5} {found['stage']:<9} {clients:>7} {found['bytes_down']:>11,} "
            f"{found['bytes_up']:>9,} {found['seconds']:>7.1f} {_used(event['node']):>10} "
            f"{_used(event['server']):>13}"
        )
    of_nodes = [event["node"] for event in events if event["node"] is not None]
    if of_nodes:
        lines.append(
            f"an exchange takes a node {sum(of_nodes) / len(of_nodes):.2f} processor seconds, at "
            f"most {max(of_nodes):.2f}"
        )
    return lines


def _used(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f}"
