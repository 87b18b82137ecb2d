"""The command `frontier`: compares algorithms with the best of a grid of fixed mixtures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np

from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import write_json
from tff_agnostic.base.options import OneOf, Within
from tff_agnostic.base.registry import Registry
from tff_agnostic.domain_weights.ascent import LambdaOptions
from tff_agnostic.program.commands.command_line import RunArguments, RunCommand
from tff_agnostic.program.reports.document import to_terminal
from tff_agnostic.program.reports.html import write_page
from tff_agnostic.program.runs.build import training_examples
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.compare import CompareOptions
from tff_agnostic.program.studies.comparison import MAX_TRIALS
from tff_agnostic.program.studies.frontier import Frontier, mixtures
from tff_agnostic.program.studies.frontier_page import frontier_page, to_json
from tff_agnostic.program.studies.methods import Arm, given_arms, trial_specs
from tff_agnostic.program.studies.rows import staged, train_rows
from tff_agnostic.program.studies.trainer import study
from tff_agnostic.program.studies.verdict import neglected

FRONTIER_FILE = "frontier.json"
# Algorithms that can train on a fixed mixture.
_WITH_LAMBDA = Registry(
    "algorithm with a lambda",
    {name: spec for name, spec in ALGORITHMS.items() if issubclass(spec.options, LambdaOptions)},
)
_FIXED = "fixed"
# Name in --override that refers to all mixtures.
_MIXTURES = "mixtures"


@dataclasses.dataclass(frozen=True)
class FrontierOptions(CompareOptions):
    """Flags of `frontier` in addition to the settings of runs.

    Attributes:
        grid_points: Number of points per line, including both ends. Two domains have one line
            between them; more domains have lines from the training mixture to each domain.
        grid_algorithm: Algorithm that trains with lambda fixed at each mixture.
    """

    grid_points: Annotated[int, Within(least=2)] = 5
    grid_algorithm: Annotated[str, OneOf(_WITH_LAMBDA)] = "agnostic_fed_avg"


def draw_frontier(given: RunArguments) -> None:
    """Runs all trials; prints and writes the frontier."""
    args = given.args
    arms = given_arms(given)
    # Compute all mixtures from the first trial's data.
    task = given.resolved_spec({"algorithm": args.grid_algorithm}).load_task()
    counts = training_examples(task)
    max_mixtures = max(0, MAX_TRIALS // args.trials - len(arms))
    shares = counts / max(1, np.sum(counts))
    points = mixtures(args.grid_points, shares, task.domain_names, max_mixtures)
    # Any mixture may be fixed, even outside of the set to which algorithms restrict lambda.
    fixed = {"algorithm": args.grid_algorithm, "lambda_update": _FIXED, "lambda_set": "simplex"}
    mixture_arms = {
        point.name: Arm(point.label, {**fixed, "lambda_initial": point.weights}) for point in points
    }
    if taken := sorted(arms.keys() & {_MIXTURES, *mixture_arms}):
        raise UserError(
            f"--arms: expected labels other than {_MIXTURES} and the mixtures' names, found "
            f"{', '.join(taken)}"
        )
    rows = {**mixture_arms, **arms}
    specs = trial_specs(given, rows, {mixture.name: _MIXTURES for mixture in points})
    _check_not_private(specs)
    stages = staged(given, rows, specs)
    runtime_name = next(iter(specs.values()))[0].config.runtime
    identity = {"study": "frontier", "task": args.task}
    with study(given, f"frontier-{args.task}", identity, runtime_name) as (runs, trainer):
        print(
            f"{counted(len(rows) * args.trials, 'run')} on {args.task}: "
            f"{counted(len(points), 'mixture')} and {', '.join(arms)}, "
            f"{counted(args.trials, 'trial')} of each; fewer with smaller --grid_points or "
            f"--trials: {runs.folder}"
        )
        labels = {row: arm.label for row, arm in rows.items()}
        comparison = train_rows(
            runs, trainer, specs, stages, labels, "frontier", given.show_progress
        )
    if points[0].name not in comparison.trials:
        raise UserError(
            f"{points[0].name}: expected a result, with which other mixtures are compared, found "
            "none"
        )
    points = [point for point in points if point.name in comparison.trials]
    harm = neglected(comparison, {row: specs[row][0] for row in comparison.trials})
    frontier = Frontier(comparison, points)
    write_json(runs.folder / FRONTIER_FILE, to_json(frontier))
    page = frontier_page(frontier, f"What is attainable on {args.task}", given.typed, harm)
    print(f"\n{to_terminal(page)}")
    print(f"\nreport: {write_page(runs.folder, page)}")


def _check_not_private(specs: Mapping[str, Sequence[RunSettings]]) -> None:
    for row, (first, *_) in specs.items():
        if first.config.privacy != "none":
            raise UserError(
                f"--privacy={first.config.privacy}: expected none for {row}: the training mixture "
                "is computed from exact counts of the training clients"
            )


FRONTIER = RunCommand(
    "frontier", FrontierOptions, draw_frontier, lambda nothing: None, without=("algorithm",)
)
