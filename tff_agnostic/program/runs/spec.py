"""Complete settings of a run, as flags and as JSON, and the differences between two runs.

All options of a run share one namespace of flags. This module rejects a given flag that no chosen
part of the run has, as it would have no effect.
"""

from __future__ import annotations

import dataclasses
import types
from collections import ChainMap
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.aggregations.registry import AGGREGATIONS, PRIVACIES, SecureAggregator, named
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import file_digest
from tff_agnostic.base.options import Options
from tff_agnostic.computations.algorithm import Trait
from tff_agnostic.data.clients import FirstExamples
from tff_agnostic.data.sampling import SIZES_BY_CHANCE
from tff_agnostic.models.keras import computing_in, freeze
from tff_agnostic.program.base_predictors.files import MixingTask, with_base_predictors
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flag_table import flags_in_errors
from tff_agnostic.program.options.flags import (
    NONE,
    build,
    checked,
    flag_text,
    option_flags,
    option_values,
)
from tff_agnostic.program.options.tasks import load_run_task, task_in
from tff_agnostic.program.options.tasks import task_options as typed_task_options
from tff_agnostic.program.options.user_algorithm import (
    algorithm_fingerprint,
    algorithm_label,
    is_user_file,
)
from tff_agnostic.program.runs.baseline_files import with_known_baselines
from tff_agnostic.program.runs.effects import check_effect
from tff_agnostic.program.runs.options import (
    CHANGEABLE_ON_RESUME,
    NO_PRESET,
    NOT_STORED,
    RunConfig,
    absolute,
    algorithm_options,
    find_algorithm,
    optional_path,
    paths_in,
    preset_settings,
    resolve_initial_model,
    stored_values,
    unused_message,
    update_limit_options,
    with_absolute_paths,
)
from tff_agnostic.tasks.domain_input import with_domain_input
from tff_agnostic.tasks.task import DATA, Task, TaskContext

DATA_PATH_FLAGS = ("data_dir", "data")
# Flags that come first in a message about different runs.
_CHIEF = ("task", "algorithm", "aggregation")


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """Complete settings of a run, with all defaults resolved.

    Attributes:
        task: Name of the task.
        task_options: Every option of the task.
        data_dir: Absolute path of the folder with the task's files; None without one.
        data: Absolute path of the client store; None without one.
        algorithm: Options of the algorithm, an instance of its spec's `options`.
        update_aggregator: Limits of the secure sums that accompany an aggregator of updates.
        given: Flags that the user gave.
        baseline_domains: Names of the domains in the file or run with the baselines, in order;
            empty if the baselines come from neither.
    """

    task: str
    task_options: Mapping[str, Any]
    data_dir: Optional[str]
    data: Optional[str]
    config: RunConfig
    algorithm: Any
    aggregation: Any
    privacy: Any = Options()
    update_aggregator: Any = Options()
    given: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)
    baseline_domains: tuple[str, ...] = dataclasses.field(default=(), compare=False)

    def settings(self) -> dict[str, Any]:
        """Returns the values of all settings by flag, without the task's options."""
        return {name: value for part in self.parts for name, value in stored_values(part).items()}

    @property
    def parts(self) -> tuple[Any, ...]:
        """The options of the run's parts, without the task's."""
        return (
            self.config,
            self.algorithm,
            self.aggregation,
            self.update_aggregator,
            self.privacy,
        )

    @property
    def is_private(self) -> bool:
        """Whether the run trains with differential privacy."""
        return self.config.privacy != "none"

    def paths(self) -> dict[str, Any]:
        """Returns the paths in the settings by flag, without the task's options."""
        return {**paths_in(self.config), **paths_in(self.algorithm)}

    def flags(self) -> dict[str, Any]:
        """Returns all flags with their values, as in config.json."""
        flags: dict[str, Any] = {
            "task": self.task,
            "data_dir": self.data_dir,
            "data": self.data,
        }
        for name, value in {**self.task_options, **self.settings()}.items():
            flags[name] = list(value) if isinstance(value, tuple) else value
        return flags

    def build_aggregation(self) -> Aggregation:
        """Returns the aggregation, without the noise of private training."""
        return AGGREGATIONS[self.config.aggregation].build(self.aggregation)

    def build_training_aggregation(self) -> Aggregation:
        """Returns the aggregation of training, in which updates may have a separate aggregator."""
        config = self.config
        if config.update_aggregator is None:
            return self.build_aggregation()
        check_update_aggregator(config)
        with flags_in_errors(config):
            return named(
                config.update_aggregator,
                self.update_aggregator,
                self.aggregation,
                float(config.clients_per_round),
            )

    def fingerprint(self, task: Task) -> dict[str, str]:
        """Returns digests of the run's data, model and code; call it after building the run.

        A private run has no digests of its data: someone who knows all other clients could use them
        to verify a guess about one client. Its checkpoints contain a keyed digest instead.
        """
        # Skip paths in a tuple: the task's fingerprint already has the digests of these files.
        file_digests = {
            name: file_digest(path) for name, path in self.paths().items() if isinstance(path, Path)
        }
        digests = dict(task.fingerprint)
        if self.is_private:
            digests.pop(DATA, None)
        return {**digests, **algorithm_fingerprint(self.config.algorithm), **file_digests}

    def load_task(self) -> Task:
        """Loads the task; its model is an ensemble if the algorithm mixes predictors.

        See `tasks.registry.load_task`.
        """
        context = TaskContext(
            self.config.seed, optional_path(self.data_dir), optional_path(self.data)
        )
        with computing_in(self.config.precision):
            task = load_run_task(self.task, self.task_options, context)
            mixing = MixingTask(task, self.task, self.task_options, context, self.config.trust)
            task = with_base_predictors(mixing, self.algorithm)
            with flags_in_errors(self.config):
                task = with_domain_input(task, self.config.domain_input)
        with flags_in_errors(self.config):
            model = freeze(task.model, self.config.frozen_layers)
        task = dataclasses.replace(task, model=model)
        if self.config.max_examples is None:
            return task
        return dataclasses.replace(task, train=FirstExamples(task.train, self.config.max_examples))


