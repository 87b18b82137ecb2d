"""The recommendation as sentences, as recommendation.json, and as a page."""

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
from tff_agnostic.program.reports.claims import split_name, value_text
from tff_agnostic.program.reports.document import (
    Cell,
    Page,
    Section,
    Sentences,
    Table,
    text,
)
from tff_agnostic.program.reports.html import REPORT
from tff_agnostic.program.reports.run_page import typed_blocks
from tff_agnostic.program.reports.run_record import number
from tff_agnostic.program.studies.choice import Judged, attained, judged
from tff_agnostic.program.studies.comparison import (
    OVERALL,
    WORST,
    Comparison,
    first_stage_folder,
    trial_folder,
)
from tff_agnostic.program.studies.gains import Gain
from tff_agnostic.program.studies.methods import BASELINE, LAST_LAYER, WORDS
from tff_agnostic.program.studies.portfolio import Schedule
from tff_agnostic.program.studies.search_space import Objective
from tff_agnostic.program.studies.stages import joined
from tff_agnostic.program.studies.verdict import shortfall, verdicts

FILE = "recommendation.json"
# Folder of the final runs.
FINAL = "final"
# Why a method had no more runs.
WORSE = "worse than FedAvg"
_DECIMALS = 3


@dataclasses.dataclass(frozen=True)
class Found:
    """Results of a search on the validation clients.

    Attributes:
        confirmed: Trials of FedAvg and of the best methods, each at its best setting.
        judged: Each of them compared with FedAvg.
        tried: First trial of each method at each setting, by METHOD-SETTING.
        changes: Best setting of each method, by flag.
        given_up: Why a method had no more runs, by its name.
        schedule: The number of settings and trials.
    """

    confirmed: Comparison
    judged: Mapping[str, Judged]
    tried: Comparison
    changes: Mapping[str, Mapping[str, Any]]
    given_up: Mapping[str, str]
    schedule: Schedule


@dataclasses.dataclass(frozen=True)
class Recommended:
    """A recommendation.

    Attributes:
        path: Folder of all runs.
        choice: Recommended method: FedAvg if no other is significantly better.
        sentences: The recommendation and its reasons.
        verdict: Results on the test clients; see `on_test`.
        model: Folder of the run with the recommended model.
        command: Command that trains the model again.
        comparison: The choice and FedAvg on the test clients.
        title: Title of the page, if one was given.
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
    """Returns the recommendation, its reasons, and what it would take to know more."""
    comparison = found.confirmed
    clients = f"{split_name(comparison.split)} clients that chose"
    allowed = {row: of for row, of in found.judged.items() if of.may_be_chosen(may_lose)}
    lost = [row for row in found.judged if row not in allowed]
    if choice is not None:
        of = found.judged[choice]
        return [
            f"Recommended: {comparison.label(choice)}{_with(found.changes[choice])}.",
            f"On the {clients}, {objective.name} is {objective.text(of.gain.after)}, with FedAvg "
            f"{objective.text(of.gain.before)}: {_gain(of.gain, objective)}.",
            f"All examples together {_average(of.loss, objective)}.",
            *_excluded(found, objective, lost),
        ]
    fed_avg = f"Recommended: FedAvg{_with(found.changes[BASELINE])}:"
    if lost and not allowed and may_lose is not None:
        nearest = min(lost, key=lambda row: (math.isnan(loss := found.judged[row].loss), loss))
        of = found.judged[nearest]
        return [
            f"{fed_avg} no other method meets --average_may_lose={100 * may_lose:g}%.",
            f"The nearest is {comparison.label(nearest)}: all examples together "
            f"{_average(of.loss, objective)}, for {_gain(of.gain, objective)} in {objective.name}.",
        ]
    others = "no method that may be chosen" if lost else "no other method"
    lines = [
        f"{fed_avg} {others} is significantly better for {objective.name} on the {clients}.",
        *_excluded(found, objective, lost),
    ]
    known = {row: of.gain for row, of in allowed.items() if not math.isnan(of.gain.mean)}
    if known:
        nearest = max(known, key=lambda row: known[row].mean)
        advice = _shortfall(known[nearest], comparison)
        lines.append(
            f"The nearest is {comparison.label(nearest)}, with "
            f"{_gain(known[nearest], objective)}{f': {advice}' if advice else ''}."
        )
    return lines


def _shortfall(gain: Gain, comparison: Comparison) -> str:
    """Returns what would show a gain; empty if there is none to show."""
    return shortfall(gain, comparison.split, gain.trials) if gain.mean > 0 else ""


def _excluded(found: Found, objective: Objective, rows: Sequence[str]) -> list[str]:
    """Returns the sentence about methods that lose too much of the average, if there are any."""
    texts = [
        f"{found.confirmed.label(row)} ({_gain(of.gain, objective)}; all examples together "
        f"{_average(of.loss, objective)})"
        for row in rows
        for of in [found.judged[row]]
    ]
    return [f"--average_may_lose excludes {', '.join(texts)}."] if texts else []


def on_test(final: Comparison, objective: Objective, choice: Optional[str]) -> list[str]:
    """Returns the results on the test clients: the model's, the objective's, then the domains'.

    Args:
        final: FedAvg and the choice on the test clients.
        objective: The objective of the choice. Regret is that of these two methods.
        choice: The chosen method; None if it is FedAvg.
    """
    lines = [_model_line(final, choice or BASELINE)]
    if choice is not None and objective.name != f"worst:{final.main_measure.name}":
        gain = judged(final, objective, BASELINE)[choice].gain
        lines.append(
            f"On the {split_name(final.split)} clients {objective.name} is "
            f"{objective.text(gain.after)}, with FedAvg {objective.text(gain.before)}: "
            f"{_gain(gain, objective)}."
        )
    return [*lines, *verdicts(final, dict.fromkeys(final.trials, "") | {BASELINE: BASELINE})]


def _model_line(final: Comparison, row: str) -> str:
    """Returns the sentence with the values of the recommended model, and of FedAvg's."""
    measure = final.main_measure

    def values(of_row: str) -> str:
        trials = final.trials[of_row]
        worst, overall = (
            value_text(float(trials.values[group][measure.name][0]), measure)
            for group in (WORST, OVERALL)
        )
        return f"{worst} in its worst domain and {overall} on all examples"

    beside = f"; FedAvg of the same seed has {values(BASELINE)}" if row != BASELINE else ""
    return (
        f"The recommended model, of the first seed, has {measure.name} {values(row)} of the "
        f"{split_name(final.split)} clients{beside}."
    )


