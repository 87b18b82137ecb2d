"""A comparison as tables laid out like the paper's, and as figures."""

import math
from collections.abc import Mapping, Sequence
from typing import Optional

import numpy as np
from matplotlib.figure import Figure
from tabulate import tabulate

from tff_agnostic.models.measures import Measure
from tff_agnostic.program.comparison import Comparison
from tff_agnostic.program.reporting.cells import cell, with_percent
from tff_agnostic.program.reporting.client_figure import client_figure
from tff_agnostic.program.reporting.columns import ROUND, Column, tested_worst
from tff_agnostic.program.reporting.evaluation_table import not_counted_line
from tff_agnostic.program.reporting.plots import plain_text, plot_known, scale_axis
from tff_agnostic.program.trial_results import DIFFERENCE, SUMMARIES, Trials, mean_of, std_of
from tff_agnostic.quantities import Unit

# Of plain numbers.
_DECIMALS = 3
# Domains whose names fit beside each other under half of a figure.
_MAX_BESIDE = 10
_INCHES_PER_DOMAIN = 0.35

# With more domains than this, algorithms become the columns, so that a terminal can show the table.
_MAX_DOMAIN_COLUMNS = 5
# The same of what describes a distribution over clients.
_MAX_STATISTIC_COLUMNS = 8
# Of a row without the number.
_UNKNOWN = np.array([math.nan])
_NOT_REPORTED: Mapping[str, np.ndarray] = {}


def table(comparison: Comparison, measure: str, table_format: str) -> str:
    """Returns one measure as a table: a line per row, a column per domain, as in the paper.

    Cells hold the mean and, in parentheses, the standard deviation over the trials; the best row of
    a domain is bold in Markdown. Shares such as accuracy are in percent. With many domains rows and
    columns change places.

    Args:
        comparison: The trials.
        measure: "loss" or the name of a metric.
        table_format: A format of tabulate; "github" is Markdown.
    """
    measured = comparison.measures[measure]
    columns = []
    for domain in (*comparison.domain_names, *SUMMARIES):
        heading = domain.strip("()") if domain in SUMMARIES else in_table(domain, table_format)
        values = {name: t.values[domain][measure] for name, t in comparison.trials.items()}
        higher = measured.higher_is_better and domain != DIFFERENCE
        columns.append([heading, *_cells(values, measured.unit, higher, table_format)])
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


def markdown(comparison: Comparison, title: str, command: str) -> str:
    """Returns every measure's table as a Markdown page."""
    count = len(next(iter(comparison.trials.values())).histories)
    parts = [
        f"# {title}",
        f"`{command}`",
        f"Mean and standard deviation of {count} trials, on the {comparison.split} clients.",
        *(f"{line[0].upper()}{line[1:]}." for line in notes(comparison)),
    ]
    for name, measure in comparison.measures.items():
        direction = "higher" if measure.higher_is_better else "lower"
        heading = with_percent(title_of(name), measure.unit, "percent")
        parts.append(f"## {heading} ({direction} is better)")
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
    """Returns lines that say which domains are not counted, and which rows are private."""
    lines = []
    if comparison.not_counted:
        what = f"{comparison.split} examples in every trial"
        lines.append(not_counted_line(comparison.not_counted, comparison.worst_min_examples, what))
    for row, trials in comparison.trials.items():
        if trials.privacy:
            epsilon, delta = max(trials.privacy)
            lines.append(
                f"{comparison.label(row)}: each trial is ({epsilon:.4g}, {delta:.3g})-"
                "differentially private towards its training clients; all trials together are not"
            )
    return lines


