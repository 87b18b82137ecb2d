"""A command: its flags, what a user gave, and the command that repeats a run.

Flags are made from the settings of runs, runtimes, algorithms, aggregations and tasks. Each is
defined once, where its dataclass is, and what algorithms share is one flag. A user's algorithm
brings settings of its own: the command line is searched for such files before flags are defined.
"""

import sys
import types
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from absl import flags

from tff_agnostic.algorithms.user_algorithm import (
    algorithm_label,
    is_user_file,
    load_user_algorithm,
)
from tff_agnostic.errors import UserError
from tff_agnostic.run.arms import OF_ALL_ROWS, algorithms_in
from tff_agnostic.run.folder import RunFolder, SavedRun, algorithm_of_run, folder_of_checkpoint
from tff_agnostic.run.options import (
    options_of_runs,
    options_of_runtimes,
    options_of_task,
    options_of_tasks,
    path_of,
)
from tff_agnostic.run.process import with_flag_files
from tff_agnostic.run.spec import (
    PLACES_OF_DATA,
    RunSpec,
    check_given,
    inheriting,
    path_flags,
    resolve,
)
from tff_agnostic.runtimes.options import RuntimeOptions, options_of
from tff_agnostic.settings import Option, OptionTable, flag_text, path_flag, settings_in
from tff_agnostic.tasks.registry import TASKS

_DEFAULT_TASK = "digits"
# What decides which other settings there are, and what their defaults are.
_CHOICES = ("algorithm", "aggregation", "privacy")
# Flags of binaries that are no settings; users' algorithms cannot have settings of these names, in
# whatever command. Binaries are above this package; a test holds the list to what they define.
FLAGS_OF_BINARIES = frozenset(
    (
        *("task", "data_dir", "data", "output_dir", "resume", "override", "trials"),
        *("algorithms", "arms", "checkpoint", "output", "profile", "collection_uri"),
        *("models", "training_clients", "adaptation_share", "format", "quantize"),
        *("group_by", "smoothing_share"),
        *("clients_dir", "experiment", "scale", "page", "run"),
        *("clients", "privacy_accountant", "max_participations"),
        *("min_separation", "distributed_noise", "privacy_dimension"),
        *("audit", "audit_runs", "audit_seed"),
        *("plan", "server_state", "kind", "population", "iterations", "over_selection"),
        *("rounds_between", "training_population", "training_task_id", "every_iterations"),
        *("grid", "grid_algorithm", "grid_points", "measure", "max_hours", "max_memory_gb"),
        *("client_graph", "max_clients_per_round", "require_odp_ops"),
        *("search", "objective", "hours", "repeats", "sampler", "pruner", "prune_after"),
    )
)


def define_task_flags(default: Optional[str] = _DEFAULT_TASK) -> None:
    """Defines --task, --data_dir, --data and every option of every task."""
    summaries = "; ".join(f"{name}: {spec.summary}" for name, spec in TASKS.items())
    flags.DEFINE_string("task", default, f"What to learn: {summaries}")
    define_data_flags()
    define_task_option_flags()


def define_task_option_flags() -> None:
    """Defines every option of every task."""
    options_of_tasks().define()


def define_data_flags() -> None:
    """Defines --data_dir and --data."""
    flags.DEFINE_string("data_dir", None, "Folder with the files of tasks that read some.")
    flags.DEFINE_string("data", None, "Client store, as import_data makes it, for tasks on stores.")


def define_override_flag(of: str) -> None:
    """Defines --override; `of` says what the flags in it are for, in capitals."""
    flags.DEFINE_multi_string(
        "override",
        [],
        f"A flag for one of them only, as {of}:FLAG=VALUE; may be given several times.",
    )


