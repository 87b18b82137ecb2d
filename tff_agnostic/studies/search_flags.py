"""A search from flags."""

import dataclasses
from collections.abc import Mapping
from typing import Optional

from absl import flags

from tff_agnostic.errors import UserError
from tff_agnostic.run.command_line import (
    data,
    data_dir,
    given_settings,
    given_task_options,
    overrides,
    run_settings,
)
from tff_agnostic.run.spec import check_given_somewhere
from tff_agnostic.studies.comparison import check_trials
from tff_agnostic.studies.methods import arms_from_flags, define_arm_flags
from tff_agnostic.studies.optuna_studies import (
    NO_PRUNER,
    NUM_AT_FIRST,
    PRUNERS,
    SAMPLERS,
    Budget,
    Method,
)
from tff_agnostic.studies.search_space import OF_A_DOMAIN, STATISTICS, parse_search, searchable
from tff_agnostic.studies.searched_method import SearchedArm
from tff_agnostic.tasks.registry import heldout_options

_MAX_REPEATS = 1000
_SECONDS_PER_HOUR = 3600.0
# Of the rounds of a trial, before it may be ended early.
_WARM_UP = 0.25


def define_search_flags() -> None:
    """Defines what to search, for whom, and for how long."""
    define_arm_flags()
    flags.DEFINE_string(
        "search",
        None,
        "What to vary: [ROW:]SETTING=RANGE, separated by semicolons. A RANGE is LOW..HIGH, "
        "LOW..HIGH/STEP, log:LOW..HIGH or choice:A,B,...; choices that have commas are separated "
        "by |. Without ROW it is of every algorithm that has the setting.",
    )
    flags.DEFINE_string(
        "objective",
        "worst",
        "What is to be good on the held-out split: NAME[:MEASURE], or several as "
        f"0.7*worst+0.3*overall. Names: {', '.join(STATISTICS)}, and {OF_A_DOMAIN}(D) of the "
        "domain D. A measure is loss or a metric of the task; its first metric if none is named.",
    )
    flags.DEFINE_integer(
        "trials", None, "Trials of each algorithm. [20; with --hours as many as fit]"
    )
    flags.DEFINE_float(
        "hours",
        None,
        "Begin no trial of an algorithm that has had its share of so many hours of training. They "
        "are shared evenly, and counted over all processes and sessions.",
    )
    flags.DEFINE_integer(
        "repeats", 1, "Runs of each trial, of which the mean counts; run k has seed --seed + k."
    )
    flags.DEFINE_string("sampler", "tpe", f"How settings are drawn. One of: {', '.join(SAMPLERS)}.")
    flags.DEFINE_string(
        "pruner",
        "median",
        "Which trials end early: those worse than the median of the others after the same round, "
        f"from the {NUM_AT_FIRST + 1}th on; by successive halving; or none. One of: "
        f"{', '.join(PRUNERS)}.",
    )
    flags.DEFINE_integer(
        "prune_after",
        None,
        "Rounds of a trial, those of all its repeats, after which it may end early. [a quarter]",
    )


def searched_arms() -> dict[str, SearchedArm]:
    """Returns the algorithms that the flags name, with what is searched of each.

    Raises:
        UserError: If a flag is not as it has to be, has no effect on any algorithm, or asks for the
            test split.
    """
    task = flags.FLAGS.task
    options = heldout_options(task, given_task_options(task))
    rows = arms_from_flags()
    given, own = given_settings(), overrides(list(rows))
    arms = {
        name: SearchedArm(
            name,
            row.label,
            task,
            {**row.settings, **own[name]},
            given,
            options,
            data_dir(),
            data(),
        )
        for name, row in rows.items()
    }
    seed = first_seed()
    specs = {name: arm.spec({}, seed) for name, arm in arms.items()}
    check_given_somewhere(list(specs.values()), given)
    if flags.FLAGS.search is None:
        raise UserError(
            "--search: expected what to vary, such as client_learning_rate=log:0.01..1, found "
            "nothing"
        )
    search = parse_search(flags.FLAGS.search, searchable(task, run_settings()), list(arms))
    of_any = {flag for spec in specs.values() for flag in spec.flags()}
    useless = next((flag for flag in search.shared if flag not in of_any), None)
    if useless is not None:
        raise UserError(f"--search: {useless} has no effect: none of {', '.join(arms)} has it")
    return {
        name: dataclasses.replace(arm, dimensions=search.of(name, list(specs[name].flags())))
        for name, arm in arms.items()
    }


def first_seed() -> int:
    """Returns the seed of the first run of every trial."""
    seed: int = given_settings().get("seed", 0)
    return seed


def seeds() -> tuple[int, ...]:
    """Returns the seeds of the runs of every trial.

    Raises:
        UserError: If --repeats is out of range.
    """
    repeats = flags.FLAGS.repeats
    if not 1 <= repeats <= _MAX_REPEATS:
        raise UserError(f"--repeats: expected 1 to {_MAX_REPEATS}, found {repeats}")
    return tuple(first_seed() + k for k in range(repeats))


def budget() -> Budget:
    """Returns the budget of the flags.

    Raises:
        UserError: If it is out of range.
    """
    trials, hours = flags.FLAGS.trials, flags.FLAGS.hours
    if hours is not None and not 0 < hours < float("inf"):
        raise UserError(f"--hours: expected a finite positive number, found {hours:g}")
    if trials is None and hours is None:
        trials = 20
    if trials is not None:
        check_trials(trials)
    return Budget(trials, None if hours is None else hours * _SECONDS_PER_HOUR)


def method(arms: Mapping[str, SearchedArm], higher_is_better: bool) -> Method:
    """Returns how trials are drawn and judged.

    Args:
        arms: The algorithms.
        higher_is_better: Which direction of the objective is good.

    Raises:
        UserError: If a name is unknown or a number out of range.
    """
    chosen = {"sampler": SAMPLERS, "pruner": PRUNERS}
    for flag, registry in chosen.items():
        registry.given(f"--{flag}", flags.FLAGS[flag].value)
    rounds = min(arm.spec({}, first_seed()).config.rounds for arm in arms.values())
    after: Optional[int] = flags.FLAGS.prune_after
    if after is not None and after < 1:
        raise UserError(f"--prune_after: expected at least 1, found {after}")
    if after is not None and flags.FLAGS.pruner == NO_PRUNER:
        raise UserError(f"--prune_after has no effect with --pruner={NO_PRUNER}")
    return Method(
        higher_is_better=higher_is_better,
        seed=first_seed(),
        sampler=flags.FLAGS.sampler,
        pruner=flags.FLAGS.pruner,
        warm_up=round(_WARM_UP * rounds * flags.FLAGS.repeats) if after is None else after,
    )
