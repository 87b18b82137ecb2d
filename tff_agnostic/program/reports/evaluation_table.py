"""An evaluation as a table for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tabulate import tabulate

from tff_agnostic.metrics.class_counts import ACCURACY, constant_line, not_above_constant
from tff_agnostic.metrics.evaluation_report import (
    PERCENTILES,
    SUPERQUANTILE,
    EvaluationReport,
    SetReport,
    percentile_name,
)
from tff_agnostic.metrics.formatting import UNDEFINED, cell, with_percent

# Characters of a line; a table that is wider becomes one for each measure.
_MAX_WIDTH = 120
_NO_WEIGHTS: Mapping[str, float] = {}


def evaluation_table(
    report: EvaluationReport,
    domain_weights: Mapping[str, float] = _NO_WEIGHTS,
    weights_name: str = "weight",
) -> str:
    """Returns a table with a row per domain, their difference, and all examples together.

    Where that would be too wide, it is a table for each measure. Lines below say what percentiles
    and superquantiles are, which domains are not counted, and what was clipped, if anything was.

    Args:
        domain_weights: The weight of each domain, to stand beside it; none if empty.
        weights_name: What the weights are called.
    """

    def of(measures: Sequence[str]) -> str:
        columns = [_domains(report, measures[0]), _examples(report)]
        columns += [column for name in measures for column in _measured(report, name)]
        if domain_weights:
            weights = [domain_weights.get(name) for name in report.domains]
            columns.append(
                [weights_name, *(UNDEFINED if w is None else f"{w:.3f}" for w in weights), "", ""]
            )
        headers, *rows = map(list, zip(*columns))
        if len(report.domains) < 2:
            # There is no difference of one.
            del rows[-2]
        table: str = tabulate(rows, headers=headers, disable_numparse=True, stralign="right")
        return table

    whole = of(list(report.measures))
    if max(map(len, whole.splitlines())) > _MAX_WIDTH:
        whole = "\n\n".join(of([name]) for name in report.measures)
    return "\n".join([whole, *_notes(report)])


def not_counted_line(names: Iterable[str], least: int, what: str) -> str:
    """Returns the line that says which domains are not counted, and why.

    Args:
        names: The domains.
        least: --worst_min_examples.
        what: What a domain needs so many of, such as "test examples".
    """
    return (
        f"not counted in worst and difference, having less than --worst_min_examples={least} "
        f"{what}: {', '.join(names)}"
    )


def clipped_lines(report: EvaluationReport) -> list[str]:
    """Returns the line that says what secure sums clipped, if they clipped anything."""
    clipped = [f"{count} of {field}" for field, count in report.clipped.items() if count]
    if not clipped:
        return []
    return ["values beyond the bounds of secure sums, which were clipped: " + ", ".join(clipped)]


def _domains(report: EvaluationReport, measure: str) -> list[str]:
    worst = report.worst_domain(measure)
    names = [f"{name} (worst)" if name == worst else name for name in report.domains]
    return ["domain", *names, "difference", "all"]


def _examples(report: EvaluationReport) -> list[str]:
    counts = [str(of_domain.num_examples) for of_domain in report.domains.values()]
    return [f"{report.split} examples", *counts, "", str(report.overall.num_examples)]


def _over_clients(report: EvaluationReport) -> str:
    """Returns the heading of the clients' means and percentiles."""
    names = (percentile_name(p) for m in report.overall.measures.values() for p in m.percentiles)
    return f"mean ({', '.join(dict.fromkeys(names))})"


def _measured(report: EvaluationReport, name: str) -> tuple[list[str], list[str], list[str]]:
    unit = report.measures[name].unit

    def over_clients(one: SetReport) -> str:
        m = one.measures[name]
        if not m.num_clients:
            return UNDEFINED
        percentiles = ", ".join(cell(q, unit, 3) for q in m.percentiles.values())
        return f"{cell(m.mean, unit, 3)} ({percentiles})"

    def tail(one: SetReport) -> str:
        return cell(one.measures[name].superquantile, unit, 3)

    values = [cell(one.measures[name].value, unit, 4) for one in report.domains.values()]
    difference = cell(report.difference(name), unit, 4)
    overall = cell(report.overall.measures[name].value, unit, 4)
    domains = report.domains.values()
    return (
        [with_percent(name, unit), *values, difference, overall],
        [_over_clients(report), *map(over_clients, domains), "", over_clients(report.overall)],
        [SUPERQUANTILE, *map(tail, domains), "", tail(report.overall)],
    )


def _notes(report: EvaluationReport) -> list[str]:
    notes = [
        f"{_over_clients(report)}: of the clients' values; percentiles are {PERCENTILES}",
        f"{SUPERQUANTILE}: mean of the worst tenth of the clients' values",
    ]
    if report.not_counted:
        what = f"{report.split} examples"
        notes.append(not_counted_line(report.not_counted, report.worst_min_examples, what))
    worst = report.worst_mixture()
    if worst is not None:
        of_domains = ", ".join(f"{name} {weight:.3f}" for name, weight in worst.lambda_.items())
        notes.append(f"worst mixture of Lambda: loss {worst.loss:.4g} at {of_domains}")
    if ACCURACY in report.measures:
        accuracies = {name: of.measures[ACCURACY].value for name, of in report.domains.items()}
        found = not_above_constant(report.classes.counts, accuracies)
        if found:
            notes.append(constant_line(found, len(report.domains)))
    return [*notes, *clipped_lines(report)]
