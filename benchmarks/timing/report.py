"""Tables of a benchmark, for terminals and Markdown pages."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Optional

from tabulate import tabulate

from benchmarks.timing.machine import Machine
from benchmarks.timing.results import SideResult, WorkloadResult
from benchmarks.timing.scale import ScaleResult, StoreResult

_MEGA = 1e6
_UNKNOWN = "-"


@dataclasses.dataclass(frozen=True)
class Report:
    """All measurements of one benchmark command.

    Attributes:
        date: ISO date and time.
        machine: The machine that ran the command.
        protocol: Sentence about the numbers of rounds and repetitions.
        workloads: Results of all sides on each workload.
        scale: Results at scale, of this package only; None if not measured.
    """

    command: str
    date: str
    machine: Machine
    protocol: str
    workloads: Sequence[WorkloadResult]
    scale: Optional[ScaleResult]

    def failures(self) -> list[str]:
        """Returns a one-line message for each failure."""
        lines = [line for workload in self.workloads for line in workload.failures()]
        return lines + (self.scale.failures() if self.scale else [])

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON values."""
        return {
            "command": self.command,
            "date": self.date,
            "machine": dataclasses.asdict(self.machine),
            "protocol": self.protocol,
            "workloads": {workload.name: workload.to_json() for workload in self.workloads},
            "scale": self.scale.to_json() if self.scale else None,
            "failures": self.failures(),
        }

    def markdown(self) -> str:
        """Returns the report as a Markdown page."""
        return f"# Benchmark\n\n{self.section(level=2)}"

    def section(self, level: int) -> str:
        """Returns the report as a section of a Markdown page, with a heading per workload.

        Args:
            level: Level of the headings.
        """
        heading = "#" * level
        blocks = [f"    {self.command}", f"{self.date}. {self.machine}. {self.protocol}"]
        for workload in self.workloads:
            blocks += [f"{heading} {workload.name}", *workload_blocks(workload, "pipe")]
        if self.scale:
            blocks += [f"{heading} scale", *scale_blocks(self.scale, "pipe")]
        if self.workloads or self.scale:
            blocks += [f"{heading} Versions", self._versions()]
        failed = self.failures()
        if failed:
            blocks += [f"{heading} Failed", "\n".join(f"- {line}" for line in failed)]
        return "\n\n".join(blocks) + "\n"

    def text(self) -> str:
        """Returns the tables for output to a terminal."""
        blocks: list[str] = []
        for workload in self.workloads:
            blocks += [workload.name, *workload_blocks(workload, "simple")]
        if self.scale:
            blocks += ["scale", *scale_blocks(self.scale, "simple")]
        return "\n\n".join(blocks)

    def _versions(self) -> str:
        sides = [side for workload in self.workloads for side in workload.sides]
        sides += [cohort.side for cohort in self.scale.cohorts] if self.scale else []
        versions = {name: v for side in sides for name, v in side.versions.items()}
        return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


def workload_blocks(result: WorkloadResult, style: str) -> list[str]:
    """Returns a workload's table, and the lines around it.

    Args:
        style: Table format of tabulate.
    """
    header = ["", "s per round", "ratio", "min - max", "first round, s", "peak, MB"]
    rows = [_side_row(side, result.ratio(side)) for side in result.sides]
    blocks = [f"{result.description}.", _table(rows, header, style)]
    chosen = [_settings(side) for side in result.sides if side.settings]
    if chosen:
        blocks.append(f"The fastest setting, once for each repetition: {'; '.join(chosen)}.")
    if result.products_share is not None and result.gflops_per_second is not None:
        blocks.append(
            f"The matrix products of AgnosticFedAvg alone ({result.flops / 1e9:.1f} GFLOP) take "
            f"{result.products.median:.3g} s with TensorFlow, at {result.gflops_per_second:.0f} "
            f"GFLOP/s: {result.products_share:.0%} of our round."
        )
    return blocks


def _settings(side: SideResult) -> str:
    return f"{side.title}, {', '.join(side.settings)}"


def scale_blocks(result: ScaleResult, style: str) -> list[str]:
    """Returns the tables of cohorts and of a store, and a line about memory over rounds.

    Args:
        style: Table format of tabulate.
    """
    base = result.cohorts[1].side.title
    header = [
        "",
        "s per round",
        "us per client",
        f"per client, over {base}",
        "peak, MB",
        "peak above it, MB",
    ]
    rows = []
    for cohort in result.cohorts:
        side, clients = cohort.side, cohort.workload.clients
        rows.append(
            [
                side.title,
                f"{side.median:.4g}" if side.rounds else "failed",
                f"{side.median / clients * 1e6:.1f}" if side.rounds else _UNKNOWN,
                _or_unknown(cohort.linear, "{:.2f}"),
                f"{max(side.peak_bytes) / _MEGA:.0f}" if side.peak_bytes else _UNKNOWN,
                f"{cohort.extra_bytes / _MEGA:.0f}" if cohort.extra_bytes is not None else _UNKNOWN,
            ]
        )
    each = result.cohorts[0].workload
    sizes = f"AgnosticFedAvg; {each.examples} examples a client, batch {each.batch_size}."
    blocks = [sizes, _table(rows, header, style)]
    memory, growth = result.long_run.memory_bytes, result.long_run.growth_bytes
    if growth is not None:
        first, *_, last = memory
        blocks.append(
            f"{result.long_run.clients} clients a round: {memory[first] / _MEGA:.1f} MB after "
            f"{first:,} rounds, {memory[last] / _MEGA:.1f} MB after {last:,}: "
            f"{growth / _MEGA:+.1f} MB."
        )
    if result.store is not None and result.store.steps:
        blocks += store_blocks(result.store, style)
    return blocks


def store_blocks(result: StoreResult, style: str) -> list[str]:
    """Returns the table of a large store, and the line above it."""
    header = ["", "processor s", "peak so far, MB"]
    rows = [[name, f"{s:.2f}", f"{peak / _MEGA:.0f}"] for name, s, peak in result.steps]
    return [f"A store of {result.clients:,} clients to train on.", _table(rows, header, style)]


def _side_row(side: SideResult, ratio: Optional[float]) -> list[str]:
    if not side.rounds:
        return [side.title, "failed", *[_UNKNOWN] * 4]
    return [
        side.title,
        f"{side.median:.3g}",
        _or_unknown(ratio, "{:.2f}"),
        f"{min(side.rounds):.3g} - {max(side.rounds):.3g}",
        f"{min(side.first_round):.1f}",
        f"{max(side.peak_bytes) / _MEGA:.0f}",
    ]


def _table(rows: Sequence[Sequence[Any]], header: Sequence[str], style: str) -> str:
    align = ["left", *["right"] * (len(header) - 1)]
    return tabulate(rows, header, tablefmt=style, disable_numparse=True, colalign=align)


def _or_unknown(value: Optional[float], form: str) -> str:
    return _UNKNOWN if value is None else form.format(value)
