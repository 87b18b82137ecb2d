"""Recommending as a command: the right training for a user's data, chosen on validation clients.

1. Each row of the portfolio trains once at each of its settings; what is shown to be worse than
   FedAvg gets no more settings.
2. The best setting of FedAvg, and of the two rows that look best, trains with more seeds.
3. `choice.chosen` takes the row whose gain over FedAvg is surest, or FedAvg.
4. The choice, and FedAvg beside it, train anew on all training clients; the test clients are looked
   at once, after everything was chosen.

Nothing in the choice depends on time, but for how much is tried with --hours, which is written down
when it is decided: a search that was killed, or that several processes share, ends alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.domain_weights.excess import OWN, BaselineOptions
from tff_agnostic.errors import UserError
from tff_agnostic.files import folder_lock, is_new_or_empty, make_folder, read_json, write_json
from tff_agnostic.models.keras import last_layer
from tff_agnostic.models.model import measures_of
from tff_agnostic.progress import LongWork
from tff_agnostic.run.baselines import with_baselines
from tff_agnostic.run.command_line import GivenRun, RunCommand, TaskOptions, session, tasks_help
from tff_agnostic.run.process import StopRequest
from tff_agnostic.run.spec import RunSpec, check_given_somewhere, resolve
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.settings import command_setting
from tff_agnostic.studies.arms import BASELINE, LAST_LAYER, Arm, arms_of_algorithms
from tff_agnostic.studies.choice import REGRET, attained, chosen, hopeless, judged, share_of
from tff_agnostic.studies.comparison import MADE_FIRST, Comparison, run_trials
from tff_agnostic.studies.comparison_record import COMPARE
from tff_agnostic.studies.portfolio import (
    FACTORS,
    FINALISTS,
    IF_NAMED,
    PORTFOLIO,
    Run,
    Runs,
    Schedule,
    schedule_within,
    seconds_of,
    settings_of,
    timed,
)
from tff_agnostic.studies.recommendation import (
    FINAL,
    Found,
    Recommended,
    shown,
    write_page,
    write_recommendation,
)
from tff_agnostic.studies.search_space import Objective, parse_objective
from tff_agnostic.studies.stages import Stages, begun, halves
from tff_agnostic.studies.validation_clients import ValidationClients, check_judges

_TRIES, _TRIALS, _MAX_TRIALS = 3, 5, 100
_ALL = range(len(FACTORS))
# In the folder: what is recommended for what, and how much is tried where time decides it.
OWN_FILE, _SCHEDULE = "recommend.json", "schedule.json"
_SEARCH = "search"
_SECONDS_PER_HOUR = 3600.0


@dataclasses.dataclass(frozen=True)
class RecommendOptions(TaskOptions):
    """What is to be good, and how much may be tried."""

    task: str = command_setting(
        "digits", tasks_help, short="What to learn; --help=command says what each is."
    )
    portfolio: tuple[str, ...] = command_setting(
        tuple(row for row in PORTFOLIO if row not in IF_NAMED),
        f"What to choose from, FedAvg always among it: words of {', '.join(PORTFOLIO)}. "
        "domain_input is tried only if it is named: its model needs the domain wherever it is "
        "used.",
    )
    objective: str = command_setting(
        "worst",
        "What is to be good on the validation clients: worst (domain), regret (of the domain that "
        "is furthest from the best that any row attains there), superquantile (the worst tenth of "
        "the clients), overall, or several as 0.7*worst+0.3*overall. :MEASURE after a name is loss "
        "or a metric of the task; its first metric if none is named.",
    )
    average_may_lose: Optional[str] = command_setting(
        None,
        "How much all examples together may lose to FedAvg, such as 0.5%: points of a share such "
        "as accuracy, otherwise a part of FedAvg's value. [any part]",
    )
    tries: Optional[int] = command_setting(
        None,
        f"Settings of each row that are tried. [{_TRIES}; with --hours as many as fit]",
        at_least=1,
        at_most=len(FACTORS),
    )
    trials: int = command_setting(
        _TRIALS,
        "Trials of FedAvg, of the rows that look best, and of the choice; trial k has the seed "
        "--seed + k.",
        at_least=1,
        at_most=_MAX_TRIALS,
    )
    hours: Optional[float] = command_setting(
        None,
        "Try as much as fits into so many hours of training, of all processes and sessions.",
        positive=True,
    )
    output_dir: Optional[Path] = command_setting(
        None, "Folder of all runs. [runs/recommend-TASK-NUMBER, a new one]"
    )
    resume: bool = command_setting(
        False, "Go on in --output_dir, or join other processes that are at work there."
    )


def recommend(given: GivenRun) -> Recommended:
    """Trains the portfolio, chooses, trains the choice anew, and writes what was found."""
    own = given.own
    may_lose = own.average_may_lose and share_of("--average_may_lose", own.average_may_lose)
    arms = _portfolio(own.portfolio)
    seed = given.settings.get("seed", 0)
    rows = Rows(given, arms, ValidationClients(own.task, own.data, seed, _use_references(arms)))
    first = rows.spec(BASELINE, {}, 0)
    _check_private(first)
    check_given_somewhere([rows.spec(row, {}, 0) for row in arms], given.settings)
    task = rows.clients.judging(first)
    check_judges(task)
    objective = parse_objective(
        own.objective, measures_of(task.model), task.domain_names, (REGRET,)
    )
    with session(given, f"recommend-{own.task}") as at:
        wanted = {
            "format": 1,
            "objective": objective.name,
            "average_may_lose": own.average_may_lose,
            "settings": {row: rows.spec(row, {}, 0).flags() for row in arms},
        }
        _claim(at.path, wanted, own.resume)
        print(f"{', '.join(arms)} on {own.task}, by {objective.name}: {at.path}")
        options = given.runtime_options(first.config.runtime)
        with at.running(first.config.runtime, options) as (runtime, stop):
            fixed, left_out = _with_baselines(rows, at.path, runtime, stop)
            rows = rows.without(left_out)
            task = rows.clients.judging(first)
            print(rows.clients.described(task))
            for name in check_judges(task):
                print(f"note: {name} has too few validation clients for a claim of its own")
            search = Search(rows, fixed, objective, at.path, runtime, stop, given.show_progress)
            found = search.run(own)
            choice = chosen(found.judged, may_lose)
            final = search.train_anew(choice, found)
        facts = {
            "task": own.task,
            "objective": objective.name,
            "unit": objective.unit.name,
            "average_may_lose": own.average_may_lose,
            "judges": rows.clients.described(task),
            "split": task.test_split,
            "left_out": left_out,
            "schedule": found.schedule._asdict(),
            "called": given.typed,
        }
        return write_recommendation(at.path, found, objective, choice, may_lose, final, facts)


@dataclasses.dataclass(frozen=True)
class Rows:
    """The runs of the portfolio's rows.

    Attributes:
        given: What the command was given.
        arms: The rows by their names.
        clients: Who judges them.
    """

    given: GivenRun
    arms: Mapping[str, Arm]
    clients: ValidationClients

    def spec(
        self, row: str, changes: Mapping[str, Any], trial: int, is_final: bool = False
    ) -> RunSpec:
        """Returns a run of a row.

        Args:
            row: Its name.
            changes: What it has of its own, by flag.
            trial: From 0.
            is_final: Whether it trains on all training clients, and is evaluated on test clients.
        """
        own, shared = self.given.own, self.given.settings
        options = self.given.task_options(own.task)
        settings = {**self.arms[row].settings, **changes, "seed": shared.get("seed", 0) + trial}
        return resolve(
            own.task,
            settings,
            options if is_final else self.clients.options(options),
            own.data_dir,
            own.data,
            shared=shared,
        )

    def stages(
        self, row: str, changes: Mapping[str, Any], trial: int, is_final: bool = False
    ) -> tuple[Optional[RunSpec], RunSpec]:
        """Returns a run's first stage, if it has two, and the one that is evaluated; see `spec`."""
        spec = self.spec(row, changes, trial, is_final)
        if row != LAST_LAYER:
            return None, spec
        return halves(self.spec(BASELINE, changes, trial, is_final), spec)

    def without(self, names: Collection[str]) -> Rows:
        """Returns the other rows; where none needs references, all validation clients judge."""
        arms = {row: arm for row, arm in self.arms.items() if row not in names}
        clients = dataclasses.replace(self.clients, is_halved=_use_references(arms))
        return dataclasses.replace(self, arms=arms, clients=clients)


