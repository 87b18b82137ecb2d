"""The command `tune`: searches for settings on the held-out split, with equal budgets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Optional

from optuna.trial import TrialState

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import (
    atomic_file,
    folder_lock,
    is_keyed_digest,
    keyed_digest,
    make_folder,
    read_text,
    write_errors,
    write_json,
    write_text,
)
from tff_agnostic.base.options import Within
from tff_agnostic.models.model import model_measures
from tff_agnostic.program.commands.command_line import RunArguments, RunCommand
from tff_agnostic.program.reports.document import to_terminal
from tff_agnostic.program.reports.html import write_page
from tff_agnostic.program.runs.heldout import check_heldout, check_store, heldout_options
from tff_agnostic.program.runs.spec import check_used_by_any
from tff_agnostic.program.studies.comparison import MAX_TRIALS
from tff_agnostic.program.studies.methods import LAST_LAYER, ArmOptions, given_arms, overrides
from tff_agnostic.program.studies.search import Budget, Search
from tff_agnostic.program.studies.search_space import parse_objective, parse_search, searchable
from tff_agnostic.program.studies.searched_method import SearchedArm, compare_flags, train_flags
from tff_agnostic.program.studies.trainer import study
from tff_agnostic.program.studies.tuning_page import SearchResult, tuning_page
from tff_agnostic.tasks.task import DATA, Task

BEST_FLAGS, COMPARE_FLAGS, RESULT = "best.flags", "compare.flags", "tuned.json"
# File with a keyed digest of the examples of a private search.
_DATA_FILE = "data.secret"
_MAX_REPEATS = 1000
_SECONDS_PER_HOUR = 3600.0
# Number of trials per method if neither --trials nor --hours is given.
_TRIALS = 20
# Fraction of the rounds of a trial before it may end early.
_WARM_UP = 0.25


@dataclasses.dataclass(frozen=True)
class TuneOptions(ArmOptions):
    """The search space, the objective and the budget.

    Attributes:
        search: Search space: [ROW:]SETTING=RANGE, separated by semicolons. A RANGE is LOW..HIGH,
            LOW..HIGH/STEP, log:LOW..HIGH or choice:A,B,...; choices that contain commas are
            separated by |. A range without ROW is for every method that has the setting.
        objective: Objective on the held-out split: NAME[:MEASURE], or a sum such as
            0.7*worst+0.3*overall. Names: worst, superquantile, overall, client_mean, and domain(D)
            for the domain D. A measure is loss or a metric of the task, by default its first
            metric.
        trials: Number of trials per method. [20; with --hours as many as fit]
        hours: Hours of training for all methods together, over all processes and sessions. A method
            that has used its equal share of them starts no further trial.
        repeats: Number of runs per trial, whose mean is the trial's result; their seeds are --seed,
            --seed + 1, and so on.
        prune_after: Number of rounds, over all repeats, after which a trial may end early: from the
            6th trial on, if it is worse than the median of the other trials after the same round.
            [a quarter of the rounds]
        output_dir: Folder of the search. [runs/tune-TASK-NUMBER, a new one]
        resume: Resume the search in --output_dir, or share its trials with other processes.
    """

    search: Optional[str] = None
    objective: str = "worst"
    trials: Optional[Annotated[int, Within(least=1, most=MAX_TRIALS)]] = None
    hours: Optional[Annotated[float, Within(above=0)]] = None
    repeats: Annotated[int, Within(least=1, most=_MAX_REPEATS)] = 1
    prune_after: Optional[Annotated[int, Within(least=1)]] = None
    output_dir: Optional[Path] = None
    resume: bool = False


def tune(given: RunArguments) -> None:
    """Runs trials until the budget is used; prints and writes the results."""
    args, seeds = given.args, _seeds(given)
    arms = searched_arms(given)
    specs = [arm.spec({}, seeds[0]) for arm in arms.values()]
    check_store(args.data)
    task = specs[0].load_task()
    check_heldout(task, args.task)
    objective = parse_objective(args.objective, model_measures(task.model), task.domain_names)
    for arm in arms.values():
        arm.check(seeds[0], task)
    rounds = args.repeats * min(spec.config.rounds for spec in specs)
    warm_up = args.prune_after or round(_WARM_UP * rounds)
    wanted = {**identity(arms, objective.name, seeds, task), "prune_after": warm_up}
    seconds = None if args.hours is None else args.hours * _SECONDS_PER_HOUR
    budget = Budget(args.trials or (None if args.hours else _TRIALS), seconds)
    is_private = any(spec.config.privacy != "none" for spec in specs)
    with study(given, f"tune-{args.task}", wanted, specs[0].config.runtime) as (runs, trainer):
        if is_private:
            check_private_data(runs.folder, task)
        print(
            f"{', '.join(arms)} on {args.task}, by {objective.name} on the {task.test_split} "
            f"clients: {runs.folder}"
        )
        search = Search(arms, objective, seeds, budget, runs, trainer, warm_up)
        search.begin()
        if is_private:
            print("note: epsilon is that of one run; the choice among several is not covered")
        search.run(given.show_progress)
    # Lock the folder, so that all results are from the same trials and replace no newer results.
    with folder_lock(runs.folder, wait=True):
        report(search, given.typed)


def searched_arms(given: RunArguments) -> dict[str, SearchedArm]:
    """Returns the named methods with their search spaces."""
    args, seed = given.args, _seeds(given)[0]
    options = heldout_options(args.task, given.task_options(args.task))
    rows = given_arms(given)
    if staged := [name for name, row in rows.items() if row.word == LAST_LAYER]:
        raise UserError(
            f"--arms: expected methods of one stage to search, found {staged[0]}: `recommend` "
            "tries it at several learning rates"
        )
    further = overrides(given, list(rows))
    arms = {
        name: SearchedArm(name, row.label, given, {**row.settings, **further[name]}, options)
        for name, row in rows.items()
    }
    specs = {name: arm.spec({}, seed) for name, arm in arms.items()}
    check_used_by_any(list(specs.values()), given.settings)
    if args.search is None:
        raise UserError(
            "--search: expected settings to vary, such as client_learning_rate=log:0.01..1, found "
            "none"
        )
    flags = {name: list(spec.flags()) for name, spec in specs.items()}
    search = parse_search(args.search, searchable(args.task, given.options), flags)
    return {name: dataclasses.replace(arm, dimensions=search[name]) for name, arm in arms.items()}


def _seeds(given: RunArguments) -> tuple[int, ...]:
    first: int = given.settings.get("seed", 0)
    return tuple(first + k for k in range(given.args.repeats))


def identity(
    arms: Mapping[str, SearchedArm], objective: str, seeds: tuple[int, ...], task: Task
) -> dict[str, Any]:
    """Returns the identity of a search (see `RunSet`), without its budget and private digests."""
    specs = {name: arm.spec({}, seeds[0]) for name, arm in arms.items()}
    # Files of the user may change under the same name.
    files = {
        name: {k: v for k, v in spec.fingerprint(task).items() if k not in task.fingerprint}
        for name, spec in specs.items()
    }
    is_private = any(spec.config.privacy != "none" for spec in specs.values())
    return {
        "study": "tune",
        "task": next(iter(arms.values())).task,
        "objective": objective,
        "seeds": list(seeds),
        "fingerprint": {
            k: v for k, v in task.fingerprint.items() if not (is_private and k == DATA)
        },
        "files": files,
        "search": {
            name: {flag: dimension.text for flag, dimension in arm.dimensions.items()}
            for name, arm in arms.items()
        },
        "settings": {name: spec.flags() for name, spec in specs.items()},
    }


def check_private_data(folder: Path, task: Task) -> None:
    """Checks that a private search still has the same examples, by a keyed digest of them."""
    file, data = folder / _DATA_FILE, str(task.fingerprint.get(DATA))
    # Lock the folder, as two processes may start at the same time.
    with folder_lock(folder, wait=True):
        if not file.exists():
            with atomic_file(file, owner_only=True) as written:
                written.write(keyed_digest(data).encode())
        elif not is_keyed_digest(read_text(file, "a keyed digest"), data):
            raise UserError(f"--output_dir: {folder} holds another study, of different examples")


# --- Results


def report(search: Search, command: str) -> None:
    """Prints the trials and the best of them, and writes the results of a search.

    Args:
        search: The completed search; other processes may still run some of its trials.
    """
    path = search.runs.folder
    result = SearchResult(search, {name: search.trials(name) for name in search.arms})
    specs = {n: search.arms[n].spec(t.params, search.seeds[0]) for n, t in result.best.items()}
    task = next(iter(search.arms.values())).task
    page = tuning_page(result, specs, command, f"Search on {task}")
    write_json(
        path / RESULT,
        {
            name: {"trial": trial.number, "value": trial.value, "settings": dict(trial.params)}
            for name, trial in result.best.items()
        },
    )
    print(f"\n{to_terminal(page)}")
    running = sum(len(search.trials(n, (TrialState.RUNNING,))) for n in search.arms)
    if running:
        print(
            f"note: trials that have not ended: {running}; another process runs them, or was "
            "killed (--resume resumes them)"
        )
    _write_flags(search, result)
    print(f"report: {write_page(path, page)}")
    if none := [name for name in result.trials if name not in result.best]:
        raise UserError(
            f"{', '.join(none)}: expected a complete trial, found none: the table above has the "
            "reasons; search in other ranges, or resume with more --trials"
        )


def _write_flags(search: Search, result: SearchResult) -> None:
    objective, path, specs = search.objective, search.runs.folder, {}
    for name, trial in result.best.items():
        arm = search.arms[name]
        specs[name] = arm.best_run(trial.params)
        which = (
            f"trial {trial.number}, the best of {len(result.trials[name])}: {objective.name} "
            f"{objective.text(float(trial.value or 0.0))} on the held-out clients"
        )
        file = path / name / BEST_FLAGS
        make_folder(file.parent)
        write_text(file, train_flags(arm, specs[name], f"{arm.label} on {arm.task}: {which}."))
        print(f"{name}: {which}: ./run train --flagfile={file}")
    # Remove an earlier flag file, which would be wrong for the new best trials.
    with write_errors(path):
        (path / COMPARE_FLAGS).unlink(missing_ok=True)
    if len(search.arms) == 1 or len(specs) < len(search.arms):
        return
    remark = f"The best of each by {objective.name} on the held-out clients."
    text = compare_flags(search.arms, specs, remark)
    if text is None:
        print(
            f"note: no {COMPARE_FLAGS}: methods of a comparison share the options of the task, in "
            "which the best trials differ"
        )
    else:
        write_text(path / COMPARE_FLAGS, text)
        print(f"all of them: ./run compare --flagfile={path / COMPARE_FLAGS}")


TUNE = RunCommand("tune", TuneOptions, tune, without=("algorithm",))
