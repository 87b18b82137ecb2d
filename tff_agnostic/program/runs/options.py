"""Options of runs, and the registries of a run's parts."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Optional

from tff_agnostic.aggregations.aggregation import LimitedOptions
from tff_agnostic.aggregations.registry import (
    AGGREGATIONS,
    PRIVACIES,
    UPDATE_AGGREGATORS,
    UpdateAggregator,
)
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OneOf, Options, Within
from tff_agnostic.base.registry import Registry
from tff_agnostic.computations.algorithm import AlgorithmSpec
from tff_agnostic.data.sampling import COHORT_SAMPLINGS
from tff_agnostic.metrics.evaluation_report import DEFAULT_PERCENTILES, percentile_name
from tff_agnostic.models.keras import PRECISIONS
from tff_agnostic.program.options.flag_table import FlagTable
from tff_agnostic.program.options.flags import build, option_flags, option_values
from tff_agnostic.program.options.tasks import task_flags
from tff_agnostic.program.options.user_algorithm import (
    algorithm_named,
    building_options,
    is_user_file,
)
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.saving.checkpoints import CHECKPOINTS, newest_checkpoint_file
from tff_agnostic.tasks.domain_input import DOMAIN_INPUTS, NO_DOMAIN_INPUT

NO_PRESET, PAPER = "none", "paper"
PRESETS: Registry[str] = Registry(
    "preset",
    {
        NO_PRESET: "the defaults of the task and of this package",
        PAPER: "the algorithm or figure of the paper to the letter",
    },
)
# Options that may change when a run is resumed, with the effect to report; "" for no effect.
CHANGEABLE_ON_RESUME: Mapping[str, str] = {
    "runtime": "numbers may differ in their last bits from those of an uninterrupted run",
    "rounds": "",
    "evaluate_every": "evaluations of earlier rounds stay as they are",
    "evaluation_clients": "evaluations of earlier rounds stay as they are",
    "worst_min_examples": "the worst domain of earlier rounds stays as it was written",
    "client_percentiles": "columns of earlier rounds have what was asked for then",
    "checkpoint_every": "",
    "keep_checkpoints": "",
}
# Options that the folders of runs do not store, and their values when a run is read from its
# folder.
NOT_STORED: Mapping[str, Any] = {"trust": False}


@dataclasses.dataclass(frozen=True)
class RunConfig(Options):
    """Options of every run, whatever it trains.

    Attributes:
        algorithm: Algorithm: its name, or a Python file of yours. Names:
            afl_boost, agnostic_fed_avg, delta_fl, fed_avg, fed_avg_sub, fed_avg_target_only,
            fed_boost, fed_prox, q_ffl, stochastic_afl, term.
        preset: Source of the settings that you do not give. Given flags override it.
        runtime: Where rounds run: in this process (cohort), in Ray workers (ray), or in TFF's
            runtime, the reference (tff).
        aggregation: How client updates are summed: in the clear (plain), or so that the server sees
            sums only (secure).
        update_aggregator: Aggregator of tff.learning that averages updates, with --runtime=tff. All
            other values of training are then in secure sums. With dp the run has no epsilon, as
            losses and counts have no noise.
        privacy: Client-level differential privacy. The server adds noise to every sum (central) or
            to its running sums (tree), or clients add it before a secure sum (distributed).
        initial_model: Start from these weights: a Keras file (.keras, .h5), the newest checkpoint
            of a run's folder, or a checkpoint file.
        trust: Run code in Keras files of --initial_model and --base_predictors, such as Lambda
            layers. Runs do not store this flag: give it again to resume, evaluate, save or export.
        frozen_layers: Layers that are not trained and whose updates are not sent: names or patterns
            such as block_*, comma-separated.
        domain_input: Use of an example's domain as an input of the model: embedding adds a learned
            vector per domain to the scores. Such a model needs the domain wherever it is used.
        precision: Number format of layers. Mixed precision is for GPUs and TPUs; weights stay
            float32.
        seed: Random seed of splits, cohorts, weights and shuffling.
        rounds: Number of communication rounds T.
        clients_per_round: Number of clients c in a round.
        cohort_sampling: Sampling of a round's clients: without replacement (uniform), in proportion
            to the domains (stratified; a client's domain is the domain of most of its examples),
            each client independently (poisson), or cyclically, with a client's rounds as far apart
            as possible (turns).
        pooled: Train centrally, as a baseline without federated training. The examples of all
            training clients are in one place, and a round is minibatch SGD on as many of them as
            --clients_per_round clients have on average.
        max_examples: Maximum number of examples per training client: only the first ones are used.
        evaluate_every: Number of rounds between evaluations on the test clients.
        evaluation_clients: Number of test clients in evaluations between rounds, the same clients
            each time; all if not given. The evaluation after the last round uses all.
        worst_min_examples: Minimum number of evaluation examples for a domain to count as worst or
            best. Smaller domains are listed only.
        client_percentiles: Percentiles of client values to report, comma-separated, above 0 and
            below 100.
        checkpoint_every: Number of rounds between checkpoints.
        keep_checkpoints: Number of newest checkpoints to keep.
    """

    algorithm: str = "agnostic_fed_avg"
    preset: Annotated[str, OneOf(PRESETS)] = NO_PRESET
    runtime: Annotated[str, OneOf(RUNTIMES)] = "cohort"
    aggregation: Annotated[str, OneOf(AGGREGATIONS)] = "plain"
    update_aggregator: Optional[UpdateAggregator] = None
    privacy: Annotated[str, OneOf(PRIVACIES)] = "none"
    initial_model: Optional[Path] = None
    trust: bool = False
    frozen_layers: tuple[str, ...] = ()
    domain_input: Annotated[str, OneOf(DOMAIN_INPUTS)] = NO_DOMAIN_INPUT
    precision: Annotated[str, OneOf(PRECISIONS)] = "float32"
    seed: Annotated[int, Within(least=0)] = 0
    rounds: Annotated[int, Within(least=1)] = 100
    clients_per_round: Annotated[int, Within(least=1)] = 10
    cohort_sampling: Annotated[str, OneOf(COHORT_SAMPLINGS)] = "uniform"
    pooled: bool = False
    max_examples: Optional[Annotated[int, Within(least=1)]] = None
    evaluate_every: Annotated[int, Within(least=1)] = 10
    evaluation_clients: Optional[Annotated[int, Within(least=1)]] = None
    worst_min_examples: Annotated[int, Within(least=1)] = 10
    client_percentiles: tuple[float, ...] = DEFAULT_PERCENTILES
    checkpoint_every: Annotated[int, Within(least=1)] = 10
    keep_checkpoints: Annotated[int, Within(least=1)] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        outside = [f"{p:g}" for p in self.client_percentiles if not 0 < p < 100]
        if outside or not self.client_percentiles:
            first = outside[0] if outside else "none"
            raise UserError(
                f"--client_percentiles: expected numbers above 0 and below 100, found {first}"
            )
        # Columns are named after percentiles, so two percentiles with the same rounded name count
        # as equal.
        names = list(map(percentile_name, self.client_percentiles))
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UserError(
                f"--client_percentiles: expected different numbers, found {twice[1:]} twice"
            )


# Registries of a run's parts, by the flag that chooses the part; their entries have `options`.
RUN_PARTS: Mapping[str, Registry] = {
    "algorithm": ALGORITHMS,
    "aggregation": AGGREGATIONS,
    "update_aggregator": UPDATE_AGGREGATORS,
    "privacy": PRIVACIES,
}


def update_limit_options(config: RunConfig) -> type[Options]:
    """Returns the options class for the secure sums that accompany an aggregator of updates."""
    return Options if config.update_aggregator is None else LimitedOptions


def registered_settings() -> Iterator[tuple[str, str, type]]:
    """Yields (kind, name, options class) of every registered part of runs."""
    for kind, registry in RUN_PARTS.items():
        for name, spec in registry.items():
            yield kind, name, spec.options


def run_flags(files: Iterable[str] = ()) -> FlagTable:
    """Returns the options of all registered parts of runs, and of users' algorithms, by flag.

    The table is built once per process and set of users' algorithms.

    Args:
        files: Python files of users' algorithms.
    """
    return _run_options(tuple((name, find_algorithm(name).options) for name in files))


@functools.cache
def _run_options(user_options: tuple[tuple[str, type], ...]) -> FlagTable:
    parts = [("config", "", RunConfig), *registered_settings()]
    if user_options:
        # config.json stores the values of all parts by name. A user's algorithm may share a flag
        # with another algorithm, but not with any other part.
        others = [kind for part, _, kind in parts if part != "algorithm"]
        taken = {flag.name for kind in others for flag in option_flags(kind)} | {*task_flags()}
        for name, options in user_options:
            strange = next((f.name for f in option_flags(options) if f.name in taken), None)
            if strange is not None:
                raise UserError(
                    f"{name}: options: expected names that no other flag has, found {strange}"
                )
    users = (("algorithm", name, options) for name, options in user_options)
    return FlagTable.join([*parts, *users])


@functools.cache
def runtime_flags() -> FlagTable:
    """Returns the options of runtimes by flag."""
    return FlagTable.join(("runtime", name, spec.options) for name, spec in RUNTIMES.items())


def unused_message(flag: str, config: RunConfig) -> str:
    """Returns the message that a given setting has no effect in a run, with the choice it needs."""
    option = run_flags().get(flag)
    if option is None or not option.users:
        return f"--{flag} has no effect with --algorithm={config.algorithm}"
    return run_flags().unused_message(flag, option_values(config))


def find_algorithm(name: str, flag: str = "--algorithm") -> AlgorithmSpec:
    """Returns the algorithm that a flag names."""
    return algorithm_named(name) if is_user_file(name) else ALGORITHMS.given(flag, name)


def preset_settings(preset: str, algorithm: str) -> Mapping[str, Any]:
    """Returns the settings of a preset, by flag."""
    PRESETS.given("--preset", preset)
    if preset == NO_PRESET:
        return {}
    spec = find_algorithm(algorithm)
    if not spec.paper_settings:
        raise UserError(
            f"--preset=paper: expected an algorithm with paper_settings, found {algorithm} without"
        )
    return spec.paper_settings


def algorithm_options(name: str, values: Mapping[str, Any]) -> Any:
    """Returns the settings of an algorithm; see `build`."""
    options = find_algorithm(name).options
    with building_options(name):
        return build(options, values)


def stored_values(options: Any) -> dict[str, Any]:
    """Returns the values of options by flag, without options that folders do not store."""
    return {name: v for name, v in option_values(options).items() if name not in NOT_STORED}


def paths_in(options: Any) -> dict[str, Any]:
    """Returns the value of each path flag, by flag: a path, a tuple of paths, or None."""
    paths = {}
    for flag in option_flags(type(options)):
        value, files = flag.value_in(options), flag.files_in(options)
        if isinstance(value, Options) and files:
            paths[flag.name] = files[0]
        elif flag.is_path:
            paths[flag.name] = value
    return paths


def resolve_initial_model(path: Path) -> Path:
    """Returns the file with the initial model; for a run's folder, its newest readable checkpoint.

    When that other run is resumed, it may delete the checkpoint. Therefore the new run keeps a copy
    (see `runs.folder`).
    """
    if path.is_dir():
        try:
            newest = _newest_file(path / CHECKPOINTS, _changed(path / CHECKPOINTS))
        except UserError as e:
            raise UserError(f"--initial_model: {e}") from e
        if newest is None:
            raise UserError(
                "--initial_model: expected a Keras model, a checkpoint or the folder of a run, "
                f"found no checkpoint in {path}"
            )
        return newest.resolve()
    if not path.is_file():
        raise UserError(f"--initial_model: expected a file or a run's folder, found none at {path}")
    return path.resolve()


@functools.lru_cache(maxsize=16)
def _newest_file(folder: Path, changed: int) -> Optional[Path]:
    """Returns the newest readable checkpoint; cached, so that trials read and warn only once."""
    del changed
    return newest_checkpoint_file(folder)


def _changed(folder: Path) -> int:
    """Returns the last time at which a file of a folder was added or removed, in nanoseconds."""
    return folder.stat().st_mtime_ns if folder.is_dir() else 0


def with_absolute_paths(options: Any) -> Any:
    """Returns options with absolute paths."""

    def resolved(value: Any) -> Any:
        if isinstance(value, Options):
            return with_absolute_paths(value)
        if isinstance(value, tuple):
            return tuple(map(resolved, value))
        return value.resolve() if isinstance(value, Path) else value

    changes = {name: resolved(value) for name, value in vars(options).items()}
    changed = {name: new for name, new in changes.items() if new != vars(options)[name]}
    return dataclasses.replace(options, **changed) if changed else options


def absolute(path: Optional[Path]) -> Optional[str]:
    """Returns a resolved path as a string, so that all names of a file give equal settings."""
    return str(path.resolve()) if path is not None else None


def optional_path(text: Optional[str]) -> Optional[Path]:
    """Converts a setting with a path from a string to a path; None stays None."""
    return Path(text) if text is not None else None
