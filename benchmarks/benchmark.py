"""Times rounds of this package and of other simulators, and writes tables as JSON and Markdown.

Example: ./run benchmark --workload=emnist_cnn --peers=fedjax,pfl
"""

import dataclasses
import datetime
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from absl import flags

from benchmarks.timing.comparison import compare
from benchmarks.timing.machine import Machine
from benchmarks.timing.page import Page
from benchmarks.timing.report import Report
from benchmarks.timing.scale import ScalePlan, measure_scale
from benchmarks.timing.schedule import Protocol
from benchmarks.timing.sides import PEERS, SideSpec, own_sides
from benchmarks.timing.workloads import WORKLOADS, Workload
from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import (
    claimed_folder,
    is_new_or_empty,
    make_folder,
    write_json,
    write_text,
)
from tff_agnostic.base.registry import Registry
from tff_agnostic.program.options.process import run_app
from tff_agnostic.runtimes.registry import RUNTIMES

_RUNS = Path("runs")
_SCALE = "scale"
_DEVICES = ["cpu", "gpu"]
# Heading level within the generated section of a page.
_PAGE_HEADINGS = 4
# Workloads to measure, keyed by the value of --workload.
_CHOICES: Registry[list[str]] = Registry(
    "workload",
    {**{name: [name] for name in [*WORKLOADS, _SCALE]}, "all": [*WORKLOADS, _SCALE]},
)


def define_flags() -> None:
    """Defines the flags of this binary."""
    flags.DEFINE_string("workload", "all", f"What to time. Of: {', '.join(_CHOICES)}.")
    flags.DEFINE_list(
        "peers",
        ["all"],
        f"Other simulators to time next to this package. Of: all, none, {', '.join(PEERS)}.",
    )
    flags.DEFINE_integer("rounds", 7, "Rounds of each side that count, in each repetition.")
    flags.DEFINE_integer("repeats", 2, "Repetitions, each with new processes.")
    flags.DEFINE_string("runtime", "cohort", f"Where our rounds run. Of: {', '.join(RUNTIMES)}.")
    flags.DEFINE_enum(
        "device",
        "cpu",
        _DEVICES,
        "Where our clients run; gpu times them streamed and on the CPU too, and no peers.",
    )
    flags.DEFINE_integer("clients", None, "Clients of a round. [10, or 500 of logistic]")
    flags.DEFINE_integer(
        "round_limit",
        300,
        "Seconds that a side has for a round, the first one from its start; the others go on "
        "without one that takes longer.",
    )
    flags.DEFINE_string(
        "output_dir", None, "Folder of the results. [runs/benchmark-NUMBER, a new one]"
    )
    flags.DEFINE_string(
        "page",
        None,
        "Markdown page whose section of results is replaced at the end, such as "
        "docs/reference/benchmarks.md.",
    )


def main(argv: Sequence[str]) -> int:
    """Runs the benchmarks that the flags select; returns 1 if a side failed."""
    del argv
    names, peers = _CHOICES[flags.FLAGS.workload], chosen_peers()
    ours = own_sides(flags.FLAGS.runtime, flags.FLAGS.device)
    for name in ("rounds", "repeats", "round_limit", "clients"):
        if flags.FLAGS[name].value is not None and flags.FLAGS[name].value < 1:
            raise UserError(f"--{name}: expected at least 1, found {flags.FLAGS[name].value}")
    if flags.FLAGS.clients is not None and flags.FLAGS.workload == _SCALE:
        raise UserError("--clients: has no effect with --workload=scale")
    page = chosen_page()
    path = output_folder()
    make_folder(path / "logs")
    repeats = flags.FLAGS.repeats
    print(f"{', '.join(names)}, {repeats} x {counted(flags.FLAGS.rounds, 'round')}: {path}")
    report = Report(
        command=shlex.join(["./run", "benchmark", *sys.argv[1:]]),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        machine=Machine.here(),
        protocol=(
            f"Medians of {repeats} x {counted(flags.FLAGS.rounds, 'round')}, in turn; "
            f"runtime {flags.FLAGS.runtime}, device {flags.FLAGS.device}."
        ),
        workloads=[],
        scale=None,
    )
    for name in names:
        if name == _SCALE:
            scale = measure_scale(ours[0], ScalePlan(), protocol(path, name))
            report = dataclasses.replace(report, scale=scale)
        else:
            compared = compare(chosen_workload(name), [*ours, *peers], protocol(path, name))
            report = dataclasses.replace(report, workloads=[*report.workloads, compared])
        # Write after each workload, as the next one may be interrupted.
        write(report, path)
    # Write the page only at the end, because incomplete results would mislead readers.
    if page is not None:
        page.replace_section(report.section(_PAGE_HEADINGS))
    return finish(report, path)


def chosen_workload(name: str) -> Workload:
    """Returns a workload, with the number of clients from --clients if given."""
    workload, clients = WORKLOADS[name], flags.FLAGS.clients
    return workload if clients is None else dataclasses.replace(workload, clients=clients)


def chosen_peers() -> list[SideSpec]:
    """Returns the peers that the flags select."""
    names = flags.FLAGS.peers
    if flags.FLAGS.device != "cpu":
        if flags.FLAGS["peers"].present and names != ["none"]:
            raise UserError(f"--peers: expected none with --device=gpu, found {','.join(names)}")
        return []
    if flags.FLAGS.workload == _SCALE:
        if flags.FLAGS["peers"].present:
            raise UserError("--peers: has no effect with --workload=scale")
        return []
    if names == ["none"]:
        return []
    if names == ["all"]:
        return list(PEERS.values())
    if not names or len(set(names)) < len(names):
        raise UserError(f"--peers: expected different names, found {','.join(names)!r}")
    return [PEERS[name] for name in names]


def chosen_page() -> Optional[Page]:
    """Returns the page that --page names; None if the flag is not set."""
    if not flags.FLAGS.page:
        return None
    page = Page(Path(flags.FLAGS.page))
    page.check()
    return page


def output_folder() -> Path:
    """Returns the folder for the results."""
    if flags.FLAGS.output_dir is None:
        return claimed_folder(_RUNS, "benchmark")
    path = Path(flags.FLAGS.output_dir)
    if not is_new_or_empty(path):
        raise UserError(f"--output_dir: expected a new or empty folder, found {path} with content")
    return path


def protocol(path: Path, name: str) -> Protocol:
    """Returns the measurement settings, and creates the log folder of workload `name`."""
    logs = path / "logs" / name
    make_folder(logs)
    return Protocol(
        rounds=flags.FLAGS.rounds,
        repeats=flags.FLAGS.repeats,
        round_limit=flags.FLAGS.round_limit,
        logs=logs,
        say=lambda line: print(f"{name}: {line}", file=sys.stderr, flush=True),
    )


def write(report: Report, path: Path) -> None:
    """Writes benchmark.json and benchmark.md."""
    write_json(path / "benchmark.json", report.to_json())
    write_text(path / "benchmark.md", report.markdown())


def finish(report: Report, path: Path) -> int:
    """Prints the tables and the failed sides, and returns the exit status."""
    print(f"\n{report.text()}\n\ntables: {path / 'benchmark.md'}, {path / 'benchmark.json'}")
    failed = report.failures()
    for line in failed:
        print(f"failed: {line}", file=sys.stderr)
    return 1 if failed else 0


def entry_point() -> None:
    """Runs this binary."""
    run_app(define_flags, main)


if __name__ == "__main__":
    entry_point()
