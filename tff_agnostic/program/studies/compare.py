"""The command `compare`: several methods over several seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import write_json
from tff_agnostic.base.later import matplotlib
from tff_agnostic.base.options import OptionError, Options
from tff_agnostic.base.registry import Registry
from tff_agnostic.program.commands.command_line import (
    RunArguments,
    RunCommand,
    compare_command,
    train_command,
)
from tff_agnostic.program.options.process import Interrupted, StopRequest
from tff_agnostic.program.reports.document import Page, table_text, to_terminal
from tff_agnostic.program.reports.html import write_page
from tff_agnostic.program.runs.baselines import with_baselines
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.runs.train_run import PathName, runtime_options, started
from tff_agnostic.program.studies.comparison import Comparison
from tff_agnostic.program.studies.comparison_page import comparison_page, figure, measure_table
from tff_agnostic.program.studies.methods import (
    LAST_LAYER,
    WORDS,
    TrialOptions,
    check_names,
    given_arms,
    trial_specs,
)
from tff_agnostic.program.studies.rows import Stages, staged, train_rows
from tff_agnostic.program.studies.runset import RunSet
from tff_agnostic.program.studies.trainer import RunTrainer, study
from tff_agnostic.program.studies.verdict import neglected, verdicts

COMPARE_FILE = "compare.json"


@dataclasses.dataclass(frozen=True)
class ComparedRuns:
    """A complete comparison.

    Attributes:
        path: Folder of the comparison, which contains the folders of the trials.
        comparison: The results of the trials.
        harm: A line for each domain that a method neglects; see `neglected`.
    """

    path: Path
    comparison: Comparison
    page: Page
    harm: tuple[str, ...] = ()

    @property
    def verdict(self) -> tuple[str, ...]:
        """Sentences on the domains in which methods are better or worse than FedAvg."""
        return tuple(verdicts(self.comparison))

    def table(self, measure: Optional[str] = None) -> str:
        """Returns a measure as a table: a row per domain, a column per method.

        Args:
            measure: Name of the measure, such as "accuracy"; the task's last measure if None.
        """
        measured = self.comparison.measures[self._measure(measure)]
        return table_text(measure_table(self.comparison, measured, self.comparison.domain_names))

    def figure(self, measure: Optional[str] = None) -> matplotlib.figure.Figure:
        """Returns a figure of the worst domain over the rounds, and of all domains at the end."""
        return figure(self.comparison, self._measure(measure))

    def _measure(self, name: Optional[str]) -> str:
        names = list(self.comparison.measures)
        return Registry("measure", {n: n for n in names})[names[-1] if name is None else name]

    def write_report(self) -> Path:
        """Writes the report; returns its path."""
        return write_page(self.path, self.page)


@dataclasses.dataclass(frozen=True)
class CompareOptions(TrialOptions):
    """Flags of `compare` in addition to the settings of runs.

    Attributes:
        output_dir: Folder of all runs. [runs/compare-TASK-NUMBER, a new one]
        resume: Resume in --output_dir: keep complete trials, and make the others.
    """

    output_dir: Optional[Path] = None
    resume: bool = False


def compare(given: RunArguments) -> ComparedRuns:
    """Makes all trials, and writes compare.json."""
    args = given.args
    arms = given_arms(given)
    specs = trial_specs(given, arms)
    stages = staged(given, arms, specs)
    labels = {name: arm.label for name, arm in arms.items()}
    # All methods share the runtime.
    runtime_name = _first(specs).config.runtime
    identity = {"study": "compare", "task": args.task}
    with study(given, f"compare-{args.task}", identity, runtime_name) as (runs, trainer):
        return train_comparison(runs, trainer, specs, stages, labels, given.show_progress)


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
        rows: Settings of each method, by name. All have the same task, runtime and seed. Methods
            are compared with FedAvg if it is among them, otherwise with the first method.
        folder: Folder of all runs: new, empty, or this comparison's.
        trials: Number of trials per method; their seeds are the seed in the settings, and the
            integers after it.
        runtime: Options of the runtime; its defaults if None.
        resume: Whether to keep complete trials in the folder and to make the others.
        show_progress: Whether to show a bar on a terminal or in a notebook, or lines elsewhere.

    Raises:
        UserError: If methods differ in their task, runtime or seed, or the folder has another
            comparison.
        Interrupted: If Ctrl-C, or a notebook's stop button, stopped the comparison; finished rounds
            are saved.
    """
    if not rows:
        raise OptionError("rows", "at least one method", dict(rows))
    check_names("rows", rows)
    facts = {(s.task, s.config.runtime, s.config.seed) for s in rows.values()}
    if len(facts) > 1:
        raise OptionError("rows", "one task, runtime and seed", sorted(facts))
    ((_, name, seed),) = facts
    specs = {}
    for row, spec in rows.items():
        configs = (dataclasses.replace(spec.config, seed=seed + k) for k in range(trials))
        specs[row] = [dataclasses.replace(spec, config=config) for config in configs]
    options = runtime_options(name, {}, {}) if runtime is None else runtime
    path, labels = Path(folder), {row: row for row in rows}
    try:
        with StopRequest() as stop, started(name, options) as entered:
            trainer = RunTrainer(entered, stop)
            identity = {"study": "compare", "task": _first(specs).task}
            with RunSet(path, identity, trainer, resume, stop) as runs:
                compared = train_comparison(runs, trainer, specs, {}, labels, show_progress)
    except Interrupted as e:
        again = f"compare_runs(..., {str(path)!r}, resume=True)"
        raise e.with_command(again) from None
    compared.write_report()
    return compared


