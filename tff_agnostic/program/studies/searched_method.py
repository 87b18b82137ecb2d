"""One method of a search, and the folder of the search."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import (
    atomic_file,
    folder_lock,
    is_keyed_digest,
    is_new_or_empty,
    keyed_digest,
    make_folder,
    read_json,
    read_text,
    write_errors,
    write_json,
)
from tff_agnostic.data.sampling import check_cohort_size
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.user_algorithm import is_user_file
from tff_agnostic.program.runs.build import build_algorithm
from tff_agnostic.program.runs.heldout import split_options
from tff_agnostic.program.runs.spec import (
    RunSpec,
    check_clients_per_round,
    check_sizes_by_chance,
    has_effect,
    resolve,
)
from tff_agnostic.program.studies.methods import BASELINE, LAST_LAYER, WORDS
from tff_agnostic.program.studies.optuna_studies import Method
from tff_agnostic.program.studies.search_space import Dimension, task_settings
from tff_agnostic.program.studies.stages import split_into_stages
from tff_agnostic.tasks.task import DATA, Task

_FORMAT = 1
# By this file the folder of a search is known.
OWN_FILE = "tuning.json"
# Keyed digest of the examples of a private search.
_DATA_FILE = "data.secret"


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
        dimensions: What is varied, by flag; of two stages, of the second one.
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
        """The algorithm: its name, or its Python file, wherever it is looked for from."""
        if self.has_two_stages:
            return LAST_LAYER
        algorithm = str(self.given["algorithm"])
        return str(Path(algorithm).resolve()) if is_user_file(algorithm) else algorithm

    def spec(self, sampled: Mapping[str, Any], seed: int) -> RunSpec:
        """Returns a run.

        Args:
            sampled: Optuna's values of some of the dimensions, by flag; the others have the values
                that were given, or their defaults.
        """
        return self._resolved({f: self.dimensions[f].value(v) for f, v in sampled.items()}, seed)

    def stages(self, spec: RunSpec) -> tuple[Optional[RunSpec], RunSpec]:
        """Returns what a trial trains: its first stage, if it has two, and what is searched of.

        The first stage is FedAvg with what was given for all, whatever is drawn.

        Args:
            spec: A run of the algorithm, with all its rounds.
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
        """Returns Optuna's values of what is given without the search, as a first trial.

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
            task: The task, loaded with what is given.
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
        """Returns what makes a run of the sampled values with `train`, by flag.

        Without the seed, and without what decides whom it is evaluated on.

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
            if name in flags and (name in of_task or has_effect(spec, name))
        }

    def _resolved(self, values: Mapping[str, Any], seed: int) -> RunSpec:
        of_task = task_settings(self.task)
        options = {f: v for f, v in values.items() if f in of_task}
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
    """Checks what a run would refuse before its first round."""
    check_cohort_size(len(task.train.client_ids), spec.config.clients_per_round)
    aggregation = spec.build_training_aggregation()
    check_clients_per_round(spec.config, aggregation)
    check_sizes_by_chance(spec.config, aggregation)
    build_algorithm(spec, task)


def identity(
    arms: Mapping[str, SearchedArm],
    method: Method,
    objective: str,
    seeds: tuple[int, ...],
    task: Task,
) -> dict[str, Any]:
    """Returns what makes a search this one; its budget may change.

    Args:
        arms: The algorithms, by their names.
        seeds: Of the runs of each trial.
        task: The task, loaded; the algorithms were built for it.
    """
    first = next(iter(arms.values()))
    specs = {name: arm.spec({}, seeds[0]) for name, arm in arms.items()}
    # A user's algorithm, or a model to start from, may be another one by the same name.
    files = {
        name: {k: v for k, v in spec.fingerprint(task).items() if k not in task.fingerprint}
        for name, spec in specs.items()
    }
    return {
        "format": _FORMAT,
        "task": first.task,
        "objective": objective,
        "seeds": list(seeds),
        "sampler": method.sampler,
        "pruner": method.pruner,
        "prune_after": method.warm_up,
        "fingerprint": dict(task.fingerprint),
        "files": files,
        "search": {
            name: {flag: of.text for flag, of in arm.dimensions.items()}
            for name, arm in arms.items()
        },
        "settings": {name: spec.flags() for name, spec in specs.items()},
    }


def check_folder(folder: Path, wanted: Mapping[str, Any], resume: bool) -> None:
    """Checks that a search may use the folder; writes nothing.

    Args:
        wanted: See `identity`.
        resume: Whether to go on with the search there, or to join in.
    """
    with write_errors(folder):
        if is_new_or_empty(folder):
            return
    path = folder / OWN_FILE
    if not path.exists():
        raise UserError(
            f"--output_dir: expected a new or empty folder or that of a search, found {folder} "
            "with other content"
        )
    different = _difference(read_json(path), _published(wanted))
    if different is None and not _is_of_data(folder, wanted):
        different = "of other examples"
    if different is not None:
        raise UserError(f"--output_dir: {folder} holds another search: {different}")
    if not resume:
        raise UserError(
            f"--output_dir: {folder} holds this search already: add --resume to go on with it or "
            "to join in, or choose another folder"
        )


def claim_folder(folder: Path, wanted: Mapping[str, Any], resume: bool) -> None:
    """Makes the folder that of a search; of several processes the first one does."""
    make_folder(folder)
    with folder_lock(folder, wait=True):
        # Again: another process may have been faster.
        check_folder(folder, wanted, resume)
        if not (folder / OWN_FILE).exists():
            if data := _private_data(wanted):
                with atomic_file(folder / _DATA_FILE, owner_only=True) as file:
                    file.write(keyed_digest(data).encode())
            write_json(folder / OWN_FILE, _published(wanted))


def _private_data(wanted: Mapping[str, Any]) -> Optional[str]:
    """Returns the digest of the examples if the search is private; None otherwise."""
    is_private = any(flags["privacy"] != "none" for flags in wanted["settings"].values())
    return wanted["fingerprint"].get(DATA) if is_private else None


def _published(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a search's identity without a digest of private examples."""
    hidden = {DATA} if _private_data(wanted) else set()
    shown = {k: v for k, v in wanted["fingerprint"].items() if k not in hidden}
    return {**wanted, "fingerprint": shown}


def _is_of_data(folder: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether a folder is of the examples of a search, if the search is private."""
    data = _private_data(wanted)
    keyed = read_text(folder / _DATA_FILE, "a keyed digest") if data else ""
    return not data or is_keyed_digest(keyed, data)


def _difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> Optional[str]:
    """Returns the first difference, in the order of what is here; None if there is none."""
    before, now = dict(_flat(there)), dict(_flat(here))
    name = next((n for n in {**now, **before} if before.get(n) != now.get(n)), None)
    if name is None:
        return None
    return f"{name} was {before.get(name)!r:.100} there, and is {now.get(name)!r:.100} here"


def _flat(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}: ")
        else:
            yield f"{prefix}{name}", value
