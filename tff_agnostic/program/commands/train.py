"""Training as a command: one run, its table, and its report."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import read_json
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OneOf
from tff_agnostic.metrics.by_group import ByGroup, by_group_of
from tff_agnostic.metrics.evaluation_report import EvaluationReport
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.program.commands.command_line import (
    GivenRun,
    RunCommand,
    Session,
    TaskOptions,
    session,
    train_command,
)
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.user_algorithm import algorithm_label
from tff_agnostic.program.reports.run_page import with_results_kept, write_run_report
from tff_agnostic.program.reports.run_record import read_run
from tff_agnostic.program.reports.run_verdict import run_verdict
from tff_agnostic.program.runs.baselines import with_baselines
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.spec import RunSpec
from tff_agnostic.program.runs.training import TrainingRun
from tff_agnostic.saving.keras import read_keras
from tff_agnostic.saving.save import FORMATS


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A run that is complete.

    Attributes:
        path: Its folder.
        spec: Its settings.
        report: The evaluation of its main model after the last round.
        table: The same as text, with the weights of the domains.
    """

    path: Path
    spec: RunSpec
    report: EvaluationReport
    table: str

    @property
    def result(self) -> dict[str, Any]:
        """What result.json holds."""
        return read_json(RunFolder(self.path).result)

    def by_group(self) -> ByGroup:
        """Returns the measures overall and of each domain, and how far apart those are."""
        return by_group_of(self.result, self.report.measures)

    def history(self) -> Mapping[str, np.ndarray]:
        """Returns the columns of metrics.csv by name, a number for each round."""
        return read_history(RunFolder(self.path).metrics)

    def keras_model(
        self,
        name: str = "model",
        custom_objects: Optional[Mapping[str, Any]] = None,
        trust: bool = False,
    ) -> tf.keras.Model:
        """Returns a trained model, as the run left it in model/.

        Args:
            name: Which one of a family or an ensemble.
            custom_objects: The classes of layers of your own that it has, by name.
            trust: Whether it may run code, such as Lambda layers have.
        """
        folder, ending = RunFolder(self.path).model, FORMATS["keras"].file_name
        path = folder / f"{name}{ending}"
        if not path.is_file():
            names = ", ".join(sorted(p.stem for p in folder.glob(f"*{ending}")))
            raise UserError(f"{path}: expected a Keras model, found {names or 'none'} in {folder}")
        return read_keras(path, custom_objects or {}, "keras_model", trust)


@dataclasses.dataclass(frozen=True)
class TrainOptions(TaskOptions):
    """The flags of `train` that are no settings of runs.

    Attributes:
        output_dir: Folder of the run. [runs/TASK-ALGORITHM-NUMBER, a new one]
        resume: Go on with the run in --output_dir, or with the newest one of its name. All settings
            are those of the folder; flags may give other values of runtime, rounds, evaluate_every,
            evaluation_clients, worst_min_examples, client_percentiles, checkpoint_every,
            keep_checkpoints, of how rounds are executed, and say where files have moved to.
    """

    task: Annotated[str, OneOf(DEFAULTS)] = "digits"
    output_dir: Optional[Path] = None
    resume: bool = False


def train(given: GivenRun) -> TrainedRun:
    """Trains one model with one algorithm on one task."""
    spec = None if given.own.output_dir else given.spec()
    name = "" if spec is None else f"{spec.task}-{algorithm_label(spec.config.algorithm)}"
    with session(given, name) as at:
        return _train(given, at)


def _train(given: GivenRun, at: Session) -> TrainedRun:
    folder = RunFolder(at.path)
    saved = folder.read() if given.own.resume else None
    spec = given.spec() if saved is None else given.resumed(saved)
    config = spec.config
    before = {} if saved is None else saved.execution
    options = given.runtime_options(config.runtime, before)
    with at.running(config.runtime, options) as (runtime, stop):
        (spec,) = with_baselines(
            [spec], folder.path, runtime, stop, show_progress=given.show_progress
        )
        algorithm = algorithm_label(config.algorithm)
        print(f"{algorithm} on {spec.task}, {counted(config.rounds, 'round')}: {folder.path}")
        run = TrainingRun(spec, folder, runtime, given.own.resume)
        if run.parts.training.security is not None:
            print(f"secure aggregation: {run.parts.training.security.summary()}")
        for remark in run.parts.remarks:
            print(f"note: {remark.text}")
        report = run.run(stop, given.show_progress)
        for remark in run.harm:
            print(f"note: {remark.text}")
        for line in run.left_out:
            print(f"note: {line}")
    trained = TrainedRun(folder.path, run.spec, report, run.table(report))
    result = trained.result
    if "models" in result:
        main, others = result["main_model"], ", ".join(result["models"])
        print(
            f"of the models that it trained, the table is of {main}; {folder.result} has {others}"
        )
    return trained


def _show(run: TrainedRun) -> None:
    folder = RunFolder(run.path)
    for line in run_verdict(read_run(run.path)):
        print(f"{line}\n")
    print(run.table)
    print(f"result: {folder.result}, plots: {folder.plots}, model: {folder.model}")


def _report(run: TrainedRun) -> Path:
    with with_results_kept(run.path):
        return write_run_report(run.path, command=train_command(run.spec))


TRAIN = RunCommand("train", TrainOptions, train, _show, _report)
