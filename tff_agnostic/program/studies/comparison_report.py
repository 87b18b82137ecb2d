"""The tables and figures of a comparison."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Optional

import numpy as np
from tabulate import tabulate

from tff_agnostic.base.errors import counted
from tff_agnostic.base.files import make_folder
from tff_agnostic.base.later import matplotlib
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.columns import tested_worst
from tff_agnostic.metrics.formatting import cell, sentence, short_names, with_percent
from tff_agnostic.metrics.metrics_file import ROUND, Column
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.distributions import (
    Estimate,
    Series,
    client_figure,
    domains_height,
    draw_domains,
)
from tff_agnostic.program.reports.evaluation_table import not_counted_line
from tff_agnostic.program.reports.figures import (
    draw_grid,
    label_course,
    legend_above,
    new_figure,
    percent_axis,
    plot_spread,
    save,
    scale_axis,
)
from tff_agnostic.program.studies.comparison import (
    DIFFERENCE,
    OVERALL,
    SUMMARIES,
    WORST,
    Comparison,
    Trials,
    mean_of,
    std_of,
)
from tff_agnostic.program.studies.gains import alike

# Ends a number that cannot be told apart from the best one of its domain.
ALIKE = " ~"
_ALIKE_NOTE = (
    "numbers with ~ cannot be told apart from the best of their domain (95% intervals, or too few "
    "clients or trials for one)"
)
# Of plain numbers.
_DECIMALS = 3
# With more domains than this, algorithms become the columns, so that a terminal can show the table.
_MAX_DOMAIN_COLUMNS = 5
# The same of what describes a distribution over clients.
_MAX_STATISTIC_COLUMNS = 8
# Of a row without the number.
_UNKNOWN = np.array([math.nan])
_NOT_REPORTED: Mapping[str, np.ndarray] = {}
# Domains whose bars fit beside the curves.
_MAX_BESIDE = 10
_LABEL_WIDTH = 40
_LEGEND_ROW = 0.25


def table(comparison: Comparison, measure: str, table_format: str) -> str:
    """Returns one measure as a table: a line per row, a column per domain, as in the paper.

    Cells hold the mean and, in parentheses, the standard deviation over the trials; the best row of
    a domain is bold in Markdown, and those that cannot be told apart from it are marked. Shares
    such as accuracy are in percent. With many domains rows and columns change places.

    Args:
        measure: "loss" or the name of a metric.
        table_format: A format of tabulate; "github" is Markdown.
    """
    measured = comparison.measures[measure]
    columns = []
    for domain in (*comparison.domain_names, *SUMMARIES):
        heading = domain.strip("()") if domain in SUMMARIES else in_table(domain, table_format)
        values = {name: t.values[domain][measure] for name, t in comparison.trials.items()}
        higher = measured.higher_is_better and domain != DIFFERENCE
        same = frozenset() if domain == DIFFERENCE else alike(comparison, domain, measured)
        columns.append([heading, *_cells(values, measured.unit, higher, table_format, same)])
    is_wide = len(comparison.domain_names) > _MAX_DOMAIN_COLUMNS
    return _laid_out(comparison, columns, "domain" if is_wide else None, table_format)


def table_over_clients(comparison: Comparison, measure: str, table_format: str) -> Optional[str]:
    """Returns a measure's distribution over the clients as a table; None if no trial reported one.

    A line per row; a column for the clients' mean, for each percentile and for the superquantile.
    Cells are those of `table`, "-" where a trial did not report the number.
    """
    measured = comparison.measures[measure]
    columns = []
    statistics = (s for trials in comparison.trials.values() for s in trials.over_clients)
    for statistic in dict.fromkeys(statistics):
        values = {
            name: t.over_clients.get(statistic, _NOT_REPORTED).get(measure, _UNKNOWN)
            for name, t in comparison.trials.items()
        }
        if not all(np.isnan(of_trials).all() for of_trials in values.values()):
            cells = _cells(values, measured.unit, measured.higher_is_better, table_format)
            columns.append([statistic, *cells])
    if not columns:
        return None
    is_wide = len(columns) > _MAX_STATISTIC_COLUMNS
    return _laid_out(comparison, columns, "clients" if is_wide else None, table_format)


def markdown(
    comparison: Comparison,
    title: str,
    command: str,
    first: Sequence[str] = (),
    verdict: Sequence[str] = (),
) -> str:
    """Returns every measure's table as a Markdown page.

    Args:
        first: Lines to be read before the tables.
        verdict: Sentences to be read before anything else.
    """
    parts = [
        f"# {title}",
        *(["\n".join(f"- {line}" for line in verdict)] if verdict else []),
        f"`{command}`",
        f"Mean and standard deviation of {counted(comparison.num_trials, 'trial')}, on the "
        f"{comparison.split} clients.",
        *map(sentence, (*first, *alike_notes(comparison), *notes(comparison))),
    ]
    for name, measure in comparison.measures.items():
        heading = with_percent(title_of(name), measure.unit, "percent")
        parts.append(f"## {heading} ({measure.better} is better)")
        parts.append(table(comparison, name, "github"))
        of_clients = table_over_clients(comparison, name, "github")
        if of_clients is not None:
            parts += [over_clients_title(comparison), of_clients]
    return "\n\n".join(parts) + "\n"


def over_clients_title(comparison: Comparison) -> str:
    """Returns what stands above a distribution over clients."""
    return (
        f"Over the {comparison.split} clients, each counted once; percentiles, and the mean of the "
        "worst tenth (superquantile):"
    )


def notes(comparison: Comparison) -> list[str]:
    """Returns lines on rows made otherwise, on domains that do not count, and on privacy."""
    lines = [f"{comparison.label(row)}: {text}" for row, text in comparison.remarks.items()]
    if comparison.not_counted:
        what = f"{comparison.split} examples in every trial"
        lines.append(not_counted_line(comparison.not_counted, comparison.worst_min_examples, what))
    for row, trials in comparison.trials.items():
        if trials.non_finite:
            lines.append(
                f"{comparison.label(row)}: the numbers of "
                f"{counted(trials.non_finite, f'{comparison.split} client')} (all trials together) "
                "are not finite and count nowhere, so the row looks better than it is: lower its "
                "learning rates"
            )
        if trials.privacy:
            epsilon, delta = max(trials.privacy)
            lines.append(
                f"{comparison.label(row)}: each trial is ({epsilon:.4g}, {delta:.3g})-"
                "differentially private towards its training clients; all trials together are not"
            )
    return lines


def alike_notes(comparison: Comparison) -> list[str]:
    """Returns the line that says what the mark of numbers means, if any number has it."""
    names = (*comparison.domain_names, WORST, OVERALL)
    has_some = any(alike(comparison, n, m) for m in comparison.measures.values() for n in names)
    return [_ALIKE_NOTE] if has_some else []


def mean_and_spread(trials: Trials, domain: str, measure: Measure) -> str:
    """Returns the mean over the trials and, in parentheses, the standard deviation, as text."""
    return _text(trials.values[domain][measure.name], measure.unit)


def in_table(name: str, table_format: str) -> str:
    """Returns a name such that it breaks no table of tabulate's format."""
    one_line = " ".join(name.split())
    return one_line.replace("|", r"\|") if table_format == "github" else one_line


