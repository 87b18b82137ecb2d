"""The command train: trains one model, prints its table and writes its report."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Optional

from tff_agnostic.base.options import OneOf
from tff_agnostic.program.commands.command_line import (
    RunArguments,
    RunCommand,
    TaskOptions,
    session,
    train_command,
)
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.user_algorithm import algorithm_label
from tff_agnostic.program.reports.run_page import with_results_kept, write_run_report
from tff_agnostic.program.reports.run_record import read_run
from tff_agnostic.program.reports.run_verdict import run_verdict
from tff_agnostic.program.runs.finished import FinishedRun
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.train_run import train_in_folder


@dataclasses.dataclass(frozen=True)
class TrainOptions(TaskOptions):
    """Flags of `train` in addition to the settings of runs.

    Attributes:
        output_dir: Folder of the run. [runs/TASK-ALGORITHM-NUMBER, a new one]
        resume: Resume the run in --output_dir, or the newest run of this task and algorithm.
            Settings come from the folder. Flags may change runtime, rounds, evaluate_every,
            evaluation_clients, worst_min_examples, client_percentiles, checkpoint_every,
            keep_checkpoints and options of the runtime, and may give new paths of moved files.
    """

    task: Annotated[str, OneOf(DEFAULTS)] = "digits"
    output_dir: Optional[Path] = None
    resume: bool = False


def train(given: RunArguments) -> FinishedRun:
    """Trains one model with one algorithm on one task."""
    spec = None if given.args.output_dir else given.spec()
    name = "" if spec is None else f"{spec.task}-{algorithm_label(spec.config.algorithm)}"
    with session(given, name) as at:
        saved = RunFolder(at.path).read() if given.args.resume else None
        spec = given.spec() if saved is None else given.resumed(saved)
        before = {} if saved is None else saved.execution
        options = given.runtime_options(spec.config.runtime, before)
        with at.running(spec.config.runtime, options) as (runtime, stop):
            return train_in_folder(
                spec, at.path, runtime, stop, given.args.resume, given.show_progress
            )


def _show(run: FinishedRun) -> None:
    folder = RunFolder(run.path)
    for line in run_verdict(read_run(run.path)):
        print(f"{line}\n")
    print(run.table)
    print(f"result: {folder.result}, model: {folder.model}")


def _report(run: FinishedRun) -> Path:
    with with_results_kept(run.path):
        return write_run_report(run.path, command=train_command(run.settings))


TRAIN = RunCommand("train", TrainOptions, train, _show, _report)
