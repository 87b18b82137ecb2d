"""The command `tune`: settings chosen on the held-out split, with one budget per method."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

from optuna.trial import Trial, TrialState

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import (
    atomic_file,
    folder_lock,
    is_keyed_digest,
    keyed_digest,
    make_folder,
    read_json,
    read_text,
    write_errors,
    write_json,
    write_text,
)
from tff_agnostic.base.options import Within
from tff_agnostic.metrics.evaluation_report import EvaluationReport, domains_below
from tff_agnostic.models.model import measures_of
from tff_agnostic.program.commands.command_line import RunArguments, RunCommand
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.progress import LongWork
from tff_agnostic.program.reports.document import to_terminal
from tff_agnostic.program.reports.html import write_page
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.heldout import check_heldout, check_store, heldout_options
from tff_agnostic.program.runs.spec import RunSettings, check_used_by_any
from tff_agnostic.program.studies.comparison import MAX_TRIALS
from tff_agnostic.program.studies.methods import LAST_LAYER, ArmOptions, given_arms, overrides
from tff_agnostic.program.studies.optuna_studies import (
    COUNTED,
    ENDED,
    FINISHED,
    NOTHING_NEW,
    SECONDS,
    Budget,
    Claim,
    Studies,
    finds_nothing_new,
)
from tff_agnostic.program.studies.runset import Job, Pruned, RunSet
from tff_agnostic.program.studies.search_space import (
    Objective,
    parse_objective,
    parse_search,
    searchable,
)
from tff_agnostic.program.studies.searched_method import (
    SearchedArm,
    check_run,
    compare_flags,
    train_flags,
)
from tff_agnostic.program.studies.trainer import RunTrainer, study
from tff_agnostic.program.studies.tuning_page import (
    SearchResult,
    described,
    shown_values,
    tuning_page,
)
from tff_agnostic.tasks.task import DATA, Task
from tff_agnostic.training.loop import FinishedRound, Observer

BEST_FLAGS, COMPARE_FLAGS, RESULT = "best.flags", "compare.flags", "tuned.json"
# Keyed digest of the examples of a private search.
_DATA_FILE = "data.secret"
_MAX_REPEATS = 1000
_SECONDS_PER_HOUR = 3600.0
# Trials of each method without a given number or hours.
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
        hours: Hours of training for all algorithms, which share them evenly, over all processes and
            sessions. An algorithm that has used its part begins no further trial.
        repeats: Runs of each trial, whose mean counts; their seeds are --seed, --seed + 1, and so
            on.
        prune_after: Rounds of a trial, those of all its repeats, after which it may end early: from
            the 6th trial on, if it is worse than the median of the others after the same round. [a
            quarter]
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
    args = given.args
    arms, seeds = searched_arms(given), _seeds(given)
    first = next(iter(arms.values()))
    spec = first.spec({}, seeds[0])
    check_store(args.data)
    task = spec.load_task()
    check_heldout(task, args.task)
    objective = parse_objective(args.objective, measures_of(task.model), task.domain_names)
    for arm in arms.values():
        arm.check(seeds[0], task)
    warm_up = _warm_up(given, arms)
    wanted = {**identity(arms, objective.name, seeds, task), "prune_after": warm_up}
    name, runtime = f"tune-{args.task}", spec.config.runtime
    seconds = None if args.hours is None else args.hours * _SECONDS_PER_HOUR
    with study(given, name, wanted, runtime) as (runs, trainer):
        if _is_private(arms, seeds[0]):
            check_private_data(runs.folder, task)
        print(
            f"{', '.join(arms)} on {args.task}, by {objective.name} on the {task.test_split} "
            f"clients: {runs.folder}"
        )
        studies = Studies(runs, objective.higher_is_better, seeds[0], warm_up)
        budget = Budget(args.trials or (None if args.hours else _TRIALS), seconds)
        search = Search(arms, studies, runs, trainer, objective, seeds, budget)
        search.begin()
        if spec.config.privacy != "none":
            print("note: epsilon is that of one run; the choice among several is not covered")
        search.run(trainer.stop, given.show_progress)
    # Lock the folder, so that all results are of the same trials, and replace no newer ones.
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
            "--search: expected what to vary, such as client_learning_rate=log:0.01..1, found "
            "nothing"
        )
    search = parse_search(args.search, searchable(args.task, given.options), list(arms))
    flags = {name: spec.flags() for name, spec in specs.items()}
    for flag in search.shared:
        if not any(flag in has for has in flags.values()):
            raise UserError(f"--search: {flag} has no effect: none of {', '.join(arms)} has it")
    return {
        name: dataclasses.replace(arm, dimensions=search.dimensions(name, list(flags[name])))
        for name, arm in arms.items()
    }


def _seeds(given: RunArguments) -> tuple[int, ...]:
    first: int = given.settings.get("seed", 0)
    return tuple(first + k for k in range(given.args.repeats))


def _warm_up(given: RunArguments, arms: Mapping[str, SearchedArm]) -> int:
    if given.args.prune_after is not None:
        return int(given.args.prune_after)
    rounds = min(arm.spec({}, _seeds(given)[0]).config.rounds for arm in arms.values())
    return round(_WARM_UP * rounds * given.args.repeats)


def identity(
    arms: Mapping[str, SearchedArm], objective: str, seeds: tuple[int, ...], task: Task
) -> dict[str, Any]:
    """Returns the identity of a search (see `RunSet`), without its budget and private digests.

    Args:
        seeds: Seeds of the runs of each trial.
    """
    specs = {name: arm.spec({}, seeds[0]) for name, arm in arms.items()}
    # Files of the user may change under the same name.
    files = {
        name: {k: v for k, v in spec.fingerprint(task).items() if k not in task.fingerprint}
        for name, spec in specs.items()
    }
    hidden = DATA if _is_private(arms, seeds[0]) else None
    return {
        "study": "tune",
        "task": next(iter(arms.values())).task,
        "objective": objective,
        "seeds": list(seeds),
        "fingerprint": {k: v for k, v in task.fingerprint.items() if k != hidden},
        "files": files,
        "search": {
            name: {flag: dimension.text for flag, dimension in arm.dimensions.items()}
            for name, arm in arms.items()
        },
        "settings": {name: spec.flags() for name, spec in specs.items()},
    }


def _is_private(arms: Mapping[str, SearchedArm], seed: int) -> bool:
    return any(arm.spec({}, seed).config.privacy != "none" for arm in arms.values())


def check_private_data(folder: Path, task: Task) -> None:
    """Checks by a keyed digest, which it writes once, that a private search has its examples."""
    file, data = folder / _DATA_FILE, str(task.fingerprint.get(DATA))
    # Two processes may start at the same time.
    with folder_lock(folder, wait=True):
        if not file.exists():
            with atomic_file(file, owner_only=True) as written:
                written.write(keyed_digest(data).encode())
        elif not is_keyed_digest(read_text(file, "a keyed digest"), data):
            raise UserError(f"--output_dir: {folder} holds another study: of other examples")


@dataclasses.dataclass(frozen=True)
class Search:
    """A search for settings of several methods."""

    arms: Mapping[str, SearchedArm]
    studies: Studies
    runs: RunSet[RunSettings]
    trainer: RunTrainer
    objective: Objective
    seeds: tuple[int, ...]
    budget: Budget

    def begin(self) -> None:
        """Adds missing studies, with the given settings as the first trial of each."""
        for name, arm in self.arms.items():
            values, outside = arm.start(self.seeds[0])
            if outside:
                listed = ", ".join(outside)
                print(f"note: {name}: no trial has exactly the given settings: {listed}")
            self.studies.add(name, values)

    def run(self, stop: StopRequest, show_progress: bool) -> None:
        """Runs trials until the budget is used, or taken by other processes; after `begin`.

        Raises:
            Interrupted: If a signal asked to stop; finished rounds are saved.
        """
        spaces = {name: tuple(arm.dimensions.values()) for name, arm in self.arms.items()}
        total, unit = self.budget.seconds or 0.0, "s of training"
        if self.budget.trials is not None:
            total, unit = self.budget.trials * len(self.arms) * len(self.seeds), "runs"
        with LongWork("tune", total, unit, self._done(), show_progress) as work:
            while (claim := self.studies.take(spaces, self.budget)) is not None:
                with claim.held:
                    work.say(f"{claim.name}, trial {claim.trial.number}")
                    self._end(claim, work)
                work.reach(min(total, self._done()))
                if self.studies.with_budget(spaces, self.budget):
                    stop.check(f"trial {claim.trial.number} of {claim.name}")
        for name in self.arms:
            if self.budget.seconds and finds_nothing_new(self.studies.trials(name, COUNTED)):
                print(
                    f"note: {name}: the last {NOTHING_NEW} trials had values of earlier ones, or "
                    "were refused: there is nothing new to train, whatever --hours says"
                )

    def _done(self) -> float:
        if self.budget.trials is None:
            return sum(map(self.runs.seconds, self.arms))
        return sum(len(self.studies.trials(n, FINISHED)) for n in self.arms) * len(self.seeds)

    def _end(self, claim: Claim, work: LongWork) -> None:
        where = f"{claim.name}, trial {claim.trial.number} ({shown_values(claim.trial.params)})"
        try:
            value, reason = self.outcome(claim, work)
        except UserError as e:
            self.studies.end(claim, TrialState.FAIL)
            raise UserError(f"{where}: {e}") from e
        if claim.is_new and (seconds := self.runs.seconds(claim.run_name)):
            claim.trial.set_user_attr(SECONDS, seconds)
        if reason:
            claim.trial.set_user_attr(ENDED, reason)
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        self.studies.end(claim, state, value)
        work.note(f"{where}: {described(value, reason, self.objective)}")

    def outcome(self, claim: Claim, work: LongWork) -> tuple[Optional[float], str]:
        """Makes the missing runs of a trial; returns its objective, or the reason of an early end.

        A trial with the values of an earlier one reports and ends as that one did.

        Raises:
            Interrupted: If a signal asked to stop; finished rounds are saved.
        """
        if not claim.is_new:
            earlier = claim.repeat()
            is_complete = earlier.state is TrialState.COMPLETE
            return earlier.value if is_complete else None, earlier.user_attrs.get(ENDED, "")
        arm, load_task = self.arms[claim.name], self.trainer.load_task
        try:
            specs = [arm.spec(claim.trial.params, seed) for seed in self.seeds]
            task = load_task(specs[0])
            check_run(specs[0], task)
        except UserError as e:
            # Each value is valid alone, so the values are incompatible. If the given settings
            # themselves are now invalid, as with a missing file, the search ends.
            arm.check(self.seeds[0], load_task(arm.spec({}, self.seeds[0])))
            return None, f"refused: {e}"
        check_heldout(task, arm.task)
        values: list[float] = []
        for spec in specs:
            watch = Watch(claim, self.objective, spec.config.rounds, len(specs), values)
            job = Job(f"{claim.run_name}/seed_{spec.config.seed}", spec, observers=(watch,))
            (end,) = self.runs.make([job], work)
            if end.reason is not None:
                return None, end.reason
            result = read_json(RunFolder(end.path).result)
            value = self.objective.value_in(result)
            if value is None:
                self._check_examples(result, task)
                return None, "diverged: the objective is not finite"
            values.append(value)
        return sum(values) / len(values), ""

    def _check_examples(self, result: Mapping[str, Any], task: Task) -> None:
        """Checks that the domains of the objective have enough examples for it to be defined."""
        counts = {name: int(entry["num_examples"]) for name, entry in result["domains"].items()}
        for term in self.objective.terms:
            domains = [*counts] if term.domain is None else [term.domain]
            least, few = 1, "no examples of"
            if term.statistic == "worst":
                least = int(result["worst_min_examples"])
                few = f"fewer than --worst_min_examples={least} examples of each of"
            if {*domains} <= {*domains_below(counts, least)}:
                raise UserError(
                    f"--objective={self.objective.name}: expected a number that the runs report, "
                    f"found none: the {task.test_split} clients have {few} "
                    f"{', '.join(domains)}"
                )


class Watch(Observer):
    """Reports the evaluations of a trial to Optuna, and ends trials that are not promising.

    In the run of the k-th seed, counted from 0, a reported value is the mean of that evaluation and
    of `values`, the results of earlier seeds. Its step is k times the rounds of a run, plus the
    round.
    """

    def __init__(
        self,
        claim: Claim,
        objective: Objective,
        rounds: int,
        num_runs: int,
        values: Sequence[float],
    ) -> None:
        self._trial: Trial = claim.trial
        self._objective = objective
        self._before, self._rounds = rounds * len(values), rounds * num_runs
        self._reported = claim.reported()
        self._values = [*values]

    def after_round(self, finished: FinishedRound) -> None:
        """Reports the evaluation of a round, if it has one."""
        if finished.evaluation is not None:
            self.report(finished.num, next(iter(finished.evaluation.values())))

    def report(self, round_num: int, report: EvaluationReport) -> None:
        """Reports an evaluation.

        Raises:
            Pruned: If the trial should end.
        """
        value, step = self._objective.value_in(report.to_json()), self._before + round_num
        if value is None:
            # An evaluation of few clients may lack examples of a domain.
            return
        if step not in self._reported:
            self._trial.report((sum(self._values) + value) / (len(self._values) + 1), step)
        if step != self._rounds and self._trial.should_prune():
            raise Pruned(f"after round {step} of {self._rounds}")


# --- Results


def report(search: Search, command: str) -> None:
    """Prints the trials and the best of them, and writes the results of a search.

    Args:
        search: The search, which has ended; other processes may still run trials of it.
    """
    objective, path = search.objective, search.runs.folder
    trials = {name: search.studies.trials(name, FINISHED) for name in search.arms}
    labels = {name: arm.label for name, arm in search.arms.items()}
    result = SearchResult(path, labels, objective, search.seeds, trials)
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
    running = sum(len(search.studies.trials(n, (TrialState.RUNNING,))) for n in search.arms)
    if running:
        print(
            f"note: trials that have not ended: {running}; another process runs them, or was "
            "killed (--resume resumes them)"
        )
    _write_flags(search, result)
    print(f"report: {write_page(path, page)}")
    if none := [name for name in trials if name not in result.best]:
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
    # Remove flag files, as those of earlier trials would be wrong.
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


TUNE = RunCommand("tune", TuneOptions, tune, lambda nothing: None, without=("algorithm",))
