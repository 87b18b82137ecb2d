"""The page of the scoreboard: a table of all data sets, one of each, and what was not run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tabulate import tabulate

from tff_agnostic.errors import UserError, counted
from tff_agnostic.experiments.page import REMARKS_HEADING
from tff_agnostic.experiments.scoreboard_table import Line, Standing
from tff_agnostic.metrics.formatting import UNDEFINED, cell
from tff_agnostic.report_fields import Unit

_DECIMALS = 3
_NO_REMARKS = "Nobody has written about these numbers yet."
_ABOUT = (
    "This page shows what [`recommend`](../how_to/recommend.md) chooses on several data sets, how "
    "that compares with FedAvg, and what it misses.",
    "On each data set the command runs one search of `recommend`. Every row of its portfolio has "
    "the same number of settings and is judged on validation clients. A row that is shown to be "
    "worse than FedAvg there is given up.",
    "Then every row is trained anew at its best setting, with several seeds, and evaluated once on "
    "the test clients. The last row of each table is the choice of `recommend`. It was chosen on "
    "the validation clients; the test clients choose nothing.",
)
_COLUMNS = """\
How to read the tables:

- A gain is over FedAvg in the worst domain. Its 95% interval is over other test clients and other
  seeds.
- The worst regret: the domain that is furthest behind the row that is best for it, and by how much.
- "Who pays" lists the domains that are worse off than with FedAvg, beyond intervals that hold for
  all domains at once.
- Accuracies are in %, and their differences in points.
- Seconds are wall-clock seconds, with everything else that ran on the machine.
- The best attainable value ([`frontier`](../how_to/frontier.md)) has no column: on p domains it
  needs 1 + 4 p mixtures on lines of five points, 9 models a seed on Adult and 41 on digits."""


@dataclasses.dataclass(frozen=True)
class Board:
    """What was found on a data set.

    Attributes:
        title: What the page calls it.
        source: Where its files are from; empty where it needs none.
        measure: What was measured.
        unit: What its numbers are.
        judges: Who judged.
        lines: The rows, FedAvg first.
        choice: The row that recommend chose.
        chosen: How it says so.
        standing: How the choice stands.
        why: What the validation clients said of the row that is best on the test clients, if the
            choice is another one.
        best_settings: What each row's best setting on the validation clients changes, as flags.
        left_out: Why rows have no line.
        settings: How many settings each row could have.
        seeds: How many seeds.
        seconds: Of all runs, the choice's and FedAvg's among them.
        of_recommend: Of those that recommend itself makes.
        date: The day, as YYYY-MM-DD.
    """

    title: str
    source: str
    measure: str
    unit: Unit
    judges: str
    lines: Mapping[str, Line]
    choice: str
    chosen: Sequence[str]
    standing: Standing
    why: Optional[str]
    best_settings: Mapping[str, str]
    left_out: Mapping[str, str]
    settings: int
    seeds: int
    seconds: float
    of_recommend: float
    date: str


def page(
    command: str,
    boards: Mapping[str, Board],
    not_run: Mapping[str, str],
    facts: Sequence[str],
    remarks: Optional[str],
) -> str:
    """Returns the page.

    Args:
        command: That wrote it.
        boards: What was found, by the name of the data set.
        not_run: Why the others were not run.
        facts: Further lines on how they were run.
        remarks: What somebody wrote below `REMARKS_HEADING`.
    """
    about_all, *how = _ABOUT
    parts = ["# Scoreboard: the portfolio on every data set", about_all]
    parts += [f"```sh\n{command}\n```", *how]
    if facts:
        parts.append("\n".join(f"- {line}" for line in facts))
    parts += ["## All data sets", summary(boards, "github"), misses(boards)]
    if not_run:
        listed = "\n".join(f"- `{name}`: not run: {why}" for name, why in not_run.items())
        parts.append(f"Data sets without a row:\n\n{listed}")
    parts.append(_COLUMNS)
    for name, board in boards.items():
        parts += [f"## {name}", "\n".join(about(board)), table(board, "github")]
        parts.append(" ".join(verdict(board)))
    parts += [REMARKS_HEADING, remarks or _NO_REMARKS]
    return "\n\n".join(parts) + "\n"


def summary(boards: Mapping[str, Board], table_format: str) -> str:
    """Returns a line for each data set: FedAvg, what recommend chose, and the best row."""
    rows = []
    for name, of in boards.items():
        ours, best = of.lines[of.choice], of.lines[of.standing.best]
        rows.append(
            [
                name,
                of.measure,
                _value(next(iter(of.lines.values())).worst, of),
                f"{_value(ours.worst, of)} ({ours.label})",
                _gain(ours, of),
                f"{_value(best.worst, of)} ({best.label})",
                "yes" if of.standing.is_worse else "no",
                "yes" if of.standing.is_near else "no",
            ]
        )
    headers = ["data set", "worst domain's", "FedAvg", "recommend", "its gain", "best row"]
    headers += ["worse than FedAvg", "near the best"]
    return tabulate(rows, headers=headers, tablefmt=table_format, disable_numparse=True)


def misses(boards: Mapping[str, Board]) -> str:
    """Returns in how many data sets recommend keeps its aims."""
    worse = [name for name, of in boards.items() if of.standing.is_worse]
    far = [name for name, of in boards.items() if not of.standing.is_near]
    return (
        f"On {len(worse)} of {len(boards)} data sets `recommend` is worse than FedAvg in the worst "
        f"domain beyond the interval{_named(worse)}. On {len(far)} it misses its aim"
        f"{_named(far)}: it is behind the best row by more than 2 points (.05 of a loss or of the "
        "logarithm of a perplexity), and beyond the interval."
    )


def about(board: Board) -> list[str]:
    """Returns how a data set was run, as a list."""
    source = f" Made from {board.source}." if board.source else ""
    lines = [
        f"- {board.title[0].upper()}{board.title[1:]}.{source} {board.judges}.",
        f"- At most {counted(board.settings, 'setting')} of a row, "
        f"{counted(board.seeds, 'seed')}, {board.seconds:.0f} seconds; {board.date}.",
    ]
    changed = [f"{board.lines[row].label} `{text}`" for row, text in board.best_settings.items()]
    if changed:
        lines.append(f"- Best at another setting than the first: {'; '.join(changed)}.")
    return lines + [f"- {row} has no line: {why}." for row, why in board.left_out.items()]


def table(board: Board, table_format: str) -> str:
    """Returns the rows of a data set, and recommend's at the end."""
    rows = [[of.label, *_cells(of, board), f"{of.seconds:.0f}"] for of in board.lines.values()]
    ours = board.lines[board.choice]
    tried = sum(of.settings for of in board.lines.values())
    own = dataclasses.replace(ours, settings=tried)
    label = f"recommend: {ours.label}"
    rows.append([label, *_cells(own, board), f"{board.of_recommend:.0f}"])
    headers = [
        *("", f"{board.measure}, worst domain", "gain (95% interval)", "worst regret", "all"),
        *("who pays", "settings", "seeds", "seconds"),
    ]
    return tabulate(rows, headers=headers, tablefmt=table_format, disable_numparse=True)