def _use_references(arms: Mapping[str, Arm]) -> bool:
    return any(arm.settings.get("domain_baselines") == OWN for arm in arms.values())


def _with_baselines(
    rows: Rows, folder: Path, runtime: Runtime, stop: StopRequest
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Returns what each row has at all its settings, by flag, and why others are left out."""
    fixed: dict[str, dict[str, Any]] = {}
    left_out = {}
    for row in rows.arms:
        spec = rows.spec(row, {}, 0)
        options = spec.algorithm
        if row == LAST_LAYER and not last_layer(rows.clients.judging(spec).model).others:
            left_out[row] = "its model has one layer, with which it is almost uniform weights"
            print(f"note: {row} is left out: {left_out[row]}")
            continue
        if not isinstance(options, BaselineOptions) or options.domain_baselines is None:
            fixed[row] = {}
            continue
        path = folder / row
        make_folder(path)
        try:
            with folder_lock(path, wait=True), timed(path):
                (made,) = with_baselines([spec], path, runtime, stop, rows.clients.stopping)
        except UserError as e:
            # Such as that of a task whose trivial predictors nobody knows.
            if not str(e).startswith("--domain_baselines"):
                raise
            left_out[row] = str(e)
        else:
            numbers = made.settings()["domain_baselines"]
            if any(numbers):
                fixed[row] = {"domain_baselines": numbers}
            else:
                left_out[row] = "its baselines are all 0, with which it is AgnosticFedAvg"
        if row in left_out:
            print(f"note: {row} is left out: {left_out[row]}")
    return fixed, left_out


@dataclasses.dataclass(frozen=True)
class Search:
    """The search of a folder.

    Attributes:
        rows: What is tried.
        fixed: What each row has at all its settings, by flag.
        objective: What is to be good.
        folder: Where it is.
        runtime: Executes the rounds; entered by the caller.
        stop: Says when to stop.
        show_progress: Whether to show it.
    """

    rows: Rows
    fixed: Mapping[str, Mapping[str, Any]]
    objective: Objective
    folder: Path
    runtime: Runtime
    stop: StopRequest
    show_progress: bool

    @property
    def _runs(self) -> Runs:
        judging = self.rows.clients.judging
        return Runs(self.folder / _SEARCH, self.runtime, judging, self.stop)

    def run(self, own: RecommendOptions) -> Found:
        """Makes what is missing of the search, and returns what it found."""
        tries = {
            row: [
                {**of_row, **changes}
                for changes in settings_of(row, self.rows.spec(row, of_row, 0), len(FACTORS))
            ]
            for row, of_row in self.fixed.items()
        }
        self._make(tries, list(tries), 0, [0], "the first settings")
        schedule = self._schedule(own, list(tries))
        given_up: frozenset[str] = frozenset()
        for k in range(1, schedule.tries):
            given_up |= self._hopeless(tries, k)
            live = [row for row in tries if row not in given_up]
            self._make(tries, live, k, [0], f"setting {k + 1} of {schedule.tries}")
        given_up |= self._hopeless(tries, schedule.tries)
        best, tried = self._best(tries, schedule.tries)
        live = self._finalists(best, tried, given_up)
        for row in live:
            k, trials = best[row], range(1, schedule.trials)
            self._make(tries, [row], k, trials, f"more trials of {row}")
        of_best = {
            _folder(row, best[row]): [
                self.rows.spec(row, tries[row][best[row]], t) for t in range(schedule.trials)
            ]
            for row in live
            if self._runs.ended(_folder(row, best[row])) is None
        }
        confirmed = _by_row(self._runs.comparison(of_best), self.rows.arms)
        if BASELINE not in confirmed.trials:
            raise UserError(_nothing(self._runs.ended(_folder(BASELINE, best[BASELINE]))))
        return Found(
            confirmed,
            judged(confirmed, self.objective, BASELINE),
            tried,
            {row: tries[row][k] for row, k in best.items()},
            given_up,
            schedule,
        )

    def _make(
        self,
        tries: Mapping[str, Sequence[Mapping[str, Any]]],
        rows: Sequence[str],
        setting: int,
        trials: Iterable[int],
        what: str,
    ) -> None:
        """Makes trials of some rows at one setting."""
        runs = []
        for row in rows:
            for trial in trials:
                first, spec = self.rows.stages(row, tries[row][setting], trial)
                runs.append(Run(_folder(row, setting), trial, spec, first))
        with LongWork(what, len(runs), "runs", visible=self.show_progress) as work:
            self._runs.make(runs, work)

    def _seconds(self, row: str) -> float:
        """Returns how long a row has taken at all its settings, with its references."""
        at_settings = (seconds_of(self.folder / _SEARCH / _folder(row, k)) for k in _ALL)
        return seconds_of(self.folder / row) + sum(at_settings)

    def _schedule(self, own: RecommendOptions, rows: Sequence[str]) -> Schedule:
        """Returns how much is tried; what time decides is written down."""
        most = Schedule(own.tries or _TRIES, own.trials)
        if own.hours is None:
            return most
        path = self.folder / _SCHEDULE
        with folder_lock(self.folder, wait=True):
            if path.exists() and read_json(path)["hours"] == own.hours:
                return Schedule(*read_json(path)["schedule"])
            one = {row: seconds_of(self.folder / _SEARCH / _folder(row, 0)) for row in rows}
            used = sum(map(self._seconds, rows))
            most = Schedule(own.tries or len(FACTORS), own.trials)
            found = schedule_within(own.hours * _SECONDS_PER_HOUR, used, one, most)
            write_json(path, {"hours": own.hours, "schedule": list(found)})
        return found

    def _best(
        self, tries: Mapping[str, Sequence[Mapping[str, Any]]], number: int
    ) -> tuple[dict[str, int], Comparison]:
        """Returns the best setting of each row, of so many, and the first trial of all of them."""
        specs = {
            (row, k): self.rows.spec(row, changes, 0)
            for row, of_row in tries.items()
            for k, changes in enumerate(of_row[:number])
            if (self.folder / _SEARCH / _folder(row, k)).exists()
            and self._runs.ended(_folder(row, k)) is None
        }
        if not any(row == BASELINE for row, _ in specs):
            raise UserError(_nothing(self._runs.ended(_folder(BASELINE, 0))))
        tried = self._runs.comparison({_folder(*of): [spec] for of, spec in specs.items()})
        sign = 1.0 if self.objective.higher_is_better else -1.0
        values = {
            of: sign * float(attained(tried, _folder(*of), self.objective).values[0])
            for of in specs
        }
        finite = {of: value for of, value in values.items() if value == value}
        return {
            row: max((k for r, k in finite if r == row), key=lambda k: finite[row, k])
            for row in dict.fromkeys(row for row, _ in finite)
        }, tried

    def _hopeless(
        self, tries: Mapping[str, Sequence[Mapping[str, Any]]], number: int
    ) -> frozenset[str]:
        """Returns the rows that are shown to be worse than FedAvg, each at its best setting."""
        best, tried = self._best(tries, number)
        of_best = {_folder(row, k): row for row, k in best.items()}
        found = judged(tried, self.objective, _folder(BASELINE, best[BASELINE]))
        worse = hopeless({name: of for name, of in found.items() if name in of_best})
        return frozenset(of_best[name] for name in worse)

    def _finalists(
        self, best: Mapping[str, int], tried: Comparison, given_up: Collection[str]
    ) -> list[str]:
        """Returns FedAvg and the rows that look best by one trial, each at its best setting."""
        found = judged(tried, self.objective, _folder(BASELINE, best[BASELINE]))
        gains = {
            row: found[_folder(row, k)].gain.mean
            for row, k in best.items()
            if row != BASELINE and row not in given_up
        }
        return [BASELINE, *sorted(gains, key=lambda row: -gains[row])[:FINALISTS]]

    def train_anew(self, choice: Optional[str], found: Found) -> Comparison:
        """Trains FedAvg and the choice on all training clients; evaluates on the test clients."""
        stages = {
            row: Stages(
                *zip(
                    *(
                        self.rows.stages(row, found.changes[row], k, is_final=True)
                        for k in range(found.schedule.trials)
                    )
                )
            )
            for row in ([BASELINE] if choice is None else [BASELINE, choice])
        }
        specs = {row: list(of.second) for row, of in stages.items()}
        of_two = {row: of for row, of in stages.items() if row == LAST_LAYER}
        labels = {row: self.rows.arms[row].label for row in stages}
        path = self.folder / FINAL
        make_folder(path)
        with folder_lock(path, wait=True):
            specs, remarks = begun(specs, of_two, path, self.runtime, self.stop, self.show_progress)
            comparison = run_trials(
                specs,
                path,
                self.runtime,
                True,
                self.stop,
                labels,
                other_files=MADE_FIRST,
                show_progress=self.show_progress,
                remarks=remarks,
            )
            write_json(path / COMPARE, comparison.to_json())
        return comparison


def _folder(row: str, setting: int) -> str:
    return f"{row}-{setting + 1}"


def _by_row(comparison: Comparison, arms: Mapping[str, Arm]) -> Comparison:
    """Returns a comparison whose rows, each at one setting, have the names of the rows."""
    trials = {name.rpartition("-")[0]: of for name, of in comparison.trials.items()}
    labels = {row: arms[row].label for row in trials}
    return dataclasses.replace(comparison, trials=trials, labels=labels)


def _nothing(why: Optional[str]) -> str:
    return f"expected FedAvg to end at one of its settings, found none: {why}"


def _portfolio(words: Sequence[str]) -> dict[str, Arm]:
    strange = next((word for word in words if word not in PORTFOLIO), None)
    if strange is not None:
        raise UserError(f"--portfolio: expected words of {', '.join(PORTFOLIO)}, found {strange!r}")
    return arms_of_algorithms([BASELINE, *(word for word in words if word != BASELINE)])


def _check_private(spec: RunSpec) -> None:
    if spec.config.privacy != "none":
        raise UserError(
            f"--privacy={spec.config.privacy}: expected none: validation clients and the training "
            "of every row would have to be in the account of the model that is handed over; choose "
            "with `tune` on public data, or train FedAvg"
        )


def _claim(folder: Path, wanted: Mapping[str, Any], resume: bool) -> None:
    path = folder / OWN_FILE
    if not path.exists():
        if not is_new_or_empty(folder):
            raise UserError(
                f"--output_dir: expected a new or empty folder or one of recommend, found {folder} "
                "with other content"
            )
        make_folder(folder)
        write_json(path, dict(wanted))
        return
    there = read_json(path)
    different = next((n for n in wanted if there.get(n) != wanted[n]), None)
    if different is not None:
        raise UserError(
            f"--output_dir: {folder} is of another recommendation: its {different} differ"
        )
    if not resume:
        raise UserError(
            f"--output_dir: {folder} holds this recommendation already: add --resume to go on with "
            "it or to join in, or choose another folder"
        )


def _show(recommended: Recommended) -> None:
    for line in shown(recommended):
        print(f"\n{line}")


RECOMMEND = RunCommand(
    "recommend",
    RecommendOptions,
    recommend,
    _show,
    lambda recommended: write_page(recommended.path),
    without=("algorithm",),
)
