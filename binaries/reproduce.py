"""Reproduces a table of the papers: trials of every algorithm, ours beside the paper's numbers.

Example: ./run reproduce --experiment=adult --data_dir=data/adult --trials=5
"""

import datetime
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from absl import flags

from tff_agnostic.errors import UserError
from tff_agnostic.experiments import EXPERIMENTS
from tff_agnostic.experiments import page as pages
from tff_agnostic.experiments.experiment import (
    PREDICTORS_NAME,
    STORE_NAME,
    Experiment,
    data_lines,
    prepare,
    prepare_predictors,
    store_path,
)
from tff_agnostic.files import is_new_or_empty, make_folder, read_json, write_json, write_text
from tff_agnostic.folders import output_folder
from tff_agnostic.reports.figures import save
from tff_agnostic.run.command_line import (
    data,
    data_dir,
    define_data_flags,
    define_override_flag,
    define_run_flags,
    define_runtime_flags,
    define_task_option_flags,
    given_settings,
    given_task_options,
    overrides,
    runtime_options,
)
from tff_agnostic.run.process import Interrupted, StopRequest, resume_command, run_app
from tff_agnostic.run.spec import RunSpec, check_given_somewhere, resolve
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.settings import path_flag
from tff_agnostic.studies.comparison import (
    Comparison,
    check_folder,
    check_trials,
    run_trials,
    trial_folder,
)

_RUNS = Path("runs")
# What stands in the folder beside a comparison's own files.
_OTHER_FILES = (STORE_NAME, PREDICTORS_NAME, "page.md", "images", "seconds.json")
# Set by the experiment and its arms, none of which begins with a file of others.
_NOT_FLAGS = ("algorithm", "target_domain", "trust")
# Evaluations in the course of a run: enough for a curve.
_EVALUATIONS = 12


def define_flags() -> None:
    """Defines the flags of this binary."""
    summaries = "; ".join(f"{name}: {e.summary}" for name, e in EXPERIMENTS.items())
    flags.DEFINE_string("experiment", None, f"What to reproduce. {summaries}")
    define_data_flags()
    define_task_option_flags()
    define_run_flags(without=_NOT_FLAGS)
    define_runtime_flags()
    define_override_flag("ARM")
    flags.DEFINE_integer(
        "trials", None, "Trials of each arm; trial k has seed --seed + k. [as in the paper]"
    )
    flags.DEFINE_float(
        "scale",
        1.0,
        "Multiplies the task's number of rounds, the paper's where it has one; 0.1 is a tenth.",
    )
    flags.DEFINE_string(
        "page", None, "Also write the page here, and its figure into images/ beside it."
    )
    flags.DEFINE_string(
        "output_dir", None, "Folder of all runs. [runs/reproduce-EXPERIMENT-NUMBER, a new one]"
    )
    flags.DEFINE_bool("resume", False, "Keep complete trials and go on with the others.")


def main(argv: Sequence[str]) -> None:
    """Runs all trials; prints the tables and writes the page."""
    del argv
    name = flags.FLAGS.experiment
    if name is None:
        raise UserError(f"--experiment: expected one of {', '.join(EXPERIMENTS)}, found none")
    experiment = EXPERIMENTS[name]
    trials = _trials(experiment)
    given, resume = path_flag("output_dir"), flags.FLAGS.resume
    with output_folder(given, _RUNS, f"reproduce-{name}", resume) as folder:
        _reproduce(experiment, trials, folder)


def _reproduce(experiment: Experiment, trials: int, folder: Path) -> None:
    page = path_flag("page")
    store = store_path(experiment, data_dir(), data(), folder)
    specs = trial_specs(experiment, trials, store, folder)
    # Before anything is imported: what is wrong with a flag or the folder is better found now.
    check_folder(specs, folder, flags.FLAGS.resume, _OTHER_FILES)
    names = ", ".join(experiment.arms)
    print(f"{flags.FLAGS.experiment}, {trials} trials of {names}: {folder}")
    prepare(experiment, data_dir(), store)
    runtime_name = next(iter(specs.values()))[0].config.runtime
    options = runtime_options(runtime_name)
    started = time.monotonic()
    with StopRequest() as stop, RUNTIMES[runtime_name](options) as runtime:
        prepare_predictors(experiment, next(iter(specs.values())), runtime, folder)
        try:
            # The folder was checked, and may hold the store by now: that is nothing to refuse.
            comparison = run_trials(
                specs,
                folder,
                runtime,
                resume=True,
                stop=stop,
                labels={arm: row.label for arm, row in experiment.arms.items()},
                other_files=_OTHER_FILES,
            )
        except Interrupted as e:
            raise e.with_command(resume_command("reproduce", folder)) from None
        finally:
            seconds = _add_seconds(folder, time.monotonic() - started)
    targets = [folder / "page.md", *([page] if page is not None else [])]
    report(experiment, comparison, specs, targets, store, seconds)


