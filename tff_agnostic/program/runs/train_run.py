"""Runs from Python: their settings as options, and training in a folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional, Union, cast

from tff_agnostic.aggregations.registry import AGGREGATIONS, PRIVACIES
from tff_agnostic.base.errors import counted
from tff_agnostic.base.options import OptionError, Options
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flag_table import flags_in_errors
from tff_agnostic.program.options.flags import build, option_flags, option_values
from tff_agnostic.program.options.process import Interrupted, StopRequest
from tff_agnostic.program.options.user_algorithm import algorithm_label
from tff_agnostic.program.runs.baselines import with_baselines
from tff_agnostic.program.runs.finished import FinishedRun
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.options import RunConfig, find_algorithm
from tff_agnostic.program.runs.spec import RunSettings, resolve
from tff_agnostic.program.runs.training import TrainingRun
from tff_agnostic.runtimes.options import ExecutionOptions
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.runtimes.runtime import Runtime

# A path as a string or a path object.
PathName = Union[str, "os.PathLike[str]"]


def run_settings(
    task: str,
    task_options: Optional[Options] = None,
    config: Optional[RunConfig] = None,
    algorithm: Optional[Options] = None,
    *,
    aggregation: Optional[Options] = None,
    privacy: Optional[Options] = None,
    data: Optional[PathName] = None,
    data_dir: Optional[PathName] = None,
) -> RunSettings:
    """Returns the settings of a run; options that are None have the task's defaults.

    `dataclasses.replace(run_settings("digits").config, rounds=5)` changes a default of the task.

    Args:
        task: Name of the task, as in `--task`.
        task_options: Options of the task, such as `tasks.digits.DigitsOptions(num_clients=50)`.
        config: Options of every run, which name the algorithm, the aggregation and the privacy.
        algorithm: Options of the algorithm that `config` names.
        aggregation: Options of the aggregation that `config` names.
        privacy: Options of the privacy that `config` names.
        data: Client store, for tasks that read one.
        data_dir: Folder of raw files, for tasks that read one.

    Raises:
        OptionError: If options do not belong to the part that `config` names.
    """
    kind = DEFAULTS[task].spec.options
    given: dict[str, Any] = {} if config is None else option_values(config)
    named = resolve(task, {}, {}, shared=given).config
    parts = (
        ("task_options", task, kind, task_options),
        ("algorithm", named.algorithm, find_algorithm(named.algorithm).options, algorithm),
        ("aggregation", named.aggregation, AGGREGATIONS[named.aggregation].options, aggregation),
        ("privacy", named.privacy, PRIVACIES[named.privacy].options, privacy),
    )
    for field, name, expected, options in parts:
        if options is None:
            continue
        if type(options) is not expected:
            raise OptionError(
                field, f"{expected.__name__}, options of {name}", type(options).__name__
            )
        if field != "task_options":
            given |= option_values(options)
    return resolve(
        task,
        {},
        {} if task_options is None else option_values(task_options),
        None if data_dir is None else Path(data_dir),
        None if data is None else Path(data),
        shared=given,
    )


def train_run(
    settings: RunSettings,
    folder: PathName,
    *,
    runtime: Optional[Options] = None,
    resume: bool = False,
    show_progress: bool = True,
) -> FinishedRun:
    """Trains one model into a folder, as `./run train` does.

    Args:
        folder: Folder of the run: new, empty, or this run's.
        runtime: Options of the named runtime; if None, its defaults, or a resumed run's options.
        resume: Whether to resume the folder's run, if it has one.
        show_progress: Whether to show progress, as a bar or in lines.

    Raises:
        UserError: If the folder has another run, or a setting does not fit the data.
        Interrupted: If Ctrl-C, or a notebook's stop button, stopped the run, which is saved.
    """
    path = Path(folder)
    saved = RunFolder(path).read() if resume else None
    name = settings.config.runtime
    if runtime is None:
        runtime = runtime_options(name, {}, {} if saved is None else saved.execution)
    try:
        with StopRequest() as stop, started(name, runtime) as entered:
            return train_in_folder(settings, path, entered, stop, resume, show_progress)
    except Interrupted as e:
        again = f"train_run(..., {str(path)!r}, resume=True)"
        raise e.with_command(again) from None


def runtime_options(
    runtime: str, given: Mapping[str, Any], execution: Mapping[str, Any]
) -> Options:
    """Returns the options of a runtime.

    Args:
        given: Given options, by flag.
        execution: Execution settings that a resumed run has had so far; see `Runtime.execution`.
            Those that may change the last bits of results are kept unless the user gives others.
    """
    kept = {
        f.name: execution[f.name] for f in option_flags(ExecutionOptions) if f.name in execution
    }
    values = {**({} if {*kept} & {*given} else kept), **given}
    return cast(Options, build(RUNTIMES[runtime].options, values))


@contextlib.contextmanager
def started(runtime: str, options: Options) -> Iterator[Any]:
    """Context with a started runtime, in which errors about its options name their flags."""
    with flags_in_errors(options), RUNTIMES[runtime].build(options) as entered:
        yield entered


def train_in_folder(
    spec: RunSettings,
    path: Path,
    runtime: Runtime,
    stop: StopRequest,
    resume: bool,
    show_progress: bool,
) -> FinishedRun:
    """Trains a run, and prints notes and warnings for its user; see `train_run`.

    Args:
        runtime: Started runtime that executes the rounds.
        stop: Records the signals that request a stop.
        resume: Whether to resume the folder's run, if it has one.
    """
    (spec,) = with_baselines([spec], path, runtime, stop, show_progress=show_progress)
    config, folder = spec.config, RunFolder(path)
    algorithm = algorithm_label(config.algorithm)
    print(f"{algorithm} on {spec.task}, {counted(config.rounds, 'round')}: {path}")
    run = TrainingRun(spec, folder, runtime, resume)
    if run.parts.training.security is not None:
        print(f"secure aggregation: {run.parts.training.security.summary()}")
    for remark in run.parts.remarks:
        print(f"note: {remark.text}")
    report = run.run(stop, show_progress)
    for text in (*(remark.text for remark in run.harm), *run.left_out):
        print(f"note: {text}")
    trained = FinishedRun(path, run.table(report))
    result = trained.result
    if "models" in result:
        main, others = result["main_model"], ", ".join(result["models"])
        print(
            f"of the models that it trained, the table is of {main}; {folder.result} has {others}"
        )
    return trained