def verdict(board: Board) -> list[str]:
    """Returns what recommend chose, and how it stands."""
    standing, best = board.standing, board.lines[board.standing.best]
    found = [*board.chosen]
    is_worse = "is worse" if standing.is_worse else "is not shown to be worse"
    found.append(f"On the test clients the choice {is_worse} than FedAvg in the worst domain.")
    if standing.best == board.choice:
        return [*found, "No row is better there."]
    how = "within the aim" if standing.is_near else "not within the aim"
    unit = " points" if board.unit is Unit.SHARE else ""
    factor = " in the logarithm" if board.unit is Unit.FACTOR else ""
    behind = cell(standing.behind, _plain(board.unit), _DECIMALS)
    interval = _interval(standing.interval, board)
    found.append(
        f"{best.label} is better there by {behind}{unit}{factor}{interval}, which is {how}."
    )
    return [*found, *([board.why] if board.why else [])]


def _cells(of: Line, board: Board) -> list[str]:
    worst = f"{_value(of.worst, board)} ({of.worst_domain})"
    regret = UNDEFINED if of.regret is None else cell(of.regret, board.unit, _DECIMALS)
    pays = ", ".join(of.pays) or "nobody"
    numbers = [str(of.settings), str(of.seeds)]
    return [worst, _gain(of, board), regret, _value(of.overall, board), pays, *numbers]


def _gain(of: Line, board: Board) -> str:
    if of.gain is None:
        return UNDEFINED
    if of.gain == 0 and of.interval is None:
        return "0"
    return f"{_signed(of.gain, board)}{_interval(of.interval, board)}"


def _interval(interval: Optional[Sequence[float]], board: Board) -> str:
    if interval is None:
        return " (no interval)"
    low, high = (_signed(end, board) for end in interval)
    return f" ({low} to {high})"


def _value(value: Optional[float], board: Board) -> str:
    return cell(math.nan if value is None else value, board.unit, _DECIMALS)


def _signed(value: float, board: Board) -> str:
    text = cell(value, board.unit, _DECIMALS)
    # What is rounded to 0 has no sign.
    return f"{'+' * (value > 0)}{text}" if text.strip("-0.") else text.lstrip("-")


def _plain(unit: Unit) -> Unit:
    return Unit.NONE if unit is Unit.FACTOR else unit


def _named(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if names else ""


def board_to_json(board: Board) -> dict[str, Any]:
    """Returns what `board_from_json` takes."""
    return {**dataclasses.asdict(board), "unit": board.unit.name}


def board_from_json(content: Mapping[str, Any]) -> Board:
    """Returns a board from what `board_to_json` returned, through a file.

    Raises:
        UserError: If it is that of another version.
    """
    try:
        return Board(
            **{
                **content,
                "unit": Unit[content["unit"]],
                "lines": {row: Line(**of) for row, of in content["lines"].items()},
                "standing": Standing(**content["standing"]),
            }
        )
    except (AttributeError, LookupError, TypeError):
        raise UserError(
            "expected what this version keeps of a data set, found something else: --resume with "
            "its name in --datasets makes it anew of its runs"
        ) from None
