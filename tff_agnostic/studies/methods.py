"""What is compared: an algorithm with its settings, several seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.errors import UserError
from tff_agnostic.reports.page import TITLE
from tff_agnostic.run.command_line import GivenRun, TaskOptions, tasks_help
from tff_agnostic.run.spec import RunSpec, check_given_somewhere, resolve
from tff_agnostic.settings import command_setting
from tff_agnostic.studies.arms import (
    OF_ALL_ROWS,
    Arm,
    arms_of_algorithms,
    arms_of_settings,
    parsed_arms,
)
from tff_agnostic.studies.comparison import MAX_TRIALS


def override_setting(of: str) -> Any:
    """Declares --override; `of` says what the flags in it are for, in capitals."""
    help_ = f"A flag for one of them only, as {of}:FLAG=VALUE; may be given several times."
    return command_setting((), help_, repeated=True)


@dataclasses.dataclass(frozen=True)
class ArmOptions(TaskOptions):
    """What is compared; in Python `arms` are the settings of each row by its name."""

    task: str = command_setting(
        "digits", tasks_help, short="What to learn; --help=command says what each is."
    )
    algorithms: tuple[str, ...] = command_setting(
        ("fed_avg", "agnostic_fed_avg"),
        f"What to compare: names ({', '.join(ALGORITHMS)}), or Python files of yours.",
    )
    arms: Optional[str] = command_setting(
        None,
        "Instead of --algorithms: the same algorithm several times, with settings of their own, as "
        "[LABEL=]ALGORITHM[:FLAG=VALUE,...], separated by semicolons. An ALGORITHM may be a word: "
        "uniform (all domains weigh alike), frozen (AgnosticFedAvg with absent domains frozen), "
        "excess_own and excess_trivial (in compare: --domain_baselines=own or trivial), "
        "last_layer (half of the rounds FedAvg, then its last layer alone, as uniform), "
        "domain_input (FedAvg of a model with the domain as an input), or "
        "pooled and pooled_balanced (no federated training: FedAvg's and uniform's model, of all "
        "examples in one place).",
        also=Mapping,
    )
    override: tuple[str, ...] = override_setting("ROW")


@dataclasses.dataclass(frozen=True)
class TrialOptions(ArmOptions):
    """What is compared, and how often."""

    trials: int = command_setting(
        3,
        "Trials of each algorithm; trial k has seed --seed + k.",
        at_least=1,
        at_most=MAX_TRIALS,
    )
    title: Optional[str] = command_setting(None, TITLE)


def given_arms(given: GivenRun) -> dict[str, Arm]:
    """Returns the rows of a comparison, by the names of their folders."""
    own, options = given.own, given.options
    if own.arms is None:
        return arms_of_algorithms(own.algorithms)
    if "algorithms" in given.names:
        raise UserError("--arms and --algorithms: expected one of them, found both")
    if isinstance(own.arms, str):
        return parsed_arms(own.arms, lambda flag, text: options[flag].parsed(text))
    return arms_of_settings(own.arms, lambda flag, value: options[flag].checked(value))


def overrides(given: GivenRun, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns what --override gives to each of `names`."""
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for text in given.own.override:
        owner, _, assignment = text.partition(":")
        name, equals, value = assignment.partition("=")
        if not equals or owner not in found or name in ("algorithm", *OF_ALL_ROWS):
            raise UserError(
                f"--override: expected NAME:FLAG=VALUE with one of {', '.join(names)} "
                f"and a flag of its training, found {text!r}"
            )
        found[owner][name] = given.options[name].parsed(value)
    return found


def trial_specs(
    given: GivenRun, arms: Mapping[str, Arm], called: Optional[Mapping[str, str]] = None
) -> dict[str, list[RunSpec]]:
    """Returns the runs of each row; trial k has the seed that was given, or 0, plus k.

    Args:
        given: What the command was given.
        arms: The rows, by the names of their folders.
        called: What --override calls rows that it does not call as their folders, by the latter;
            several may share a name. It cannot change what makes such a row.
    """
    own, shared = given.own, given.settings
    owners = {name: (called or {}).get(name, name) for name in arms}
    further = overrides(given, list(dict.fromkeys(owners.values())))
    options, first_seed = given.task_options(own.task), shared.get("seed", 0)
    specs = {}
    for name, arm in arms.items():
        more = further[owners[name]]
        making = arm.settings if owners[name] != name else arm.made_by_word
        fixed = sorted(making.keys() & more.keys())
        if fixed:
            raise UserError(
                f"--override: {owners[name]}: expected settings that do not make them, "
                f"found {fixed[0]}"
            )
        specs[name] = [
            resolve(
                own.task,
                {**arm.settings, **more, "seed": first_seed + k},
                options,
                own.data_dir,
                own.data,
                shared=shared,
            )
            for k in range(own.trials)
        ]
    for flag, value in shared.items():
        # What a row has of its own, it does not take from all.
        takers = [runs[0] for name, runs in specs.items() if flag not in arms[name].settings]
        if not takers:
            raise UserError(f"--{flag} has no effect: every row has its own: {', '.join(arms)}")
        check_given_somewhere(takers, {flag: value})
    return specs
