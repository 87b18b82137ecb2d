"""Trains one model with one algorithm on one task.

Example: ./run train --task=digits --algorithm=agnostic_fed_avg --output_dir=runs/mine
"""

from collections.abc import Sequence

from absl import flags

from tff_agnostic.api.runs import RUNS, run_name, run_training
from tff_agnostic.folders import output_folder
from tff_agnostic.reports.run_page import with_results_kept, write_run_report
from tff_agnostic.run.command_line import (
    define_run_flags,
    define_runtime_flags,
    define_task_flags,
    run_spec_from_flags,
    run_spec_that_goes_on,
    runtime_options,
    train_command,
)
from tff_agnostic.run.folder import RunFolder
from tff_agnostic.run.process import Interrupted, resume_command, run_app
from tff_agnostic.run.spec import CHANGEABLE
from tff_agnostic.settings import path_flag


def define_flags() -> None:
    """Defines the flags of this binary."""
    define_task_flags()
    define_run_flags()
    define_runtime_flags()
    flags.DEFINE_string(
        "output_dir", None, "Folder of the run. [runs/TASK-ALGORITHM-NUMBER, a new one]"
    )
    flags.DEFINE_bool(
        "resume",
        False,
        "Go on with the run in --output_dir, or with the newest one of its name. All settings are "
        f"those of the folder; flags may give other values of {', '.join(CHANGEABLE)}, of how "
        "rounds are executed, and say where files have moved to.",
    )


def main(argv: Sequence[str]) -> None:
    """Trains as the flags say, and prints a table per domain."""
    del argv
    given, resume = path_flag("output_dir"), flags.FLAGS.resume
    name = "" if given else run_name(run_spec_from_flags())
    with output_folder(given, RUNS, name, resume) as path:
        _train(RunFolder(path), resume)


def _train(folder: RunFolder, resume: bool) -> None:
    saved = folder.read() if resume else None
    spec = run_spec_from_flags() if saved is None else run_spec_that_goes_on(saved)
    options = runtime_options(spec.config.runtime, {} if saved is None else saved.execution)
    try:
        run = run_training(spec, folder, options, resume)
    except Interrupted as e:
        raise e.with_command(resume_command("train", folder.path)) from None
    print(run.table)
    print(f"result: {folder.result}, plots: {folder.plots}, model: {folder.model}")
    # Last: a report that cannot be written takes nothing away.
    with with_results_kept(folder.path):
        written = write_run_report(folder.path, command=train_command(run.spec))
        print(f"report: {written}")


def entry_point() -> None:
    """Runs this binary."""
    run_app(define_flags, main)


if __name__ == "__main__":
    entry_point()
