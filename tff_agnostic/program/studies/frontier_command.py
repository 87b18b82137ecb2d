"""The frontier as a command: what any mixture could attain, and where algorithms ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Optional

import numpy as np

from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import write_json
from tff_agnostic.base.options import OneOf, Within
from tff_agnostic.base.registry import Registry
from tff_agnostic.domain_weights.ascent import LambdaOptions
from tff_agnostic.models.model import Measure, main_measure, measures_of
from tff_agnostic.program.commands.command_line import RunArguments, RunCommand, session
from tff_agnostic.program.reports.document import to_terminal
from tff_agnostic.program.reports.html import chosen_title
from tff_agnostic.program.runs.build import training_examples
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.comparison import MAX_TRIALS
from tff_agnostic.program.studies.frontier import GRIDS, Frontier, Mixture, check_time, mixtures
from tff_agnostic.program.studies.frontier_page import (
    FRONTIER as FRONTIER_FILE,
)
from tff_agnostic.program.studies.frontier_page import default_title, to_json, write_frontier_page
from tff_agnostic.program.studies.methods import Arm, TrialOptions, given_arms, trial_specs
from tff_agnostic.program.studies.rows import train_rows
from tff_agnostic.program.studies.runset import RunSet
from tff_agnostic.program.studies.stages import staged
from tff_agnostic.program.studies.trainer import RunTrainer
from tff_agnostic.program.studies.verdict import neglected
from tff_agnostic.tasks.task import Task

# Algorithms that can train on a fixed mixture.
_WITH_LAMBDA = Registry(
    "algorithm with a lambda",
    {name: spec for name, spec in ALGORITHMS.items() if issubclass(spec.options, LambdaOptions)},
)
_FIXED = "fixed"
# Name of all mixtures in --override.
_MIXTURES = "mixtures"


@dataclasses.dataclass(frozen=True)
class FrontierOptions(TrialOptions):
    """The flags of `frontier` that are no settings of runs.

    Attributes:
        grid: The mixtures: lines from the training mixture to each domain, or all over the simplex;
            for two domains both are the line between them.
        grid_points: Points of each line, or of each edge of the simplex, with its ends.
        grid_algorithm: Algorithm that trains on the mixtures, with lambda fixed.
        measure: Measure of the worst domain: loss, or a metric of the task. [its first
            metric, loss if it has none]
        max_hours: Stop after the first trial if all of them would take longer; it says how long.
        output_dir: Folder of all runs. [runs/frontier-TASK-NUMBER, a new one]
        resume: Keep complete trials and make the others.
    """

    grid: Annotated[str, OneOf(GRIDS)] = "lines"
    grid_points: Annotated[int, Within(least=2)] = 5
    grid_algorithm: Annotated[str, OneOf(_WITH_LAMBDA)] = "agnostic_fed_avg"
    measure: Optional[str] = None
    max_hours: Optional[Annotated[float, Within(above=0)]] = None
    output_dir: Optional[Path] = None
    resume: bool = False


def draw_frontier(given: RunArguments) -> None:
    """Runs all trials; prints and writes the frontier."""
    own = given.own
    arms = given_arms(given)
    # The data of the first trial.
    task = given.spec_of({"algorithm": own.grid_algorithm}).load_task()
    measure = _measure(own, task)
    points = _mixtures(own, task, len(arms))
    rows = {**_mixture_arms(own, points), **arms}
    if len(rows) < len(points) + len(arms) or _MIXTURES in rows:
        taken = sorted(arms.keys() & {_MIXTURES, *_mixture_arms(own, points)})
        raise UserError(
            f"--arms: expected labels other than {_MIXTURES} and the mixtures' names, found "
            f"{', '.join(taken)}"
        )
    specs = trial_specs(given, rows, {mixture.name: _MIXTURES for mixture in points})
    _check_not_private(specs)
    stages = staged(given, rows, specs)
    runtime_name = next(iter(specs.values()))[0].config.runtime
    identity = {"study": "frontier", "task": own.task}
    with (
        session(given, f"frontier-{own.task}") as at,
        at.running(runtime_name) as (runtime, stop),
        RunSet(at.path, identity, trainer := RunTrainer(runtime, stop), own.resume, stop) as runs,
    ):
        print(
            f"{counted(len(rows) * own.trials, 'run')} on {own.task}: "
            f"{counted(len(points), 'mixture')} and {', '.join(arms)}, "
            f"{counted(own.trials, 'trial')} of each; fewer with smaller --grid_points or "
            f"--trials: {at.path}"
        )

        def check_time_left(seconds: float, others: int) -> None:
            if own.max_hours is not None:
                check_time(own.max_hours, seconds, others)

        comparison = train_rows(
            runs,
            trainer.load_task,
            specs,
            stages,
            {row: arm.label for row, arm in rows.items()},
            "frontier",
            given.show_progress,
            check_time_left,
        )
    if points[0].name not in comparison.trials:
        raise UserError(f"{points[0].name}: expected a result, with which mixtures are compared")
    points = [point for point in points if point.name in comparison.trials]
    specs = {row: specs[row] for row in comparison.trials}
    harm = neglected(comparison, {row: runs[0] for row, runs in specs.items()})
    _report(Frontier(comparison, points, measure), own, at.path, given.typed, harm)


def _measure(own: FrontierOptions, task: Task) -> Measure:
    """Returns the measure of --measure: by default the first metric, or the loss without one."""
    measures = measures_of(task.model)
    name = main_measure(measures) if own.measure is None else own.measure
    if name not in measures:
        raise UserError(f"--measure: expected one of {', '.join(measures)}, found {name!r}")
    return measures[name]


def _check_not_private(specs: Mapping[str, Sequence[RunSettings]]) -> None:
    for row, (first, *_) in specs.items():
        if first.config.privacy != "none":
            raise UserError(
                f"--privacy={first.config.privacy}: expected none for {row}: the training mixture "
                "is computed from exact counts of the training clients"
            )


def _mixtures(own: FrontierOptions, task: Task, num_algorithms: int) -> list[Mixture]:
    counts = training_examples(task)
    most = MAX_TRIALS // own.trials - num_algorithms
    shares = counts / max(1, np.sum(counts))
    return mixtures(own.grid, own.grid_points, shares, task.domain_names, max(0, most))


def _mixture_arms(own: FrontierOptions, points: Sequence[Mixture]) -> Mapping[str, Arm]:
    # Any mixture may be fixed, also outside of the algorithms' set.
    fixed = {
        "algorithm": own.grid_algorithm,
        "lambda_update": _FIXED,
        "lambda_set": "simplex",
    }
    return {
        point.name: Arm(point.label, {**fixed, "lambda_initial": point.weights}) for point in points
    }


def _report(
    frontier: Frontier, own: FrontierOptions, path: Path, command: str, harm: Sequence[str]
) -> None:
    """Prints the page of a frontier, and writes it with frontier.json."""
    write_json(path / FRONTIER_FILE, to_json(frontier, command))
    title = chosen_title(path, None, default_title(own.task))
    report, page = write_frontier_page(frontier, path, title, command, harm)
    print(f"\n{to_terminal(page)}")
    print(f"\nreport: {report}")


FRONTIER = RunCommand(
    "frontier", FrontierOptions, draw_frontier, lambda nothing: None, without=("algorithm",)
)
