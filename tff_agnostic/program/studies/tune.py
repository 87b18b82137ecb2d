"""Searching as a command: settings by the held-out split, with one budget for every method."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Optional

from optuna.trial import FrozenTrial

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import (
    folder_lock,
    make_folder,
    write_errors,
    write_json,
    write_text,
)
from tff_agnostic.base.options import OneOf, Within
from tff_agnostic.models.model import measures_of
from tff_agnostic.program.commands.command_line import RunArguments, RunCommand, session
from tff_agnostic.program.reports.document import Page, Section, text, to_terminal
from tff_agnostic.program.reports.html import chosen_title, write_page
from tff_agnostic.program.runs.heldout import check_heldout, check_store, heldout_options
from tff_agnostic.program.runs.spec import check_used_by_any
from tff_agnostic.program.studies.comparison import MAX_TRIALS
from tff_agnostic.program.studies.methods import LAST_LAYER, ArmOptions, given_arms, overrides
from tff_agnostic.program.studies.optuna_studies import (
    FINISHED,
    NO_PRUNER,
    PRUNERS,
    SAMPLERS,
    Budget,
    Method,
    Studies,
)
from tff_agnostic.program.studies.runset import RunSet
from tff_agnostic.program.studies.search import Search, TrialRunner
from tff_agnostic.program.studies.search_space import (
    parse_objective,
    parse_search,
    searchable,
    task_settings,
)
from tff_agnostic.program.studies.searched_method import (
    DATA_FILE,
    SearchedArm,
    check_private_data,
    identity,
    is_private,
)
from tff_agnostic.program.studies.trainer import LoadedTasks, RunTrainer
from tff_agnostic.program.studies.tuning_page import (
    RESULT,
    Trials,
    default_title,
    importances,
    search_result,
    trial_tables,
    tuning_page,
)
from tff_agnostic.program.studies.tuning_report import compare_flags, train_flags

_MAX_REPEATS = 1000
_SECONDS_PER_HOUR = 3600.0
# Trials of each algorithm where neither they nor hours were given.
_TRIALS = 20
# Fraction of the rounds of a trial before it may end early.
_WARM_UP = 0.25


@dataclasses.dataclass(frozen=True)
class TuneOptions(ArmOptions):
    """The search space, the objective and the budget.

    Attributes:
        search: Search space: [ROW:]SETTING=RANGE, separated by semicolons. A RANGE is LOW..HIGH,
            LOW..HIGH/STEP, log:LOW..HIGH or choice:A,B,...; choices that have commas are separated
            by |. Without ROW it is of every algorithm that has the setting.
        objective: The objective on the held-out split: NAME[:MEASURE], or several as
            0.7*worst+0.3*overall. Names: worst, superquantile, overall, client_mean, and domain(D)
            of the domain D. A measure is loss or a metric of the task; its first metric if none is
            named.
        trials: Trials of each algorithm. [20; with --hours as many as fit]
        hours: Begin no trial of an algorithm that has had its share of so many hours of training.
            They are shared evenly, and counted over all processes and sessions.
        repeats: Runs of each trial, whose mean counts; their seeds are --seed, --seed + 1, and so
            on.
        sampler: How settings are drawn.
        pruner: Which trials end early: those worse than the median of the others after the same
            round, from the 6th on; by successive halving; or none.
        prune_after: Rounds of a trial, those of all its repeats, after which it may end early. [a
            quarter]
        output_dir: Folder of the search. [runs/tune-TASK-NUMBER, a new one]
        resume: Resume the search in --output_dir, or share its trials with other processes.
    """

    search: Optional[str] = None
    objective: str = "worst"
    trials: Optional[Annotated[int, Within(least=1, most=MAX_TRIALS)]] = None
    hours: Optional[Annotated[float, Within(above=0)]] = None
    repeats: Annotated[int, Within(least=1, most=_MAX_REPEATS)] = 1
    sampler: Annotated[str, OneOf(SAMPLERS)] = "tpe"
    pruner: Annotated[str, OneOf(PRUNERS)] = "median"
    prune_after: Optional[Annotated[int, Within(least=1)]] = None
    output_dir: Optional[Path] = None
    resume: bool = False


def tune(given: RunArguments) -> None:
    """Runs trials until the budget is used; prints and writes what was found."""
    own = given.own
    arms, seeds = searched_arms(given), _seeds(given)
    first = next(iter(arms.values()))
    check_store(own.data)
    load_task = LoadedTasks()
    task = load_task(first.spec({}, seeds[0]))
    check_heldout(task, first.task)
    objective = parse_objective(own.objective, measures_of(task.model), task.domain_names)
    method = _method(given, arms, objective.higher_is_better)
    for arm in arms.values():
        arm.check(seeds[0], task)
    config = first.spec({}, seeds[0]).config
    wanted = identity(arms, method, objective.name, seeds, task)
    with session(given, f"tune-{first.task}") as at:
        with at.running(config.runtime) as (runtime, stop):
            trainer = RunTrainer(runtime, stop, load_task)
            if is_private(arms, seeds[0]) and (at.path / DATA_FILE).exists():
                check_private_data(at.path, task)
            with RunSet(at.path, wanted, trainer, own.resume, stop) as runs:
                if is_private(arms, seeds[0]):
                    check_private_data(at.path, task)
                print(
                    f"{', '.join(arms)} on {first.task}, by {objective.name} on the "
                    f"{task.test_split} clients: {at.path}"
                )
                runner = TrialRunner(objective, seeds, load_task, runs)
                studies = Studies(at.path, method, runs)
                search = Search(arms, studies, runner, _budget(own), at.path)
                search.begin(seeds[0])
                if config.privacy != "none":
                    print(
                        "note: epsilon is that of one run; the choice among several is not covered"
                    )
                search.run(stop, given.show_progress)
        # All results of one process are of the same trials, and none replaces newer ones.
        with folder_lock(at.path, wait=True):
            report(search, task.test_split, given.typed)


def searched_arms(given: RunArguments) -> dict[str, SearchedArm]:
    """Returns the algorithms that were named, with what is searched of each."""
    own, shared = given.own, given.settings
    options = heldout_options(own.task, given.task_options(own.task))
    rows = given_arms(given)
    further = overrides(given, list(rows))
    arms = {
        name: SearchedArm(
            name,
            row.label,
            own.task,
            {**row.settings, **further[name]},
            shared,
            options,
            own.data_dir,
            own.data,
            has_two_stages=row.word == LAST_LAYER,
        )
        for name, row in rows.items()
    }
    seed = _seeds(given)[0]
    specs = {name: arm.spec({}, seed) for name, arm in arms.items()}
    check_used_by_any(list(specs.values()), shared)
    if own.search is None:
        raise UserError(
            "--search: expected what to vary, such as client_learning_rate=log:0.01..1, found "
            "nothing"
        )
    search = parse_search(own.search, searchable(own.task, given.options), list(arms))
    of_any = {flag for spec in specs.values() for flag in spec.flags()}
    useless = next((flag for flag in search.shared if flag not in of_any), None)
    if useless is not None:
        raise UserError(f"--search: {useless} has no effect: none of {', '.join(arms)} has it")
    arms = {
        name: dataclasses.replace(arm, dimensions=search.of(name, list(specs[name].flags())))
        for name, arm in arms.items()
    }
    for name, arm in arms.items():
        # Incompatible stages are refused before any run.
        first, _ = arm.stages(specs[name])
        of_both = arm.dimensions.keys() & task_settings(own.task).keys()
        if first is not None and of_both:
            raise UserError(
                f"--search: {name}: expected settings of its second stage, found "
                f"{sorted(of_both)[0]}, which the first one has, too"
            )
    return arms


def _seeds(given: RunArguments) -> tuple[int, ...]:
    """Returns the seeds of the runs of every trial."""
    first: int = given.settings.get("seed", 0)
    return tuple(first + k for k in range(given.own.repeats))


def _budget(own: TuneOptions) -> Budget:
    trials = _TRIALS if own.trials is None and own.hours is None else own.trials
    return Budget(trials, None if own.hours is None else own.hours * _SECONDS_PER_HOUR)


def _method(given: RunArguments, arms: Mapping[str, SearchedArm], higher_is_better: bool) -> Method:
    """Returns the sampler and the pruner.

    Args:
        higher_is_better: Which direction of the objective is good.
    """
    own, seed = given.own, _seeds(given)[0]
    rounds = min(arm.stages(arm.spec({}, seed))[1].config.rounds for arm in arms.values())
    if own.prune_after is not None and own.pruner == NO_PRUNER:
        raise UserError(f"--prune_after has no effect with --pruner={NO_PRUNER}")
    warm_up = round(_WARM_UP * rounds * own.repeats)
    return Method(
        higher_is_better=higher_is_better,
        seed=seed,
        sampler=own.sampler,
        pruner=own.pruner,
        warm_up=warm_up if own.prune_after is None else own.prune_after,
    )


TUNE = RunCommand("tune", TuneOptions, tune, lambda nothing: None, without=("algorithm",))


BEST_FLAGS, COMPARE_FLAGS = "best.flags", "compare.flags"


def report(search: Search, split: str, command: str) -> None:
    """Prints the trials and the best of them, and writes the results of a search.

    Args:
        search: The search, which has ended; other processes may still run trials of it.
        split: Split of the evaluated clients.
    """
    objective, path = search.runner.objective, search.folder
    trials = {name: search.studies.trials(name, FINISHED) for name in search.arms}
    shares = {name: importances(search.studies.study(name)) for name in search.arms}
    record, seed = search.record(split), search.runner.seeds[0]
    found = search_result(
        record, trials, lambda name, trial: search.arms[name].spec(trial.params, seed)
    )
    counts = {name: len(of_it) for name, of_it in trials.items()}
    sentences = found.sentences(counts, len(search.runner.seeds), split)
    write_json(
        path / RESULT,
        {
            "command": command,
            "objective": objective.name,
            "higher_is_better": objective.higher_is_better,
            "split": split,
            "seeds": list(search.runner.seeds),
            "verdict": sentences,
            "algorithms": {
                name: {
                    "label": record.labels[name],
                    "trials": len(trials[name]),
                    "best": _to_json(found.best.get(name)),
                    "importance": shares[name],
                }
                for name in search.arms
            },
        },
    )
    tables = [Section("All trials", trial_tables(record, trials, shares), in_terminal=True)]
    page = Page("", "", [Section("The verdict", text(sentences), in_terminal=True), *tables])
    if found.best_runs is not None:
        title = chosen_title(path, None, default_title(record))
        page = tuning_page(record, found, trials, sentences, shares, command, title)
    print(f"\n{to_terminal(page)}")
    elsewhere = search.num_elsewhere()
    if elsewhere:
        print(
            f"note: trials that have not ended: {elsewhere}; another process runs them, or ended "
            "while it did (--resume goes on with these)"
        )
    _write_flags(search, trials, found.best, split)
    if found.best_runs is not None:
        print(f"report: {write_page(path, page)}")
    none = [name for name in trials if name not in found.best]
    if none:
        raise UserError(
            f"{', '.join(none)}: expected a complete trial, found none: the table above says how "
            "they ended; search in other ranges, or go on with more --trials and --resume"
        )


def _write_flags(
    search: Search, trials: Trials, found: Mapping[str, FrozenTrial], split: str
) -> None:
    objective, path = search.runner.objective, search.folder
    settings = {}
    for name, trial in found.items():
        arm = search.arms[name]
        settings[name] = arm.settings(trial.params, search.runner.seeds[0])
        which = (
            f"trial {trial.number}, the best of {len(trials[name])}: {objective.name} "
            f"{objective.text(float(trial.value or 0.0))} on the {split} clients"
        )
        file = path / name / BEST_FLAGS
        make_folder(file.parent)
        write_text(file, train_flags(arm, settings[name], f"{arm.label} on {arm.task}: {which}."))
        command = "compare" if arm.has_two_stages else "train"
        print(f"{name}: {which}: ./run {command} --flagfile={file}")
    # Flags of earlier trials would be wrong.
    with write_errors(path):
        (path / COMPARE_FLAGS).unlink(missing_ok=True)
    if len(search.arms) == 1 or len(found) < len(search.arms):
        return
    remark = f"The best of each by {objective.name} on the {split} clients."
    text = compare_flags(search.arms, settings, remark)
    if text is None:
        print(
            f"note: no {COMPARE_FLAGS}: rows of a comparison share the options of the task, in "
            "which the best trials differ"
        )
    else:
        write_text(path / COMPARE_FLAGS, text)
        print(f"all of them: ./run compare --flagfile={path / COMPARE_FLAGS}")


def _to_json(trial: Optional[FrozenTrial]) -> Optional[dict[str, Any]]:
    if trial is None:
        return None
    return {"trial": trial.number, "value": trial.value, "settings": dict(trial.params)}