def figure(comparison: Comparison, measure: str) -> Figure:
    """Returns the worst domain's measure over rounds, and every domain's at the end."""
    num_domains = len(comparison.domain_names)
    is_wide = num_domains > _MAX_BESIDE
    # Names of many domains stand upright, below a figure that is as wide as they need.
    size = (max(12.0, _INCHES_PER_DOMAIN * num_domains), 10.0) if is_wide else (12.0, 4.5)
    result = Figure(figsize=size, layout="constrained")
    curves, bars = result.subplots(*((2, 1) if is_wide else (1, 2)))
    positions = np.arange(len(comparison.domain_names))
    width = 0.8 / len(comparison.trials)
    course = Column(tested_worst(comparison.measures[measure], comparison.split))
    for i, (name, trials) in enumerate(comparison.trials.items()):
        label = comparison.label(name)
        rounds = trials.histories[0][ROUND]
        by_trial = np.array([course.find(history) for history in trials.histories])
        with np.errstate(invalid="ignore"):  # The spread of what is infinite, as perplexity may be.
            mean, std = by_trial.mean(axis=0), by_trial.std(axis=0)
        plot_known(curves, rounds, mean, color=f"C{i}", label=label)
        known = np.isfinite(mean)
        curves.fill_between(
            rounds[known], (mean - std)[known], (mean + std)[known], color=f"C{i}", alpha=0.2
        )
        means = [trials.mean(d, measure) for d in comparison.domain_names]
        stds = [trials.std(d, measure) for d in comparison.domain_names]
        offsets = positions + (i - (len(comparison.trials) - 1) / 2) * width
        bars.bar(offsets, means, width, yerr=np.nan_to_num(stds), capsize=2, label=label)
    label = f"{measure} on the {comparison.split} clients"
    curves.set(xlabel="round", ylabel=label, title="Worst domain")
    scale_axis(curves, course.quantity.unit)
    curves.grid(alpha=0.3)
    bars.set(
        xlabel="domain",
        ylabel=label,
        title="Every domain after the last round",
    )
    ticks = [_tick(comparison, name, is_wide) for name in comparison.domain_names]
    bars.set_xticks(positions, ticks, rotation=90 if is_wide else 0)
    bars.grid(alpha=0.3, axis="y")
    curves.legend()
    return result


def client_figures(comparison: Comparison) -> dict[str, Figure]:
    """Returns a figure of the clients for each measure of which a trial reported their values."""
    figures = {}
    for name, measure in comparison.measures.items():
        rows = {
            comparison.label(row): trials.client_values[name]
            for row, trials in comparison.trials.items()
            if trials.client_values.get(name)
        }
        if rows:
            figures[name] = client_figure(measure, rows, comparison.split)
    return figures


def mean_and_spread(trials: Trials, domain: str, measure: Measure) -> str:
    """Returns the mean over the trials and, in parentheses, the standard deviation, as text."""
    return _text(trials.values[domain][measure.name], measure.unit)


def in_table(name: str, table_format: str) -> str:
    """Returns a name such that it breaks no table of tabulate's format."""
    one_line = " ".join(name.split())
    return one_line.replace("|", r"\|") if table_format == "github" else one_line


def title_of(measure: str) -> str:
    """Returns the name of a measure as a heading."""
    return measure.replace("_", " ").capitalize()


def _tick(comparison: Comparison, domain: str, is_upright: bool) -> str:
    text = plain_text(domain)
    between = " " if is_upright else "\n"
    return f"{text}{between}(not counted)" if domain in comparison.not_counted else text


def _laid_out(
    comparison: Comparison,
    columns: Sequence[Sequence[str]],
    turned: Optional[str],
    table_format: str,
) -> str:
    """Returns columns with a heading as a table of the rows of a comparison.

    Args:
        comparison: Whose rows they are.
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
    values: Mapping[str, np.ndarray], unit: Unit, higher_is_better: bool, table_format: str
) -> list[str]:
    """Returns the cell of each row from its trials; in Markdown the best one is bold."""
    means = {name: mean_of(of_trials) for name, of_trials in values.items()}
    # A domain without test examples has no mean, and no best row.
    known = [name for name, mean in means.items() if not math.isnan(mean)]
    choose = max if higher_is_better else min
    best = choose(known, key=lambda name: means[name]) if known else None
    texts = {name: _text(of_trials, unit) for name, of_trials in values.items()}
    is_bold = table_format == "github"
    return [f"**{text}**" if is_bold and name == best else text for name, text in texts.items()]


def _text(values: np.ndarray, unit: Unit) -> str:
    mean, std = mean_of(values), std_of(values)
    spread = "" if math.isnan(std) else f" ({cell(std, unit, _DECIMALS)})"
    return f"{cell(mean, unit, _DECIMALS)}{spread}"