def trial_specs(
    experiment: Experiment, trials: int, store: Optional[Path], folder: Path
) -> dict[str, list[RunSpec]]:
    """Returns the runs of each arm that the flags describe.

    Args:
        experiment: What is reproduced.
        trials: Runs of each arm.
        store: The data, if the task reads a store.
        folder: Where the trials go, and with them what arms mix.

    Raises:
        UserError: If a flag is out of range, or has no effect on any of the arms.
    """
    given, own = given_settings(), overrides(tuple(experiment.arms))
    read = None if experiment.raw_data is not None else data_dir()
    options = {**experiment.task_options, **given_task_options(experiment.task)}
    specs = {}
    for arm, row in experiment.arms.items():
        shared = {**_shortened(experiment, row.settings), **given}
        chosen = {**{k: v for k, v in row.settings.items() if k not in given}, **own[arm]}
        seed = shared.get("seed", 0)
        specs[arm] = [
            resolve(
                experiment.task,
                {**chosen, "seed": seed + k},
                options,
                read,
                store,
                shared={**shared, **_mixed(experiment, folder, k)},
            )
            for k in range(trials)
        ]
    check_given_somewhere([runs[0] for runs in specs.values()], given)
    return specs


def _mixed(experiment: Experiment, folder: Path, trial: int) -> dict[str, Any]:
    if experiment.base_predictors is None:
        return {}
    return {"base_predictors": experiment.base_predictors.paths(folder, trial)}


def report(
    experiment: Experiment,
    comparison: Comparison,
    specs: Mapping[str, Sequence[RunSpec]],
    targets: Sequence[Path],
    store: Optional[Path],
    seconds: float,
) -> None:
    """Prints the tables and writes compare.json beside the first of the pages, and the pages."""
    for measure in experiment.measures:
        print(f"\n{measure}")
        print(pages.table(experiment, comparison, measure, "simple"))
    write_json(targets[0].with_name("compare.json"), comparison.to_json())
    record = pages.Record(
        command=shlex.join(["./run", "reproduce", *sys.argv[1:]]),
        data=data_lines(store, trial_folder(targets[0].parent, next(iter(specs)), 0)),
        trials=len(next(iter(specs.values()))),
        scale=flags.FLAGS.scale,
        seconds=seconds,
        date=datetime.date.today(),
        cores=len(os.sched_getaffinity(0)),
    )
    paper = {
        arm: resolve(experiment.task, dict(row.settings), experiment.task_options)
        for arm, row in experiment.arms.items()
    }
    labels = {arm: row.label for arm, row in experiment.arms.items()}
    differences = pages.settings_that_differ(
        {arm: runs[0] for arm, runs in specs.items()}, paper, labels
    )
    for target in targets:
        image = target.parent / "images" / f"{flags.FLAGS.experiment}.png"
        make_folder(image.parent)
        save(pages.curve(experiment, comparison), image)
        text = pages.page(
            experiment,
            comparison,
            record,
            differences,
            f"images/{image.name}",
            pages.written_remarks(target),
        )
        write_text(target, text)
    print(f"\npage: {targets[-1]}")


def _trials(experiment: Experiment) -> int:
    trials: int = experiment.trials if flags.FLAGS.trials is None else flags.FLAGS.trials
    check_trials(trials)
    return trials


def _shortened(experiment: Experiment, settings: Mapping[str, Any]) -> dict[str, int]:
    scale = flags.FLAGS.scale
    if not 0 < scale < float("inf"):
        raise UserError(f"--scale: expected a finite positive number, found {scale}")
    full = resolve(experiment.task, dict(settings), experiment.task_options).config.rounds
    rounds = max(1, round(full * scale))
    return {"rounds": rounds, "evaluate_every": max(1, rounds // _EVALUATIONS)}


def _add_seconds(folder: Path, seconds: float) -> float:
    """Adds to the time that earlier sessions of the same trials took."""
    path = folder / "seconds.json"
    if is_new_or_empty(folder):
        return seconds
    before = read_json(path).get("seconds") if path.exists() else 0.0
    if not isinstance(before, (int, float)):
        raise UserError(f"{path}: expected the seconds of earlier trials, found something else")
    total = seconds + before
    write_json(path, {"seconds": total})
    return total


def entry_point() -> None:
    """Runs this binary."""
    run_app(define_flags, main)


if __name__ == "__main__":
    entry_point()