def path_flags(spec: RunSettings) -> set[str]:
    """Returns the names of a run's flags with path values."""
    paths = {*DATA_PATH_FLAGS}
    paths.update(
        flag.name for flag in option_flags(DEFAULTS[spec.task].spec.options) if flag.is_path
    )
    paths.update(spec.paths())
    return paths


def resolve(
    task: str,
    given: Mapping[str, Any],
    task_options: Mapping[str, Any],
    data_dir: Optional[Path] = None,
    data: Optional[Path] = None,
    inherited: Optional[Mapping[str, Any]] = None,
    shared: Mapping[str, Any] = types.MappingProxyType({}),
) -> RunSettings:
    """Returns complete settings from given flags, the task's defaults, and the options' defaults.

    Args:
        inherited: Options of an earlier run, which given flags override.
        shared: Options of several runs; unlike given ones, they may have no effect on this run.
    """
    defaults = DEFAULTS[task]
    # The first layer of settings with a value for a flag determines the value.
    layers = [dict(one) for one in (given, shared, inherited or {}, defaults.settings)]
    name = ChainMap(*layers).get("algorithm", RunConfig.algorithm)
    if is_user_file(name):
        name = absolute(Path(name))
    # An earlier run's settings already include its preset.
    preset = ChainMap(*layers[:2]).get("preset", NO_PRESET)
    tuned = {} if inherited is not None else defaults.settings_by_algorithm.get(name, {})
    values = ChainMap(
        {"algorithm": name},
        *layers[:2],
        dict(preset_settings(preset, name)),
        dict(tuned),
        *layers[2:],
    )
    config = build(RunConfig, values)
    if config.initial_model is not None and ("initial_model" in given or "initial_model" in shared):
        # Do not resolve an earlier run's path: evaluating that run does not need the file.
        config = dataclasses.replace(
            config, initial_model=resolve_initial_model(config.initial_model)
        )
    algorithm, baseline_domains = with_known_baselines(
        task, with_absolute_paths(algorithm_options(name, values)), config.privacy
    )
    run = RunSettings(
        task,
        option_values(with_absolute_paths(typed_task_options(task, task_options))),
        absolute(data_dir),
        absolute(data),
        config,
        algorithm,
        build(AGGREGATIONS[config.aggregation].options, values),
        build(PRIVACIES[config.privacy].options, values),
        build(update_limit_options(config), values),
        frozenset((*shared, *given)),
        baseline_domains,
    )
    check_flags_used(run, given)
    check_pooled(run.config)
    check_update_aggregator(run.config)
    return run