def caption(measure: Measure, split: str) -> str:
    """Returns what stands above a measure's table on a page."""
    heading = with_percent(measure.name, measure.unit)
    return f"{heading} on the {split} clients ({measure.better} is better)"


def title_of(measure: str) -> str:
    """Returns the name of a measure as a heading."""
    return measure.replace("_", " ").capitalize()


def _laid_out(
    comparison: Comparison,
    columns: Sequence[Sequence[str]],
    turned: Optional[str],
    table_format: str,
) -> str:
    """Returns columns with a heading as a table of the rows of a comparison.

    Args:
        columns: A heading, and a cell for each row.
        turned: What columns are, if they are to become the rows.
        table_format: A format of tabulate.
    """
    first = [turned or "algorithm", *map(comparison.label, comparison.trials)]
    rows = [list(column) for column in (first, *columns)]
    if turned is None:
        rows = [list(row) for row in zip(*rows)]
    return tabulate(rows[1:], headers=rows[0], tablefmt=table_format, disable_numparse=True)


def _cells(
    values: Mapping[str, np.ndarray],
    unit: Unit,
    higher_is_better: bool,
    table_format: str,
    same: Collection[str] = (),
) -> list[str]:
    """Returns the cell of each row from its trials; in Markdown the best one is bold.

    Args:
        values: The trials of each row.
        unit: Of the numbers.
        higher_is_better: Which direction is good.
        table_format: A format of tabulate.
        same: The rows that cannot be told apart from the best one.
    """
    means = {name: mean_of(of_trials) for name, of_trials in values.items()}
    # A domain without test examples has no mean, and no best row.
    known = [name for name, mean in means.items() if not math.isnan(mean)]
    choose = max if higher_is_better else min
    best = choose(known, key=lambda name: means[name]) if known else None
    texts = {n: _text(of, unit) + (ALIKE if n in same else "") for n, of in values.items()}
    is_bold = table_format == "github"
    return [f"**{text}**" if is_bold and name == best else text for name, text in texts.items()]


