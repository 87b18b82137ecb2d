"""A demo of which some processes are killed, and the comparison of its state with run_plan's.

    .venv-fleet/bin/python -m tests.fleet.killed_demo --export=export/plan --clients=clients \\
        --nodes=4 --rounds=3 --kill=node --output=fleet
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fleet.demo import RunningDemo, prepare
from fleet.launch import SUPERLINK, Processes, ended_by_signals
from fleet.server import STAGES
from plan_runner.export import open_export
from tests.fleet import kills
from tests.fleet.comparison import equals_run_plan

# The exchanges of a round, by the profile of its plan.
_STAGES = {"daf": ("work",), "secure": tuple(STAGES.values())}
# Seconds for which a SuperLink may take a killed node for one that is connected.
_BACK_SECONDS = 45.0


class KilledDemo(RunningDemo):
    """A demo that kills processes by a schedule, and starts killed nodes again.

    Attributes:
        schedule: The kills to come; see `kills.schedule`.
        back_seconds: Seconds after which a killed node starts again.
    """

    schedule: kills.Schedule
    back_seconds = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._pid = 0

    def hear(self) -> list[dict[str, Any]]:
        """Also kills the processes whose time has come."""
        events = super().hear()
        for event in events:
            self._pid = event.get("pid", self._pid)
            if "exchange" in event:
                exchange = event["exchange"]
                place = event["round"], exchange["stage"]
                for victim in self.schedule.pop(place, ()):
                    # The exchange that begins now takes about as long.
                    when = time.monotonic() + random.uniform(0, exchange["seconds"])
                    self._later.append((when, functools.partial(self._kill, victim)))
        for due in [due for due in self._later if due[0] <= time.monotonic()]:
            self._later.remove(due)
            due[1]()
        return events

    def _kill(self, victim: str) -> None:
        if victim in self._names:
            if self._processes.has(victim):
                self._tell(f"kills {victim}")
                self._processes.end(victim, signal.SIGKILL)
                back = time.monotonic() + self.back_seconds
                self._later.append((back, functools.partial(self.start_node, victim)))
            return
        self._tell(f"kills {victim}")
        link = self.state / f"{SUPERLINK}.pid"
        # A process that has just ended by itself starts again, too.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid if victim == kills.SERVER else int(link.read_text()), signal.SIGKILL)


def killed_demo(
    export: Path,
    clients: Path,
    nodes: int,
    rounds: int,
    kill: str | None,
    folder: Path,
    tell: Callable[[str], None],
    seed: int = 0,
) -> bool:
    """Runs a demo; returns whether its last state equals run_plan's bit for bit."""
    kills.check_nodes(kill, nodes)
    names = prepare(export, clients, nodes, rounds, folder, tell)
    if kill == kills.OFTEN:
        _expect_losses(folder, names)
    stages = _STAGES[open_export(export).manifest.profile]
    with Processes(folder / "processes") as processes:
        running = KilledDemo(folder, names, rounds, processes, tell)
        running.schedule = kills.schedule(kill, names, rounds, stages, seed)
        running.back_seconds = _BACK_SECONDS if kill == kills.OFTEN else 0.0
        running.start()
        running.watch()
    assert not running.schedule or kill == kills.OFTEN, running.schedule
    return equals_run_plan(export, folder / "clients", running.state, folder, tell)


def _expect_losses(folder: Path, names: list[str]) -> None:
    """Lets rounds have half of the nodes, and be tried again with others."""
    files = [folder / "server" / "server.toml", *(folder / name / "node.toml" for name in names)]
    for file in files:
        text = file.read_text()
        fewest = f"min_clients = {max(3, len(names) // 2)}\n"
        text = text.replace(f"min_clients = {max(3, len(names) - 1)}\n", fewest)
        text = text.replace("rest_rounds = 0\n", "rest_rounds = 1\nattempts = 20\n")
        text = text.replace(f"cohort_size = {len(names)}\n", "")
        text = text.replace("opening = 180", "opening = 60").replace("patience = 3", "patience = 2")
        file.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("export", "clients", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kill", choices=kills.KILLS)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with ended_by_signals():
        same = killed_demo(
            given.export,
            given.clients,
            given.nodes,
            given.rounds,
            given.kill,
            given.output.resolve(),
            lambda text: print(text, flush=True),
            given.seed,
        )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
