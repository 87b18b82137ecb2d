"""An evaluation as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tabulate import tabulate

from tff_agnostic.metrics.class_counts import ACCURACY, no_better_than_majority
from tff_agnostic.metrics.evaluation_report import (
    PERCENTILES,
    SUPERQUANTILE,
    EvaluationReport,
    SetReport,
    percentile_name,
)
from tff_agnostic.metrics.formatting import UNDEFINED, cell, with_percent
from tff_agnostic.program.reports.claims import majority_sentence, split_name

# Maximum number of characters in a line. A wider table is split into one table per measure.
_MAX_WIDTH = 120
_NO_WEIGHTS: Mapping[str, float] = {}


def evaluation_table(
    report: EvaluationReport,
    domain_weights: Mapping[str, float] = _NO_WEIGHTS,
    weights_name: str = "weight",
) -> str:
    """Returns a table with rows for each domain, for best - worst, and for all examples.

    A table that is too wide is split into one table per measure. Lines below the table explain
    percentiles and CVaR, and list clipped values and the domains that are not counted.

    Args:
        domain_weights: Weight of each domain; if empty, the table has no column of weights.
    """

    def table(measures: Sequence[str]) -> str:
        worst = report.worst_domain(measures[0])
        names = [f"{name} (worst)" if name == worst else name for name in report.domains]
        counts = [str(domain.num_examples) for domain in report.domains.values()]
        columns = [
            ["domain", *names, "difference", "all"],
            [f"{split_name(report.split)} examples", *counts, "", str(report.overall.num_examples)],
        ]
        columns += [column for name in measures for column in _measured(report, name)]
        if domain_weights:
            weights = [domain_weights.get(name) for name in report.domains]
            shown = [UNDEFINED if w is None else f"{w:.3f}" for w in weights]
            columns.append([weights_name, *shown, "", ""])
        headers, *rows = map(list, zip(*columns))
        if len(report.domains) < 2:
            # With a single domain, the best and the worst domain are the same.
            del rows[-2]
        text: str = tabulate(rows, headers=headers, disable_numparse=True, stralign="right")
        return text

    whole = table(list(report.measures))
    if max(map(len, whole.splitlines())) > _MAX_WIDTH:
        whole = "\n\n".join(table([name]) for name in report.measures)
    return "\n".join([whole, *_notes(report)])


def not_counted_line(names: Iterable[str], least: int, examples: str) -> str:
    """Returns the line that names the domains that are not counted.

    Args:
        least: Value of --worst_min_examples.
        examples: Name of the counted examples, such as "test examples".
    """
    return (
        f"not counted in worst and difference, having less than --worst_min_examples={least} "
        f"{examples}: {', '.join(names)}"
    )


def clipped_lines(report: EvaluationReport) -> list[str]:
    """Returns the line about values that secure sums clipped, if there are any."""
    clipped = [f"{count} of {field}" for field, count in report.clipped.items() if count]
    if not clipped:
        return []
    return ["values beyond the bounds of secure sums, which were clipped: " + ", ".join(clipped)]


def _over_clients(report: EvaluationReport) -> str:
    """Returns the heading of the clients' means and percentiles."""
    names = (percentile_name(p) for m in report.overall.measures.values() for p in m.percentiles)
    return f"mean ({', '.join(dict.fromkeys(names))})"


def _measured(report: EvaluationReport, name: str) -> tuple[list[str], list[str], list[str]]:
    unit, sets = report.measures[name].unit, [*report.domains.values(), report.overall]

    def over_clients(one: SetReport) -> str:
        m = one.measures[name]
        if not m.num_clients:
            return UNDEFINED
        percentiles = ", ".join(cell(q, unit, 3) for q in m.percentiles.values())
        return f"{cell(m.mean, unit, 3)} ({percentiles})"

    *values, overall = (cell(one.measures[name].value, unit, 4) for one in sets)
    *means, mean = map(over_clients, sets)
    *tails, tail = (cell(one.measures[name].superquantile, unit, 3) for one in sets)
    difference = cell(report.difference(name), unit, 4)
    return (
        [with_percent(name, unit), *values, difference, overall],
        [_over_clients(report), *means, "", mean],
        [SUPERQUANTILE, *tails, "", tail],
    )


def _notes(report: EvaluationReport) -> list[str]:
    notes = [
        f"{_over_clients(report)}: of the clients' values; percentiles are {PERCENTILES}",
        f"{SUPERQUANTILE}: CVaR, the mean of the worst tenth of the clients' values",
    ]
    if report.not_counted:
        examples = f"{split_name(report.split)} examples"
        notes.append(not_counted_line(report.not_counted, report.worst_min_examples, examples))
    worst = report.worst_mixture()
    if worst is not None:
        weights = ", ".join(f"{name} {weight:.3f}" for name, weight in worst.lambda_.items())
        notes.append(f"worst mixture of Lambda: loss {worst.loss:.4g} at {weights}")
    if ACCURACY in report.measures:
        accuracies = {
            name: domain.measures[ACCURACY].value for name, domain in report.domains.items()
        }
        worse = no_better_than_majority(report.classes.counts, accuracies)
        if worse:
            notes.append(majority_sentence(worse, len(report.domains)))
    return [*notes, *clipped_lines(report)]
