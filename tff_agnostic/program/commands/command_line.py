"""Commands on runs: their flags, their arguments, and the command line that repeats a run.

The flags are derived from the options of runs, runtimes, algorithms, aggregations and tasks. The
options of a user's algorithm share one flag, --algorithm_options.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import types
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import output_folder
from tff_agnostic.base.options import OneOf, Options
from tff_agnostic.program.commands.command import Command, CommandArguments
from tff_agnostic.program.commands.registry import own_flags as command_flags
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flag_table import FlagTable, assignments
from tff_agnostic.program.options.flags import Flag, flag_text, option_flags
from tff_agnostic.program.options.help import (
    Group,
    flag_groups,
    help_page,
    own_groups,
    without_repeated,
)
from tff_agnostic.program.options.process import Interrupted, StopRequest, resume_command
from tff_agnostic.program.options.tasks import check_task_options, task_flags
from tff_agnostic.program.options.user_algorithm import algorithm_label, is_user_file
from tff_agnostic.program.runs.folder import (
    RunFolder,
    SavedRun,
    checkpoint_folder,
    stored_algorithm,
)
from tff_agnostic.program.runs.options import (
    NO_PRESET,
    RUN_PARTS,
    RunConfig,
    find_algorithm,
    optional_path,
    run_flags,
    runtime_flags,
)
from tff_agnostic.program.runs.spec import (
    DATA_PATH_FLAGS,
    RunSettings,
    based_on,
    flags_without_folders,
    is_used,
    path_flags,
    resolve,
)
from tff_agnostic.program.runs.train_run import runtime_options, started
from tff_agnostic.runtimes.registry import RUNTIMES
from tff_agnostic.runtimes.runtime import Runtime

# Folder for results if the user names none.
RUNS = Path("runs")
# Flags whose values determine which other flags a run has, and the defaults of those other flags.
_CHOICES = ("algorithm", "preset", "aggregation", "privacy")
# Matches the entries of --arms whose algorithm is a file, [LABEL=]FILE.py[:...]. Semicolons
# separate entries.
_FILE_IN_ARMS = re.compile(r"(?:^|;)(?:[^;:]*=)?\s*([^;:=]+\.py)\s*(?=$|[;:])")


@dataclasses.dataclass(frozen=True)
class DataOptions(Options):
    """Paths of the data, for commands on tasks.

    Attributes:
        data_dir: Folder of raw files, for tasks that read some.
        data: Client store from import_data, for tasks that read a store.
    """

    data_dir: Optional[Path] = None
    data: Optional[Path] = None


@dataclasses.dataclass(frozen=True)
class TaskOptions(DataOptions):
    """Task and data.

    Attributes:
        algorithm_options: Further options of a user's algorithm, as NAME=VALUE,NAME=VALUE.
        task: Task to learn.
    """

    task: Optional[Annotated[str, OneOf(DEFAULTS)]] = None
    algorithm_options: str = ""


@dataclasses.dataclass(frozen=True)
class RunArguments(CommandArguments):
    """The parsed flags of a command on runs.

    Attributes:
        settings: Given settings of runs, by flag.
        task_values: Given options of tasks, by flag.
        runtime_values: Given options of the runtime, by flag.
        options: All options of runs by flag, including options of users' algorithms.
    """

    settings: Mapping[str, Any]
    task_values: Mapping[str, Any]
    runtime_values: Mapping[str, Any]
    options: FlagTable

    def task_options(self, task: str) -> dict[str, Any]:
        """Returns the given options of a task, after checking that the task has them."""
        check_task_options(task, self.task_values)
        return dict(self.task_values)

    def spec(self) -> RunSettings:
        """Returns the settings of the run that the flags describe."""
        task, data_dir, data = self.args.task, self.args.data_dir, self.args.data
        return resolve(task, self.settings, self.task_options(task), data_dir, data)

    def resolved_spec(
        self, settings: Mapping[str, Any], options: Optional[Mapping[str, Any]] = None
    ) -> RunSettings:
        """Returns the settings of the run that the flags describe, after overriding some of them.

        Args:
            settings: Settings, by flag, that override the given ones.
            options: Options of the task; None for the given ones.
        """
        task, data_dir, data = self.args.task, self.args.data_dir, self.args.data
        if options is None:
            options = self.task_options(task)
        return resolve(task, settings, options, data_dir, data, shared=self.settings)

    def based_on(self, earlier: RunSettings) -> RunSettings:
        """Returns an earlier run's settings, overridden by the given flags."""
        options = self.task_options(earlier.task)
        return based_on(earlier, self.settings, options, self.args.data_dir, self.args.data)

    def resumed(self, saved: SavedRun) -> RunSettings:
        """Returns a saved run's settings, overridden by the given flags; see `RunFolder.check`."""
        algorithm = self.settings.get("algorithm")
        earlier = saved.spec(algorithm and str(Path(algorithm).resolve()))
        if "task" in self.names and self.args.task != earlier.task:
            return self.spec()
        return self.based_on(earlier)

    def runtime_options(
        self, runtime: str, before: Mapping[str, Any] = types.MappingProxyType({})
    ) -> Options:
        """Returns the options of a runtime, after checking that the runtime has the given options.

        Args:
            before: Execution settings that a resumed run has had so far; see `Runtime.execution`.
                Those that may change the last bits of results are kept unless the user gives
                others.
        """
        runtime_flags().check_used(self.runtime_values, "runtime", runtime)
        return runtime_options(runtime, self.runtime_values, before)