def train_comparison(
    runs: RunSet[RunSettings],
    trainer: RunTrainer,
    specs: Mapping[str, Sequence[RunSettings]],
    stages: Mapping[str, Stages],
    labels: Mapping[str, str],
    show_progress: bool,
) -> ComparedRuns:
    """Makes the missing trials of a comparison, and writes compare.json.

    Args:
        stages: Settings of both stages of each two-stage method.
    """
    path, task = runs.folder, _first(specs).task
    every = [spec for row in specs.values() for spec in row]
    # All trials of a method share the first trial's baseline runs.
    complete = iter(
        with_baselines(every, path, trainer.runtime, trainer.stop, show_progress=show_progress)
    )
    specs = {row: [next(complete) for _ in trials] for row, trials in specs.items()}
    trials = max(map(len, specs.values()))
    print(f"{', '.join(specs)} on {task}, {counted(trials, 'trial')}: {path}")
    comparison = train_rows(runs, trainer, specs, stages, labels, "compare", show_progress)
    write_json(path / COMPARE_FILE, comparison.to_json())
    specs = {row: specs[row] for row in comparison.trials}
    harm = neglected(comparison, {row: row_settings[0] for row, row_settings in specs.items()})
    words = {row: (LAST_LAYER, WORDS[LAST_LAYER].settings) for row in stages if row in specs}
    title = f"Comparison on {task}"
    page = comparison_page(comparison, compare_command(specs, words), harm, title)
    return ComparedRuns(path, comparison, page, tuple(harm))


def run_command_line(folder: Path) -> Optional[list[str]]:
    """Returns the command that trains a folder's run; None if its algorithm's file has moved."""
    try:
        return train_command(RunFolder(folder).spec())
    except UserError:
        return None


def _first(specs: Mapping[str, Sequence[RunSettings]]) -> RunSettings:
    return next(iter(specs.values()))[0]


def _show(compared: ComparedRuns) -> None:
    print(f"\n{to_terminal(compared.page)}")
    print(f"\nnumbers: {compared.path / COMPARE_FILE}")


COMPARE = RunCommand(
    "compare", CompareOptions, compare, _show, ComparedRuns.write_report, without=("algorithm",)
)
