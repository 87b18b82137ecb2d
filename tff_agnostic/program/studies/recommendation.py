"""What `recommend` found, in sentences, in recommendation.json and on the page that shows it."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.base.files import finite_or_none, write_json
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.formatting import points, signed, with_percent
from tff_agnostic.program.commands.command_line import compare_command, train_command
from tff_agnostic.program.reports.page import (
    Bullets,
    Line,
    Name,
    Page,
    Paragraph,
    Section,
    Source,
    Table,
)
from tff_agnostic.program.reports.run_page import REPORT, command_blocks, typed_blocks
from tff_agnostic.program.studies.choice import Judged, attained, judged
from tff_agnostic.program.studies.comparison import (
    Comparison,
    first_stage_folder,
    trial_folder,
)
from tff_agnostic.program.studies.gains import Gain
from tff_agnostic.program.studies.methods import BASELINE, LAST_LAYER, WORDS
from tff_agnostic.program.studies.portfolio import Schedule
from tff_agnostic.program.studies.search_space import Objective
from tff_agnostic.program.studies.stages import joined
from tff_agnostic.program.studies.verdict import verdicts

FILE = "recommendation.json"
# The folder of what is trained at the end.
FINAL = "final"
# Why a row had no more runs.
WORSE = "worse than FedAvg"
_DECIMALS = 3


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search found on the validation clients.

    Attributes:
        confirmed: The trials of FedAvg and of the rows that looked best, each at its best setting.
        judged: Each of them beside FedAvg.
        tried: The first trial of each row at each setting; rows are called ROW-SETTING.
        changes: The best setting of each row, by flag; those that were given up among them.
        given_up: Why rows had no more runs.
        schedule: How much was tried.
    """

    confirmed: Comparison
    judged: Mapping[str, Judged]
    tried: Comparison
    changes: Mapping[str, Mapping[str, Any]]
    given_up: Mapping[str, str]
    schedule: Schedule


@dataclasses.dataclass(frozen=True)
class Recommended:
    """What is recommended.

    Attributes:
        path: The folder of all runs.
        choice: The row: a word of the portfolio, FedAvg's where nothing is shown to be better.
        sentences: What is recommended, and why.
        verdict: What the test clients say of it; see `on_test`.
        model: The folder of the run whose model is handed over.
        command: The command line that trains it again.
        comparison: The choice and FedAvg on the test clients.
        title: Of its page, if one was given.
    """

    path: Path
    choice: str
    sentences: tuple[str, ...]
    verdict: tuple[str, ...]
    model: Path
    command: tuple[str, ...]
    comparison: Comparison
    title: Optional[str] = None


def sentences(
    found: Found, objective: Objective, choice: Optional[str], may_lose: Optional[float]
) -> list[str]:
    """Returns what is recommended, why, and what would have to be known to say more."""
    comparison, split = found.confirmed, found.confirmed.split
    allowed = {row: of for row, of in found.judged.items() if of.may_be_chosen(may_lose)}
    lost = [row for row in found.judged if row not in allowed]
    if choice is not None:
        of = found.judged[choice]
        return [
            f"Recommended: {comparison.label(choice)}{_with(found.changes[choice])}.",
            f"On the {split} clients that judged, {objective.name} is "
            f"{objective.text(of.gain.after)}, with FedAvg {objective.text(of.gain.before)}: "
            f"{_gain(of.gain, objective)}.",
            f"All examples together {_average(of.loss, objective)}.",
            *_excluded(found, objective, lost),
        ]
    fed_avg = f"Recommended: FedAvg{_with(found.changes[BASELINE])}:"
    if lost and not allowed and may_lose is not None:
        nearest = min(lost, key=lambda row: (math.isnan(loss := found.judged[row].loss), loss))
        of = found.judged[nearest]
        return [
            f"{fed_avg} no other row meets --average_may_lose={100 * may_lose:g}%.",
            f"Nearest to that is {comparison.label(nearest)}: all examples together "
            f"{_average(of.loss, objective)}, for {_gain(of.gain, objective)} in {objective.name}.",
        ]
    of_them = "no row that may be chosen" if lost else "no other row"
    found_text = [
        f"{fed_avg} {of_them} is shown to be better for {objective.name} on the {split} clients "
        "that judged.",
        *_excluded(found, objective, lost),
    ]
    known = {row: of.gain for row, of in allowed.items() if not math.isnan(of.gain.mean)}
    if known:
        nearest = max(known, key=lambda row: known[row].mean)
        found_text.append(
            f"Nearest to it is {comparison.label(nearest)}, with "
            f"{_gain(known[nearest], objective)}{_needed(known[nearest])}."
        )
    return found_text