@dataclasses.dataclass(frozen=True)
class RunCommand(Command):
    """Description of a command that makes or reads runs.

    Attributes:
        settings: Names of the run settings that are flags of the command; None for all.
        without: Names of run settings that are not flags of the command.
        has_runtime: Whether runtime options are flags of the command.
    """

    settings: Optional[Container[str]] = None
    without: Container[str] = ()
    has_runtime: bool = True

    def define_flags(self) -> None:
        """See `Command.define_flags`."""
        super().define_flags()
        run_flags().define(self.settings, self.without, _default_text)
        if issubclass(self.options_type, DataOptions):
            task_flags().define(default_text=_default_text)
        if self.has_runtime:
            runtime_flags().define()

    def has_setting(self, option: Flag) -> bool:
        """Returns whether a setting of runs is a flag of the command."""
        is_included = self.settings is None or option.name in self.settings
        return is_included and option.name not in self.without

    def help_text(self, doc: Optional[str]) -> str:
        """Returns the help page for the task, algorithm and other parts that the flags choose."""
        tables = (self.options, run_flags(), runtime_flags())
        given = {name: v for table in tables for name, v in table.from_flags().items()}
        runs = run_flags(_user_files(given))
        task = given.get("task") or getattr(self.options_type, "task", None)
        algorithms = _algorithms_in(given)
        defaults = _resolved_defaults(task, algorithms, given.get("preset", NO_PRESET))

        def is_flag(option: Flag) -> bool:
            return option.name in runs and self.has_setting(option)

        def chosen(part: str) -> str:
            default = next((values[part] for values in defaults.values()), getattr(RunConfig, part))
            # Keep only the name of a union's member, such as `ball` of `ball:radius=0.5`.
            return str(given.get(part, default)).partition(":")[0]

        groups = [*own_groups(self.options_type), *flag_groups(RunConfig, is_flag)]
        if issubclass(self.options_type, DataOptions) and task is not None and task in DEFAULTS:
            groups.append(Group(f"The task {task}", option_flags(DEFAULTS[task].spec.options)))
        for name in algorithms:
            groups += flag_groups(find_algorithm(name).options, is_flag)
        for part in ("aggregation", "update_aggregator", "privacy"):
            if (name := chosen(part)) in RUN_PARTS[part]:
                groups += flag_groups(RUN_PARTS[part][name].options, is_flag)
        if self.has_runtime and (runtime := chosen("runtime")) in RUNTIMES:
            groups += flag_groups(RUNTIMES[runtime].options)
        groups = without_repeated(groups)
        from_file = [f for g in groups for f in g.flags if f.name in {*runs} - {*run_flags()}]
        if from_file:
            groups = [g._replace(flags=[f for f in g.flags if f not in from_file]) for g in groups]
            heading = "Options of the file, in --algorithm_options=NAME=VALUE,NAME=VALUE"
            groups.append(Group(heading, from_file))
        last = [
            f"Other tasks: --task=NAME --help, of {', '.join(DEFAULTS)}.",
            f"Other algorithms: --algorithm=NAME --help, of {', '.join(ALGORITHMS)}.",
            "Likewise: --preset, --aggregation, --update_aggregator, --privacy and --runtime.",
        ]
        return help_page(doc, groups, lambda option: _default_for(option, defaults), last)

    def given(self) -> RunArguments:
        """See `Command.given`."""
        given, settings = super().given(), run_flags().from_flags()
        named = {name: getattr(given.args, name) for name in given.names}
        options = run_flags(_user_files({**named, **settings}))
        settings |= _user_options(named.get("algorithm_options", ""), options)
        return RunArguments(
            **vars(given),
            settings=settings,
            task_values=task_flags().from_flags(),
            runtime_values=runtime_flags().from_flags(),
            options=options,
        )


