"""The recommendation as sentences and as a page."""

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
from tff_agnostic.program.studies.portfolio import FINAL, SearchResults
from tff_agnostic.program.studies.search_space import Objective
from tff_agnostic.program.studies.verdict import gain_claim, shortfall, verdicts


@dataclasses.dataclass(frozen=True)
class Recommendation:
    """A recommended method, and the results that support it.

    Attributes:
        searched: Results on the validation clients.
        choice: The method that is significantly better than FedAvg; None without one.
        may_lose: Maximum amount by which the average may be worse than FedAvg's; None for any
            amount.
        final: FedAvg and the choice on the test clients.
    """

    searched: SearchResults
    objective: Objective
    choice: Optional[str]
    may_lose: Optional[float]
    final: Comparison

    @property
    def row(self) -> str:
        """The recommended method: FedAvg if no other is significantly better."""
        return self.choice or BASELINE

    @property
    def sentences(self) -> list[str]:
        """The recommendation, its reasons, and the data that a clearer result would need."""
        comparison, rows = self.searched.confirmed, self.searched.judged
        clients = f"{split_name(comparison.split)} clients that chose"
        allowed = {row: entry for row, entry in rows.items() if entry.may_be_chosen(self.may_lose)}
        lost = [row for row in rows if row not in allowed]
        # A method that diverged for some clients may not be chosen, whatever its average is.
        whole = [row for row in lost if rows[row].is_whole]
        reasons = {
            "--average_may_lose excludes": whole,
            "Numbers that are not finite exclude": [row for row in lost if row not in whole],
        }
        lines = [
            f"{reason} {'; '.join(map(self._named, names))}."
            for reason, names in reasons.items()
            if names
        ]
        best = comparison.label(self.choice) if self.choice else "FedAvg"
        flags = _setting_text(self.searched.changes[self.row])
        start = f"Recommended: {best}{f' with {flags}' if flags else ''}"
        if self.choice is not None:
            standing = rows[self.choice]
            claim = self._claim(comparison, self.choice, standing.gain)
            average = f"All examples together {self._average(standing)}."
            return [f"{start}.", objective_sentence(claim, clients), average, *lines]
        if lost and whole == lost and not allowed and self.may_lose is not None:
            nearest = min(lost, key=lambda row: (math.isnan(loss := rows[row].loss), loss))
            limit = f"--average_may_lose={100 * self.may_lose:g}%"
            return [
                f"{start}: no other method meets {limit}.",
                f"The nearest is {self._named(nearest)}.",
            ]
        others = "no method that may be chosen" if lost else "no other method"
        reason = f"{others} is significantly better on the {clients}"
        steps = ["`./run frontier` shows whether any weights of the domains could help"]
        gains = {row: gain for row, e in allowed.items() if not math.isnan((gain := e.gain).mean)}
        if gains:
            nearest = max(gains, key=lambda row: gains[row].mean)
            lines.append(f"The nearest is {self._named(nearest)}.")
            if (gain := gains[nearest]).mean > 0:
                advice = shortfall(gain, comparison.split)
                steps = [*([advice] if advice else []), *steps]
                if gain.has_too_few_clients:
                    reason = f"the {clients} are too few to show whether another method is better"
        return [f"{start}: {reason}.", *lines, f"Next: {'; '.join(steps)}."]

    @property
    def verdict(self) -> list[str]:
        """Sentences on the test clients: about the model, the objective, and then the domains."""
        final, objective = self.final, self.objective
        lines = [self._model_line]
        if self.choice is not None and objective.name != f"worst:{final.main_measure.name}":
            gain = judged(final, objective, BASELINE)[self.choice].gain
            claim = self._claim(final, self.choice, gain)
            lines.append(objective_sentence(claim, f"{split_name(final.split)} clients"))
        return [*lines, *verdicts(final)]

    @property
    def _model_line(self) -> str:
        final, measure = self.final, self.final.main_measure

        def values(method: str) -> str:
            trials = final.trials[method]
            worst = worst_domain(trials, final.domain_names, measure, slice(1))
            lowest, overall = (
                value_text(float(trials.values[name][measure.name][0]), measure)
                for name in (worst, OVERALL)
            )
            return f"{lowest} in its worst domain ({short(worst)}) and {overall} on all examples"

        baseline = f"; FedAvg of the same seed has {values(BASELINE)}" if self.choice else ""
        return (
            f"The recommended model, of the first seed, has {measure.name} {values(self.row)} of "
            f"the {split_name(final.split)} clients{baseline}."
        )

    def _named(self, row: str) -> str:
        standing, comparison = self.searched.judged[row], self.searched.confirmed
        gain = gain_text(self._claim(comparison, row, standing.gain))
        return (
            f"{comparison.label(row)}, with {self.objective.name} {gain} and all examples "
            f"together {self._average(standing)}"
        )

    def _average(self, standing: Standing) -> str:
        size = f"{100 * abs(standing.loss):.2f}{points(self.objective.unit) or '%'}"
        return f"{'lose' if standing.loss > 0 else 'gain'} {size}"

    def _claim(self, comparison: Comparison, row: str, gain: Gain) -> Claim:
        objective, label = self.objective, comparison.label(row)
        measure = Measure(objective.name, objective.unit, objective.higher_is_better)
        return gain_claim(gain, label, "FedAvg", "", measure, comparison.split)


def _setting_text(changes: Mapping[str, Any]) -> str:
    changed = {n: v for n, v in changes.items() if isinstance(v, float)}
    return " and ".join(f"--{name}={value:.4g}" for name, value in changed.items())


def recommendation_page(
    made: Recommendation, clients: str, command: Sequence[str], typed: str, title: str
) -> Page:
    """Returns the page of a recommendation.

    Args:
        clients: Sentence on the validation clients.
        command: Command that trains the recommended model again.
        typed: Command that made the recommendation.
    """
    searched, objective = made.searched, made.objective
    more = f"The test clients were evaluated once, after the choice. More: {FINAL}/{REPORT}."
    name = with_percent(objective.name, objective.unit)
    tried: list[Sequence[Cell]] = [
        [row, _number(float(attained(searched.tried, row, objective).values[0]), objective.unit)]
        for row in searched.tried.trials
    ]
    return Page(
        title,
        clients,
        [
            Section("The recommendation", text(*made.sentences), in_terminal=True),
            Section("Results on the test clients", text(*made.verdict, more), in_terminal=True),
            Section("What was compared", [_standings(made)]),
            Section(
                "What was tried",
                [Table("One trial of each setting", ["method-setting", name], tried)],
            ),
            Section("How to train it again", [Sentences([shlex.join(command)], "command")]),
            Section("How to choose again", typed_blocks(typed), is_folded=True),
        ],
    )


def _standings(made: Recommendation) -> Table:
    searched, objective = made.searched, made.objective
    caption = f"On the {split_name(searched.confirmed.split)} clients"
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
    notes = [f"{row} is excluded: {why}" for row, why in searched.excluded.items()]
    return Table(caption, headings, rows, notes)


def _number(value: float, unit: Unit) -> Number:
    return Number(None if math.isnan(value) else value, unit)