def from_flags(flags: Mapping[str, Any]) -> RunSettings:
    """Returns the settings whose `RunSettings.flags` are these flags.

    Raises:
        KeyError: If a flag is missing.
    """
    for flag in ("task", "data_dir", "data"):
        if not isinstance(flags[flag], (str, type(None))):
            raise UserError(f"--{flag}: expected a string, found {flags[flag]!r:.100}")
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in flags.items()}
    task, options = task_in(values)
    config = build(RunConfig, checked(RunConfig, {**values, **NOT_STORED}))
    algorithm = find_algorithm(config.algorithm).options
    aggregation = AGGREGATIONS[config.aggregation].options
    privacy = PRIVACIES[config.privacy].options
    update_limits = update_limit_options(config)
    return RunSettings(
        task,
        options,
        flags["data_dir"],
        flags["data"],
        config,
        algorithm_options(config.algorithm, checked(algorithm, values)),
        build(aggregation, checked(aggregation, values)),
        build(privacy, checked(privacy, values)),
        build(update_limits, checked(update_limits, values)),
    )


def check_pooled(config: RunConfig) -> None:
    """Rejects settings that only have a meaning with federated clients."""
    if not config.pooled:
        return
    reason = "which has the examples of all clients in one place"
    values = option_values(config)
    for flag, wanted in (
        ("privacy", "none"),
        ("aggregation", "plain"),
        ("update_aggregator", NONE),
        ("cohort_sampling", "uniform"),
    ):
        if values[flag] != wanted:
            raise UserError(
                f"--{flag}: expected {wanted} with --pooled, {reason}, found {values[flag]}"
            )
    if Trait.PARTITION_BLIND not in find_algorithm(config.algorithm).traits:
        raise UserError(
            "--algorithm: expected an algorithm that ignores the division into clients, such as "
            f"fed_avg or agnostic_fed_avg, with --pooled, {reason}, found {config.algorithm}"
        )


def check_update_aggregator(config: RunConfig) -> None:
    """Rejects settings that are incompatible with an aggregator of TFF."""
    if config.update_aggregator is None:
        return
    aggregator = option_values(config)["update_aggregator"]
    name = f"--update_aggregator={aggregator}"
    if config.privacy != "none":
        raise UserError(
            f"--privacy: expected none with {name}, which averages the updates itself, found "
            f"{config.privacy}"
        )
    if config.runtime != "tff":
        raise UserError(
            f"--runtime: expected tff with {name}, an aggregator of TFF, found {config.runtime}"
        )
    is_secure = isinstance(config.update_aggregator, SecureAggregator)
    if config.aggregation == "secure" and not is_secure:
        raise UserError(
            "--update_aggregator: expected none or secure with --aggregation=secure, found "
            f"{aggregator}, which sums updates outside secure sums"
        )


def check_flags_used(run: RunSettings, flags: Iterable[str]) -> None:
    """Rejects given settings, by flag, that have no effect on a run."""
    names = {flag.name for part in run.parts for flag in option_flags(type(part))}
    for flag in flags:
        if flag not in names:
            raise UserError(unused_message(flag, run.config))
        check_effect(flag, run)


def is_used(run: RunSettings, flag: str) -> bool:
    """Returns whether a setting has an effect in a run."""
    try:
        check_flags_used(run, [flag])
    except UserError:
        return False
    return True


def check_used_by_any(runs: Sequence[RunSettings], flags: Iterable[str]) -> None:
    """Rejects given settings, by flag, that have no effect on any of the runs."""
    for flag in flags:
        if not any(is_used(run, flag) for run in runs):
            check_flags_used(runs[0], [flag])


