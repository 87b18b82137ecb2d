"""The scoreboard: recommend's portfolio on every data set, and what recommend chooses there.

Each data set has a folder with the search of `studies.portfolio_search`, as if `recommend` had been
called there, and trains every row anew at its best setting. What was found is kept in `board.json`
in the folder, and the page is made of these files: a call for other data sets adds to it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import folder_lock, make_folder, read_json, write_json, write_text
from tff_agnostic.metrics.formatting import points, shown
from tff_agnostic.program.commands.command_line import GivenRun, Session, default_for_task, session
from tff_agnostic.program.experiments.page import written_remarks
from tff_agnostic.program.experiments.scoreboard_data import DATA_SETS, Prepared
from tff_agnostic.program.experiments.scoreboard_page import (
    Board,
    board_from_json,
    board_to_json,
    line,
    page,
    standing,
    summary,
)
from tff_agnostic.program.options.flags import flag_text
from tff_agnostic.program.options.process import StopRequest, flag_parts
from tff_agnostic.program.options.tasks import options_of_tasks
from tff_agnostic.program.studies.choice import chosen
from tff_agnostic.program.studies.comparison import Comparison, trial_folder
from tff_agnostic.program.studies.methods import BASELINE
from tff_agnostic.program.studies.portfolio import FINALISTS, seconds_of, timed
from tff_agnostic.program.studies.portfolio_search import Search
from tff_agnostic.program.studies.recommend import RecommendOptions, ask, claim
from tff_agnostic.program.studies.recommendation import FINAL, Found, sentences
from tff_agnostic.program.studies.search_space import Objective
from tff_agnostic.training.divergence import Diverged

NAME = "scoreboard"
# Flags of `reproduce` that only this experiment has, and those that it does not have.
OWN_FLAGS = ("datasets", "tries", "hours", "portfolio")
_NO_FLAGS = ("data", "override", "scale")
# In the folder, and in that of a data set.
_OWN_FILE, _BOARD = "scoreboard.json", "board.json"


def scoreboard(given: GivenRun) -> None:
    """Runs the data sets whose files are there; prints the table and writes the page."""
    strange = next((flag for flag in _NO_FLAGS if flag in given.names), None)
    strange = strange or next(iter(given.of_tasks), None)
    if strange is not None:
        raise UserError(f"--{strange} has no effect with --experiment={NAME}: data sets set theirs")
    named = given.own.datasets or tuple(DATA_SETS)
    missing = {name: DATA_SETS[name].lacks(given.own.data_dir) for name in named}
    wanted = [name for name, of in missing.items() if not of]
    if not wanted:
        raise UserError(
            f"--data_dir: expected a folder with the files of {' or '.join(named)}, found none of "
            f"{', '.join(f for of in missing.values() for f in of)}"
        )
    with session(given, f"reproduce-{NAME}") as at:
        _claim(at.path, given, wanted)
        for name in wanted:
            print(f"\n{name}, {wanted.index(name) + 1} of {len(wanted)} data sets: {at.path}")
            try:
                _run(given, name, at, len(wanted))
            except UserError as e:
                raise UserError(f"{name}: {e}") from e
        _report(given, at.path)


def _claim(folder: Path, given: GivenRun, wanted: Sequence[str]) -> None:
    own = given.own
    content: dict[str, Any] = {
        "format": 1,
        "tries": own.tries,
        "trials": own.trials,
        "portfolio": list(own.portfolio),
        "settings": {name: flag_text(value) for name, value in given.settings.items()},
        "hours": own.hours,
    }
    if own.hours is not None:
        # Each has its share of them.
        content["datasets"] = list(wanted)
    claim(folder / _OWN_FILE, content, own.resume, NAME, NAME)


def _run(given: GivenRun, name: str, at: Session, count: int) -> None:
    """Makes what is missing of a data set, and keeps what was found."""
    folder = at.path / name
    make_folder(folder)
    with folder_lock(folder, wait=True):
        read = DATA_SETS[name].prepare(given.own.data_dir, folder)
    inner = given_to_recommend(given, name, read, count)
    asked = ask(inner)
    with at.running(asked.first.config.runtime) as (runtime, stop):
        asked.claim(folder / "runs", resume=True)
        search, left_out = asked.search(folder / "runs", runtime, stop)
        found = search.run(inner.own.budget, all_anew=True)
        final, ended = _trained_anew(search, found, stop)
        task = search.rows.clients.judging(asked.first)
        judges = search.rows.clients.described(task)
    without = {row: "it has no finite result" for row in search.fixed if row not in found.changes}
    board = _board(
        name, search, found, final, {**left_out, **without, **ended}, judges, asked.objective
    )
    _keep(folder / _BOARD, board)


def given_to_recommend(given: GivenRun, name: str, read: Prepared, count: int) -> GivenRun:
    """Returns what `recommend` is given on a data set, with its share of the hours.

    Args:
        name: The data set.
        count: How many data sets share the hours.
    """
    own, of = given.own, DATA_SETS[name]
    portfolio = {"portfolio": own.portfolio} if own.portfolio else {}
    trials = {"trials": own.trials} if own.trials is not None else {}
    settings = {**of.settings, **given.settings}
    # No curve is drawn: looks before the last round would cost time.
    rounds = settings.get("rounds", default_for_task(of.task, "rounds", ()))
    return dataclasses.replace(
        given,
        own=RecommendOptions(
            task=of.task,
            data=read.data,
            data_dir=read.data_dir,
            tries=own.tries,
            hours=None if own.hours is None else own.hours / count,
            **portfolio,
            **trials,
        ),
        settings={"evaluate_every": rounds, **settings},
        of_tasks={f: options_of_tasks()[f].parsed(flag_text(v)) for f, v in read.of_task.items()},
    )


def _trained_anew(
    search: Search, found: Found, stop: StopRequest
) -> tuple[Comparison, dict[str, str]]:
    """Trains every row anew; returns those that have a result, and why others have none."""
    ended, folder = {}, search.folder
    for row in found.changes:
        path = folder / f"ended_{row}.json"
        if path.exists():
            ended[row] = read_json(path)["why"]
            continue
        try:
            with _timed_if_open(search, row, found.schedule.trials):
                search.train_anew([row], found)
        except UserError as e:
            if row == BASELINE or not isinstance(e.__cause__, Diverged):
                raise
            ended[row] = f"diverged when it was trained anew: {e.__cause__}"
            write_json(path, {"why": ended[row]})
        stop.check(row)
    return search.train_anew([row for row in found.changes if row not in ended], found), ended


@contextlib.contextmanager
def _timed_if_open(search: Search, row: str, trials: int) -> Iterator[None]:
    """Adds to the seconds of a row, unless all its runs are there: a session then adds nothing."""
    folders = [trial_folder(search.folder / FINAL, row, k) for k in range(trials)]
    if all(of.result.exists() for of in folders):
        yield
        return
    with timed(_seconds_file(search, row)):
        yield


def _seconds_file(search: Search, row: str) -> Path:
    return search.folder / f"anew_{row}.json"


def _board(
    name: str,
    search: Search,
    found: Found,
    final: Comparison,
    left_out: Mapping[str, str],
    judges: str,
    objective: Objective,
) -> Board:
    choice, measure = chosen(found.judged), final.main_measure
    row = choice or BASELINE
    if row not in final.trials:
        raise UserError(
            f"expected a result of {row}, which was chosen, found none: {left_out[row]}"
        )
    anew = {r: seconds_of(_seconds_file(search, r)) for r in final.trials}
    by_row = {r: search.seconds(r) + anew[r] for r in final.trials}
    searched = sum(search.seconds(r) for r in search.fixed)
    stands = standing(final, row, measure)
    return Board(
        title=DATA_SETS[name].title,
        source=DATA_SETS[name].source,
        measure=measure.name,
        unit=measure.unit,
        judges=judges,
        lines={
            r: line(final, r, measure, search.num_tried(r), seconds)
            for r, seconds in by_row.items()
        },
        choice=row,
        chosen=sentences(found, objective, choice, None),
        standing=stands,
        why=None if stands.best == row else _why_not(stands.best, found, objective),
        best_settings={r: text for r in final.trials if (text := _flags(found.changes[r]))},
        left_out=left_out,
        settings=found.schedule.tries,
        seeds=found.schedule.trials,
        seconds=searched + sum(anew.values()),
        of_recommend=searched + sum(anew[r] for r in {BASELINE, row}),
        date=datetime.date.today().isoformat(),
    )


def _flags(changes: Mapping[str, Any]) -> str:
    """Returns the learning rates that a setting changes; baselines are of all settings."""
    rates = {flag: value for flag, value in changes.items() if isinstance(value, float)}
    return " ".join(f"--{flag}={value:.4g}" for flag, value in rates.items())


def _why_not(best: str, found: Found, objective: Objective) -> str:
    """Returns why the row that is best on the test clients was not chosen."""
    if best == BASELINE:
        return "On the validation clients FedAvg was shown to be worse than the choice."
    if best in found.given_up:
        return f"On the validation clients it was given up: {found.given_up[best]}."
    if best not in found.judged:
        return (
            f"On the validation clients it was not among the {FINALISTS} rows that look best with "
            "one seed, and had no more."
        )
    of = found.judged[best].gain
    interval = of.interval()
    ends = "none" if interval is None else _text(interval, objective)
    is_shown = interval is not None and interval[0] > 0
    how = "shown, and less surely than the choice's" if is_shown else "not shown"
    return (
        f"On the validation clients its gain over FedAvg was {how}: {objective.text(of.after)} "
        f"against FedAvg's {objective.text(of.before)} (95% interval of the gain: {ends})."
    )


def _text(interval: tuple[float, float], objective: Objective) -> str:
    low, high = (shown(end, objective.unit) for end in interval)
    return f"{low:+.3g} to {high:+.3g}{points(objective.unit)}"


def _command(typed: str) -> str:
    """Returns the command without what is of this machine, and of a call that goes on."""
    parts = iter(shlex.split(typed))
    left = []
    for part in parts:
        name, equals, _ = flag_parts(part)
        if name == "output_dir" and not equals:
            next(parts, None)
        elif name not in ("output_dir", "resume"):
            left.append(part)
    return shlex.join(left)


def _keep(path: Path, board: Board) -> None:
    """Writes what was found; of the same as before the day stays."""
    content = board_to_json(board)
    if path.exists():
        before = read_json(path)
        if {**before, "date": ""} == {**content, "date": ""}:
            return
    write_json(path, content)


def _report(given: GivenRun, folder: Path) -> None:
    """Prints the table, and writes the pages."""
    boards, not_run = {}, {}
    for name, of in DATA_SETS.items():
        path, missing = folder / name / _BOARD, of.lacks(given.own.data_dir)
        if path.exists():
            try:
                boards[name] = board_from_json(read_json(path))
            except UserError as e:
                raise UserError(f"{path}: {e}") from e
        elif missing:
            not_run[name] = f"needs {' and '.join(missing)} in --data_dir ({of.source})"
        else:
            not_run[name] = "--datasets did not name it"
    facts = [] if given.own.hours is None else [f"Of {given.own.hours:g} hours each has its share."]
    facts += [f"`{name}` is {flag_text(value)}." for name, value in given.settings.items()]
    print(f"\n{summary(boards, 'simple')}")
    targets = [folder / "page.md", *([given.own.page] if given.own.page is not None else [])]
    for target in targets:
        make_folder(target.parent)
        text = page(_command(given.typed), boards, not_run, facts, written_remarks(target))
        write_text(target, text)
    print(f"\npage: {targets[-1]}")
