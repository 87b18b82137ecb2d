"""The recommendation as sentences, as recommendation.json, and as a page."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.formatting import points, with_percent
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.claims import (
    Claim,
    gain_text,
    objective_sentence,
    short,
    split_name,
    value_text,
)
from tff_agnostic.program.reports.document import (
    Cell,
    Number,
    Page,
    Section,
    Sentences,
    Table,
    text,
)
from tff_agnostic.program.reports.html import REPORT
from tff_agnostic.program.reports.sections import typed_blocks
from tff_agnostic.program.studies.choice import Standing, attained, judged
from tff_agnostic.program.studies.comparison import BASELINE, OVERALL, Comparison
from tff_agnostic.program.studies.gains import Gain, worst_domain
from tff_agnostic.program.studies.portfolio import Schedule
from tff_agnostic.program.studies.search_space import Objective
from tff_agnostic.program.studies.verdict import shortfall, verdicts, why_no_interval

# Folder of the final runs.
FINAL = "final"
# Reason for ending a method's runs.
WORSE = "worse than FedAvg"


@dataclasses.dataclass(frozen=True)
class SearchResults:
    """Results of a search on the validation clients.

    Attributes:
        confirmed: Trials of FedAvg and of the best methods, each at its best setting.
        judged: Comparison of each of the best methods with FedAvg.
        tried: First trial of each method at each setting, by METHOD-SETTING.
        changes: Best setting of each method, by flag.
        given_up: Reasons for ending methods' runs, by method.
    """

    confirmed: Comparison
    judged: Mapping[str, Standing]
    tried: Comparison
    changes: Mapping[str, Mapping[str, Any]]
    given_up: Mapping[str, str]
    schedule: Schedule


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """A recommendation.

    Attributes:
        searched: Results on the validation clients.
        choice: The method that is significantly better than FedAvg; None without one.
        may_lose: Largest loss of the average; None for any loss.
        excluded: Reasons for not trying methods, by method.
        clients: Sentence on the validation clients.
    """

    searched: SearchResults
    objective: Objective
    choice: Optional[str]
    may_lose: Optional[float]
    final: Comparison
    excluded: Mapping[str, str] = dataclasses.field(default_factory=dict)
    clients: str = ""

    @property
    def row(self) -> str:
        """The recommended method: FedAvg if no other is significantly better."""
        return self.choice or BASELINE

    @property
    def sentences(self) -> list[str]:
        """See `sentences`."""
        return sentences(self.searched, self.objective, self.choice, self.may_lose)

    @property
    def verdict(self) -> list[str]:
        """See `on_test`."""
        return on_test(self.final, self.objective, self.choice)


def sentences(
    searched: SearchResults, objective: Objective, choice: Optional[str], may_lose: Optional[float]
) -> list[str]:
    """Returns the recommendation, its reasons, and the data that a clearer result would need."""
    comparison = searched.confirmed
    clients = f"{split_name(comparison.split)} clients that chose"
    allowed = {
        row: entry for row, entry in searched.judged.items() if entry.may_be_chosen(may_lose)
    }
    lost = [row for row in searched.judged if row not in allowed]
    # A method that diverged for some clients may not be chosen, whatever its average is.
    whole = [row for row in lost if searched.judged[row].is_whole]
    lines = [
        f"{reason} {'; '.join(_named(searched, objective, row) for row in rows)}."
        for reason, rows in (
            ("--average_may_lose excludes", whole),
            ("Numbers that are not finite exclude", [row for row in lost if row not in whole]),
        )
        if rows
    ]
    if choice is not None:
        standing = searched.judged[choice]
        claim = _claim(searched.confirmed, choice, standing.gain, objective)
        return [
            f"Recommended: {comparison.label(choice)}{_with(searched.changes[choice])}.",
            objective_sentence(claim, clients),
            f"All examples together {_average(standing.loss, objective)}.",
            *lines,
        ]
    fed_avg = f"Recommended: FedAvg{_with(searched.changes[BASELINE])}:"
    if lost and whole == lost and not allowed and may_lose is not None:
        nearest = min(lost, key=lambda row: (math.isnan(loss := searched.judged[row].loss), loss))
        return [
            f"{fed_avg} no other method meets --average_may_lose={100 * may_lose:g}%.",
            f"The nearest is {_named(searched, objective, nearest)}.",
        ]
    others = "no method that may be chosen" if lost else "no other method"
    lines.insert(0, f"{fed_avg} {others} is significantly better on the {clients}.")
    defined = {row: entry.gain for row, entry in allowed.items() if not math.isnan(entry.gain.mean)}
    if defined:
        nearest = max(defined, key=lambda row: defined[row].mean)
        gain = defined[nearest]
        advice = shortfall(gain, comparison.split, gain.trials) if gain.mean > 0 else ""
        ending = f": {advice}." if advice else "."
        lines.append(f"The nearest is {_named(searched, objective, nearest)}{ending}")
    return [*lines, "Next: `./run frontier` shows whether any weights of the domains could help."]


def _named(searched: SearchResults, objective: Objective, row: str) -> str:
    standing = searched.judged[row]
    gain = gain_text(_claim(searched.confirmed, row, standing.gain, objective))
    return (
        f"{searched.confirmed.label(row)}, with {objective.name} {gain} and all examples together "
        f"{_average(standing.loss, objective)}"
    )


def _claim(comparison: Comparison, row: str, gain: Gain, objective: Objective) -> Claim:
    interval = gain.interval()
    reason = "" if interval else why_no_interval(gain, comparison.split, gain.trials)
    measure = Measure(objective.name, objective.unit, objective.higher_is_better)
    values = (gain.before, gain.after)
    return Claim(comparison.label(row), "FedAvg", "", measure, *values, interval, reason)


def on_test(final: Comparison, objective: Objective, choice: Optional[str]) -> list[str]:
    """Returns the results on the test clients: the model's, the objective's, then the domains'."""
    lines = [_model_line(final, choice or BASELINE)]
    if choice is not None and objective.name != f"worst:{final.main_measure.name}":
        gain = judged(final, objective, BASELINE)[choice].gain
        clients = f"{split_name(final.split)} clients"
        lines.append(objective_sentence(_claim(final, choice, gain, objective), clients))
    return [*lines, *verdicts(final)]


