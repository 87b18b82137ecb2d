"""A comparison as tables laid out like the paper's, and as figures."""

import math
from typing import Optional

import numpy as np
from matplotlib.figure import Figure
from tabulate import tabulate

from tff_agnostic.models.measures import Measure
from tff_agnostic.program.comparison import DIFFERENCE, SUMMARIES, Comparison, Trials
from tff_agnostic.program.reporting.cells import cell, with_percent
from tff_agnostic.program.reporting.columns import ROUND, Column, tested_worst
from tff_agnostic.program.reporting.evaluation_table import not_counted_line
from tff_agnostic.program.reporting.plots import plain_text, plot_known, scale_axis

# Of plain numbers.
_DECIMALS = 3
# Domains whose names fit beside each other under half of a figure.
_MAX_BESIDE = 10
_INCHES_PER_DOMAIN = 0.35

# With more domains than this, algorithms become the columns, so that a terminal can show the table.
_MAX_DOMAIN_COLUMNS = 5


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
    columns = [["algorithm", *map(comparison.label, comparison.trials)]]
    for domain in (*comparison.domain_names, *SUMMARIES):
        best = _best_row(comparison, domain, measure)
        column = [domain.strip("()") if domain in SUMMARIES else in_table(domain, table_format)]
        for name, trials in comparison.trials.items():
            text = mean_and_spread(trials, domain, comparison.measures[measure])
            column.append(f"**{text}**" if (table_format, name) == ("github", best) else text)
        columns.append(column)
    if len(comparison.domain_names) > _MAX_DOMAIN_COLUMNS:
        columns[0][0] = "domain"
        rows = columns
    else:
        rows = [list(row) for row in zip(*columns)]
    return tabulate(rows[1:], headers=rows[0], tablefmt=table_format, disable_numparse=True)


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
    return "\n\n".join(parts) + "\n"


def notes(comparison: Comparison) -> list[str]:
    """Returns a line that says which domains are not counted, if any are not."""
    if not comparison.not_counted:
        return []
    what = f"{comparison.split} examples in every trial"
    return [not_counted_line(comparison.not_counted, comparison.worst_min_examples, what)]


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


def mean_and_spread(trials: Trials, domain: str, measure: Measure) -> str:
    """Returns the mean over the trials and, in parentheses, the standard deviation, as text."""
    mean, std = trials.mean(domain, measure.name), trials.std(domain, measure.name)
    spread = "" if math.isnan(std) else f" ({cell(std, measure.unit, _DECIMALS)})"
    return f"{cell(mean, measure.unit, _DECIMALS)}{spread}"


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


def _best_row(comparison: Comparison, domain: str, measure: str) -> Optional[str]:
    means = {name: trials.mean(domain, measure) for name, trials in comparison.trials.items()}
    # A domain without test examples has no mean, and no best row.
    known = [name for name, mean in means.items() if not math.isnan(mean)]
    if not known:
        return None
    higher = comparison.measures[measure].higher_is_better and domain != DIFFERENCE
    return (max if higher else min)(known, key=lambda name: means[name])
