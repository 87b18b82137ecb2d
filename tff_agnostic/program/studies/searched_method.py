"""One method of a search: its runs, its range checks, and the flags of its best settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.sampling import check_cohort_size
from tff_agnostic.program.commands.command_line import (
    RunArguments,
    compare_command,
    train_command,
)
from tff_agnostic.program.options.flag_table import flags_in_errors
from tff_agnostic.program.options.user_algorithm import is_user_file
from tff_agnostic.program.runs.build import build_algorithm
from tff_agnostic.program.runs.heldout import split_options
from tff_agnostic.program.runs.spec import (
    RunSettings,
    check_clients_per_round,
    check_random_sizes,
)
from tff_agnostic.program.studies.search_space import Dimension, task_settings
from tff_agnostic.tasks.task import Task


@dataclasses.dataclass(frozen=True)
class SearchedArm:
    """A method whose settings are searched.

    Attributes:
        given: The user's request, with the settings that all methods share.
        settings: Settings of this method by flag, including the algorithm.
        options: Options of the task, by field, including options that select the held-out split.
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
        """Returns the settings of a run.

        Args:
            sampled: Optuna's values of some dimensions, by flag; the other dimensions have their
                given or default values.
        """
        return self._resolved({f: self.dimensions[f].value(v) for f, v in sampled.items()}, seed)

    def start(self, seed: int) -> tuple[dict[str, Any], list[str]]:
        """Returns Optuna's values of the given settings, as a first trial.

        Returns:
            The values by flag. Settings outside of the search space are omitted; the list has a
            message for each of them.
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
        """Checks that both ends of every range, and every choice, give a valid run.

        In each check, the other dimensions have their given values. If a given value is outside of
        its range, the first value of the range replaces it.
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

    def best_run(self, sampled: Mapping[str, Any]) -> RunSettings:
        """Returns the settings of `train` for sampled values, without seed and held-out split."""
        fixed, given = split_options(self.task), self.given.task_options(self.task)
        options = {name: value for name, value in given.items() if name not in fixed}
        return dataclasses.replace(self, options=options).spec(sampled, 0)

    def _resolved(self, values: Mapping[str, Any], seed: int) -> RunSettings:
        searchable = task_settings(self.task)
        options = {f: v for f, v in values.items() if f in searchable}
        drawn = {f: v for f, v in values.items() if f not in searchable}
        # Pass sampled values as shared settings, which may have no effect on a run: some of them
        # only have an effect with certain values of others.
        given = dataclasses.replace(self.given, settings={**self.given.settings, **drawn})
        fixed = {f: v for f, v in self.settings.items() if f not in drawn}
        return given.resolved_spec({**fixed, "seed": seed}, {**self.options, **options})


def check_run(spec: RunSettings, task: Task) -> None:
    """Checks a run as `train` does before the first round."""
    with flags_in_errors(spec.config):
        check_cohort_size(len(task.train.client_ids), spec.config.clients_per_round)
    aggregation = spec.build_training_aggregation()
    check_clients_per_round(spec.config, aggregation)
    check_random_sizes(spec.config, aggregation)
    build_algorithm(spec, task)


# --- Flag files of the best settings


def train_flags(arm: SearchedArm, spec: RunSettings, remark: str) -> str:
    """Returns the text of a flag file for a method's run, for `train` and `compare`."""
    # `train` has --algorithm, and `compare` has --algorithms; each ignores the other's flag.
    which = ["--undefok=algorithm,algorithms", f"--algorithms={arm.file_or_name}"]
    return _file(remark, [*which, *train_command(spec, keeps_folders=True)[2:]])


def compare_flags(
    arms: Mapping[str, SearchedArm], specs: Mapping[str, RunSettings], remark: str
) -> Optional[str]:
    """Returns the text of a flag file for a comparison with one run per method.

    None if the runs differ in options of the task, which the methods of a comparison must share.
    """
    first, *others = (spec.task_options for spec in specs.values())
    if any(options != first for options in others):
        return None
    files = {name: (arm.file_or_name, ()) for name, arm in arms.items()}
    rows = {name: [spec] for name, spec in specs.items()}
    flags = compare_command(rows, files, keeps_folders=True)[2:]
    return _file(remark, [flag for flag in flags if not flag.startswith("--trials=")])


def _file(remark: str, flags: Sequence[str]) -> str:
    return "\n".join([f"# {remark}", *flags, ""])
