"""What a run is, as flags: a task, an algorithm and an aggregation with their settings, and a rest.

Settings are one flat name space of flags. Whose they are is decided here: a flag that none of the
chosen ones has is refused, as it would do nothing.
"""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.aggregations.private.registry import PRIVACIES
from tff_agnostic.aggregations.registry import AGGREGATIONS
from tff_agnostic.algorithms.user_algorithm import algorithm_fingerprint, is_user_file
from tff_agnostic.data.clients import FirstExamples
from tff_agnostic.errors import UserError
from tff_agnostic.files import file_digest
from tff_agnostic.models.frozen import freeze
from tff_agnostic.models.precision import computing_in
from tff_agnostic.program.ensembles.base_predictor import MixingTask
from tff_agnostic.program.ensembles.loading import with_base_predictors
from tff_agnostic.program.specs.config import RunConfig
from tff_agnostic.program.specs.run_parts import (
    algorithm_of_flag,
    algorithm_options,
    by_flag,
    complete,
    made_of,
)
from tff_agnostic.program.specs.setting_paths import (
    absolute,
    initial_file,
    path_fields,
    path_of,
    with_absolute_paths,
)
from tff_agnostic.program.specs.settings_of_runs import without_effect
from tff_agnostic.settings import Settings, check_effective, flag_of
from tff_agnostic.tasks.registry import TASKS, load_task, option_flags, task_of_flags
from tff_agnostic.tasks.task import Task, TaskContext

# Of config.json; folders of release 0.1.0 have none, which is 1, and those of 0.2.0 have 2.
FORMAT = 8


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """A run, resolved: no value is left to a default.

    Attributes:
        task: Name of the task.
        task_options: Every option of the task.
        data_dir: Folder with the task's files, absolute.
        data: The client store, absolute.
        config: What every run has.
        algorithm: Settings of the algorithm, an instance of its spec's `options`.
        aggregation: Settings of the aggregation.
        privacy: Settings of differential privacy.
        given: Flags of the settings that a user gave, whatever their values.
    """

    task: str
    task_options: Mapping[str, Any]
    data_dir: Optional[str]
    data: Optional[str]
    config: RunConfig
    algorithm: Any
    aggregation: Any
    privacy: Any = Settings()
    given: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)

    def settings(self) -> dict[str, Any]:
        """Returns the values of all settings but the task's, by flag."""
        parts = (self.config, self.algorithm, self.aggregation, self.privacy)
        return {name: value for part in parts for name, value in by_flag(part).items()}

    def flags(self) -> dict[str, Any]:
        """Returns every flag and its value; what config.json holds."""
        options = {f: self.task_options[name] for f, name in option_flags(self.task).items()}
        flags = {"task": self.task, "data_dir": self.data_dir, "data": self.data, **options}
        for name, value in self.settings().items():
            flags[name] = list(value) if isinstance(value, tuple) else value
        return flags

    def build_aggregation(self) -> Aggregation:
        """Returns the aggregation, without the noise of private training."""
        return AGGREGATIONS[self.config.aggregation].build(self.aggregation)

    def fingerprint(self, task: Task) -> dict[str, str]:
        """Returns what the run depends on beside its settings; complete once it was built.

        Args:
            task: Its task, loaded.
        """
        parts = (self.config, self.algorithm)
        paths = {f.name: getattr(part, f.name) for part in parts for f in path_fields(part)}
        # What several paths name is part of the task: what is in them, and not how.
        of_files = {
            name: file_digest(Path(path)) for name, path in paths.items() if isinstance(path, str)
        }
        return {**task.fingerprint, **algorithm_fingerprint(self.config.algorithm), **of_files}

    def load_task(self) -> Task:
        """Loads the task, with the ensemble as its model if the algorithm mixes predictors.

        See `tasks.registry.load_task`.
        """
        context = TaskContext(self.config.seed, path_of(self.data_dir), path_of(self.data))
        with computing_in(self.config.precision):
            task = load_task(self.task, self.task_options, context)
            mixing = MixingTask(task, self.task, self.task_options, context, self.config.trust)
            task = with_base_predictors(mixing, self.algorithm)
        model = freeze(task.model, self.config.frozen_layers)
        task = dataclasses.replace(task, model=model)
        if self.config.max_examples is None:
            return task
        return dataclasses.replace(task, train=FirstExamples(task.train, self.config.max_examples))