def _model_line(final: Comparison, row: str) -> str:
    measure = final.main_measure

    def values(method: str) -> str:
        trials = final.trials[method]
        worst = worst_domain(trials, final.domain_names, measure, slice(1))
        lowest, overall = (
            value_text(float(trials.values[name][measure.name][0]), measure)
            for name in (worst, OVERALL)
        )
        return f"{lowest} in its worst domain ({short(worst)}) and {overall} on all examples"

    baseline = f"; FedAvg of the same seed has {values(BASELINE)}" if row != BASELINE else ""
    return (
        f"The recommended model, of the first seed, has {measure.name} {values(row)} of the "
        f"{split_name(final.split)} clients{baseline}."
    )


def _with(changes: Mapping[str, Any]) -> str:
    flags = _setting_text(changes)
    return f" with {flags}" if flags else ""


def _setting_text(changes: Mapping[str, Any]) -> str:
    changed = {n: v for n, v in changes.items() if isinstance(v, float)}
    return " and ".join(f"--{name}={value:.4g}" for name, value in changed.items())


def _average(loss: float, objective: Objective) -> str:
    return f"{'lose' if loss > 0 else 'gain'} {100 * abs(loss):.2f}{points(objective.unit) or '%'}"


def recommendation_page(
    made: Recommendation, command: Sequence[str], typed: str, title: str
) -> Page:
    """Returns the page.

    Args:
        command: Command that trains the recommended model again.
        typed: Command of the recommendation.
    """
    searched, objective = made.searched, made.objective
    clients = f"{split_name(searched.confirmed.split)} clients"
    more = f"The test clients were evaluated once, after the choice. More: {FINAL}/{REPORT}."
    name = with_percent(objective.name, objective.unit)
    tried: list[Sequence[Cell]] = [
        [row, _number(float(attained(searched.tried, row, objective).values[0]), objective.unit)]
        for row in searched.tried.trials
    ]
    return Page(
        title,
        made.clients,
        [
            Section("The recommendation", text(*made.sentences), in_terminal=True),
            Section("Results on the test clients", text(*made.verdict, more), in_terminal=True),
            Section("What was compared", [_standings(made, f"On the {clients}")]),
            Section(
                "What was tried",
                [Table("One trial of each setting", ["method-setting", name], tried)],
            ),
            Section("How to train it again", [Sentences([shlex.join(command)], "command")]),
            Section("How to choose again", typed_blocks(typed), is_folded=True),
        ],
    )


def _standings(made: Recommendation, caption: str) -> Table:
    searched, objective = made.searched, made.objective
    unit, in_points = objective.unit, ", points" if objective.unit is Unit.SHARE else ""
    rows: list[Sequence[Cell]] = []
    for row, changes in searched.changes.items():
        value, status = Number(None, unit), "one trial: not among the best"
        if row in searched.confirmed.trials:
            mean = float(attained(searched.confirmed, row, objective).values.mean())
            value, status = _number(mean, unit), ""
        if row in searched.given_up:
            status = f"no more runs: {searched.given_up[row]}"
        gain, loss = Number(None, unit), Number(None, Unit.SHARE)
        if row in searched.judged:
            standing = searched.judged[row]
            gain = dataclasses.replace(
                _number(standing.gain.mean, unit),
                interval=standing.gain.interval(),
                is_difference=True,
            )
            loss = _number(standing.loss, Unit.SHARE)
        label = searched.confirmed.label(row)
        rows.append([label, _setting_text(changes) or "as given", value, gain, loss, status])
    headings = [
        *("", "best setting", with_percent(objective.name, unit)),
        f"gain over FedAvg{in_points} [95% interval]",
        *(f"average loses, {in_points[2:] or '%'}", ""),
    ]
    notes = [f"{row} is excluded: {why}" for row, why in made.excluded.items()]
    return Table(caption, headings, rows, notes)


def _number(value: float, unit: Unit) -> Number:
    return Number(None if math.isnan(value) else value, unit)
