"""Recommending as a command: the right training for a user's data, chosen on validation clients.

1. `portfolio_search` trains each row of the portfolio, and confirms FedAvg and the rows that look
   best with more seeds.
2. `choice.chosen` takes the row whose gain over FedAvg is surest, or FedAvg.
3. The choice, and FedAvg beside it, train anew on all training clients; the test clients are looked
   at once, after everything was chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import is_new_or_empty, make_folder, read_json, write_json
from tff_agnostic.base.options import OneOf, Within
from tff_agnostic.models.model import measures_of
from tff_agnostic.program.commands.command_line import GivenRun, RunCommand, TaskOptions, session
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flags import flag_text
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.runs.spec import RunSpec, check_given_somewhere
from tff_agnostic.program.studies.choice import REGRET, chosen, share_of
from tff_agnostic.program.studies.methods import BASELINE, Arm, arms_of_algorithms
from tff_agnostic.program.studies.portfolio import FACTORS, IF_NAMED, PORTFOLIO
from tff_agnostic.program.studies.portfolio_search import Budget, Rows, Search, prepared
from tff_agnostic.program.studies.recommendation import Recommended, shown, write_recommendation
from tff_agnostic.program.studies.report import write_recommendation_report
from tff_agnostic.program.studies.search_space import Objective, parse_objective
from tff_agnostic.program.studies.validation_clients import ValidationClients, check_judges
from tff_agnostic.runtimes.runtime import Runtime

_TRIALS, _MAX_TRIALS = 5, 100
# In the folder: what is recommended for what.
_OWN_FILE = "recommend.json"


@dataclasses.dataclass(frozen=True)
class RecommendOptions(TaskOptions):
    """What is to be good, and how much may be tried.

    Attributes:
        portfolio: What to choose from, FedAvg always among it: words of fed_avg, uniform, frozen,
            excess_own, excess_trivial, last_layer, domain_input. domain_input is tried only if it
            is named: its model needs the domain wherever it is used.
        objective: What is to be good on the validation clients: worst (domain), regret (of the
            domain that is furthest from the best that any row attains there), superquantile (the
            worst tenth of the clients), overall, or several as 0.7*worst+0.3*overall. :MEASURE
            after a name is loss or a metric of the task; its first metric if none is named.
        average_may_lose: How much all examples together may lose to FedAvg, such as 0.5%: points of
            a share such as accuracy, otherwise a part of FedAvg's value. [any part]
        tries: Options of each row that are tried. [3; with --hours as many as fit]
        trials: Trials of FedAvg, of the rows that look best, and of the choice; their seeds are
            --seed, --seed + 1, and so on.
        hours: Try as much as fits into so many hours of training, of all processes and sessions.
        output_dir: Folder of all runs. [runs/recommend-TASK-NUMBER, a new one]
        resume: Go on in --output_dir, or join other processes that are at work there.
    """

    task: Annotated[str, OneOf(DEFAULTS)] = "digits"
    portfolio: tuple[str, ...] = tuple(row for row in PORTFOLIO if row not in IF_NAMED)
    objective: str = "worst"
    average_may_lose: Optional[str] = None
    tries: Optional[Annotated[int, Within(least=1, most=len(FACTORS))]] = None
    trials: Annotated[int, Within(least=1, most=_MAX_TRIALS)] = _TRIALS
    hours: Optional[Annotated[float, Within(above=0)]] = None
    output_dir: Optional[Path] = None
    resume: bool = False

    @property
    def budget(self) -> Budget:
        """How much may be tried."""
        return Budget(self.tries, self.trials, self.hours)


def recommend(given: GivenRun) -> Recommended:
    """Trains the portfolio, chooses, trains the choice anew, and writes what was found."""
    own, asked = given.own, ask(given)
    objective, (first, rows) = asked.objective, (asked.first, asked.rows)
    with session(given, f"recommend-{own.task}") as at:
        with at.running(first.config.runtime) as (runtime, stop):
            asked.claim(at.path, own.resume)
            print(f"{', '.join(rows.arms)} on {own.task}, by {objective.name}: {at.path}")
            search, left_out = asked.search(at.path, runtime, stop)
            found = search.run(own.budget)
            choice = chosen(found.judged, asked.may_lose)
            final = search.train_anew(dict.fromkeys([BASELINE, choice or BASELINE]), found)
        task = search.rows.clients.judging(first)
        facts = {
            "task": own.task,
            "objective": objective.name,
            "unit": objective.unit.name,
            "average_may_lose": own.average_may_lose,
            "judges": search.rows.clients.described(task),
            "split": task.test_split,
            "left_out": left_out,
            "schedule": found.schedule._asdict(),
            "called": given.typed,
        }
        recommended = write_recommendation(
            at.path, found, objective, choice, asked.may_lose, final, facts
        )
    return recommended


@dataclasses.dataclass(frozen=True)
class Asked:
    """What is to be chosen, and by what.

    Attributes:
        rows: What to choose from, before any is left out.
        first: FedAvg at its first setting.
        objective: What is to be good.
        may_lose: How much of the average may be lost for it; see `choice.chosen`.
    """

    rows: Rows
    first: RunSpec
    objective: Objective
    may_lose: Optional[float]

    def claim(self, folder: Path, resume: bool) -> None:
        """Makes a folder that of this choice, or checks that it is."""
        wanted = {
            "format": 1,
            "objective": self.objective.name,
            "average_may_lose": self.rows.given.own.average_may_lose,
            "portfolio": list(self.rows.arms),
            "settings": {row: self.rows.spec(row, {}, 0).flags() for row in self.rows.arms},
        }
        claim(folder / _OWN_FILE, wanted, resume, "recommend", "recommendation")

    def search(
        self, folder: Path, runtime: Runtime, stop: StopRequest
    ) -> tuple[Search, dict[str, str]]:
        """Makes the references, says who judges, and returns the search and what it leaves out."""
        fixed, left_out = prepared(self.rows, folder, runtime, stop)
        rows = self.rows.without(left_out)
        task = rows.clients.judging(self.first)
        print(rows.clients.described(task))
        for name in check_judges(task):
            print(f"note: {name} has too few validation clients for a claim of its own")
        shows = rows.given.show_progress
        search = Search(rows, fixed, self.objective, folder, runtime, stop, shows, self.may_lose)
        return search, left_out


def ask(given: GivenRun) -> Asked:
    """Returns what is to be chosen, after what can be checked before anything is trained."""
    own, text = given.own, given.own.average_may_lose
    may_lose = None if text is None else share_of("--average_may_lose", text)
    arms, seed = _portfolio(own.portfolio), given.settings.get("seed", 0)
    rows = Rows(given, arms, ValidationClients(own.task, own.data, seed, True))
    first = rows.spec(BASELINE, {}, 0)
    _check_private(first)
    rows = rows.without(())
    check_given_somewhere([rows.spec(row, {}, 0) for row in arms], given.settings)
    task = rows.clients.judging(first)
    check_judges(task)
    if rows.clients.are_heldout:
        # Data without test clients would be refused by the runs at the end alone.
        rows.spec(BASELINE, {}, 0, is_final=True).load_task()
    objective = parse_objective(
        own.objective, measures_of(task.model), task.domain_names, (REGRET,)
    )
    return Asked(rows, first, objective, may_lose)


def _portfolio(words: Sequence[str]) -> dict[str, Arm]:
    strange = next((word for word in words if word not in PORTFOLIO), None)
    if strange is not None:
        raise UserError(f"--portfolio: expected words of {', '.join(PORTFOLIO)}, found {strange!r}")
    if len(set(words)) < len(words):
        raise UserError(f"--portfolio: expected different words, found {','.join(words)!r}")
    return arms_of_algorithms([BASELINE, *(word for word in words if word != BASELINE)])


def _check_private(spec: RunSpec) -> None:
    if spec.config.privacy != "none":
        raise UserError(
            f"--privacy={spec.config.privacy}: expected none: validation clients and the training "
            "of every row would have to be in the account of the model that is handed over; choose "
            "with `tune` on public data, or train FedAvg"
        )


def claim(path: Path, wanted: Mapping[str, Any], resume: bool, command: str, what: str) -> None:
    """Makes a folder that of one command, or checks that it is.

    Args:
        path: The file in it that says what it is of.
        wanted: What the file is to hold.
        resume: Whether the folder may be there already.
        command: Whose folders these are.
        what: What is in one of them.
    """
    folder = path.parent
    if not path.exists():
        if not is_new_or_empty(folder):
            raise UserError(
                f"--output_dir: expected a new or empty folder or one of {command}, found {folder} "
                "with other content"
            )
        make_folder(folder)
        write_json(path, dict(wanted))
        return
    different = _first_difference(read_json(path), wanted)
    if different is not None:
        raise UserError(f"--output_dir: {folder} is of another {what}: {different}")
    if not resume:
        raise UserError(
            f"--output_dir: {folder} holds this {what} already: add --resume to go on with it or "
            "to join in, or choose another folder"
        )


def _first_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> Optional[str]:
    """Returns the first of two folders' settings that differs, with both values; None if none."""
    for name in {**here, **there}:
        a, b = there.get(name), here.get(name)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            inner = _first_difference(a, b)
            if inner is not None:
                return inner
        elif a != b:
            return f"--{name} is {flag_text(a)} there and {flag_text(b)} here"
    return None


def _show(recommended: Recommended) -> None:
    for line in shown(recommended):
        print(f"\n{line}")


RECOMMEND = RunCommand(
    "recommend",
    RecommendOptions,
    recommend,
    _show,
    lambda recommended: write_recommendation_report(recommended.path),
    without=("algorithm",),
)
