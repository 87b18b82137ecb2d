"""Every setting that a run may have, by its flag, and whose it is.

A user's algorithm brings settings of its own: the command line is searched for such files before
its flags are defined.
"""

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import flags

from tff_agnostic.algorithms.user_algorithm import is_user_file, load_user_algorithm
from tff_agnostic.command_line import with_flag_files
from tff_agnostic.errors import UserError
from tff_agnostic.program.specs.arms import algorithms_in
from tff_agnostic.program.specs.config import RunConfig
from tff_agnostic.program.specs.run_folder import RunFolder
from tff_agnostic.program.specs.run_of_checkpoint import algorithm_of_checkpoint, algorithm_of_run
from tff_agnostic.program.specs.settings_of_runs import settings_of_runs
from tff_agnostic.runtimes.options import RuntimeOptions
from tff_agnostic.setting_flags import Setting, settings_in
from tff_agnostic.tasks.registry import TASKS
from tff_agnostic.tasks.task import option_flag

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
        *("plan", "server_state", "kind", "population", "iterations", "over_selection"),
        *("rounds_between", "training_population", "training_task_id", "every_iterations"),
        *("grid", "grid_algorithm", "grid_points", "measure", "max_hours", "max_memory_gb"),
        *("client_graph", "max_clients_per_round", "require_odp_ops"),
        *("search", "objective", "hours", "repeats", "sampler", "pruner", "prune_after"),
    )
)


def run_settings() -> dict[str, Setting]:
    """Returns every setting of runs by its flag: what is registered, and what users bring.

    Raises:
        UserError: If a user's algorithm or a flag file on the command line cannot be loaded, or an
            algorithm has a setting whose name is taken.
    """
    settings = {setting.flag: setting for setting in settings_in(RunConfig)}
    taken = {*settings, *_flags_beside_settings()}
    for kind, name, options in settings_of_runs():
        _add(settings, name, options)
        if kind != "algorithm":
            taken.update(setting.flag for setting in settings_in(options))
    for path in _user_files(sys.argv):
        options = load_user_algorithm(Path(path)).options
        for setting in settings_in(options):
            if setting.flag in taken:
                raise UserError(
                    f"{path}: options: expected names that no other flag has, found {setting.flag}"
                )
        _add(settings, path, options)
    return settings


def _flags_beside_settings() -> Iterator[str]:
    yield from FLAGS_OF_BINARIES
    yield from (setting.flag for setting in settings_in(RuntimeOptions))
    for task, spec in TASKS.items():
        yield from (option_flag(task, field) for field in dataclasses.fields(spec.options))


def _add(settings: dict[str, Setting], owner: str, options: type) -> None:
    for setting in settings_in(options):
        known = settings.get(setting.flag, setting)
        if (known.kind, known.item) != (setting.kind, setting.item):
            raise UserError(
                f"{owner}: options: expected {setting.flag} to be {known.item.__name__}, as that "
                f"of {', '.join(known.owners)}, found {setting.item.__name__}"
            )
        settings[setting.flag] = dataclasses.replace(known, owners=(*known.owners, owner))


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
        names.append(algorithm_of_checkpoint(Path(scanned.checkpoint)))
    if scanned.resume and scanned.output_dir and scanned.algorithm is None:
        # A run that goes on has its folder's algorithm.
        names.append(algorithm_of_run(RunFolder(Path(scanned.output_dir))))
    return list(dict.fromkeys(name for name in names if name and is_user_file(name)))