def resolve(
    task: str,
    given: Mapping[str, Any],
    task_options: Mapping[str, Any],
    data_dir: Optional[Path] = None,
    data: Optional[Path] = None,
    inherited: Optional[Mapping[str, Any]] = None,
    shared: Mapping[str, Any] = types.MappingProxyType({}),
) -> RunSpec:
    """Fills what was not given: first from the task's defaults, then from the settings' own.

    Args:
        task: Name of the task.
        given: Settings that the user gave, by flag.
        task_options: Options of the task that were given.
        data_dir: Folder with the task's files.
        data: The client store.
        inherited: Settings of an earlier run, which what was given replaces.
        shared: Settings that were given for several runs, and need not have an effect on this one.

    Raises:
        UserError: If a name is unknown, a value is out of range, or something that was given has no
            effect.
    """
    spec = TASKS[task]
    before = spec.defaults if inherited is None else {**spec.defaults, **inherited}
    wanted = {**shared, **given}
    name = wanted.get("algorithm", before.get("algorithm", RunConfig.algorithm))
    if is_user_file(name):
        name = absolute(Path(name))
    tuned = {} if inherited is not None else spec.algorithm_defaults.get(name, {})
    values = {**before, **tuned, **wanted, "algorithm": name}
    config = made_of(RunConfig, values)
    if config.initial_model is not None and "initial_model" in wanted:
        # Otherwise it is an earlier run's, which may be evaluated where the file is gone.
        config = dataclasses.replace(config, initial_model=initial_file(config.initial_model))
    run = RunSpec(
        task,
        dataclasses.asdict(with_absolute_paths(spec.options(**task_options))),
        absolute(data_dir),
        absolute(data),
        config,
        with_absolute_paths(algorithm_options(name, values)),
        made_of(AGGREGATIONS[config.aggregation].options, values),
        made_of(PRIVACIES[config.privacy].options, values),
        frozenset(wanted),
    )
    check_given(run, given)
    return run


def from_flags(flags: Mapping[str, Any]) -> RunSpec:
    """Returns the spec whose `flags()` these are, or those of an earlier release.

    Raises:
        UserError: If the task is unknown, or a value is out of range or of another type.
        KeyError: If a flag is missing that the release had which wrote them.
    """
    for flag in ("task", "data_dir", "data"):
        if not isinstance(flags[flag], (str, type(None))):
            raise UserError(f"--{flag}: expected a text, found {flags[flag]!r:.100}")
    is_of_now = flags.get("format", 1) == FORMAT
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in flags.items()}
    task, options = task_of_flags(flags, is_of_now)
    config = made_of(RunConfig, complete(RunConfig, values, is_of_now))
    aggregation, algorithm = AGGREGATIONS[config.aggregation], algorithm_of_flag(config.algorithm)
    privacy = PRIVACIES[config.privacy].options
    return RunSpec(
        task,
        options,
        flags["data_dir"],
        flags["data"],
        config,
        algorithm_options(config.algorithm, complete(algorithm.options, values, is_of_now)),
        made_of(aggregation.options, complete(aggregation.options, values, is_of_now)),
        made_of(privacy, complete(privacy, values, is_of_now)),
    )


def check_given(run: RunSpec, given: Mapping[str, Any]) -> None:
    """Refuses settings that were given but have no effect on a run.

    Args:
        run: The run.
        given: What the user gave, by flag.

    Raises:
        UserError: Naming the first such flag and what it needs.
    """
    parts = (run.config, run.algorithm, run.aggregation, run.privacy)
    fields = [{flag_of(field): field.name for field in dataclasses.fields(p)} for p in parts]
    for flag in given:
        part = next((k for k, names in enumerate(fields) if flag in names), None)
        if part is None:
            raise UserError(without_effect(flag, run.config))
        check_effective(parts[part], [fields[part][flag]])


def check_given_somewhere(runs: Sequence[RunSpec], given: Mapping[str, Any]) -> None:
    """Refuses settings that were given but have no effect on any of several runs.

    Raises:
        UserError: Naming the first such flag and what it needs in the first run.
    """
    for flag, value in given.items():
        errors = []
        for run in runs:
            try:
                check_given(run, {flag: value})
            except UserError as e:
                errors.append(e)
        if len(errors) == len(runs):
            raise errors[0]
