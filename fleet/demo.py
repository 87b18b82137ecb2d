"""A whole fleet on this machine: every part a process of its own, with its own keys, over TLS."""

from __future__ import annotations

import bisect
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from fleet import keys, kills
from fleet.comparison import is_as_run_plan
from fleet.launch import SUPERLINK, Events, Processes, check_room
from fleet.node_noise.noise import NodeNoise, noise_of_export
from fleet.node_noise.server_noise import server_noise_of_export
from fleet.server import STAGES
from fleet.settings import manifest_sha256
from plan_runner.errors import PlanError, counted
from plan_runner.export import SERVER_STATE, SUFFIX, open_export

# The exchanges of a round, by the profile of its plan.
_STAGES = {"daf": ("work",), "secure": tuple(STAGES.values())}
_MODULE = (sys.executable, "-m", "fleet")
_LOOK_SECONDS = 0.1
# The longest of the server's own waits is shorter: it ends them in words of its own.
_QUIET_SECONDS = 600.0
# One that was killed is waited for as long as others need, not as a busy machine might.
_TIMEOUTS = (
    "nodes = 300\nhello = 60\nkeys = 180\nshares = 180\nwork = 300\nvote = 180\nopening = 180\n"
    "patience = 3\n"
)
# Where many are killed, a round must not wait long for each.
_OFTEN = _TIMEOUTS.replace("opening = 180", "opening = 60").replace("patience = 3", "patience = 2")
# So long a SuperLink may take a node that was killed for one that is there.
_BACK_SECONDS = 45.0
_METER_SECONDS = 0.5
_PROCESSES = "processes"
# Where Linux tells of processes.
_PROC = Path("/proc")
# After the name of the program, which may hold spaces: see proc(5).
_PARENT, _TIMES = 1, slice(11, 15)


def demo(
    export: Path,
    clients: Path,
    nodes: int,
    rounds: int,
    kill: str | None,
    folder: Path,
    tell: Callable[[str], None],
    seed: int = 0,
    store: Path | None = None,
    weaker_privacy: bool = False,
) -> bool:
    """Plays rounds with a client of the folder on each node; returns whether it is as run_plan.

    Args:
        kill: What is killed, and started again; see `kills.schedule`.
        folder: A folder for keys, settings, states and logs. One that is there is a demo's that was
            cut off: its rounds go on.
        seed: Of what is killed.
        store: A client store, from which nodes read the clients of the files' names; run_plan reads
            the files.
        weaker_privacy: See `server.FleetServer`.
    """
    files = sorted(clients.glob(f"*{SUFFIX}"))[:nodes]
    if len(files) < nodes:
        raise PlanError(
            f"{clients}: expected {counted(nodes, 'client')} NAME{SUFFIX}, found {len(files)}"
        )
    noise = noise_of_export(export, manifest_sha256(export))
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
    clients, is_new = folder / "clients", not folder.exists()
    if is_new:
        names = named_clients(files, clients, tell)
        places = [_place(clients / f"{name}{SUFFIX}") for name in names]
        if store is not None:
            places = [_place_in_store(store.resolve(), file) for file in files]
        data = dict(zip(names, places))
        # Otherwise the plan's own draw, which has no place in the settings.
        draws_all = (
            weaker_privacy or server_noise_of_export(export, manifest_sha256(export)) is None
        )
        _write_settings(folder, export.resolve(), data, noise, draws_all, kill == kills.OFTEN)
    else:
        names = [path.stem for path in sorted(clients.glob(f"*{SUFFIX}"))]
        if len(names) != nodes:
            raise PlanError(f"--nodes: expected {len(names)}, as {folder} has, found {nodes}")
    state = folder / "server" / "state"
    stages = _STAGES[open_export(export).manifest.profile]
    schedule = kills.schedule(kill, names, rounds, stages, seed)
    # With logs of their own each time: it is read there whether a process is ready.
    earlier = len(list(folder.glob(f"{_PROCESSES}*")))
    with Processes(folder / f"{_PROCESSES}{earlier or ''}") as processes:
        back_seconds = _BACK_SECONDS if kill == kills.OFTEN else 0.0
        played = _Played(
            folder, names, rounds, schedule, back_seconds, processes, tell, weaker_privacy
        )
        played.start()
        played.watch()
    for line in _table(played.exchanges):
        tell(line)
    if schedule and kill != kills.OFTEN and is_new:
        raise PlanError(f"--kill={kill}: expected a round to kill it in, found none")
    return is_as_run_plan(export, clients, state, folder, tell)


