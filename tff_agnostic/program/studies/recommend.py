"""The command `recommend`: chooses the best method for a user's data, on validation clients.

1. `portfolio` trains each method of the portfolio. It makes more trials of FedAvg and of the
   methods that look best.
2. `choice.chosen` chooses the method whose gain over FedAvg is surest, or FedAvg.
3. The choice and FedAvg train on all training clients. The test clients are used once, after the
   choice.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import write_json
from tff_agnostic.base.options import OneOf, Within
from tff_agnostic.data.clients import client_domain_counts
from tff_agnostic.models.model import model_measures
from tff_agnostic.program.commands.command_line import (
    RunArguments,
    RunCommand,
    TaskOptions,
    compare_command,
    train_command,
)
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.reports.document import to_terminal
from tff_agnostic.program.reports.html import write_page
from tff_agnostic.program.runs.spec import RunSettings, check_used_by_any
from tff_agnostic.program.studies.choice import REGRET, chosen, parse_share
from tff_agnostic.program.studies.comparison import BASELINE, trial_folder
from tff_agnostic.program.studies.methods import LAST_LAYER, WORDS, Arm, algorithm_arms
from tff_agnostic.program.studies.portfolio import (
    FACTORS,
    IF_NAMED,
    PORTFOLIO,
    PortfolioSearch,
    Rows,
    fixed_settings,
)
from tff_agnostic.program.studies.recommendation import Recommendation, recommendation_page
from tff_agnostic.program.studies.runset import RunSet
from tff_agnostic.program.studies.search_space import Objective, parse_objective
from tff_agnostic.program.studies.trainer import RunTrainer, study
from tff_agnostic.program.studies.validation_clients import ValidationClients, check_judges
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.tasks.task import Task

FILE = "recommendation.json"
_TRIALS, _MAX_TRIALS = 5, 100


@dataclasses.dataclass(frozen=True)
class RecommendOptions(TaskOptions):
    """The objective, and the number of runs.

    Attributes:
        portfolio: The candidate methods, always with FedAvg: some of fed_avg, uniform, frozen,
            excess_own, excess_trivial, last_layer, domain_input. By default all except
            domain_input, whose model needs the domain wherever it is used.
        objective: Objective on the validation clients: worst (the worst domain), regret (the
            largest distance of a domain from the best that any method attains there), superquantile
            (the worst tenth of the clients), overall, or a sum such as 0.7*worst+0.3*overall.
            NAME:MEASURE chooses the loss or a metric of the task, by default its first metric.
        average_may_lose: Maximum amount by which the average over all examples may be worse than
            FedAvg's, such as 0.5%: a difference for shares such as accuracy, otherwise a fraction
            of FedAvg's value. [any amount]
        tries: Number of settings to try for each method. [3; with --hours as many as fit]
        trials: Number of trials of FedAvg, of the methods that look best, and of the choice; their
            seeds are --seed, --seed + 1, and so on.
        hours: Make as many runs as fit into these hours of training, over all processes.
        output_dir: Folder of all runs. [runs/recommend-TASK-NUMBER, a new one]
        resume: Resume in --output_dir, or share its runs with other processes.
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


def recommend(given: RunArguments) -> None:
    """Searches the portfolio, trains the choice on all training clients, and reports results."""
    args, request = given.args, parse_request(given)
    objective, first, may_lose = request.objective, request.first, request.may_lose
    name, judging = f"recommend-{args.task}", request.rows.clients.judging
    with study(given, name, request.identity, first.config.runtime, judging) as (runs, trainer):
        path = runs.folder
        print(f"{', '.join(request.rows.arms)} on {args.task}, by {objective.name}: {path}")
        search = request.search(runs, trainer)
        searched = search.run()
        choice = chosen(searched.judged, may_lose)
        final = search.train_final(dict.fromkeys([BASELINE, choice or BASELINE]), searched)
        clients = search.rows.clients.described(search.rows.clients.judging(first))
    made = Recommendation(searched, objective, choice, may_lose, final.comparison)
    command = _command(search.rows, made)
    title = f"Recommendation for {args.task}"
    page = recommendation_page(made, clients, command, given.typed, title)
    model = trial_folder(final.path, made.row, 0).path
    write_json(
        path / FILE,
        {
            "task": args.task,
            "objective": objective.name,
            "choice": made.row,
            "settings": searched.changes[made.row],
            "sentences": made.sentences,
            "verdict": made.verdict,
            "model": str((model / "model").relative_to(path)),
            "command": list(command),
            "schedule": searched.schedule._asdict(),
        },
    )
    print(f"\n{to_terminal(page)}")
    print(f"\nmodel: {model}")
    print(f"to train it again: {shlex.join(command)}")
    final.write_report()
    print(f"report: {write_page(path, page)}")


