"""Every option that a run may have, and whose it is."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.aggregations.registry import AGGREGATIONS, PRIVACIES, UPDATE_AGGREGATORS
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.algorithms.user_algorithm import algorithm_named, is_user_file, making_options_of
from tff_agnostic.computations.algorithm import AlgorithmSpec
from tff_agnostic.data.sampling import COHORT_SAMPLINGS
from tff_agnostic.errors import UserError
from tff_agnostic.metrics.evaluation_report import DEFAULT_PERCENTILES, percentile_name
from tff_agnostic.models.keras import PRECISIONS
from tff_agnostic.registry import Registry
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.saving.checkpoints import CHECKPOINTS, newest_checkpoint_file
from tff_agnostic.settings import (
    OptionTable,
    Settings,
    flag_of,
    is_stored,
    make,
    setting,
    settings_in,
)
from tff_agnostic.tasks.domain_input import DOMAIN_INPUTS, NO_DOMAIN_INPUT
from tff_agnostic.tasks.registry import TASKS

NO_PRESET, PAPER = "none", "paper"
PRESETS: Registry[str] = Registry(
    "preset",
    {
        NO_PRESET: "the defaults of the task and of this package",
        PAPER: "the algorithm or figure of the paper to the letter",
    },
)
# Metadata of a setting: what folders mean that were written before it existed.
_AS_BEFORE = "as_before"


@dataclasses.dataclass(frozen=True)
class RunConfig(Settings):
    """Settings of every run, whatever it trains.

    Every field is a flag of the same name; its help text is in the field's metadata. Tasks replace
    the defaults given here, and those of algorithms, with their own (`TaskSpec.defaults`).
    """

    algorithm: str = setting(
        "agnostic_fed_avg",
        "What to train with: an algorithm's name, or a Python file of yours. Names: "
        f"{', '.join(ALGORITHMS)}.",
    )
    preset: str = setting(
        NO_PRESET,
        "Source of settings that you do not give. Flags that you give win.",
        choices=PRESETS,
    )
    runtime: str = setting(
        "cohort",
        "Where rounds run: in this process (cohort), in Ray workers (ray), or in TFF's runtime, "
        "the reference (tff).",
        choices=RUNTIMES,
        may_change="numbers may differ in their last bits from those of an uninterrupted run",
    )
    aggregation: str = setting(
        "plain",
        "How client updates are summed: in the clear (plain), or so that the server sees sums only "
        "(secure).",
        choices=AGGREGATIONS,
    )
    update_aggregator: str = setting(
        "none",
        "Aggregator of tff.learning that averages updates, with --runtime=tff. All else in "
        "training is then in secure sums.",
        choices=UPDATE_AGGREGATORS,
        short="tff.learning's aggregator: none, robust, compressed, dp or secure.",
    )
    privacy: str = setting(
        "none",
        "Client-level differential privacy. The server adds noise to every sum (central) or to its "
        "running sums (tree), or clients add it before a secure sum (distributed).",
        choices=PRIVACIES,
    )
    initial_model: Optional[str] = setting(
        None,
        "Start from these weights: a Keras file (.keras, .h5), the newest checkpoint of a run's "
        "folder, or a checkpoint file.",
        short="Start from these weights: a Keras file, a run's folder, or a checkpoint file.",
        is_path=True,
    )
    trust: bool = setting(
        False,
        "Run code that Keras files of --initial_model and --base_predictors hold, such as Lambda "
        "layers. Not stored: give it again to resume, evaluate, save or export the run.",
        is_stored=False,
    )
    frozen_layers: tuple[str, ...] = setting(
        (),
        "Layers that are not trained and whose updates are not sent: names or patterns such as "
        "block_*, comma-separated.",
        short="Layers that are not trained: names or patterns such as block_*.",
    )
    domain_input: str = setting(
        NO_DOMAIN_INPUT,
        "Whether the domain of an example is an input of the model, which then needs it wherever "
        "it is used: embedding adds a learnt vector of the domain to the scores.",
        choices=DOMAIN_INPUTS,
        short="Whether the domain is an input of the model: none or embedding.",
    )
    precision: str = setting(
        "float32",
        "Number format of layers. Mixed precision is for GPUs and TPUs; weights stay float32.",
        choices=PRECISIONS,
        short="Number format of layers: float32, mixed_bfloat16 or mixed_float16.",
    )
    seed: int = setting(0, "Random seed of splits, cohorts, weights and shuffling.", at_least=0)
    rounds: int = setting(100, "T, communication rounds.", at_least=1, may_change="")
    clients_per_round: int = setting(10, "c, clients in a round.", at_least=1)
    cohort_sampling: str = setting(
        "uniform",
        "How clients are drawn for a round: without replacement (uniform), with each domain's "
        "share (stratified; the domain of most of a client's examples is its own), each client by "
        "itself (poisson), or with a client's rounds as far apart as possible (turns).",
        choices=COHORT_SAMPLINGS,
        short="How clients are drawn: uniform, stratified, poisson or turns.",
    )
    pooled: bool = setting(
        False,
        "Train centrally, as a row to compare with: no federated training. The examples of all "
        "training clients are in one place, and a round is minibatch SGD on as many of them as "
        "--clients_per_round clients have on average.",
        short="Train centrally on all examples in one place: no federated training.",
    )
    max_examples: Optional[int] = setting(
        None, "Largest number of examples of a training client to use, the first ones.", at_least=1
    )
    evaluate_every: int = setting(
        10,
        "Rounds between evaluations on the test clients.",
        at_least=1,
        may_change="evaluations of earlier rounds stay as they are",
    )
    evaluation_clients: Optional[int] = setting(
        None,
        "Number of test clients in evaluations between rounds, the same each time; all if not "
        "given. The last evaluation uses all.",
        short="Test clients in evaluations between rounds; all if not given.",
        at_least=1,
        may_change="evaluations of earlier rounds stay as they are",
    )
    worst_min_examples: int = setting(
        10,
        "Minimum number of evaluation examples for a domain to count as worst or best. Smaller "
        "domains are listed only.",
        short="Fewest evaluation examples of a domain that counts as worst or best.",
        at_least=1,
        as_before=1,
        may_change="what was written of the worst domain after earlier rounds stays as it is",
    )
    client_percentiles: tuple[float, ...] = setting(
        DEFAULT_PERCENTILES,
        "Percentiles of client values to report, comma-separated, above 0 and below 100.",
        may_change="columns of earlier rounds have what was asked for then",
    )
    checkpoint_every: int = setting(10, "Rounds between checkpoints.", at_least=1, may_change="")
    keep_checkpoints: int = setting(
        2, "Number of newest checkpoints to keep.", at_least=1, may_change=""
    )

    def __post_init__(self) -> None:
        """Checks the percentiles too; see `Settings`."""
        super().__post_init__()
        outside = [f"{p:g}" for p in self.client_percentiles if not 0 < p < 100]
        if outside or not self.client_percentiles:
            found = outside[0] if outside else "none"
            raise UserError(
                f"--client_percentiles: expected numbers above 0 and below 100, found {found}"
            )
        # Columns are called so: percentiles that round to one name are one.
        names = list(map(percentile_name, self.client_percentiles))
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UserError(
                f"--client_percentiles: expected different numbers, found {twice[1:]} twice"
            )


# Of what a run is made, by the flag that chooses: members have settings, their `options`.
PARTS_OF_RUNS: Mapping[str, Registry] = {
    "algorithm": ALGORITHMS,
    "aggregation": AGGREGATIONS,
    "update_aggregator": UPDATE_AGGREGATORS,
    "privacy": PRIVACIES,
}


def settings_of_runs() -> Iterator[tuple[str, str, type]]:
    """Yields (kind, name, settings) of everything registered that a run is made of."""
    for kind, registry in PARTS_OF_RUNS.items():
        for name, spec in registry.items():
            yield kind, name, spec.options


def options_of_runs(files: Iterable[str] = ()) -> OptionTable:
    """Returns every option of runs by its flag: what is registered, and what users bring.

    Made once per process, and once more for each set of users' options.

    Args:
        files: Users' files of algorithms.
    """
    return _options_of_runs(tuple((name, algorithm_of_flag(name).options) for name in files))


@functools.cache
def _options_of_runs(of_users: tuple[tuple[str, type], ...]) -> OptionTable:
    users = (("algorithm", name, options) for name, options in of_users)
    return OptionTable.of("flag", [("config", "", RunConfig), *settings_of_runs(), *users])


@functools.cache
def options_of_runtimes() -> OptionTable:
    """Returns the options of runtimes by flag."""
    return OptionTable.of("flag", [("runtime", "", RuntimeOptions)])


@functools.cache
def options_of_tasks() -> OptionTable:
    """Returns the options of all tasks by flag; the owners of each are its tasks."""
    return OptionTable.of("flag", [("task", name, spec.options) for name, spec in TASKS.items()])


def check_task_options(task: str, flags: Iterable[str]) -> None:
    """Refuses options of tasks, by their flags, that a task does not have."""
    names = TASKS[task].option_names
    for flag in flags:
        if flag not in names:
            owners = [name for _, name in options_of_tasks()[flag].owners]
            raise UserError(
                f"--{flag} has no effect with --task={task}: it needs --task={' or '.join(owners)}"
            )


def without_effect(flag: str, config: RunConfig) -> str:
    """Returns why a setting that was given does nothing in a run, and what it needs."""
    option = options_of_runs().get(flag)
    if option is None or not option.owners:
        return f"--{flag} has no effect with --algorithm={config.algorithm}"
    (part, _), *_ = option.owners
    names = [name for kind, name in option.owners if kind == part]
    return (
        f"--{flag} has no effect with --{part}={getattr(config, part)}: it needs "
        f"--{part}={' or '.join(names)}"
    )


def algorithm_of_flag(name: str, flag: str = "--algorithm") -> AlgorithmSpec:
    """Returns the algorithm that a flag names."""
    return algorithm_named(name) if is_user_file(name) else ALGORITHMS.given(flag, name)


def preset_settings(preset: str, algorithm: str) -> Mapping[str, Any]:
    """Returns the settings of a preset, by flag."""
    PRESETS.given("--preset", preset)
    if preset == NO_PRESET:
        return {}
    spec = algorithm_of_flag(algorithm)
    if not spec.paper_settings:
        raise UserError(
            f"--preset=paper: expected an algorithm that says what its paper has, found {algorithm}"
            ", whose ALGORITHM has no paper_settings"
        )
    return spec.paper_settings


def algorithm_options(name: str, values: Mapping[str, Any]) -> Any:
    """Returns the settings of an algorithm; see `make`."""
    options = algorithm_of_flag(name).options
    with making_options_of(name):
        return make(options, values)


def complete(kind: type, values: Mapping[str, Any], is_of_now: bool) -> dict[str, Any]:
    """Adds what an earlier release, without a setting, did.

    Args:
        values: Values by flag, as they were read from a file.
        is_of_now: Whether they were written by this release, which leaves nothing out.

    Raises:
        KeyError: If something is missing all the same.
    """
    all_values = dict(values)
    for one in settings_in(kind):
        if not is_stored(one.field):
            # Whatever a file says.
            all_values[one.flag] = one.field.default
            continue
        if one.flag in values:
            one.check_type(values[one.flag])
            continue
        if is_of_now:
            raise KeyError(one.flag)
        field = one.field
        all_values[one.flag] = field.metadata.get(_AS_BEFORE, field.default)
    return all_values


def by_flag(settings: Any) -> dict[str, Any]:
    """Returns the values of a dataclass of settings by flag, of those that folders keep."""
    return {
        flag_of(field): getattr(settings, field.name)
        for field in dataclasses.fields(settings)
        if is_stored(field)
    }


def path_fields(options: Any) -> list[dataclasses.Field]:
    """Returns the fields of a dataclass of settings that name files."""
    return [field for field in dataclasses.fields(options) if field.metadata["is_path"]]


def initial_file(text: str) -> Optional[str]:
    """Returns the file that training starts from, also where a run's folder was given.

    Of that run it is the newest checkpoint that can be read, which it may delete when it goes on:
    who starts from it keeps a copy (`run.folder`).
    """
    path = Path(text)
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
        return absolute(newest)
    if not path.is_file():
        raise UserError(f"--initial_model: expected a file or a run's folder, found none at {path}")
    return absolute(path)


@functools.lru_cache(maxsize=16)
def _newest_file(folder: Path, changed: int) -> Optional[Path]:
    """Reads checkpoints, and warns of damaged ones, once for all trials of a comparison."""
    del changed
    return newest_checkpoint_file(folder)


def _changed(folder: Path) -> int:
    """Returns when a file was last added to a folder or taken away, in nanoseconds."""
    return folder.stat().st_mtime_ns if folder.is_dir() else 0


def with_absolute_paths(options: Any) -> Any:
    """Returns a dataclass of settings in which every path is absolute."""
    paths = {f.name: _absolute_of(getattr(options, f.name)) for f in path_fields(options)}
    return dataclasses.replace(options, **paths) if paths else options


def _absolute_of(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(absolute(Path(text)) for text in value)
    # A vocabulary may be a number of words.
    return value if value is None or isinstance(value, int) else absolute(Path(value))


def absolute(path: Optional[Path]) -> Optional[str]:
    """Returns a path resolved: however a file is named, it is the same run."""
    return str(path.resolve()) if path is not None else None


def path_of(text: Optional[str]) -> Optional[Path]:
    """Returns the path that a setting has as text, None if it has none."""
    return Path(text) if text is not None else None