def overrides(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns what --override gives to each of `names`.

    Raises:
        UserError: If one has another form, or names something else.
    """
    given: dict[str, dict[str, Any]] = {name: {} for name in names}
    for text in flags.FLAGS.override:
        owner, _, assignment = text.partition(":")
        name, equals, value = assignment.partition("=")
        if not equals or owner not in given or name in ("algorithm", *OF_ALL_ROWS):
            raise UserError(
                f"--override: expected NAME:FLAG=VALUE with one of {', '.join(names)} "
                f"and a flag of its training, found {text!r}"
            )
        given[owner][name] = parsed_value(name, value)
    return given


def define_run_flags(names: Optional[Container[str]] = None, without: Container[str] = ()) -> None:
    """Defines the settings of runs as flags: `RunConfig`'s, algorithms' and aggregations'.

    Their own defaults are None, so that what the user gave can be told from what a task or the
    setting itself says.

    Args:
        names: Which ones; all if None.
        without: Which of them not.

    Raises:
        UserError: If a user's algorithm on the command line cannot be loaded.
    """
    run_settings().define(names, without, _default_text)


def define_runtime_flags() -> None:
    """Defines the fields of `RuntimeOptions` as flags."""
    options_of_runtimes().define()


def runtime_options(
    runtime: str, before: Mapping[str, Any] = types.MappingProxyType({})
) -> RuntimeOptions:
    """Returns the options that the flags give.

    Args:
        runtime: Name of the runtime that they are for.
        before: How a run was executed until now, if it goes on; see `options_of`.

    Raises:
        UserError: If a value is unknown, out of range, or without effect in this runtime.
    """
    return options_of(runtime, options_of_runtimes().from_flags(), before)


def run_spec_from_flags() -> RunSpec:
    """Returns the run that the parsed flags describe.

    Raises:
        UserError: If a value is unknown, out of range, or without effect.
    """
    task = flags.FLAGS.task
    return resolve(task, given_settings(), given_task_options(task), data_dir(), data())


def run_spec_that_goes_on(saved: SavedRun) -> RunSpec:
    """Returns the run of a folder with what the parsed flags say otherwise.

    Whether it may be otherwise is `RunFolder.check`'s to say.

    Args:
        saved: The folder's run.

    Raises:
        UserError: If the folder's run cannot be read, or a value is unknown, out of range, or
            without effect.
    """
    given = given_settings()
    algorithm = given.get("algorithm")
    earlier = saved.spec(algorithm and str(Path(algorithm).resolve()))
    if flags.FLAGS["task"].present and flags.FLAGS.task != earlier.task:
        return run_spec_from_flags()
    return inheriting(earlier, given, given_task_options(earlier.task), data_dir(), data())


def given_settings() -> dict[str, Any]:
    """Returns the settings of runs that were given as flags."""
    return run_settings().from_flags()


def data_dir() -> Optional[Path]:
    """Returns the folder of --data_dir, if it was given."""
    return path_flag("data_dir")


def data() -> Optional[Path]:
    """Returns the client store of --data, if it was given."""
    return path_flag("data")


def parsed_value(name: str, value: Any) -> Any:
    """Returns the value of a setting of runs from a flag's value or from text.

    Raises:
        UserError: If there is no such setting, or the text is not of its type.
    """
    return run_settings()[name].parsed(value)


def given_task_flags() -> dict[str, Any]:
    """Returns the options of tasks that were given as flags, by flag."""
    return options_of_tasks().from_flags()


def given_task_options(task: str) -> dict[str, Any]:
    """Returns the options of a task that were given as flags, by field.

    Raises:
        UserError: If the task is unknown, or options of another task were given.
    """
    return options_of_task(task, given_task_flags())


def _default_text(option: Option) -> str:
    """Returns the default of an option of runs, with those of tasks and algorithms."""
    texts = []
    for task, spec in TASKS.items():
        if option.flag in spec.defaults:
            texts.append(f"{task}: {flag_text(spec.defaults[option.flag])}")
        for algorithm, own in spec.algorithm_defaults.items():
            if option.flag in own:
                texts.append(f"{task} with {algorithm}: {flag_text(own[option.flag])}")
    default = option.default_text()
    return "; ".join([*texts, f"otherwise {default or 'not given'}"]) if texts else default


def train_command(spec: RunSpec) -> list[str]:
    """Returns the shortest command line that trains a run again, where its files are at hand.

    It has what is not the default of the task or of the setting. Files have their names only.
    """
    # A file of the user's keeps its suffix, by which it is known for one.
    shown = {**flags_without_folders(spec), "algorithm": Path(spec.config.algorithm).name}
    own = {name: shown[name] for name in own_flags(spec)}
    return ["./run", "train", f"--task={spec.task}", *flag_texts(own)]


def own_flags(spec: RunSpec) -> dict[str, Any]:
    """Returns the flags, beside --task, that make a run what it is, with their values."""
    flags = spec.flags()
    chosen = {name: flags[name] for name in _CHOICES}
    data_dir, data = map(path_of, (spec.data_dir, spec.data))
    try:
        defaults = resolve(spec.task, chosen, {}, data_dir, data).flags()
        usual = resolve(spec.task, {}, {}, data_dir, data).flags()
    except UserError:
        # Settings of a user's algorithm may exclude their own defaults.
        defaults, usual = {}, {}
    # Of what decides about others, the task's own default; where files lie is none.
    defaults.update({name: usual.get(name) for name in _CHOICES}, task=spec.task)
    defaults.update(dict.fromkeys(PLACES_OF_DATA))
    settings = spec.settings()
    return {
        name: value
        for name, value in flags.items()
        if value != defaults.get(name)
        and value is not None
        and (name not in settings or _has_effect(spec, name, settings[name]))
    }


def flag_texts(flags: Mapping[str, Any]) -> list[str]:
    """Returns flags as arguments of a command."""
    return [f"--{name}={flag_text(value)}" for name, value in flags.items()]


def flags_without_folders(spec: RunSpec) -> dict[str, Any]:
    """Returns all flags of a run, with the names of files instead of where they lay."""
    return _as_flag(spec, spec.flags())


def _as_flag(spec: RunSpec, flags: Mapping[str, Any]) -> dict[str, Any]:
    paths = path_flags(spec)
    named = {name: _names(value) if name in paths else value for name, value in flags.items()}
    return {**named, "algorithm": algorithm_label(spec.config.algorithm)}


def _names(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [Path(path).name for path in value]
    return None if value is None else Path(value).name


def _has_effect(spec: RunSpec, name: str, value: Any) -> bool:
    # Rows of a comparison are given what only others have a use for.
    try:
        check_given(spec, {name: value})
    except UserError:
        return False
    return True


def compare_command(rows: Mapping[str, Sequence[RunSpec]]) -> list[str]:
    """Returns the shortest command line that makes a comparison again; see `train_command`.

    Args:
        rows: The trials of each row, by the names of their folders; trials differ in their seeds.
    """
    first = {row: specs[0] for row, specs in rows.items()}
    own = {row: _of_row(spec) for row, spec in first.items()}
    one, *others = own.values()
    shared = {n: v for n, v in one.items() if all(n in of and of[n] == v for of in others)}
    rest = {row: {n: v for n, v in of.items() if n not in shared} for row, of in own.items()}
    named = {row: Path(spec.config.algorithm).name for row, spec in first.items()}
    if not any(rest.values()) and all(
        row == algorithm_label(spec.config.algorithm) for row, spec in first.items()
    ):
        who = f"--algorithms={','.join(named.values())}"
    else:
        arms = (_arm(row, named[row], flag_texts(rest[row])) for row in rows)
        who = f"--arms={';'.join(arms)}"
    spec = next(iter(first.values()))
    trials = max(map(len, rows.values()))
    return [
        *("./run", "compare", f"--task={spec.task}", who, f"--trials={trials}"),
        *flag_texts(shared),
        *([f"--seed={spec.config.seed}"] if spec.config.seed else []),
    ]


def _of_row(spec: RunSpec) -> dict[str, Any]:
    shown = flags_without_folders(spec)
    return {n: shown[n] for n in own_flags(spec) if n not in ("algorithm", "seed")}


def _arm(row: str, algorithm: str, flags: Sequence[str]) -> str:
    label = "" if row == Path(algorithm).stem else f"{row}="
    settings = ",".join(flag[len("--") :] for flag in flags)
    return f"{label}{algorithm}{':' if settings else ''}{settings}"


def run_settings() -> OptionTable:
    """Returns every setting of runs by its flag: what is registered, and what users bring.

    Raises:
        UserError: If a user's algorithm or a flag file on the command line cannot be loaded, or an
            algorithm has a setting whose name is taken.
    """
    registered, files = options_of_runs(), _user_files(sys.argv)
    if not files:
        return registered
    # What algorithms have may be a user's algorithm's, too.
    shared = {f for f, o in registered.items() if {part for part, _ in o.owners} == {"algorithm"}}
    taken = {*registered, *FLAGS_OF_BINARIES, *options_of_runtimes(), *options_of_tasks()} - shared
    for path in files:
        for option in settings_in(load_user_algorithm(Path(path)).options):
            if option.flag in taken:
                raise UserError(
                    f"{path}: options: expected names that no other flag has, found {option.flag}"
                )
    return options_of_runs(files)


def _user_files(argv: Sequence[str]) -> list[str]:
    """Returns the users' algorithms that a command line names, before its flags are defined."""
    scanned = flags.FlagValues()
    flags.DEFINE_string("algorithm", None, "", flag_values=scanned)
    flags.DEFINE_list("algorithms", [], "", flag_values=scanned)
    flags.DEFINE_string("arms", None, "", flag_values=scanned)
    flags.DEFINE_string("checkpoint", None, "", flag_values=scanned)
    flags.DEFINE_string("output_dir", None, "", flag_values=scanned)
    flags.DEFINE_bool("resume", False, "", flag_values=scanned)
    arguments = [argument.text for argument in with_flag_files(argv[1:])]
    try:
        scanned([argv[0], *arguments], known_only=True)
    except flags.Error:
        # Whoever parses the whole of it says what is wrong.
        return []
    names = [scanned.algorithm, *scanned.algorithms, *algorithms_in(scanned.arms or "")]
    if scanned.checkpoint:
        names.append(algorithm_of_run(folder_of_checkpoint(Path(scanned.checkpoint))))
    if scanned.resume and scanned.output_dir and scanned.algorithm is None:
        # A run that goes on has its folder's algorithm.
        names.append(algorithm_of_run(RunFolder(Path(scanned.output_dir))))
    return list(dict.fromkeys(name for name in names if name and is_user_file(name)))