def _text(values: np.ndarray, unit: Unit) -> str:
    mean, std = mean_of(values), std_of(values)
    spread = "" if math.isnan(std) else f" ({cell(std, unit, _DECIMALS)})"
    return f"{cell(mean, unit, _DECIMALS)}{spread}"


def draw_comparison(folder: Path, comparison: Comparison) -> None:
    """Writes the figures of every measure into a folder, which it makes."""
    make_folder(folder)
    for measure in comparison.measures:
        save(figure(comparison, measure), folder / f"compare_{measure}.png")
    for measure, draw_clients in client_figures(comparison).items():
        save(draw_clients(), folder / f"compare_{measure}_clients.png")


def figure(comparison: Comparison, measure: str) -> matplotlib.figure.Figure:
    """Returns the worst domain's measure over rounds, and every domain's at the end.

    Error bars and bands are one standard deviation over the trials.
    """
    labels = _labels(comparison)
    num_domains = len(comparison.domain_names)
    is_wide = num_domains <= _MAX_BESIDE
    below = max(3.5, domains_height(num_domains, len(labels)))
    legend = _LEGEND_ROW * math.ceil(len(labels) / 2)
    size = (9.8, max(4.0, below) + legend) if is_wide else (9.0, 4.0 + below + legend)
    result = new_figure(*size)
    if is_wide:
        curves, ends = result.subplots(1, 2)
    else:
        curves, ends = result.subplots(2, 1, height_ratios=(4.0, below))
    measured = comparison.measures[measure]
    course = Column(tested_worst(measured, comparison.split))
    for i, (label, trials) in enumerate(zip(labels, comparison.trials.values())):
        rounds = trials.histories[0][ROUND]
        by_trial = np.array([history[course.name] for history in trials.histories])
        plot_spread(curves, rounds, by_trial, i, label)
    text = f"{measure} on the {comparison.split} clients"
    label_course(curves, text)
    curves.set_title("Worst domain")
    scale_axis(curves, measured.unit)
    percent_axis(curves, measured.unit)
    draw_grid(curves)
    series = domain_series(comparison, measure)
    ends.set_title("Every domain after the last round")
    draw_domains(
        ends, series, text, measured.unit, measured.higher_is_better, comparison.not_counted
    )
    legend_above(result, curves)
    return result


def domain_series(comparison: Comparison, measure: str) -> list[Series]:
    """Returns each row's mean over the trials in every domain, with a standard deviation."""
    return [
        Series(
            label,
            {
                domain: _estimate(trials.mean(domain, measure), trials.std(domain, measure))
                for domain in comparison.domain_names
            },
        )
        for label, trials in zip(_labels(comparison), comparison.trials.values())
    ]


def client_figures(
    comparison: Comparison,
) -> dict[str, Callable[[], matplotlib.figure.Figure]]:
    """Returns what draws the clients for each measure of which a trial reported their values."""
    figures: dict[str, Callable[[], matplotlib.figure.Figure]] = {}
    for name, measure in comparison.measures.items():
        rows = {
            comparison.label(row): trials.client_values[name]
            for row, trials in comparison.trials.items()
            if trials.client_values.get(name)
        }
        if rows:
            figures[name] = functools.partial(
                client_figure, name, measure.unit, rows, comparison.split
            )
    return figures


def _labels(comparison: Comparison) -> list[str]:
    return short_names([comparison.label(row) for row in comparison.trials], _LABEL_WIDTH)


def _estimate(mean: float, std: float) -> Estimate:
    return Estimate(mean, mean - std, mean + std)
