"""One method of a search: its runs, its range checks, and the flags of its best settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.sampling import check_cohort_size
from tff_agnostic.program.commands.command_line import (
    RunArguments,
    arm_text,
    with_algorithm_options,
)
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flag_table import flags_in_errors
from tff_agnostic.program.options.flags import flag_text
from tff_agnostic.program.options.user_algorithm import is_user_file
from tff_agnostic.program.runs.build import build_algorithm
from tff_agnostic.program.runs.heldout import split_options
from tff_agnostic.program.runs.spec import (
    RunSettings,
    check_clients_per_round,
    check_random_sizes,
    is_used,
)
from tff_agnostic.program.studies.methods import SHARED_SETTINGS
from tff_agnostic.program.studies.search_space import Dimension, task_settings
from tff_agnostic.tasks.task import Task


@dataclasses.dataclass(frozen=True)
class SearchedArm:
    """A method whose settings are searched.

    Attributes:
        name: Name of its folder.
        label: Label in tables and figures.
        given: The user's request; its settings are those of all methods.
        settings: Settings of this method, with the algorithm, by flag.
        options: Options of the task, by field: given ones, and those of the held-out split.
        dimensions: The search space by flag.
    """

    name: str
    label: str
    given: RunArguments
    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    dimensions: Mapping[str, Dimension] = dataclasses.field(default_factory=dict)

    @property
    def task(self) -> str:
        """Name of the task."""
        return str(self.given.args.task)

    @property
    def file_or_name(self) -> str:
        """Name of the algorithm, or absolute path of its Python file."""
        algorithm = str(self.settings["algorithm"])
        return str(Path(algorithm).resolve()) if is_user_file(algorithm) else algorithm

    def spec(self, sampled: Mapping[str, Any], seed: int) -> RunSettings:
        """Returns a run.

        Args:
            sampled: Optuna's values of some dimensions, by flag; the others have given values, or
                their defaults.
        """
        return self._resolved({f: self.dimensions[f].value(v) for f, v in sampled.items()}, seed)

    def start(self, seed: int) -> tuple[dict[str, Any], list[str]]:
        """Returns Optuna's values of the given settings, as a first trial.

        Returns:
            The values by flag, and a message for each setting whose value is outside of the search
            space and is missing.
        """
        flags = self.spec({}, seed).flags()
        given = {name: tuple(v) if isinstance(v, list) else v for name, v in flags.items()}
        values = {name: dim.sampled(given[name]) for name, dim in self.dimensions.items()}
        outside = [
            f"{name}={given[name]} is outside of {self.dimensions[name].text}"
            for name, value in values.items()
            if value is None
        ]
        return {name: value for name, value in values.items() if value is not None}, outside

    def check(self, seed: int, task: Task) -> None:
        """Checks that both ends of every range, and every choice, make a run.

        The other dimensions have given values, or their first values if these are outside.

        Args:
            task: The task, loaded with the given options.
        """
        given, _ = self.start(seed)
        options = self.spec({}, seed).task_options
        usual = {
            flag: dim.value(given[flag]) if flag in given else dim.extremes()[0]
            for flag, dim in self.dimensions.items()
        }
        for flag, dim in self.dimensions.items():
            for value in dim.extremes():
                try:
                    spec = self._resolved({**usual, flag: value}, seed)
                    check_run(spec, task if spec.task_options == options else spec.load_task())
                except UserError as e:
                    raise UserError(f"--search: {flag}={dim.text}: {self.name}: {e}") from None

    def best_settings(self, sampled: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Returns the flags of `train` for the sampled values, without seed and split.

        Args:
            sampled: See `spec`.
        """
        spec = self.spec(sampled, seed)
        flags, fixed = spec.flags(), split_options(self.task)
        options = sorted(name for name in self.options if name not in fixed)
        names = [*self.given.settings, *self.settings, *options, *self.dimensions]
        task_flags = DEFAULTS[self.task].spec.option_names
        return {
            name: flags[name]
            for name in dict.fromkeys(names)
            if name not in ("algorithm", "seed")
            and name in flags
            and (name in task_flags or is_used(spec, name))
        }

    def _resolved(self, values: Mapping[str, Any], seed: int) -> RunSettings:
        searchable = task_settings(self.task)
        options = {f: v for f, v in values.items() if f in searchable}
        drawn = {f: v for f, v in values.items() if f not in searchable}
        # A setting may have an effect only with some values of another one.
        given = dataclasses.replace(self.given, settings={**self.given.settings, **drawn})
        fixed = {f: v for f, v in self.settings.items() if f not in drawn}
        return given.spec_of({**fixed, "seed": seed}, {**self.options, **options})


def check_run(spec: RunSettings, task: Task) -> None:
    """Checks a run as it checks itself before its first round."""
    with flags_in_errors(spec.config):
        check_cohort_size(len(task.train.client_ids), spec.config.clients_per_round)
    aggregation = spec.build_training_aggregation()
    check_clients_per_round(spec.config, aggregation)
    check_random_sizes(spec.config, aggregation)
    build_algorithm(spec, task)


# --- Flag files of the best settings


def train_flags(arm: SearchedArm, settings: Mapping[str, Any], remark: str) -> str:
    """Returns a file with the best settings of one method, for `train` and `compare`.

    Args:
        settings: The settings; see `SearchedArm.best_settings`.
        remark: Comment in the file.
    """
    # Each of the two commands has one of these flags, and overlooks the other.
    which = {"undefok": "algorithm,algorithms", "algorithm": arm.file_or_name}
    which["algorithms"] = arm.file_or_name
    return _file(remark, {**_data_flags(arm), **which, **settings})


def compare_flags(
    arms: Mapping[str, SearchedArm], settings: Mapping[str, Mapping[str, Any]], remark: str
) -> Optional[str]:
    """Returns a file with the flags of a comparison, each method with its best settings.

    None if they have different options of the task, which the methods of a comparison share.

    Args:
        arms: The methods by name.
        settings: The settings of each method; see `SearchedArm.best_settings`.
        remark: Comment in the file.
    """
    first = next(iter(arms.values()))
    separate = {f for arm in arms.values() for f in (*arm.settings, *arm.dimensions)}
    shared = {
        *DEFAULTS[first.task].spec.option_names,
        *SHARED_SETTINGS,
        *({*first.given.settings} - separate),
    }
    common: dict[str, Any] = {}
    for values in settings.values():
        for flag, value in values.items():
            if flag in shared and common.setdefault(flag, value) != value:
                return None
    rows = [_row(arm, settings[name], shared) for name, arm in arms.items()]
    return _file(remark, {**_data_flags(first), **common, "arms": ";".join(rows)})


def _row(arm: SearchedArm, settings: Mapping[str, Any], shared: Collection[str]) -> str:
    separate = {flag: value for flag, value in settings.items() if flag not in shared}
    return arm_text(arm.name, arm.file_or_name, separate)


def _data_flags(arm: SearchedArm) -> dict[str, Any]:
    paths = {"data_dir": arm.given.args.data_dir, "data": arm.given.args.data}
    # The file may be used in another folder.
    given = {name: str(path.resolve()) for name, path in paths.items() if path is not None}
    return {"task": arm.task, **given}


def _file(remark: str, flags: Mapping[str, Any]) -> str:
    given = {flag: flag_text(value) for flag, value in flags.items() if value is not None}
    lines = [f"--{flag}={text}" for flag, text in with_algorithm_options(given).items()]
    return "\n".join([f"# {remark}", *lines, ""])