def _command(rows: Rows, made: Recommendation) -> list[str]:
    """Returns the command that trains the choice again; `compare` for a two-stage method."""
    row, changes = made.row, made.searched.changes[made.row]
    trials = range(made.searched.schedule.trials)
    specs = [rows.spec(row, changes, k, is_final=True) for k in trials]
    if row != LAST_LAYER:
        return train_command(specs[0], keeps_folders=True)
    return compare_command({row: specs}, {row: (row, WORDS[row].settings)}, keeps_folders=True)


@dataclasses.dataclass(frozen=True)
class RecommendRequest:
    """A request for a recommendation.

    Attributes:
        rows: The methods, before any is excluded.
        may_lose: Maximum amount by which the average may be worse than FedAvg's; see
            `choice.chosen`.
    """

    rows: Rows
    first: RunSettings
    objective: Objective
    may_lose: Optional[float]

    @property
    def identity(self) -> dict[str, Any]:
        """The identity of the study; see `RunSet`."""
        return {
            "study": "recommend",
            "objective": self.objective.name,
            "average_may_lose": self.rows.given.args.average_may_lose,
            "portfolio": list(self.rows.arms),
            "settings": {row: self.rows.spec(row, {}, 0).flags() for row in self.rows.arms},
        }

    def trainer(self, runtime: Runtime, stop: StopRequest) -> RunTrainer:
        """Returns the trainer of the search's runs."""
        return RunTrainer(runtime, stop, self.rows.clients.judging)

    def search(self, runs: RunSet[RunSettings], trainer: RunTrainer) -> PortfolioSearch:
        """Makes the baseline runs; returns the search of methods that can be trained."""
        fixed: dict[str, dict[str, Any]] = {}
        excluded = {}
        for row in self.rows.arms:
            settings = fixed_settings(self.rows, row, runs, trainer)
            if isinstance(settings, str):
                excluded[row] = settings
                print(f"note: {row} is excluded: {settings}")
            else:
                fixed[row] = settings
        # Without baseline runs, both halves of the held-out clients are validation clients.
        rows = self.rows.without(excluded)
        trainer.load_task = rows.clients.judging
        task = rows.clients.judging(self.first)
        print(rows.clients.described(task))
        for name in check_judges(task):
            print(f"note: {name} has too few validation clients for a separate claim")
        return PortfolioSearch(rows, fixed, self.objective, runs, trainer, self.may_lose, excluded)


def parse_request(given: RunArguments) -> RecommendRequest:
    """Returns a request, after every check that needs no training."""
    args, text = given.args, given.args.average_may_lose
    may_lose = None if text is None else parse_share("--average_may_lose", text)
    arms, seed = _portfolio(args.portfolio), given.settings.get("seed", 0)
    rows = Rows(given, arms, ValidationClients(args.task, args.data, seed, True))
    first = rows.spec(BASELINE, {}, 0)
    if first.config.privacy != "none":
        raise UserError(
            f"--privacy={first.config.privacy}: expected none: the privacy account of the "
            "recommended model would have to cover the validation clients and the training of all "
            "methods; choose with `tune` on public data, or train FedAvg"
        )
    rows = rows.without(())
    check_used_by_any([rows.spec(row, {}, 0) for row in arms], given.settings)
    task = rows.clients.judging(first)
    check_judges(task)
    if rows.clients.are_heldout:
        # Check now, as only the final runs would reject data without test clients.
        rows.spec(BASELINE, {}, 0, is_final=True).load_task()
    objective = parse_objective(
        args.objective, model_measures(task.model), task.domain_names, (REGRET,)
    )
    _check_defined(objective, task, first.config.worst_min_examples)
    return RecommendRequest(rows, first, objective, may_lose)


def _portfolio(words: Sequence[str]) -> dict[str, Arm]:
    unknown = next((word for word in words if word not in PORTFOLIO), None)
    if unknown is not None:
        raise UserError(f"--portfolio: expected some of {', '.join(PORTFOLIO)}, found {unknown!r}")
    if len(set(words)) < len(words):
        raise UserError(f"--portfolio: expected different methods, found {','.join(words)!r}")
    return algorithm_arms([BASELINE, *(word for word in words if word != BASELINE)])


def _check_defined(objective: Objective, task: Task, least: int) -> None:
    """Checks that some domain has enough examples, if the objective needs a worst domain."""
    counts = client_domain_counts(task.test, task.num_domains).sum(axis=0)
    needs_domain = any(term.statistic in (REGRET, "worst") for term in objective.terms)
    if needs_domain and not np.any(counts >= least):
        raise UserError(
            f"--objective={objective.name}: expected a domain with --worst_min_examples={least} "
            f"or more examples of validation clients, found {int(counts.max())} at most: give a "
            "smaller --worst_min_examples"
        )


RECOMMEND = RunCommand(
    "recommend", RecommendOptions, recommend, lambda nothing: None, without=("algorithm",)
)