def _excluded(found: Found, objective: Objective, rows: Sequence[str]) -> list[str]:
    """Returns a sentence on the rows that lose too much of the average, if there are any."""
    texts = [
        f"{found.confirmed.label(row)} ({_gain(of.gain, objective)}; all examples together "
        f"{_average(of.loss, objective)})"
        for row in rows
        for of in [found.judged[row]]
    ]
    return [f"--average_may_lose excludes {', '.join(texts)}."] if texts else []


def on_test(final: Comparison, objective: Objective, choice: Optional[str]) -> list[str]:
    """Returns what the test clients say: of the objective, then of the domains.

    Args:
        final: FedAvg and the choice on the test clients.
        objective: What was to be good. Regret is that of these two rows.
        choice: The row that was chosen; None if it is FedAvg.
    """
    algorithms = dict.fromkeys(final.trials, "") | {BASELINE: BASELINE}
    lines = verdicts(final, algorithms)
    if choice is None or objective.name == f"worst:{final.main_measure.name}":
        return lines
    gain = judged(final, objective, BASELINE)[choice].gain
    text = (
        f"On the {final.split} clients {objective.name} is {objective.text(gain.after)}, with "
        f"FedAvg {objective.text(gain.before)}: {_gain(gain, objective)}."
    )
    return [text, *lines]


def _with(changes: Mapping[str, Any]) -> str:
    shown = {n: v for n, v in changes.items() if isinstance(v, float)}
    text = " and ".join(f"--{name}={value:.4g}" for name, value in shown.items())
    return f" with {text}" if text else ""


def _gain(gain: Gain, objective: Objective) -> str:
    by = f"a gain of {signed(gain.mean, objective.unit, _DECIMALS)}{points(objective.unit)}"
    interval = gain.interval()
    if interval is None:
        why = ": too few trials for one" if gain.has_too_few_trials else ""
        return f"{by}, without an interval{why}"
    low, high = (signed(end, objective.unit, _DECIMALS) for end in interval)
    alone = "" if gain.has_clients else ", over seeds alone: other clients are not in it"
    return f"{by} (95% interval {low} to {high}{alone})"


def _average(loss: float, objective: Objective) -> str:
    return f"{'lose' if loss > 0 else 'gain'} {100 * abs(loss):.2f}{points(objective.unit) or '%'}"


def _needed(gain: Gain) -> str:
    if gain.has_too_few_clients:
        return ": too few validation clients of its worst domain for an interval"
    needed = None if gain.spread is None or gain.mean <= 0 else gain.spread.needed().both
    if needed is None or needed > 50:
        return ""
    return f": {needed:.1f} times as many validation clients and trials would show it"


def write_recommendation(
    path: Path,
    found: Found,
    objective: Objective,
    choice: Optional[str],
    may_lose: Optional[float],
    final: Comparison,
    facts: Mapping[str, Any],
) -> Recommended:
    """Writes recommendation.json, and returns what is recommended.

    Args:
        found: On the validation clients.
        choice: The row that is shown to be better than FedAvg, if one is.
        may_lose: How much of the average may be lost.
        final: FedAvg and the choice on the test clients.
        facts: How it was found, for the file.
    """
    row = choice or BASELINE
    run = trial_folder(path / FINAL, row, 0)
    command = _command(path / FINAL, row, list(final.trials[row].seeds))
    lines, verdict = (
        sentences(found, objective, choice, may_lose),
        on_test(final, objective, choice),
    )
    write_json(
        path / FILE,
        {
            "format": 1,
            **facts,
            "choice": row,
            "sentences": lines,
            "verdict": verdict,
            "model": str(run.model.relative_to(path)),
            "command": command,
            "rows": {name: _row_json(found, name, objective) for name in found.changes},
            "tried": _tried_json(found, objective),
        },
    )
    return Recommended(path, row, tuple(lines), tuple(verdict), run.path, tuple(command), final)


