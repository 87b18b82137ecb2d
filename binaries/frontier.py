"""Draws what any mixture of the domains could attain, and where algorithms ended.

Example: ./run frontier --task=digits --algorithms=fed_avg,agnostic_fed_avg --trials=3
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from absl import flags

from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.domain_weights.ascent import LambdaOptions
from tff_agnostic.errors import UserError
from tff_agnostic.files import write_json, write_text
from tff_agnostic.folders import output_folder
from tff_agnostic.models.model import Measure, measures_of
from tff_agnostic.registry import Registry
from tff_agnostic.reports.figures import save
from tff_agnostic.run.arms import Arm
from tff_agnostic.run.build import training_examples
from tff_agnostic.run.command_line import (
    data,
    data_dir,
    define_run_flags,
    define_runtime_flags,
    define_task_flags,
    given_settings,
    given_task_options,
    runtime_options,
)
from tff_agnostic.run.process import Interrupted, StopRequest, resume_command, run_app
from tff_agnostic.run.spec import resolve
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.settings import path_flag
from tff_agnostic.studies import frontier_report as reports
from tff_agnostic.studies.comparison import MAX_TRIALS, check_trials, count_open, run_trials
from tff_agnostic.studies.comparison_report import notes, title_of
from tff_agnostic.studies.frontier import (
    GRIDS,
    Frontier,
    Mixture,
    check_max_hours,
    check_time,
    mixtures,
)
from tff_agnostic.studies.frontier_report import figure
from tff_agnostic.studies.methods import arms_from_flags, define_trial_flags, trial_specs
from tff_agnostic.tasks.task import Task

_RUNS = Path("runs")
# What can train on a fixed mixture.
_WITH_LAMBDA = Registry(
    "algorithm with a lambda",
    {name: spec for name, spec in ALGORITHMS.items() if issubclass(spec.options, LambdaOptions)},
)
_FIXED = "fixed"
# What --override calls the mixtures, all of which have the same settings.
_MIXTURES = "mixtures"


def define_flags() -> None:
    """Defines the flags of this binary."""
    define_task_flags()
    define_run_flags(without=("algorithm",))
    define_runtime_flags()
    define_trial_flags()
    flags.DEFINE_string(
        "grid",
        "lines",
        "Which mixtures: between that of the training examples and each domain, or all over the "
        f"simplex; of two domains both are the line between them. One of: {', '.join(GRIDS)}.",
    )
    flags.DEFINE_integer(
        "grid_points", 5, "Points of each line, or of each edge of the simplex, with its ends."
    )
    flags.DEFINE_string(
        "grid_algorithm",
        "agnostic_fed_avg",
        f"What trains on the mixtures, with lambda fixed. One of: {', '.join(_WITH_LAMBDA)}.",
    )
    flags.DEFINE_string(
        "measure",
        None,
        "What is to be good in the worst domain: loss, or a metric of the task. [its first metric, "
        "loss if it has none]",
    )
    flags.DEFINE_float(
        "max_hours",
        None,
        "Stop after the first trial if all of them would take longer; it says how long.",
    )
    flags.DEFINE_string(
        "output_dir", None, "Folder of all runs. [runs/frontier-TASK-NUMBER, a new one]"
    )
    flags.DEFINE_bool("resume", False, "Keep complete trials and go on with the others.")


def main(argv: Sequence[str]) -> None:
    """Runs all trials; prints and writes the frontier."""
    del argv
    check_trials(flags.FLAGS.trials)
    max_hours = flags.FLAGS.max_hours
    if max_hours is not None:
        check_max_hours(max_hours)
    arms = arms_from_flags()
    task = load_task()
    measure = measure_from_flags(task)
    points = mixtures_from_flags(task, len(arms))
    rows = {**mixture_arms(points), **arms}
    if len(rows) < len(points) + len(arms) or _MIXTURES in rows:
        raise UserError(
            f"--arms: expected labels that no mixture has, nor {_MIXTURES}, found {', '.join(arms)}"
        )
    specs = trial_specs(rows, {mixture.name: _MIXTURES for mixture in points})
    runtime_name = next(iter(specs.values()))[0].config.runtime
    options = runtime_options(runtime_name)
    given, resume = path_flag("output_dir"), flags.FLAGS.resume
    name = flags.FLAGS.task
    with (
        output_folder(given, _RUNS, f"frontier-{name}", resume) as path,
        StopRequest() as stop,
        RUNTIMES[runtime_name](options) as runtime,
    ):
        print(
            f"{len(points)} mixtures and {', '.join(arms)} on {name}, {flags.FLAGS.trials} trials "
            f"of each: {path}"
        )

        def check_time_left(seconds: float) -> None:
            if max_hours is not None:
                check_time(max_hours, seconds, count_open(specs, path))

        try:
            comparison = run_trials(
                specs,
                path,
                runtime,
                resume,
                stop,
                labels={row: arm.label for row, arm in rows.items()},
                after_first=check_time_left,
            )
        except Interrupted as e:
            raise e.with_command(resume_command("frontier", path)) from None
    report(Frontier(comparison, points, measure), name, path)


def load_task() -> Task:
    """Returns the task that the flags describe, with the data of the first trial.

    Raises:
        UserError: If a flag or the data is not as it has to be.
    """
    shared = {**given_settings(), "algorithm": grid_algorithm()}
    task = flags.FLAGS.task
    spec = resolve(task, {}, given_task_options(task), data_dir(), data(), shared=shared)
    return spec.load_task()


def measure_from_flags(task: Task) -> Measure:
    """Returns what --measure names: the task's first metric if nothing, its loss without one.

    Raises:
        UserError: If the task has no such measure.
    """
    measures = measures_of(task.model)
    loss, *metrics = measures
    name = flags.FLAGS.measure
    if name is None:
        name = metrics[0] if metrics else loss
    if name not in measures:
        raise UserError(f"--measure: expected one of {', '.join(measures)}, found {name!r}")
    return measures[name]


def mixtures_from_flags(task: Task, num_algorithms: int) -> list[Mixture]:
    """Returns the mixtures that the flags ask for.

    Raises:
        UserError: If there are more than can be tried, or the task has no two domains to mix.
    """
    counts = training_examples(task)
    most = MAX_TRIALS // flags.FLAGS.trials - num_algorithms
    shares = counts / max(1, np.sum(counts))
    return mixtures(
        flags.FLAGS.grid, flags.FLAGS.grid_points, shares, task.domain_names, max(0, most)
    )


def grid_algorithm() -> str:
    """Returns --grid_algorithm.

    Raises:
        UserError: If it is no algorithm with a lambda.
    """
    name: str = flags.FLAGS.grid_algorithm
    _WITH_LAMBDA.given("--grid_algorithm", name)
    return name


def mixture_arms(points: Sequence[Mixture]) -> Mapping[str, Arm]:
    """Returns the rows that train on fixed mixtures, by their names."""
    # Any mixture may be fixed, whatever set the algorithms have in view.
    fixed = {
        "algorithm": grid_algorithm(),
        "domain_weight_update": _FIXED,
        "lambda_set": "simplex",
    }
    return {
        point.name: Arm(point.label, {**fixed, "initial_domain_weights": point.weights})
        for point in points
    }


def report(frontier: Frontier, task: str, path: Path) -> None:
    """Prints the table and the answer; writes frontier.json, .csv, .md and .png."""
    command = shlex.join(["./run", "frontier", *sys.argv[1:]])
    measure, split = frontier.measure, frontier.comparison.split
    files = [path / f"frontier.{ending}" for ending in ("md", "json", "csv", "png")]
    page, json_file, csv_file, image = files
    save(figure(frontier), image)
    write_json(json_file, reports.to_json(frontier, command))
    write_text(csv_file, reports.to_csv(frontier))
    title = f"What is attainable on {task}"
    write_text(page, reports.markdown(frontier, title, command, image.name))
    print(f"\n{title_of(measure.name)} on the {split} clients")
    print(reports.table(frontier, "simple"))
    for line in (*notes(frontier.comparison), frontier.sentence):
        print(f"\n{line}")
    print(f"\nfiles: {', '.join(map(str, files))}")


def entry_point() -> None:
    """Runs this binary."""
    run_app(define_flags, main)


if __name__ == "__main__":
    entry_point()
