"""Measures how time and memory grow with clients, domains and rounds, for this package only."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Optional

from benchmarks.timing.environments import side_environment
from benchmarks.timing.process import SideError, SideProcess, last_line
from benchmarks.timing.process_tree import tree_memory_bytes
from benchmarks.timing.results import SideResult, failures
from benchmarks.timing.schedule import Contestant, Protocol, measure
from benchmarks.timing.sides import SideSpec
from benchmarks.timing.workloads import Workload, logistic

_NAME = "scale"


@dataclasses.dataclass(frozen=True)
class ScalePlan:
    """The measurements of a scale benchmark.

    Attributes:
        cohorts: Workloads whose times are measured, each in separate processes.
        long_run: Workload of the long run, which measures memory.
        long_rounds: Number of rounds of the long run.
        look_every: Number of rounds between two measurements of memory.
        store_clients: Number of training clients in the measured store; 0 for no store.
    """

    cohorts: tuple[Workload, ...] = (
        logistic(clients=100),
        logistic(clients=1_000),
        logistic(clients=10_000),
        logistic(clients=1_000, domains=100),
        logistic(clients=1_000, domains=1_000),
    )
    long_run: Workload = logistic(clients=100)
    long_rounds: int = 1_000
    look_every: int = 100
    store_clients: int = 1_000_000


@dataclasses.dataclass(frozen=True)
class CohortResult:
    """A cohort's timings, compared with a base cohort.

    Attributes:
        linear: Seconds per client, divided by the base cohort's; None if either number is unknown.
        extra_bytes: Peak memory minus the base cohort's; None if either number is unknown.
    """

    workload: Workload
    side: SideResult
    linear: Optional[float]
    extra_bytes: Optional[int]


@dataclasses.dataclass(frozen=True)
class LongRun:
    """Memory of a run with many rounds.

    Attributes:
        clients: Number of clients per round.
        memory_bytes: Memory, keyed by the number of completed rounds.
        failure: One-line error message; None without a failure.
    """

    clients: int
    memory_bytes: dict[int, int]
    failure: Optional[str] = None

    @property
    def growth_bytes(self) -> Optional[int]:
        """Last minus first measurement of memory; None without two measurements."""
        looks = list(self.memory_bytes.values())
        return looks[-1] - looks[0] if len(looks) > 1 else None


@dataclasses.dataclass(frozen=True)
class StoreResult:
    """Time and memory that a large store costs.

    Attributes:
        clients: Number of training clients in the store.
        steps: Each step's name, processor seconds, and peak memory so far in bytes.
        failure: One-line error message; None without a failure.
    """

    clients: int
    steps: Sequence[tuple[str, float, int]]
    failure: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class ScaleResult:
    """Results of a `ScalePlan`."""

    cohorts: Sequence[CohortResult]
    long_run: LongRun
    store: Optional[StoreResult] = None

    def failures(self) -> list[str]:
        """Returns a one-line message for each measurement that failed."""
        lines = failures([cohort.side for cohort in self.cohorts], _NAME)
        if self.long_run.failure:
            lines.append(f"the long run, {_NAME}: {self.long_run.failure}")
        if self.store and self.store.failure:
            lines.append(f"the store, {_NAME}: {self.store.failure}")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Returns all results as JSON values."""
        return {
            "cohorts": [
                {
                    "clients": cohort.workload.clients,
                    "domains": cohort.workload.domains,
                    **cohort.side.to_json(),
                    "time_per_client_over_base": cohort.linear,
                    "peak_bytes_above_base": cohort.extra_bytes,
                }
                for cohort in self.cohorts
            ],
            "long_run": {
                **dataclasses.asdict(self.long_run),
                "growth_bytes": self.long_run.growth_bytes,
            },
            "store": self.store and dataclasses.asdict(self.store),
        }


def measure_scale(spec: SideSpec, plan: ScalePlan, protocol: Protocol) -> ScaleResult:
    """Runs all measurements of a plan, and compares cohorts with the plan's second cohort."""
    contestants = [
        Contestant(
            title=f"{workload.clients:,} clients, {workload.domains:,} domains",
            description=workload.describe(),
            command=lambda workload=workload: spec.command(workload),  # type: ignore[misc]
        )
        for workload in plan.cohorts
    ]
    sides = measure(contestants, protocol)
    base_workload, base = plan.cohorts[1], sides[1]
    cohorts = [
        CohortResult(
            workload=workload,
            side=side,
            linear=_per_client(side, workload) / _per_client(base, base_workload)
            if side.rounds and base.rounds
            else None,
            extra_bytes=max(side.peak_bytes) - max(base.peak_bytes)
            if side.peak_bytes and base.peak_bytes
            else None,
        )
        for workload, side in zip(plan.cohorts, sides)
    ]
    store = measure_store(plan.store_clients) if plan.store_clients else None
    return ScaleResult(cohorts, _run_long(spec, plan, protocol), store)


def measure_store(clients: int) -> StoreResult:
    """Measures a store with `clients` training clients, in a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.timing.large_store", f"--clients={clients}"],
        env=side_environment(),
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        failure = f"ended with status {done.returncode}: {last_line(done.stderr)}"
        return StoreResult(clients, [], failure)
    steps = [(name, seconds, peak) for name, seconds, peak in json.loads(done.stdout)]
    return StoreResult(clients, steps)


def _per_client(side: SideResult, workload: Workload) -> float:
    return side.median / workload.clients


def _run_long(spec: SideSpec, plan: ScalePlan, protocol: Protocol) -> LongRun:
    memory: dict[int, int] = {}
    failure = None
    log = protocol.logs / "long.log"
    try:
        command = spec.command(plan.long_run)
        with SideProcess(command, side_environment(), log, protocol.round_limit) as side:
            side.ready()
            for number in range(1, plan.long_rounds + 1):
                side.round()
                if number % plan.look_every == 0:
                    memory[number] = tree_memory_bytes(side.pid)
                    protocol.say(f"long run: round {number:,}/{plan.long_rounds:,}")
    except SideError as e:
        failure = str(e)
        protocol.say(f"the long run {e}")
    return LongRun(plan.long_run.clients, memory, failure)