def _command(final: Path, row: str, seeds: Sequence[int]) -> list[str]:
    """Returns the command that trains the choice again; of two stages it is a comparison's."""
    runs = [trial_folder(final, row, k).spec() for k in range(len(seeds))]
    if row != LAST_LAYER:
        return train_command(runs[0], keeps_folders=True)
    firsts = [first_stage_folder(final, row, k).spec() for k in range(len(seeds))]
    whole = [joined(first, second) for first, second in zip(firsts, runs)]
    return compare_command({row: whole}, {row: (row, WORDS[row].settings)}, keeps_folders=True)


def _row_json(found: Found, row: str, objective: Objective) -> dict[str, Any]:
    content: dict[str, Any] = {
        "objective": None,
        "label": found.confirmed.labels.get(row, row),
        "setting": dict(found.changes[row]),
        "setting_text": _with(found.changes[row]).removeprefix(" with ") or "as given",
        "given_up": found.given_up.get(row),
    }
    if row in found.confirmed.trials:
        values = attained(found.confirmed, row, objective).values
        content["objective"] = finite_or_none(float(values.mean()))
    if row in found.judged:
        of = found.judged[row]
        interval = of.gain.interval()
        content |= {
            "gain": finite_or_none(of.gain.mean),
            "interval": None if interval is None else list(interval),
            "average_loses": finite_or_none(of.loss),
        }
    return content


def _tried_json(found: Found, objective: Objective) -> dict[str, Any]:
    return {
        name: finite_or_none(float(attained(found.tried, name, objective).values[0]))
        for name in found.tried.trials
    }


def shown(recommended: Recommended) -> list[str]:
    """Returns what a terminal shows."""
    return [
        *recommended.sentences,
        *recommended.verdict,
        f"model: {recommended.model}",
        f"to train it again: {shlex.join(recommended.command)}",
    ]


def recommendation_page(content: Mapping[str, Any], title: str) -> Page:
    """Returns the page.

    Args:
        content: recommendation.json.
    """
    source = Source(FILE, content)
    unit = Unit[content["unit"]]
    rows: list[Sequence[Line]] = []
    for row, of in content["rows"].items():
        at = source.below("rows", row)
        status = "" if of["objective"] is not None else "one trial: others looked better"
        if of["given_up"]:
            status = f"given up: {of['given_up']}"
        rows.append(
            [
                Name(of["label"]),
                of["setting_text"],
                at.number("objective", unit=unit),
                at.number("gain", unit=unit),
                [*at.interval("interval", unit=unit)] or "-",
                at.number("average_loses", unit=Unit.SHARE),
                status,
            ]
        )
    objective = with_percent(content["objective"], unit)
    is_share = unit is Unit.SHARE
    headings = [
        *("", "best setting", objective, f"gain over FedAvg{', points' if is_share else ''}"),
        *("95% interval", f"average loses, {'points' if is_share else '%'}", ""),
    ]
    tried: list[Sequence[Line]] = [
        [Name(name), source.number("tried", name, unit=unit)] for name in content["tried"]
    ]
    left_out = [f"{row} was left out: {why}" for row, why in content["left_out"].items()]
    return Page(
        title,
        content["judges"],
        [
            Section("recommendation", "The recommendation", [Bullets(content["sentences"])]),
            Section(
                "verdict",
                "What the test clients say",
                [
                    Bullets(content["verdict"]),
                    Paragraph(
                        "The test clients were looked at once, after the choice. More of these "
                        f"runs: {FINAL}/{REPORT}."
                    ),
                ],
            ),
            Section(
                "rows",
                "What was compared",
                [Table(f"On the {content['split']} clients that judge", headings, rows, left_out)],
            ),
            Section(
                "tried",
                "What was tried",
                [Table("One trial of each setting", ["row-setting", objective], tried)],
            ),
            Section("again", "How to train it again", command_blocks(content["command"], False)),
            Section("search", "How to choose again", typed_blocks(content["called"])),
        ],
    )
