"""Comparing as a command: several methods over several seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

from tff_agnostic.base.errors import counted
from tff_agnostic.base.files import write_json
from tff_agnostic.base.later import matplotlib
from tff_agnostic.base.options import OptionError, Options
from tff_agnostic.base.registry import Registry
from tff_agnostic.program.commands.command_line import RunArguments, RunCommand, session
from tff_agnostic.program.options.process import Interrupted, StopRequest
from tff_agnostic.program.reports.document import table_text, to_terminal
from tff_agnostic.program.reports.run_page import with_results_kept
from tff_agnostic.program.runs.baselines import with_baselines
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.runs.train_run import PathName, runtime_options, started
from tff_agnostic.program.studies.comparison import Comparison
from tff_agnostic.program.studies.comparison_page import (
    figure,
    measure_table,
    terminal_page,
)
from tff_agnostic.program.studies.methods import TrialOptions, check_names, given_arms, trial_specs
from tff_agnostic.program.studies.report import write_comparison_report
from tff_agnostic.program.studies.rows import train_rows
from tff_agnostic.program.studies.runset import RunSet
from tff_agnostic.program.studies.stages import Stages, staged
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

    def table(self, measure: Optional[str] = None) -> str:
        """Returns a measure as a table: a row per domain, a column per method.

        Args:
            measure: Its name, such as "accuracy"; the last one that the task has if not given.
        """
        measured = self.comparison.measures[self._measure(measure)]
        return table_text(measure_table(self.comparison, measured))

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


def compare(given: RunArguments) -> ComparedRuns:
    """Makes all trials, and writes compare.json."""
    own = given.own
    arms = given_arms(given)
    specs = trial_specs(given, arms)
    stages = staged(given, arms, specs)
    labels = {name: arm.label for name, arm in arms.items()}
    # All methods share the runtime.
    runtime_name = _first(specs).config.runtime
    with session(given, f"compare-{own.task}") as at, at.running(runtime_name) as (runtime, stop):
        return _compare(
            specs, stages, labels, at.path, runtime, stop, own.resume, given.show_progress
        )


def compare_runs(
    rows: Mapping[str, RunSettings],
    folder: PathName,
    *,
    trials: int = 3,
    runtime: Optional[Options] = None,
    resume: bool = False,
    show_progress: bool = True,
) -> ComparedRuns:
    """Compares methods over several seeds in a folder, as `./run compare` does.

    Args:
        rows: Settings of each method by its name, with one task, runtime and seed; FedAvg, if it is
            among them, is the method that others are compared with.
        folder: Folder of all runs; new, empty, or that of this comparison.
        trials: Number of trials of each method; their seeds follow the seed in the settings.
        runtime: Options of the runtime; its defaults if None.
        resume: Whether to keep complete trials in the folder and to make the others.
        show_progress: Whether to show a bar on a terminal or in a notebook, or lines elsewhere.

    Raises:
        UserError: If methods differ in their task, runtime or seed, or in what the folder holds.
        Interrupted: If Ctrl-C, or a notebook's stop button, ended it; finished rounds are saved.
    """
    if not rows:
        raise OptionError("rows", "at least one method", dict(rows))
    check_names("rows", rows)
    facts = {(s.task, s.config.runtime, s.config.seed) for s in rows.values()}
    if len(facts) > 1:
        raise OptionError("rows", "one task, runtime and seed", sorted(facts))
    ((_, name, seed),) = facts
    specs = {row: [_with_seed(spec, seed + k) for k in range(trials)] for row, spec in rows.items()}
    options = runtime_options(name, {}, {}) if runtime is None else runtime
    path, labels = Path(folder), {row: row for row in rows}
    try:
        with StopRequest() as stop, started(name, options) as entered:
            compared = _compare(specs, {}, labels, path, entered, stop, resume, show_progress)
    except Interrupted as e:
        again = f"compare_runs(..., {str(path)!r}, resume=True)"
        raise e.with_command(again) from None
    _report(compared)
    return compared


def _compare(
    specs: dict[str, list[RunSettings]],
    stages: Mapping[str, Stages],
    labels: Mapping[str, str],
    path: Path,
    runtime: Runtime,
    stop: StopRequest,
    resume: bool,
    show_progress: bool,
) -> ComparedRuns:
    task, trainer = _first(specs).task, RunTrainer(runtime, stop)
    identity = {"study": "compare", "task": task}
    with RunSet(path, identity, trainer, resume, stop) as runs:
        specs = _with_baselines(specs, path, runtime, stop, show_progress)
        trials = max(map(len, specs.values()))
        print(f"{', '.join(specs)} on {task}, {counted(trials, 'trial')}: {path}")
        comparison = train_rows(
            runs, trainer.load_task, specs, stages, labels, "compare", show_progress
        )
    write_json(path / "compare.json", comparison.to_json())
    first = {row: specs[row][0] for row in comparison.trials}
    harm = neglected(comparison, first)
    algorithms = {
        row: POOLED if spec.config.pooled else spec.config.algorithm for row, spec in first.items()
    }
    return ComparedRuns(path, comparison, tuple(harm), tuple(verdicts(comparison, algorithms)))


def _first(specs: Mapping[str, Sequence[RunSettings]]) -> RunSettings:
    return next(iter(specs.values()))[0]


def _with_seed(spec: RunSettings, seed: int) -> RunSettings:
    return dataclasses.replace(spec, config=dataclasses.replace(spec.config, seed=seed))


def _with_baselines(
    specs: dict[str, list[RunSettings]],
    folder: Path,
    runtime: Runtime,
    stop: StopRequest,
    show_progress: bool,
) -> dict[str, list[RunSettings]]:
    """Returns the trials of each row, whose references are those of the first trial."""
    runs = [spec for row in specs.values() for spec in row]
    complete = iter(with_baselines(runs, folder, runtime, stop, show_progress=show_progress))
    return {row: [next(complete) for _ in trials] for row, trials in specs.items()}


def _show(compared: ComparedRuns) -> None:
    page = terminal_page(compared.comparison, compared.verdict, compared.harm)
    print(f"\n{to_terminal(page)}")
    print(f"\nnumbers: {compared.path / 'compare.json'}")


def _report(compared: ComparedRuns) -> Path:
    with with_results_kept(compared.path):
        return write_comparison_report(compared.path)


COMPARE = RunCommand("compare", CompareOptions, compare, _show, _report, without=("algorithm",))