@contextlib.contextmanager
def session(given: RunArguments, name: str) -> Iterator[Session]:
    """Yields a session that writes into --output_dir, or into a new folder.

    Args:
        given: Arguments of the command; its options include `output_dir` and `resume`.
        name: Name of a new folder, to which a number is appended.

    Raises:
        Interrupted: If a signal stopped the command; the message contains the command that resumes.
    """
    with output_folder(given.args.output_dir, RUNS, name, given.args.resume) as path:
        try:
            yield Session(path, given)
        except Interrupted as e:
            raise e.with_command(resume_command(given.command, path)) from None


@dataclasses.dataclass(frozen=True)
class Session:
    """A running command.

    Attributes:
        path: Folder of the results.
    """

    path: Path
    given: RunArguments

    @contextlib.contextmanager
    def running(
        self, runtime: str, options: Optional[Options] = None
    ) -> Iterator[tuple[Runtime, StopRequest]]:
        """Yields a started runtime, and a stop request that records signals.

        Args:
            options: Options of the runtime; None for the given ones.
        """
        chosen = self.given.runtime_options(runtime) if options is None else options
        with StopRequest() as stop, started(runtime, chosen) as entered:
            yield entered, stop


def defaults_elsewhere(option: Flag) -> Iterator[tuple[str, str]]:
    """Yields (NAME, default) for each task that changes an option's default.

    NAME is "TASK", or "TASK with ALGORITHM" for a default of one algorithm.
    """
    for task, entry in DEFAULTS.items():
        if option.name in entry.settings:
            yield task, flag_text(entry.settings[option.name])
        if option.name in entry.options:
            yield task, flag_text(option.to_value(entry.options[option.name]))
        for algorithm, settings in entry.settings_by_algorithm.items():
            if option.name in settings:
                yield f"{task} with {algorithm}", flag_text(settings[option.name])


def _default_text(option: Flag) -> str:
    """Returns an option's defaults as text: those of tasks, and then the general default."""
    texts = [f"{where}: {text}" for where, text in defaults_elsewhere(option)]
    default = option.default_text()
    return "; ".join([*texts, f"otherwise {default or 'not given'}"]) if texts else default


def _algorithms_in(given: Mapping[str, Any]) -> list[str]:
    """Returns the algorithms that the flags name; the default algorithm if they name none."""
    heads = (arm.partition(":")[0] for arm in (given.get("arms") or "").split(";"))
    texts = [
        given.get("algorithm"),
        *(given.get("algorithms") or ()),
        *(head.rpartition("=")[2] for head in heads),
    ]
    names = [str(text).strip() for text in texts if text]
    usable = [name for name in names if name in ALGORITHMS or is_user_file(name)]
    return list(dict.fromkeys(usable)) or [RunConfig.algorithm]


