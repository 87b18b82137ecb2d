"""Comparing as a command: several methods over several seeds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Optional

from tff_agnostic.base.errors import counted
from tff_agnostic.base.files import write_json
from tff_agnostic.base.later import matplotlib
from tff_agnostic.base.registry import Registry
from tff_agnostic.program.commands.command_line import GivenRun, RunCommand, session
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.reports.document import table_text, to_terminal
from tff_agnostic.program.reports.run_page import with_results_kept
from tff_agnostic.program.runs.baselines import with_baselines
from tff_agnostic.program.runs.spec import RunSpec
from tff_agnostic.program.studies.comparison import Comparison
from tff_agnostic.program.studies.comparison_page import (
    figure,
    measure_table,
    terminal_page,
)
from tff_agnostic.program.studies.methods import TrialOptions, given_arms, trial_specs
from tff_agnostic.program.studies.report import write_comparison_report
from tff_agnostic.program.studies.rows import train_rows
from tff_agnostic.program.studies.runset import RunSet
from tff_agnostic.program.studies.stages import staged
from tff_agnostic.program.studies.trainer import RunTrainer
from tff_agnostic.program.studies.verdict import POOLED, neglected, verdicts
from tff_agnostic.runtimes.runtime import Runtime


@dataclasses.dataclass(frozen=True)
class ComparedRuns:
    """A comparison that is complete.

    Attributes:
        path: Its folder, with those of the trials.
        comparison: The results of the trials.
        harm: A line for each domain that a method neglects; see `neglected`.
        verdict: For whom each row is better or worse than FedAvg's; see `verdicts`.
    """

    path: Path
    comparison: Comparison
    harm: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()

    def table(self, measure: Optional[str] = None, table_format: str = "simple") -> str:
        """Returns a measure as a table: a row per domain, a column per method.

        Args:
            measure: Its name, such as "accuracy"; the last one that the task has if not given.
            table_format: A format of tabulate; "github" is Markdown.
        """
        measured = self.comparison.measures[self._measure(measure)]
        return table_text(measure_table(self.comparison, measured), table_format)

    def figure(self, measure: Optional[str] = None) -> matplotlib.figure.Figure:
        """Returns the worst domain's measure over rounds, and every domain's at the end."""
        return figure(self.comparison, self._measure(measure))

    def _measure(self, name: Optional[str]) -> str:
        names = list(self.comparison.measures)
        return Registry("measure", {n: n for n in names})[names[-1] if name is None else name]


@dataclasses.dataclass(frozen=True)
class CompareOptions(TrialOptions):
    """The flags of `compare` that are no settings of runs.

    Attributes:
        output_dir: Folder of all runs. [runs/compare-TASK-NUMBER, a new one]
        resume: Keep complete trials and make the others.
    """

    output_dir: Optional[Path] = None
    resume: bool = False


def compare(given: GivenRun) -> ComparedRuns:
    """Runs all trials, and writes compare.json."""
    own = given.own
    arms = given_arms(given)
    specs = trial_specs(given, arms)
    stages = staged(given, arms, specs)
    # All rows share the runtime.
    runtime_name = next(iter(specs.values()))[0].config.runtime
    identity = {"study": "compare", "task": own.task}
    with session(given, f"compare-{own.task}") as at:
        with (
            at.running(runtime_name) as (runtime, stop),
            RunSet(
                at.path, identity, trainer := RunTrainer(runtime, stop), own.resume, stop
            ) as runs,
        ):
            specs = _with_baselines(specs, at.path, runtime, stop, given.show_progress)
            print(f"{', '.join(specs)} on {own.task}, {counted(own.trials, 'trial')}: {at.path}")
            labels = {name: arm.label for name, arm in arms.items()}
            comparison = train_rows(
                runs, trainer.load_task, specs, stages, labels, "compare", given.show_progress
            )
        specs = {row: specs[row] for row in comparison.trials}
        write_json(at.path / "compare.json", comparison.to_json())
        harm = neglected(comparison, {row: runs[0] for row, runs in specs.items()})
        configs = {row: runs[0].config for row, runs in specs.items()}
        algorithms = {row: POOLED if of.pooled else of.algorithm for row, of in configs.items()}
        verdict = verdicts(comparison, algorithms)
    return ComparedRuns(at.path, comparison, tuple(harm), tuple(verdict))


def _with_baselines(
    specs: dict[str, list[RunSpec]],
    folder: Path,
    runtime: Runtime,
    stop: StopRequest,
    show_progress: bool,
) -> dict[str, list[RunSpec]]:
    """Returns the trials of each row, whose references are those of the first trial."""
    runs = [spec for row in specs.values() for spec in row]
    found = iter(with_baselines(runs, folder, runtime, stop, show_progress=show_progress))
    return {row: [next(found) for _ in trials] for row, trials in specs.items()}


def _show(compared: ComparedRuns) -> None:
    page = terminal_page(compared.comparison, compared.verdict, compared.harm)
    print(f"\n{to_terminal(page)}")
    print(f"\nnumbers: {compared.path / 'compare.json'}")


def _report(compared: ComparedRuns) -> Path:
    with with_results_kept(compared.path):
        return write_comparison_report(compared.path)


COMPARE = RunCommand("compare", CompareOptions, compare, _show, _report, without=("algorithm",))
