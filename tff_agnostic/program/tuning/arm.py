"""One algorithm of a search: what is given for it, what is varied, and the runs that makes."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.algorithms.user_algorithm import is_user_file
from tff_agnostic.data.sampling import check_cohort_size
from tff_agnostic.errors import UserError
from tff_agnostic.program.specs.enough_clients import (
    check_clients_per_round,
    check_sizes_by_chance,
)
from tff_agnostic.program.specs.run_algorithm import build_algorithm
from tff_agnostic.program.specs.run_spec import RunSpec, check_given, resolve
from tff_agnostic.program.tuning.dimension import Dimension
from tff_agnostic.program.tuning.space import task_settings
from tff_agnostic.settings import check_values
from tff_agnostic.tasks.heldout import what_decides_the_split
from tff_agnostic.tasks.registry import TASKS, option_flags
from tff_agnostic.tasks.task import Task, option_flag


@dataclasses.dataclass(frozen=True)
class SearchedArm:
    """An algorithm whose settings are searched.

    Attributes:
        name: What its folder is called.
        label: What tables and figures call it.
        task: Name of the task.
        given: Settings that were given for this algorithm, itself among them, by flag.
        shared: Settings that were given for all, by flag.
        task_options: Options of the task, by field: those that were given, and those with which it
            is evaluated on held-out examples.
        data_dir: Folder with the task's files.
        data: The client store.
        dimensions: What is varied, by flag.
    """

    name: str
    label: str
    task: str
    given: Mapping[str, Any]
    shared: Mapping[str, Any]
    task_options: Mapping[str, Any]
    data_dir: Optional[Path] = None
    data: Optional[Path] = None
    dimensions: Mapping[str, Dimension] = dataclasses.field(default_factory=dict)

    @property
    def file_or_name(self) -> str:
        """The algorithm: its name, or its Python file, wherever it is looked for from."""
        algorithm = str(self.given["algorithm"])
        return str(Path(algorithm).resolve()) if is_user_file(algorithm) else algorithm

    def spec(self, sampled: Mapping[str, Any], seed: int) -> RunSpec:
        """Returns a run.

        Args:
            sampled: Optuna's values of some of the dimensions, by flag; the others have the values
                that were given, or their defaults.
            seed: Of the run.

        Raises:
            UserError: If a value is out of range, or values do not go together.
        """
        return self._resolved({f: self.dimensions[f].value(v) for f, v in sampled.items()}, seed)

    def start(self, seed: int) -> tuple[dict[str, Any], list[str]]:
        """Returns Optuna's values of what is given without the search, as a first trial.

        Args:
            seed: Of the run.

        Returns:
            The values by flag, and a text for each setting whose value is outside of the search,
            and is not among them.
        """
        flags = self.spec({}, seed).flags()
        there = {name: tuple(v) if isinstance(v, list) else v for name, v in flags.items()}
        values = {name: of.sampled(there[name]) for name, of in self.dimensions.items()}
        outside = [
            f"{name}={there[name]} is outside of {self.dimensions[name].text}"
            for name, value in values.items()
            if value is None
        ]
        return {name: value for name, value in values.items() if value is not None}, outside

    def check(self, seed: int, task: Task) -> None:
        """Checks that both ends of every range, and every choice, make a run.

        The other dimensions have what is given without the search, or their first values where that
        is outside.

        Args:
            seed: Of the runs.
            task: The task, loaded with what is given.

        Raises:
            UserError: If one does not.
        """
        given, _ = self.start(seed)
        options = self.spec({}, seed).task_options
        usual = {
            flag: of.value(given[flag]) if flag in given else of.extremes()[0]
            for flag, of in self.dimensions.items()
        }
        for flag, of in self.dimensions.items():
            for value in of.extremes():
                try:
                    spec = self._resolved({**usual, flag: value}, seed)
                    check_run(spec, task if spec.task_options == options else _loaded(spec))
                except UserError as e:
                    raise UserError(f"--search: {flag}={of.text}: {self.name}: {e}") from None

    def settings(self, sampled: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Returns what makes a run of the sampled values with `train`, by flag.

        Without the seed, and without what decides whom it is evaluated on.

        Args:
            sampled: See `spec`.
            seed: Of the run.
        """
        spec = self.spec(sampled, seed)
        flags, fixed = spec.flags(), what_decides_the_split(self.task)
        options = {
            flag
            for flag, name in option_flags(self.task).items()
            if name in self.task_options and name not in fixed
        }
        wanted = [*self.shared, *self.given, *sorted(options), *self.dimensions]
        kept = [name for name in dict.fromkeys(wanted) if name not in ("algorithm", "seed")]
        return {
            name: flags[name] for name in kept if name in flags and _has_effect(spec, name, self)
        }

    def _resolved(self, values: Mapping[str, Any], seed: int) -> RunSpec:
        of_task = task_settings(self.task)
        options = {of_task[f].field.name: v for f, v in values.items() if f in of_task}
        of_run = {f: v for f, v in values.items() if f not in of_task}
        return resolve(
            self.task,
            {**{f: v for f, v in self.given.items() if f not in of_run}, "seed": seed},
            {**self.task_options, **options},
            self.data_dir,
            self.data,
            # A setting may have an effect beside some values of another one only.
            shared={**self.shared, **of_run},
        )


def check_run(spec: RunSpec, task: Task) -> None:
    """Checks what a run would refuse before its first round.

    Args:
        spec: The run.
        task: Its task, loaded.

    Raises:
        UserError: If its settings do not fit the task, or one another.
    """
    check_cohort_size(len(task.train.client_ids), spec.config.clients_per_round)
    aggregation = spec.build_aggregation()
    check_clients_per_round(spec.config, aggregation)
    check_sizes_by_chance(spec.config, aggregation)
    build_algorithm(spec, task)


def _loaded(spec: RunSpec) -> Task:
    """Returns the task, after its options were checked as far as their ranges say."""
    options = TASKS[spec.task].options(**spec.task_options)
    check_values(options, functools.partial(option_flag, spec.task))
    return spec.load_task()


def _has_effect(spec: RunSpec, flag: str, arm: SearchedArm) -> bool:
    if flag in option_flags(arm.task):
        return True
    try:
        check_given(spec, {flag: None})
    except UserError:
        return False
    return True
