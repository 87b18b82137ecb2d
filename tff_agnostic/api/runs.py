"""Training: one run, as `./run train` makes it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.algorithms.user_algorithm import algorithm_label
from tff_agnostic.api.arguments import PathName, path_of, sorted_arguments
from tff_agnostic.errors import UserError
from tff_agnostic.files import read_json
from tff_agnostic.folders import output_folder
from tff_agnostic.metrics.evaluation_report import EvaluationReport
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.reports.run_page import with_results_kept, write_run_report
from tff_agnostic.run.command_line import train_command
from tff_agnostic.run.folder import RunFolder, SavedRun
from tff_agnostic.run.options import RunConfig
from tff_agnostic.run.process import Interrupted, StopRequest
from tff_agnostic.run.spec import RunSpec, inheriting, resolve
from tff_agnostic.run.training import TrainingRun
from tff_agnostic.runtimes.options import RuntimeOptions, options_of
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.saving.keras import read_keras
from tff_agnostic.saving.save import FORMATS

# Where runs go that nobody named a folder for.
RUNS = Path("runs")
_DEFAULT_TASK = "digits"


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

        Raises:
            UserError: If there is none: not every model can be a Keras file; or it is not trusted,
                and holds code.
        """
        folder, ending = RunFolder(self.path).model, FORMATS["keras"].file_name
        path = folder / f"{name}{ending}"
        if not path.is_file():
            names = ", ".join(sorted(p.stem for p in folder.glob(f"*{ending}")))
            raise UserError(f"{path}: expected a Keras model, found {names or 'none'} in {folder}")
        return read_keras(path, custom_objects or {}, "keras_model", trust)


def train(
    task: Optional[str] = None,
    *,
    data: Optional[PathName] = None,
    data_dir: Optional[PathName] = None,
    output_dir: Optional[PathName] = None,
    resume: bool = False,
    show_progress: bool = True,
    **settings: Any,
) -> TrainedRun:
    """Trains one model with one algorithm on one task, as `./run train` does.

    Every flag of that command is an argument: settings of runs and of the algorithm (`rounds=200`,
    `algorithm="fed_avg"`, `domain_learning_rate=0.1`), options of the task
    (`digits_num_clients=50`, `model="my_model.py"`) and of the runtime (`device="cpu"`).

    Args:
        task: Name of the task; "digits", or that of a run that goes on, if not given.
        data: The client store, for tasks that read one.
        data_dir: The folder of raw files, for tasks that read one.
        output_dir: The run's folder, new or empty; a new one in runs/ if not given.
        resume: Go on with the run in `output_dir`, if there is one: what is not given is as it was.
        show_progress: Whether to show a bar on a terminal or in a notebook, or lines elsewhere.
        **settings: The flags.

    Raises:
        UserError: If an argument is unknown, out of range or without effect, or the data, the model
            or the folder is not as it has to be.
        Interrupted: If Ctrl-C, or a notebook's stop button, ended it; the run was saved.
    """
    given_folder, paths = path_of(output_dir), (path_of(data_dir), path_of(data))
    there = _run_there(given_folder) if resume else None
    moved = settings.get("algorithm")
    # Where the file of an algorithm is now.
    earlier = there.spec(str(Path(moved).resolve()) if moved else None) if there else None
    name = task or (earlier.task if earlier else _DEFAULT_TASK)
    algorithm = moved or (earlier.config.algorithm if earlier else RunConfig.algorithm)
    given = sorted_arguments(name, [str(algorithm)], settings)
    if earlier is not None and earlier.task == name:
        spec = inheriting(earlier, given.settings, given.task_options, *paths)
    else:
        spec = resolve(name, given.settings, given.task_options, *paths)
    before = there.execution if there else {}
    options = options_of(spec.config.runtime, given.runtime, before)
    with output_folder(given_folder, RUNS, run_name(spec), resume) as path:
        try:
            run = run_training(spec, RunFolder(path), options, resume, show_progress)
        except Interrupted as e:
            again = f"train(..., output_dir={str(path)!r}, resume=True)"
            raise e.with_command(again) from None
        with with_results_kept(path):
            write_run_report(path, command=train_command(run.spec))
    return run


def _run_there(path: Optional[Path]) -> Optional[SavedRun]:
    return None if path is None else RunFolder(path).read()


def run_name(spec: RunSpec) -> str:
    """Returns what folders of a run are called where nobody names one."""
    return f"{spec.task}-{algorithm_label(spec.config.algorithm)}"


def run_training(
    spec: RunSpec,
    folder: RunFolder,
    options: RuntimeOptions,
    resume: bool = False,
    show_progress: bool = True,
) -> TrainedRun:
    """Trains a run in a folder, and prints what is to be known of it.

    Args:
        spec: The run.
        folder: Where its files go.
        options: How rounds are executed.
        resume: Whether to go on with the run in the folder, if there is one.
        show_progress: Whether to show a bar, or lines where nobody sees one.

    Raises:
        UserError: As `TrainingRun` does.
        Interrupted: If a signal asked to stop; the run was saved.
    """
    config = spec.config
    with StopRequest() as stop, RUNTIMES[config.runtime](options) as runtime:
        algorithm = algorithm_label(config.algorithm)
        print(f"{algorithm} on {spec.task}, {config.rounds} rounds: {folder.path}")
        run = TrainingRun(spec, folder, runtime, resume)
        if run.security is not None:
            print(f"secure aggregation: {run.security.summary()}")
        for remark in run.remarks:
            print(f"note: {remark.text}")
        report = run.run(stop, show_progress)
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
