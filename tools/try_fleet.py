"""Plays many rounds of a fleet in this process while nodes die and the server is killed.

Each node is a real one, with its process that plays in a sandbox, and sums are secure. In each
round a fifth of the nodes dies at a stage by chance, and is back in the next round; the server is
killed at steps by chance. In the end the state must be what `run_plan` computes of those whose
values were summed, bit for bit. Prints what happened; exits with 1 if the state differs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def main() -> int:
    """Plays; returns the exit status."""
    from plan_runner.export import DEFAULT_LIMITS
    from plan_runner.fleet.player import Player
    from plan_runner.fleet.server import FleetServer
    from plan_runner.fleet.settings import manifest_sha256
    from tests.plan_runner import plans
    from tests.plan_runner.exports import rehash, write_clients, write_export
    from tests.plan_runner.fleet.fleet import Fleet, LocalChannel, Stopped, Told
    from tests.plan_runner.harness import call

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--kills", type=int, default=5, help="How often the server is killed.")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    stages = ("BEGIN", "ROSTER", "DELIVERY", "SURVIVORS", "VOTES")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export = write_export(folder / "export", plans.secure_plan(), "secure")
        rehash(export, privacy={"maximum_clients_per_round": 2 * given.nodes})
        examples = {f"node{n:02}": [(float(n), n % 9)] * (n % 3 + 1) for n in range(given.nodes)}
        fleet = Fleet(folder / "fleet", export, write_clients(folder / "clients", examples))
        settings = fleet.server_settings(rest_rounds=0, cohort_size=given.nodes, attempts=20)
        began = time.monotonic()
        channel = LocalChannel(fleet.nodes())
        print(f"{given.nodes} nodes in {time.monotonic() - began:.0f} s", flush=True)
        died: dict[int, dict[str, int]] = {}

        def is_lost(node: str, stage: str) -> bool:
            if stage not in stages or not channel.round:
                return False
            if channel.round not in died:
                unlucky = chance.sample(fleet.names, given.nodes // 5)
                died[channel.round] = {n: chance.randrange(len(stages)) for n in unlucky}
            return stages.index(stage) >= died[channel.round].get(node, len(stages))

        channel.lost = is_lost
        steps = ("begun", "KEYS", "MASKED", "OPENING", "sums written", "opened", "done")
        kills = sorted(chance.sample(range(1, given.rounds + 1), given.kills))
        stops = [f"training {number}: {chance.choice(steps)}" for number in kills]
        began = time.monotonic()
        for stop in [*stops, ""]:
            # A new server, with a process of its own that plays.
            pinned = manifest_sha256(export)
            player = Player(export, pinned, DEFAULT_LIMITS)
            server = FleetServer(settings, channel, Told(stop), lambda *_, found=player: found)
            try:
                server.run(given.rounds)
            except Stopped:
                print(f"killed at {stop}, round {server.completed} done", flush=True)
            finally:
                server.close()
        seconds = time.monotonic() - began
        fleet.close()
        lines = (settings.state / "rounds.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        opened = [event for event in events if event["event"] == "opened"]
        cohorts = folder / "cohorts.txt"
        cohorts.write_text("".join(f"{','.join(event['names'])}\n" for event in opened))
        results = folder / "run_plan"
        arguments = (f"--plan={export}", f"--clients={fleet.clients}", f"--cohorts={cohorts}")
        outcome = call(*arguments, f"--output={results}")
        if outcome.status:
            print(f"run_plan: status {outcome.status}: {outcome.err}", end="")
            return 1
        expected = (results / "server_state.ckpt").read_bytes()
        is_same = (settings.state / "server_state.ckpt").read_bytes() == expected
        at = Counter(stages[stage] for nodes in died.values() for stage in nodes.values())
        print(f"{len(opened)} rounds in {seconds:.0f} s; nodes died at {dict(sorted(at.items()))}")
        print(f"nodes in a sum: {dict(sorted(Counter(e['clients'] for e in opened).items()))}")
        print(f"events: {dict(Counter(event['event'] for event in events))}")
        print(f"the state is that of run_plan, bit for bit: {is_same}")
        return 0 if is_same and len(opened) == given.rounds else 1


if __name__ == "__main__":
    sys.exit(main())