def based_on(
    earlier: RunSettings,
    given: Mapping[str, Any],
    task_options: Mapping[str, Any],
    data_dir: Optional[Path],
    data: Optional[Path],
) -> RunSettings:
    """Returns an earlier run's settings, overridden by the given ones."""
    return resolve(
        earlier.task,
        given,
        {**earlier.task_options, **task_options},
        data_dir or optional_path(earlier.data_dir),
        data or optional_path(earlier.data),
        inherited=earlier.settings(),
    )


def differences(
    earlier: RunSettings, spec: RunSettings, known_content: Container[str]
) -> list[str]:
    """Returns the differences of two runs as text, such as "--seed is 0 there and 1 here".

    Args:
        earlier: The folder's run.
        spec: The run to resume in the folder.
        known_content: Names of the digests in the earlier run's fingerprint. Files with a digest
            may have moved, as their content is compared when they are read.
    """
    saved, current = earlier.flags(), spec.flags()
    free = {*CHANGEABLE_ON_RESUME, *_identified_by_content(spec, known_content)}
    # Ignore a flag that only one of the runs has: it belongs to another algorithm or aggregation.
    names = sorted({*current} & {*saved}, key=lambda name: (name not in _CHIEF, name))
    different = [name for name in names if current[name] != saved[name] and name not in free]
    if {*different} & {*_CHIEF}:
        # Another task, algorithm or aggregation implies other defaults.
        different = [name for name in different if name in _CHIEF or name in spec.given]
    return [
        f"--{name} is {flag_text(saved[name])} there and {flag_text(current[name])} here"
        for name in different
    ]


def settings_changes(earlier: RunSettings, spec: RunSettings) -> list[str]:
    """Returns a note for each changed setting of a resumed run that affects its results."""
    saved, current = earlier.settings(), spec.settings()
    return [
        f"--{flag} was {flag_text(saved[flag])} until now and is {flag_text(current[flag])}: "
        f"{effect}"
        for flag, effect in CHANGEABLE_ON_RESUME.items()
        if effect and saved[flag] != current[flag]
    ]


def _identified_by_content(spec: RunSettings, known_content: Container[str]) -> set[str]:
    """Returns the flags that name files whose digests are in the earlier run's fingerprint."""
    flags = {*DATA_PATH_FLAGS} if DATA in known_content else set()
    return flags | {flag for flag in path_flags(spec) if flag in known_content}


def check_clients_per_round(
    config: RunConfig, aggregation: Aggregation, flag: str = "clients_per_round"
) -> None:
    """Checks that a round, or an evaluation, has enough clients for secure sums."""
    value, least = getattr(config, flag), aggregation.min_clients
    if value is not None and value < least:
        raise UserError(f"--{flag}: expected at least --secure_min_clients={least}, found {value}")


def check_random_sizes(config: RunConfig, aggregation: Aggregation) -> None:
    """Checks that no cohort can have too few clients for a sum, which would end the run.

    Args:
        aggregation: Aggregation of training, including any noise.
    """
    if config.cohort_sampling in SIZES_BY_CHANCE and aggregation.min_clients > 1:
        raise UserError(
            f"--secure_min_clients: expected 1 with --cohort_sampling={config.cohort_sampling}, "
            f"whose rounds may have a single client, found {aggregation.min_clients}"
        )


def check_test_clients(task: Task, aggregation: Aggregation) -> None:
    """Checks that a task has enough test clients for secure sums."""
    num_clients = len(task.test.client_ids)
    if 0 < num_clients < aggregation.min_clients:
        raise UserError(
            f"--secure_min_clients: expected at most {num_clients}, the number of test clients, "
            f"found {aggregation.min_clients}"
        )


def flags_without_folders(spec: RunSettings) -> dict[str, Any]:
    """Returns all flags of a run, with file names instead of paths."""
    flags, paths = spec.flags(), spec.paths()
    named = {name: _file_names(flags[name]) for name in path_flags(spec)}
    # A union's member, such as a set of mixtures, may have a field with a file.
    named |= {
        name: flags[name].replace(str(path), path.name)
        for name, path in paths.items()
        if isinstance(path, Path)
    }
    return {**flags, **named, "algorithm": algorithm_label(spec.config.algorithm)}


def _file_names(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [Path(path).name for path in value]
    return value if value is None or isinstance(value, int) else Path(value).name