def _resolved_defaults(
    task: Optional[str], algorithms: Sequence[str], preset: str
) -> dict[str, Mapping[str, Any]]:
    """Returns the flags' defaults in a run of each algorithm, by flag; empty without a task."""
    if task is None or task not in DEFAULTS:
        return {}
    defaults: dict[str, Mapping[str, Any]] = {}
    for name in algorithms:
        given = {"algorithm": name, "preset": preset}
        values = resolve(task, given, {}).flags()
        chosen = ("task", *given)
        defaults[algorithm_label(name)] = {n: v for n, v in values.items() if n not in chosen}
    return defaults


def _default_for(option: Flag, defaults: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns an option's default as text; one default per algorithm if they differ."""
    if not defaults:
        return _default_text(option)
    texts = {}
    for name, values in defaults.items():
        value = values.get(option.name)
        texts[name] = option.default_text() if value in (None, []) else flag_text(value)
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{name}: {text}" for name, text in texts.items())


def _user_options(text: str, options: FlagTable) -> dict[str, Any]:
    """Returns the values in --algorithm_options, by name.

    Args:
        text: Value of the flag: NAME=VALUE, separated by commas.
    """
    where, registered = "--algorithm_options", run_flags()
    values = {}
    for name, value in assignments(where, text):
        if name in registered:
            raise UserError(
                f"{where}: expected options without a flag, found {name}: --{name} is one"
            )
        if name not in options:
            others = ", ".join(sorted({*options} - {*registered})) or "none, as no file is given"
            raise UserError(f"{where}: expected options of the file ({others}), found {name}")
        try:
            values[name] = options[name].parsed(value)
        except UserError as e:
            raise UserError(f"{where}: {str(e).removeprefix('--')}") from None
    return values


def _user_files(given: Mapping[str, Any]) -> list[str]:
    """Returns the paths of users' algorithms that the given flags name."""
    in_arms = _FILE_IN_ARMS.findall(given.get("arms") or "")
    names = [given.get("algorithm"), *(given.get("algorithms") or ()), *in_arms]
    if given.get("checkpoint"):
        names.append(stored_algorithm(checkpoint_folder(Path(given["checkpoint"]))))
    if given.get("resume") and given.get("output_dir") and given.get("algorithm") is None:
        # A resumed run keeps its folder's algorithm.
        names.append(stored_algorithm(RunFolder(Path(given["output_dir"]))))
    return list(dict.fromkeys(str(name) for name in names if name and is_user_file(str(name))))


def train_command(spec: RunSettings, keeps_folders: bool = False) -> list[str]:
    """Returns the shortest command line that repeats the training of a run.

    It contains only the flags that differ from the defaults of the task and of the settings.

    Args:
        keeps_folders: Whether paths are absolute, instead of reduced to file names.
    """
    shown = _shown_flags(spec, keeps_folders)
    if not keeps_folders:
        # Keep the suffix, which shows that the algorithm is a file.
        shown["algorithm"] = Path(spec.config.algorithm).name
    needed = {name: shown[name] for name in own_flags(spec)}
    return ["./run", "train", f"--task={spec.task}", *_flag_texts(needed)]


def _shown_flags(spec: RunSettings, keeps_folders: bool) -> dict[str, Any]:
    """Returns all flags of a run, with absolute paths or with file names only."""
    if not keeps_folders:
        return flags_without_folders(spec)
    flags = spec.flags()
    places = {*path_flags(spec), *DATA_PATH_FLAGS}
    if is_user_file(spec.config.algorithm):
        places.add("algorithm")
    return {**flags, **{name: _absolute(flags.get(name)) for name in places}}


def _absolute(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_absolute(path) for path in value]
    return str(Path(value).absolute()) if isinstance(value, (str, Path)) else value


def own_flags(spec: RunSettings) -> dict[str, Any]:
    """Returns the values, by flag, that differ from the defaults; --task is left out."""
    flags = spec.flags()
    chosen = {name: flags[name] for name in _CHOICES}
    data_dir, data = map(optional_path, (spec.data_dir, spec.data))
    try:
        defaults = resolve(spec.task, chosen, {}, data_dir, data).flags()
        usual = resolve(spec.task, {}, {}, data_dir, data).flags()
    except UserError:
        # A user's algorithm may have options that reject their own defaults.
        defaults, usual = {}, {}
    # The flags that determine other flags are compared with the task's defaults. Data paths have no
    # default.
    defaults.update({name: usual.get(name) for name in _CHOICES}, task=spec.task)
    defaults.update(dict.fromkeys(DATA_PATH_FLAGS))
    settings = spec.settings()
    return {
        name: value
        for name, value in flags.items()
        if value != defaults.get(name)
        and value is not None
        # In a comparison, methods share settings: leave out those that this method does not use.
        and (name not in settings or is_used(spec, name))
    }


def _flag_texts(flags: Mapping[str, Any]) -> list[str]:
    texts = with_algorithm_options({name: flag_text(value) for name, value in flags.items()})
    return [f"--{name}={text}" for name, text in texts.items()]


def with_algorithm_options(texts: Mapping[str, str]) -> dict[str, str]:
    """Joins the options of a user's algorithm in one flag; other flags stay unchanged."""
    others = {*task_flags(), *runtime_flags(), *command_flags()}
    # absl itself defines undefok, a list of flags that a command may lack.
    defined = {*run_flags(), *others, "undefok"}
    options = ",".join(f"{name}={text}" for name, text in texts.items() if name not in defined)
    rest = {name: text for name, text in texts.items() if name in defined}
    return {**rest, "algorithm_options": options} if options else rest


def compare_command(
    rows: Mapping[str, Sequence[RunSettings]],
    words: Mapping[str, tuple[str, Container[str]]] = types.MappingProxyType({}),
    keeps_folders: bool = False,
) -> list[str]:
    """Returns the shortest command line that repeats a comparison; see `train_command`.

    Args:
        rows: Settings of each method's trials, by folder name; they differ only in the seed.
        words: Shorthand of a method and the flags that the shorthand sets, by folder name.
        keeps_folders: See `train_command`.
    """
    first = {row: specs[0] for row, specs in rows.items()}
    needed = {row: _row_flags(spec, keeps_folders) for row, spec in first.items()}
    for row, (_, flags) in words.items():
        needed[row] = {name: value for name, value in needed[row].items() if name not in flags}
    one, *others = needed.values()
    shared = {n: v for n, v in one.items() if all(n in row and row[n] == v for row in others)}
    rest = {
        row: {n: v for n, v in flags.items() if n not in shared} for row, flags in needed.items()
    }
    named = {row: Path(spec.config.algorithm).name for row, spec in first.items()}
    named |= {row: word for row, (word, _) in words.items()}
    if not any(rest.values()) and all(row == algorithm_label(named[row]) for row in first):
        who = f"--algorithms={','.join(named.values())}"
    else:
        who = f"--arms={';'.join(arm_text(row, named[row], rest[row]) for row in rows)}"
    spec = next(iter(first.values()))
    trials = max(map(len, rows.values()))
    return [
        *("./run", "compare", f"--task={spec.task}", who, f"--trials={trials}"),
        *_flag_texts(shared),
        *([f"--seed={spec.config.seed}"] if spec.config.seed else []),
    ]


def _row_flags(spec: RunSettings, keeps_folders: bool) -> dict[str, Any]:
    shown = _shown_flags(spec, keeps_folders)
    return {n: shown[n] for n in own_flags(spec) if n not in ("algorithm", "seed")}


def arm_text(row: str, algorithm: str, settings: Mapping[str, Any]) -> str:
    """Returns a method's entry of --arms: its algorithm or shorthand, and its settings."""
    label = "" if row == algorithm_label(algorithm) else f"{row}="
    texts = ",".join(f"{flag}={flag_text(value)}" for flag, value in settings.items())
    return f"{label}{algorithm}{':' * bool(texts)}{texts}"
