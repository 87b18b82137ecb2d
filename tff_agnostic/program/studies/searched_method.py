"""One method of a search, and the folder of the search."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import (
    atomic_file,
    is_keyed_digest,
    keyed_digest,
    make_folder,
    read_text,
)
from tff_agnostic.data.sampling import check_cohort_size
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flag_table import flags_in_errors
from tff_agnostic.program.options.user_algorithm import is_user_file
from tff_agnostic.program.runs.build import build_algorithm
from tff_agnostic.program.runs.heldout import split_options
from tff_agnostic.program.runs.spec import (
    RunSettings,
    check_clients_per_round,
    check_random_sizes,
    is_used,
    resolve,
)
from tff_agnostic.program.studies.methods import BASELINE, LAST_LAYER, WORDS
from tff_agnostic.program.studies.optuna_studies import Method
from tff_agnostic.program.studies.search_space import Dimension, task_settings
from tff_agnostic.program.studies.stages import split_into_stages
from tff_agnostic.tasks.task import DATA, Task

# Keyed digest of the examples of a private search.
DATA_FILE = "data.secret"


@dataclasses.dataclass(frozen=True)
class SearchedArm:
    """A method whose settings are searched.

    Attributes:
        name: Name of its folder.
        label: Label in tables and figures.
        task: Name of the task.
        given: CommandArguments settings of this method, with the algorithm, by flag.
        shared: CommandArguments settings of all methods, by flag.
        task_options: Options of the task, by field: given ones, and those of the held-out split.
        data_dir: Folder with the task's files.
        data: The client store.
        dimensions: The search space by flag, of the second of two stages.
        has_two_stages: Whether a trial is the second stage after FedAvg; see `studies.stages`.
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
    has_two_stages: bool = False

    @property
    def file_or_name(self) -> str:
        """Name of the algorithm, or absolute path of its Python file."""
        if self.has_two_stages:
            return LAST_LAYER
        algorithm = str(self.given["algorithm"])
        return str(Path(algorithm).resolve()) if is_user_file(algorithm) else algorithm

    def spec(self, sampled: Mapping[str, Any], seed: int) -> RunSettings:
        """Returns a run.

        Args:
            sampled: Optuna's values of some dimensions, by flag; the others have given values, or
                their defaults.
        """
        return self._resolved({f: self.dimensions[f].value(v) for f, v in sampled.items()}, seed)

    def stages(self, spec: RunSettings) -> tuple[Optional[RunSettings], RunSettings]:
        """Returns the first stage of a trial, if it has two, and the searched stage.

        The first stage is FedAvg with the given settings of all methods.

        Args:
            spec: A run of the method, with all its rounds.
        """
        if not self.has_two_stages:
            return None, spec
        first = resolve(
            self.task,
            {"algorithm": BASELINE, "seed": spec.config.seed},
            self.task_options,
            self.data_dir,
            self.data,
            shared=self.shared,
        )
        return split_into_stages(first, spec)

    def start(self, seed: int) -> tuple[dict[str, Any], list[str]]:
        """Returns Optuna's values of the given settings, as a first trial.

        Returns:
            The values by flag, and a message for each setting whose value is outside of the search
            space and is missing.
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

        The other dimensions have given values, or their first values if these are outside.

        Args:
            task: The task, loaded with the given options.
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
                    check_run(spec, task if spec.task_options == options else spec.load_task())
                except UserError as e:
                    raise UserError(f"--search: {flag}={of.text}: {self.name}: {e}") from None

    def settings(self, sampled: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """Returns the flags of `train` for the sampled values, without seed and split.

        Args:
            sampled: See `spec`.
        """
        spec = self.spec(sampled, seed)
        flags, fixed = spec.flags(), split_options(self.task)
        options = {name for name in self.task_options if name not in fixed}
        wanted = [*self.shared, *self.given, *sorted(options), *self.dimensions]
        of_word = WORDS[LAST_LAYER].settings if self.has_two_stages else {}
        left_out = {"algorithm", "seed", *of_word}
        kept = [name for name in dict.fromkeys(wanted) if name not in left_out]
        of_task = DEFAULTS[self.task].spec.option_names
        return {
            name: flags[name]
            for name in kept
            if name in flags and (name in of_task or is_used(spec, name))
        }

    def _resolved(self, values: Mapping[str, Any], seed: int) -> RunSettings:
        of_task = task_settings(self.task)
        options = {f: v for f, v in values.items() if f in of_task}
        of_run = {f: v for f, v in values.items() if f not in of_task}
        return resolve(
            self.task,
            {**{f: v for f, v in self.given.items() if f not in of_run}, "seed": seed},
            {**self.task_options, **options},
            self.data_dir,
            self.data,
            # A setting may have an effect only with some values of another one.
            shared={**self.shared, **of_run},
        )


def check_run(spec: RunSettings, task: Task) -> None:
    """Checks a run as it checks itself before its first round."""
    with flags_in_errors(spec.config):
        check_cohort_size(len(task.train.client_ids), spec.config.clients_per_round)
    aggregation = spec.build_training_aggregation()
    check_clients_per_round(spec.config, aggregation)
    check_random_sizes(spec.config, aggregation)
    build_algorithm(spec, task)


def identity(
    arms: Mapping[str, SearchedArm],
    method: Method,
    objective: str,
    seeds: tuple[int, ...],
    task: Task,
) -> dict[str, Any]:
    """Returns the identity of a search (see `RunSet`), without its budget and private digests.

    Args:
        arms: The methods, by their names.
        seeds: Seeds of the runs of each trial.
        task: The task, loaded; the algorithms were built for it.
    """
    first = next(iter(arms.values()))
    specs = {name: arm.spec({}, seeds[0]) for name, arm in arms.items()}
    # Files of the user may change under the same name.
    files = {
        name: {k: v for k, v in spec.fingerprint(task).items() if k not in task.fingerprint}
        for name, spec in specs.items()
    }
    hidden = DATA if is_private(arms, seeds[0]) else None
    return {
        "study": "tune",
        "task": first.task,
        "objective": objective,
        "seeds": list(seeds),
        "sampler": method.sampler,
        "pruner": method.pruner,
        "prune_after": method.warm_up,
        "fingerprint": {k: v for k, v in task.fingerprint.items() if k != hidden},
        "files": files,
        "search": {
            name: {flag: of.text for flag, of in arm.dimensions.items()}
            for name, arm in arms.items()
        },
        "settings": {name: spec.flags() for name, spec in specs.items()},
    }


def is_private(arms: Mapping[str, SearchedArm], seed: int) -> bool:
    """Whether a method of a search trains with differential privacy."""
    return any(arm.spec({}, seed).config.privacy != "none" for arm in arms.values())


def check_private_data(folder: Path, task: Task) -> None:
    """Checks by a keyed digest, which it writes once, that a private search has its examples."""
    file, data = folder / DATA_FILE, str(task.fingerprint.get(DATA))
    if not file.exists():
        make_folder(folder)
        with atomic_file(file, owner_only=True) as written:
            written.write(keyed_digest(data).encode())
    elif not is_keyed_digest(read_text(file, "a keyed digest"), data):
        raise UserError(f"--output_dir: {folder} holds another study: of other examples")