class _Played:
    """The processes of a demo: starts them, watches them, and kills some.

    Attributes:
        exchanges: Events of exchanges, with the processor seconds that they took.

    Args:
        schedule: What is killed; what has been is taken out.
        back_seconds: When a node that was killed starts again.
    """

    def __init__(
        self,
        folder: Path,
        names: Sequence[str],
        rounds: int,
        schedule: kills.Schedule,
        back_seconds: float,
        processes: Processes,
        tell: Callable[[str], None],
        weaker_privacy: bool,
    ) -> None:
        self._weaker = ["--weaker_privacy"] * weaker_privacy
        self._folder, self._names, self._rounds, self._tell = folder, names, rounds, tell
        self._schedule, self._back_seconds, self._processes = schedule, back_seconds, processes
        self._state = folder / "server" / "state"
        self._ports = _free_ports(2 + len(names))
        self._events = Events(self._state / "events.jsonl")
        self._meter = Meter()
        # What is done at a time of the clock.
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._pid = 0
        self.exchanges: list[dict[str, Any]] = []

    def start(self) -> None:
        """Starts the server and the nodes."""
        keys_of_server = self._folder / "server"
        self._processes.start(
            *("server", *_MODULE, "server", f"--keys={keys_of_server}"),
            *(f"--settings={keys_of_server / 'server.toml'}", f"--rounds={self._rounds}"),
            *(f"--port={self._ports[0]}", f"--superlink_port={self._ports[1]}"),
            *self._weaker,
        )
        _wait(self._processes, "server", "nodes may come")
        for name in self._names:
            self._start_node(name)
        self._tell(
            f"server and {counted(len(self._names), 'node')}, each with processes and keys of "
            f"its own: {self._folder}"
        )

    def _start_node(self, name: str) -> None:
        own, port = self._folder / name, self._ports[2 + self._names.index(name)]
        self._processes.start(
            *(name, *_MODULE, "node", f"--keys={own}", f"--settings={own / 'node.toml'}"),
            *(f"--server=127.0.0.1:{self._ports[0]}", f"--port={port}"),
        )

    def watch(self) -> None:
        """Watches until the rounds are played."""
        heard = time.monotonic()
        while self._processes.status("server") is None:
            self._look(_METER_SECONDS)
            if self._hear():
                heard = time.monotonic()
            for due in [due for due in self._later if due[0] <= time.monotonic()]:
                self._later.remove(due)
                due[1]()
            for name in self._there():
                if self._processes.status(name) is not None:
                    said = self._processes.said(name)
                    raise PlanError(f"node {name}: {said}")
            if time.monotonic() > heard + _QUIET_SECONDS:
                raise PlanError(_quiet(self._processes, "server"))
            time.sleep(_LOOK_SECONDS)
        self._hear()
        if self._processes.status("server") != 0:
            raise PlanError(self._processes.said("server"))

    def _there(self) -> list[str]:
        return [name for name in self._names if self._processes.has(name)]

    def _look(self, every: float = 0.0) -> None:
        names = ("server", *self._there())
        self._meter.look([self._processes.id(name) for name in names], every)

    def _hear(self) -> bool:
        """Takes what has happened, and returns whether anything has."""
        events = self._events.new()
        for event in events:
            self._pid = event.get("pid", self._pid)
            if "line" in event:
                self._tell(event["line"])
            if "exchange" in event:
                self._look()
                seconds = event["exchange"]["seconds"]
                ids = [self._processes.id(name) for name in self._there()]
                event["node"] = self._meter.last(ids, seconds)
                event["server"] = self._meter.last([self._processes.id("server")], seconds)
                self.exchanges.append(event)
                self._plan_kills(event["round"], event["exchange"]["stage"], seconds)
        return bool(events)

    def _plan_kills(self, number: int, stage: str, seconds: float) -> None:
        """Plans what dies in the exchange that begins now, which takes about as long."""
        for victim in self._schedule.pop((number, stage), ()):
            when = time.monotonic() + random.uniform(0, seconds)
            words = f"kills {victim} in round {number}, after {stage}"
            self._later.append((when, functools.partial(self._kill, victim, words)))

    def _kill(self, victim: str, words: str) -> None:
        if victim in self._names and not self._processes.has(victim):
            self._tell(f"{victim} is not back yet: not killed again")
            return
        self._tell(words)
        if victim in self._names:
            self._processes.end(victim, signal.SIGKILL)
            back = time.monotonic() + self._back_seconds
            self._later.append((back, functools.partial(self._start_node, victim)))
            return
        link = self._state / f"{SUPERLINK}.pid"
        # One that has just ended by itself starts again as well.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid if victim == kills.SERVER else int(link.read_text()), signal.SIGKILL)


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
    are_killed_often: bool = False,
) -> None:
    """Writes keys and settings.

    Args:
        data: Lines of the table of each node's examples.
        draws_all: Whether each round waits for all nodes.
    """
    names = list(data)
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
    left = len(names) // 2 if are_killed_often else len(names) - 1
    fewest = max(3, left, 0 if noise is None else noise.fewest_clients)
    common = f"min_clients = {fewest}\n"
    size = f"cohort_size = {len(names)}\n" if draws_all else ""
    # Who was killed is asked again in the round after the next.
    rounds = (
        f"rest_rounds = 1\nattempts = 20\n[timeouts]\n{_OFTEN}"
        if are_killed_often
        else f"rest_rounds = 0\n{size}[timeouts]\n{_TIMEOUTS}"
    )
    (server / "server.toml").write_text(
        f'export = "{export}"\nroster = "{keys.ROSTER}"\nstate = "state"\n'
        f"{common}keeps_sums = {str(noise is not None).lower()}\n{rounds}"
    )
    for name in names:
        own = folder / name
        for shared in (keys.AUTHORITY, keys.ROSTER):
            (own / shared).write_bytes((server / shared).read_bytes())
        (own / "node.toml").write_text(
            f'{pinned}identity = "{keys.IDENTITY}"\nroster = "{keys.ROSTER}"\nstate = "state"\n'
            f"{common}[data]\n{data[name]}\n"
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
    while words not in processes.printed(name):
        if processes.status(name) is not None:
            raise PlanError(f"{name}: {processes.said(name)}")
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
    rounds = len({event["round"] for event in events})
    if rounds:
        node, server = (sum(e[who] or 0 for e in events) / rounds for who in ("node", "server"))
        down, up = (
            sum(event["exchange"][way] for event in events) / rounds
            for way in ("bytes_down", "bytes_up")
        )
        lines.append(
            f"a round takes a node {node:.2f} processor seconds and the server {server:.2f}; "
            f"{down:,.0f} bytes go to the nodes and {up:,.0f} come from them; "
            f"{'mean' if rounds == 1 else 'means'} of {counted(rounds, 'round')}"
        )
    return lines


def _used(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f}"


def processor_seconds(roots: Iterable[int], proc: Path = _PROC) -> dict[int, float]:
    """Returns the processor seconds of process trees, by their first process; of those that run.

    A process counts with those of its children that have ended and that it has waited for.

    Args:
        roots: Ids of processes.
        proc: Where Linux tells of processes.
    """
    own, children = dict[int, float](), dict[int, list[int]]()
    for number, parent, seconds in _processes(proc):
        own[number] = seconds
        children.setdefault(parent, []).append(number)

    def of_tree(number: int) -> float:
        return own[number] + sum(map(of_tree, children.get(number, ())))

    return {root: of_tree(root) for root in roots if root in own}


def _processes(proc: Path) -> Iterator[tuple[int, int, float]]:
    tick = os.sysconf("SC_CLK_TCK")
    for folder in proc.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text(errors="replace")
        except OSError:
            # It has ended meanwhile.
            continue
        fields = text[text.rindex(")") + 1 :].split()
        yield int(folder.name), int(fields[_PARENT]), sum(map(int, fields[_TIMES])) / tick


class Meter:
    """Looks at processes now and then, and tells what they used between two times.

    Args:
        clock: Seconds of a clock that goes forward.
        look: As `processor_seconds`.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        look: Callable[[Iterable[int]], Mapping[int, float]] = processor_seconds,
    ) -> None:
        self._clock, self._look = clock, look
        self._times: list[float] = []
        self._found: list[Mapping[int, float]] = []

    def look(self, processes: Iterable[int], every: float = 0.0) -> None:
        """Looks, unless it did so less than `every` seconds ago."""
        now = self._clock()
        if self._times and now < self._times[-1] + every:
            return
        self._times.append(now)
        self._found.append(self._look(processes))

    def last(self, processes: Iterable[int], seconds: float) -> Optional[float]:
        """Returns the mean of processes' processor seconds in the last so many seconds.

        A part of a second before is counted, as far as nobody looked meanwhile; a process that was
        not there all the time is not. None if none was.
        """
        began = bisect.bisect_right(self._times, self._times[-1] - seconds) - 1
        first, last = self._found[max(began, 0)], self._found[-1]
        there = [number for number in processes if number in first and number in last]
        used = [last[number] - first[number] for number in there]
        return sum(used) / len(used) if used else None
