"""What is compared: an algorithm with its settings, several seeds."""

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

from absl import flags

from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.errors import UserError
from tff_agnostic.run.arms import Arm, arms_of_algorithms, parsed_arms
from tff_agnostic.run.command_line import (
    data,
    data_dir,
    define_override_flag,
    given_settings,
    given_task_options,
    overrides,
    parsed_value,
)
from tff_agnostic.run.spec import RunSpec, check_given_somewhere, resolve
from tff_agnostic.studies.comparison import check_trials


def specs_of_trials(
    rows: Mapping[str, Mapping[str, Any]],
    trials: int,
    task: str,
    given: Mapping[str, Any],
    task_options: Mapping[str, Any] = types.MappingProxyType({}),
    data_dir: Optional[Path] = None,
    data: Optional[Path] = None,
) -> dict[str, list[RunSpec]]:
    """Returns the runs of each row.

    Args:
        rows: The settings of each row's own, by flag, by the names of the rows.
        trials: How many runs each has; trial k has the seed that was given, or 0, plus k.
        task: Name of the task.
        given: Settings that were given for all rows, by flag.
        task_options: Options of the task.
        data_dir: Folder with the task's files.
        data: The client store.

    Raises:
        UserError: If a value is out of range, or has no effect on any of the rows.
    """
    check_trials(trials)
    first_seed = given.get("seed", 0)
    specs = {
        name: [
            resolve(
                task, {**own, "seed": first_seed + k}, task_options, data_dir, data, shared=given
            )
            for k in range(trials)
        ]
        for name, own in rows.items()
    }
    check_given_somewhere([runs[0] for runs in specs.values()], given)
    return specs


def define_trial_flags() -> None:
    """Defines --algorithms, --arms, --trials and --override."""
    define_arm_flags()
    flags.DEFINE_integer("trials", 3, "Trials of each algorithm; trial k has seed --seed + k.")


def define_arm_flags() -> None:
    """Defines --algorithms, --arms and --override."""
    flags.DEFINE_list(
        "algorithms",
        ["fed_avg", "agnostic_fed_avg"],
        f"What to compare: names ({', '.join(ALGORITHMS)}), or Python files of yours.",
    )
    flags.DEFINE_string(
        "arms",
        None,
        "Instead of --algorithms: the same algorithm several times, with settings of their own, as "
        "[LABEL=]ALGORITHM[:FLAG=VALUE,...], separated by semicolons.",
    )
    define_override_flag("ROW")


def arms_from_flags() -> dict[str, Arm]:
    """Returns the rows of the comparison, by the names of their folders.

    Raises:
        UserError: If --arms or --algorithms is not as it has to be, or both were given.
    """
    if flags.FLAGS.arms is None:
        return arms_of_algorithms(flags.FLAGS.algorithms)
    if flags.FLAGS["algorithms"].present:
        raise UserError("--arms and --algorithms: expected one of them, found both")
    return parsed_arms(flags.FLAGS.arms, parsed_value)


def trial_specs(
    arms: Mapping[str, Arm], called: Optional[Mapping[str, str]] = None
) -> dict[str, list[RunSpec]]:
    """Returns the runs of each row that the flags describe.

    Args:
        arms: The rows, by the names of their folders.
        called: What --override calls rows that it does not call as their folders, by the latter;
            several may share a name. It cannot change what makes such a row.

    Raises:
        UserError: If a flag is out of range, or has no effect on any of the rows.
    """
    owners = {name: (called or {}).get(name, name) for name in arms}
    given, own_flags = given_settings(), overrides(list(dict.fromkeys(owners.values())))
    task = flags.FLAGS.task
    rows = {}
    for name, arm in arms.items():
        further = own_flags[owners[name]]
        fixed = sorted(arm.settings.keys() & further.keys()) if owners[name] != name else ()
        if fixed:
            raise UserError(
                f"--override: {owners[name]}: expected settings that do not make them, "
                f"found {fixed[0]}"
            )
        rows[name] = {**arm.settings, **further}
    options = given_task_options(task)
    return specs_of_trials(rows, flags.FLAGS.trials, task, given, options, data_dir(), data())
