"""A demo kills its own processes; its final state is compared with run_plan's.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fleet.demo import Demo
from fleet.launch import SUPERLINK
from fleet.server import STAGES
from plan_runner.errors import PlanError
from plan_runner.exit_status import ended_by_signals
from plan_runner.export import open_export
from tests.fleet.comparison import equals_run_plan

# Values of --kill: one process once (a node, the ServerApp, the SuperLink), or many repeatedly.
NODE, SERVER, OFTEN = "node", "server", "often"
KILLS = (NODE, SERVER, SUPERLINK, OFTEN)
_MIN_NODES = {NODE: 4, OFTEN: 5}
# Exchanges of a round, keyed by the plan's profile.
_STAGES = {"daf": ("work",), "secure": tuple(STAGES.values())}
# Maximum seconds during which the SuperLink regards a killed node as connected.
_BACK_SECONDS = 45.0
# Keys are (round, exchange); values are the processes to kill after this exchange.
Schedule = dict[tuple[int, str], list[str]]


def schedule(
    kill: str | None, names: Sequence[str], rounds: int, stages: Sequence[str], seed: int = 0
) -> Schedule:
    """Returns the processes to kill.

    OFTEN kills in each round a fifth of the nodes, none twice within three rounds, and in rounds
    5, 15, 25, ... also the server, each after a random exchange. Other values kill one process in
    the second round.
    """
    if kill is None:
        return {}
    if kill != OFTEN:
        return {(min(2, rounds), stages[0]): [names[-1] if kill == NODE else kill]}
    victims: Schedule = {}
    generator = random.Random(seed)
    killed: list[list[str]] = []
    for number in range(1, rounds + 1):
        spared = {name for names in killed[-2:] for name in names}
        alive = [name for name in names if name not in spared]
        killed.append(generator.sample(alive, max(1, len(names) // 5)))
        for name in (*killed[-1], *([SERVER] if number % 10 == 5 else [])):
            victims.setdefault((number, generator.choice(stages)), []).append(name)
    return victims


class KilledDemo(Demo):
    """A demo that kills processes according to a schedule, and restarts killed nodes.

    Attributes:
        schedule: The remaining kills; see the function `schedule`.
        back_seconds: Seconds until a killed node restarts.
    """

    schedule: Schedule
    back_seconds = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._pid = 0

    def hear(self) -> list[dict[str, Any]]:
        """See `Demo.hear`; also kills processes."""
        events = super().hear()
        for event in events:
            self._pid = event.get("pid", self._pid)
            if "exchange" in event:
                exchange = event["exchange"]
                for victim in self.schedule.pop((event["round"], exchange["stage"]), ()):
                    # Kill during the next exchange, which takes about as long as this one.
                    when = time.monotonic() + random.uniform(0, exchange["seconds"])
                    self._later.append((when, functools.partial(self._kill, victim)))
        for due in [due for due in self._later if due[0] <= time.monotonic()]:
            self._later.remove(due)
            due[1]()
        return events

    def _kill(self, victim: str) -> None:
        self._report(f"kills {victim}")
        if victim in self.names:
            if self._processes.has(victim):
                self._processes.end(victim, signal.SIGKILL)
                back = time.monotonic() + self.back_seconds
                self._later.append((back, functools.partial(self.start_node, victim)))
            return
        link = self.state / f"{SUPERLINK}.pid"
        # The process may just have exited by itself.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid if victim == SERVER else int(link.read_text()), signal.SIGKILL)


def killed_demo(
    export: Path,
    clients: Path,
    nodes: int,
    rounds: int,
    kill: str | None,
    folder: Path,
    report: Callable[[str], None],
    seed: int = 0,
) -> bool:
    """Runs a demo; returns whether its final state equals run_plan's bit for bit."""
    minimum = _MIN_NODES.get(kill or "", 0)
    if nodes < minimum:
        raise PlanError(f"--kill={kill}: expected at least {minimum} --nodes, found {nodes}")
    running = KilledDemo(export, clients, nodes, rounds, folder, report)
    if kill == OFTEN:
        _expect_losses(folder, running.names)
        running.back_seconds = _BACK_SECONDS
    stages = _STAGES[open_export(export).manifest.profile]
    running.schedule = schedule(kill, running.names, rounds, stages, seed)
    running.run()
    assert not running.schedule or kill == OFTEN, running.schedule
    return equals_run_plan(export, folder / "clients", running.state, folder, report)


def _expect_losses(folder: Path, names: list[str]) -> None:
    """Changes the settings: half of the nodes suffice for a round; failed rounds are repeated."""
    changes = {
        f"min_clients = {max(3, len(names) - 1)}\n": f"min_clients = {max(3, len(names) // 2)}\n",
        "rest_rounds = 0\n": "rest_rounds = 1\nattempts = 20\n",
        f"cohort_size = {len(names)}\n": "",
        "stage = 180\npatience = 3": "stage = 60\npatience = 2",
    }
    for file in (folder / "server" / "server.toml", *(folder / n / "node.toml" for n in names)):
        text = file.read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        file.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("export", "clients", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kill", choices=KILLS)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with ended_by_signals():
        is_equal = killed_demo(
            *(given.export, given.clients, given.nodes, given.rounds, given.kill),
            *(given.output.resolve(), functools.partial(print, flush=True), given.seed),
        )
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
