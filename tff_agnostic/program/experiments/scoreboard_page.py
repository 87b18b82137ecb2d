"""The page of the scoreboard: a table of all data sets, one of each, and what was not run.

Its numbers, what each row attains on the test clients and how the choice stands, are pure functions
of a comparison of all rows there. Nothing is chosen here: the settings and recommend's choice are
from the validation clients.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tabulate import tabulate

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.formatting import UNDEFINED, cell, points, sentence, signed
from tff_agnostic.metrics.intervals import Interval
from tff_agnostic.models.model import Measure
from tff_agnostic.program.experiments.page import remarks_parts
from tff_agnostic.program.studies.choice import REGRET, attained, near
from tff_agnostic.program.studies.comparison import OVERALL, WORST, Comparison
from tff_agnostic.program.studies.gains import Gain, gain, worst_of
from tff_agnostic.program.studies.methods import BASELINE
from tff_agnostic.program.studies.search_space import Objective, Term

_DECIMALS = 3
_ABOUT = (
    "This page shows what [`recommend`](../how_to/recommend.md) chooses on several data sets, how "
    "that compares with FedAvg, and what it misses.",
    "On each data set the command runs one search of `recommend`. Every row of its portfolio has "
    "the same number of settings and is judged on validation clients. A row that is shown to be "
    "more than 2 points worse than FedAvg there (.05 of a loss, 5% of a perplexity) gets no other "
    "setting.",
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
class Line:
    """A row of the table, on the test clients.

    Attributes:
        label: What the row is called.
        worst: What it attains in its worst domain, the mean over the seeds.
        worst_domain: Which one that is, in the mean over the seeds.
        gain: By how much it is better than FedAvg there; 0 of FedAvg itself.
        interval: The 95% interval of the gain; None without one.
        regret: By how much the domain that is furthest from the best row there lacks it.
        overall: Of all examples together.
        pays: The domains that are worse than with FedAvg beyond the interval, which holds for all
            domains at once.
        settings: How many settings were tried.
        seeds: How many seeds it was trained anew with.
        seconds: Of all its runs, with references.
    """

    label: str
    worst: Optional[float]
    worst_domain: str
    gain: Optional[float]
    interval: Interval
    regret: Optional[float]
    overall: Optional[float]
    pays: tuple[str, ...]
    settings: int
    seeds: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Standing:
    """How recommend stands on a data set.

    Attributes:
        is_worse: Whether it is worse than FedAvg in the worst domain, beyond the interval.
        best: The row that is best in the worst domain.
        behind: By how much that row is better than the choice there: of a factor, such as
            perplexity, the logarithm; 0 if it is the choice.
        interval: The 95% interval of the difference as it was measured; None without one.
        is_near: Whether the choice is as near to the best row as is aimed at: within 2 points,
            .05 nats, or the interval.
    """

    is_worse: bool
    best: str
    behind: float
    interval: Interval
    is_near: bool


def regret_of(measure: Measure) -> Objective:
    """Returns the worst regret by a measure, as an objective."""
    return Objective((Term(1.0, REGRET, measure),))


def line(comparison: Comparison, row: str, measure: Measure, tried: int, seconds: float) -> Line:
    """Returns a row of the table.

    Args:
        comparison: All rows on the test clients.
        tried: How many settings were tried.
        seconds: Of all its runs.
    """
    trials, names = comparison.trials[row], comparison.domain_names
    regret = float(attained(comparison, row, regret_of(measure)).values.mean())
    of_worst = gain(comparison, row, BASELINE, WORST, measure)
    is_baseline = row == BASELINE
    return Line(
        comparison.label(row),
        _known(trials.mean(WORST, measure.name)),
        worst_of(trials, names, measure),
        0.0 if is_baseline else _known(of_worst.mean),
        None if is_baseline else of_worst.interval(),
        _known(-regret if measure.higher_is_better else regret),
        _known(trials.mean(OVERALL, measure.name)),
        () if is_baseline else payers(comparison, row, measure),
        tried,
        len(trials.seeds),
        seconds,
    )


def payers(comparison: Comparison, row: str, measure: Measure) -> tuple[str, ...]:
    """Returns the domains that are shown to be worse than with FedAvg, all at once."""
    names = comparison.domain_names
    of_domains = {name: gain(comparison, row, BASELINE, name, measure) for name in names}
    known = {name: of for name, of in of_domains.items() if not math.isnan(of.mean)}
    return tuple(name for name, of in known.items() if of.told(len(known)) < 0)


def standing(comparison: Comparison, choice: str, measure: Measure) -> Standing:
    """Returns how a choice stands beside FedAvg and beside the best row.

    Args:
        comparison: All rows on the test clients.
        choice: The row that was chosen on validation clients.
    """
    means = {row: of.mean(WORST, measure.name) for row, of in comparison.trials.items()}
    known = {row: mean for row, mean in means.items() if not math.isnan(mean)}
    best = choice
    for row, mean in known.items():
        is_better = mean > known[best] if measure.higher_is_better else mean < known[best]
        best = row if is_better else best
    is_worse = choice != BASELINE and gain(comparison, choice, BASELINE, WORST, measure).told() < 0
    if best == choice:
        return Standing(is_worse, best, 0.0, None, True)
    of_best = gain(comparison, best, choice, WORST, measure)
    behind = _distance(of_best, measure)
    is_close = abs(of_best.mean) <= near(of_best.after, measure.unit)
    is_near = is_close or of_best.is_open or of_best.told() < 0
    return Standing(is_worse, best, behind, of_best.interval(), is_near)


def _distance(of_best: Gain, measure: Measure) -> float:
    if measure.unit is Unit.FACTOR:
        return abs(math.log(of_best.after / of_best.before))
    return of_best.mean


def _known(value: float) -> Optional[float]:
    return value if math.isfinite(value) else None


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
        boards: What was found, by the name of the data set.
        not_run: Why the others were not run.
        facts: Further lines on how they were run.
        remarks: See `written_remarks`.
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
    return "\n\n".join([*parts, *remarks_parts(remarks)]) + "\n"


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
        f"- {sentence(board.title)}{source} {board.judges}.",
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
    factor = " in the logarithm" if board.unit is Unit.FACTOR else ""
    behind = f"{cell(standing.behind, _plain(board.unit), _DECIMALS)}{points(board.unit)}{factor}"
    interval = _interval(standing.interval, board)
    found.append(f"{best.label} is better there by {behind}{interval}, which is {how}.")
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
    return f"{signed(of.gain, board.unit, _DECIMALS)}{_interval(of.interval, board)}"


def _interval(interval: Optional[Sequence[float]], board: Board) -> str:
    if interval is None:
        return " (no interval)"
    low, high = (signed(end, board.unit, _DECIMALS) for end in interval)
    return f" ({low} to {high})"


def _value(value: Optional[float], board: Board) -> str:
    return cell(math.nan if value is None else value, board.unit, _DECIMALS)


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