def _with(changes: Mapping[str, Any]) -> str:
    changed = {n: v for n, v in changes.items() if isinstance(v, float)}
    flags = " and ".join(f"--{name}={value:.4g}" for name, value in changed.items())
    return f" with {flags}" if flags else ""


def _gain(gain: Gain, objective: Objective) -> str:
    amount = f"a gain of {signed(gain.mean, objective.unit, _DECIMALS)}{points(objective.unit)}"
    interval = gain.interval()
    if interval is None:
        why = ": too few trials for one" if gain.has_too_few_trials else ""
        return f"{amount}, without an interval{why}"
    low, high = (signed(end, objective.unit, _DECIMALS) for end in interval)
    alone = "" if gain.has_clients else ", which does not cover other clients"
    return f"{amount} (95% interval {low} to {high}{alone})"


def _average(loss: float, objective: Objective) -> str:
    return f"{'lose' if loss > 0 else 'gain'} {100 * abs(loss):.2f}{points(objective.unit) or '%'}"


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
        found: Results on the validation clients.
        choice: The method that is significantly better than FedAvg; None without one.
        may_lose: Limit of the average's loss.
        final: FedAvg and the choice on the test clients.
        facts: Description of the search, for the file.
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
    """Returns the command that trains the choice again; for two stages it is `compare`."""
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
    """Returns the lines for the terminal."""
    return [
        *recommended.sentences,
        *recommended.verdict,
        f"model: {recommended.model}",
        f"to train it again: {shlex.join(recommended.command)}",
    ]


def recommendation_page(content: Mapping[str, Any], title: str) -> Page:
    """Returns the page.

    Args:
        content: Content of recommendation.json.
    """
    unit, rows = Unit[content["unit"]], []
    for of in content["rows"].values():
        status = "" if of["objective"] is not None else "one trial: not among the best"
        if of["given_up"]:
            status = f"no more runs: {of['given_up']}"
        ends = of.get("interval")
        gain = dataclasses.replace(
            number(of.get("gain"), unit), interval=tuple(ends) if ends else None, is_difference=True
        )
        average = number(of.get("average_loses"), Unit.SHARE)
        row: list[Cell] = [of["label"], of["setting_text"], number(of["objective"], unit)]
        rows.append([*row, gain, average, status])
    objective = with_percent(content["objective"], unit)
    in_points = ", points" if unit is Unit.SHARE else ""
    headings = [
        *("", "best setting", objective, f"gain over FedAvg{in_points} [95% interval]"),
        *(f"average loses, {in_points[2:] or '%'}", ""),
    ]
    tried = [[name, number(value, unit)] for name, value in content["tried"].items()]
    excluded = [f"{row} is excluded: {why}" for row, why in content["left_out"].items()]
    clients = f"{split_name(content['split'])} clients"
    return Page(
        title,
        content["judges"],
        [
            Section("The recommendation", text(content["sentences"])),
            Section(
                "Results on the test clients",
                [
                    Sentences(content["verdict"]),
                    Sentences(
                        [
                            "The test clients were evaluated once, after the choice. More about "
                            f"these runs: {FINAL}/{REPORT}."
                        ]
                    ),
                ],
            ),
            Section("What was compared", [Table(f"On the {clients}", headings, rows, excluded)]),
            Section(
                "What was tried",
                [Table("One trial of each setting", ["method-setting", objective], tried)],
            ),
            Section(
                "How to train it again", [Sentences([shlex.join(content["command"])], "command")]
            ),
            Section("How to choose again", typed_blocks(content["called"]), is_folded=True),
        ],
    )
