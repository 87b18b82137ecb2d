"""Tables, figures and the page of a comparison."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import counted
from tff_agnostic.base.later import matplotlib
from tff_agnostic.metrics.columns import tested_worst
from tff_agnostic.metrics.formatting import short_names, with_percent
from tff_agnostic.metrics.metrics_file import ROUND, Column
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.claims import split_name
from tff_agnostic.program.reports.distributions import (
    Estimate,
    Series,
    client_figure,
    domains_height,
    draw_domains,
    worst_first,
)
from tff_agnostic.program.reports.document import (
    Block,
    Cell,
    Figure,
    Number,
    Page,
    Section,
    Sentences,
    Table,
    text,
    warnings,
)
from tff_agnostic.program.reports.evaluation_table import not_counted_line
from tff_agnostic.program.reports.figures import (
    LEGEND_ROW,
    WIDTH,
    finish_course,
    legend_above,
    new_figure,
    plot_spread,
)
from tff_agnostic.program.reports.run_record import RunRecord, metrics_first
from tff_agnostic.program.reports.run_warnings import data_caveats, harm, training_caveats
from tff_agnostic.program.reports.sections import (
    NOT_FLAGS,
    TAIL,
    command_blocks,
    data_blocks,
    measure_facts,
    setting_value,
    versions_blocks,
)
from tff_agnostic.program.studies.comparison import (
    DIFFERENCE,
    OVERALL,
    WORST,
    Comparison,
    Trials,
    trials_deviation,
)
from tff_agnostic.program.studies.gains import gains, tied
from tff_agnostic.program.studies.verdict import verdict_figure, verdicts

# Maximum number of warnings per method, and of methods with a figure of their gains.
_MAX_WARNINGS = 3
_MAX_FIGURES = 3
_DECIMALS = 3
_LABEL_WIDTH = 30
_SUMMARIES = {WORST: "worst domain", OVERALL: "all examples", DIFFERENCE: "best - worst"}
_SUPERQUANTILE = "superquantile"
_TIED_NOTE = (
    "Numbers with ~ do not differ significantly from the best of their row (95% intervals), or "
    "have too few clients or trials for an interval. The differences of best - worst and of CVaR "
    "are not tested."
)


def comparison_page(
    comparison: Comparison, command: Sequence[str], warned: Sequence[str], title: str
) -> Page:
    """Returns the page of a comparison; a terminal shows only some of its sections.

    Args:
        warned: A line for each neglected domain; see `neglected`.
    """
    labels = ", ".join(comparison.label(row) for row in comparison.trials)
    verdict = [*text(*verdicts(comparison)), *warnings([f"{line}." for line in warned])]
    baseline, measure = comparison.baseline, comparison.main_measure
    others = [row for row in comparison.trials if row != baseline]
    verdict += [gain_figure(comparison, row, baseline, measure) for row in others[:_MAX_FIGURES]]
    harms = _trial_lines(comparison, harm)
    return Page(
        title,
        f"{labels}: {counted(comparison.num_trials, 'trial')} each. Numbers are means over the "
        "trials and, in parentheses, standard deviations.",
        [
            Section("The verdict", verdict, in_terminal=True),
            Section("In short", [*warnings(harms), *summaries(comparison)]),
            Section("What to know first", warnings(_caveats(comparison)), in_terminal=True),
            Section("What was compared", _methods(comparison)),
            Section("Results by domain", by_domain(comparison), in_terminal=True),
            Section("The tail of the clients", over_clients(comparison), True, is_folded=True),
            *last_sections(comparison, command_blocks(command, comparison.is_private)),
        ],
    )


def last_sections(comparison: Comparison, command: Sequence[Block]) -> list[Section]:
    """Returns the sections about data, measures and the command of a study."""
    first = comparison.first
    return [
        Section("The data", data_blocks(first, comparison.is_private), is_folded=True),
        Section("What was measured", [measure_facts(first)], is_folded=True),
        Section("How to make it again", [*command, *versions_blocks(first)], is_folded=True),
    ]


# --- Tables


def caption(measure: Measure, split: str) -> str:
    """Returns the caption of a measure's table."""
    heading = with_percent(measure.name, measure.unit)
    return f"{heading} on the {split_name(split)} clients ({measure.better} is better)"


def mean_and_spread(values: Optional[np.ndarray], measure: Measure) -> Number:
    """Returns the mean over trials, with their standard deviation; undefined without trials."""
    mean = math.nan if values is None else float(np.mean(values))
    if values is None or math.isnan(mean):
        return Number(None, measure.unit)
    std = trials_deviation(values)
    return Number(mean, measure.unit, _DECIMALS, None if math.isnan(std) else std)


def marked(
    values: Mapping[str, Optional[np.ndarray]],
    measure: Measure,
    higher_is_better: Optional[bool] = None,
    tied_rows: frozenset[str] = frozenset(),
) -> list[Number]:
    """Returns each method's mean over its trials, with a mark on the best mean.

    Args:
        higher_is_better: Whether higher values are better; None for the measure's direction.
        tied_rows: The methods that do not differ significantly from the best one.
    """
    numbers = {row: mean_and_spread(trials, measure) for row, trials in values.items()}
    defined = {row: number.value for row, number in numbers.items() if number.value is not None}
    higher = measure.higher_is_better if higher_is_better is None else higher_is_better
    best = (
        (max if higher else min)(defined, key=lambda row: defined[row])
        if len(defined) > 1
        else None
    )

    def mark(row: str) -> Any:
        return "best" if row == best else "tied" if row in tied_rows else ""

    return [dataclasses.replace(number, mark=mark(row)) for row, number in numbers.items()]


def group_numbers(comparison: Comparison, group: str, measure: Measure) -> list[Number]:
    """Returns each method's mean of a measure in a group, which is a domain or a summary."""
    values = {row: trials.values[group][measure.name] for row, trials in comparison.trials.items()}
    if group == DIFFERENCE:
        return marked(values, measure, higher_is_better=False)
    return marked(values, measure, tied_rows=tied(comparison, group, measure))


def measure_table(comparison: Comparison, measure: Measure, domains: Sequence[str]) -> Table:
    """Returns the table of a measure: a row per domain and summary, a column per method."""
    titles = {**{name: name for name in domains}, **_SUMMARIES}
    numbers = {group: group_numbers(comparison, group, measure) for group in titles}
    rows: list[Sequence[Cell]] = [[title, *numbers[group]] for group, title in titles.items()]
    labels = [comparison.label(row) for row in comparison.trials]
    table_notes = [_TIED_NOTE] if _has_tied(numbers.values()) else []
    return Table(caption(measure, comparison.split), ["domain", *labels], rows, table_notes)


def _has_tied(numbers: Iterable[Sequence[Number]]) -> bool:
    return any(number.mark == "tied" for group in numbers for number in group)


def _client_table(comparison: Comparison, measure: Measure) -> list[Block]:
    reported = dict.fromkeys(
        s for trials in comparison.trials.values() for s in trials.over_clients
    )
    rows: list[Sequence[Cell]] = []
    for statistic in reported:
        numbers = _client_numbers(comparison, measure, statistic)
        if any(number.value is not None for number in numbers):
            rows.append([TAIL if statistic == _SUPERQUANTILE else statistic, *numbers])
    if not rows:
        return []
    heading = f"{caption(measure, comparison.split)}, over clients, each counted once"
    labels = [comparison.label(row) for row in comparison.trials]
    return [Table(heading, ["clients", *labels], rows)]


def _client_numbers(comparison: Comparison, measure: Measure, statistic: str) -> list[Number]:
    values = {
        row: trials.over_clients.get(statistic, {}).get(measure.name)
        for row, trials in comparison.trials.items()
    }
    return marked(values, measure)


def summaries(comparison: Comparison) -> list[Block]:
    """Returns a table of each measure: the worst domain, all examples, and the clients' tail."""
    headings = ["", *_SUMMARIES.values(), TAIL]
    blocks: list[Block] = []
    for measure in metrics_first(comparison.measures):
        columns = [group_numbers(comparison, group, measure) for group in _SUMMARIES]
        columns.append(_client_numbers(comparison, measure, _SUPERQUANTILE))
        labels = [comparison.label(row) for row in comparison.trials]
        rows = [list(row) for row in zip(labels, *columns)]
        table_notes = [_TIED_NOTE.replace("row", "column")] if _has_tied(columns) else []
        blocks.append(Table(caption(measure, comparison.split), headings, rows, table_notes))
    return blocks


def by_domain(comparison: Comparison) -> list[Block]:
    """Returns a table and a figure of each measure; the first method's worst domain comes first."""
    blocks: list[Block] = []
    for measure in metrics_first(comparison.measures):
        ordered = worst_first(_domain_series(comparison, measure.name), measure.higher_is_better)
        about = (
            f"{measure.name} of the worst domain over the rounds, and of every domain at the end, "
            "sorted by the first method, the worst on top; bands and error bars are one standard "
            "deviation over the trials"
        )
        draw = functools.partial(figure, comparison, measure.name)
        blocks += [measure_table(comparison, measure, ordered), Figure(about, draw)]
    return blocks


def over_clients(comparison: Comparison) -> list[Block]:
    """Returns the distributions over the clients as tables and figures."""
    blocks: list[Block] = []
    for measure in metrics_first(comparison.measures):
        blocks += _client_table(comparison, measure)
        rows = {
            comparison.label(row): trials.client_values[measure.name]
            for row, trials in comparison.trials.items()
            if trials.client_values.get(measure.name)
        }
        about = (
            f"{measure.name} in all trials of each method: the share of the clients with a value "
            "up to that, and the mean of the clients by their number of examples, with one "
            "standard deviation over the trials"
        )
        clients = (measure.name, measure.unit, rows, split_name(comparison.split))
        blocks += [Figure(about, functools.partial(client_figure, *clients))] if rows else []
    return blocks


def notes(comparison: Comparison) -> list[str]:
    """Returns lines that explain methods, excluded domains, excluded clients and privacy."""
    lines = [f"{comparison.label(row)}: {remark}" for row, remark in comparison.remarks.items()]
    split = split_name(comparison.split)
    if comparison.not_counted:
        what = f"{split} examples in every trial"
        lines.append(not_counted_line(comparison.not_counted, comparison.worst_min_examples, what))
    for row, trials in comparison.trials.items():
        label = comparison.label(row)
        if trials.non_finite:
            lines.append(
                f"{label}: the numbers of {counted(trials.non_finite, f'{split} client')} (all "
                "trials together) are not finite and count nowhere, so the method looks better "
                "than it is: lower its learning rates"
            )
        if trials.privacy:
            epsilon, delta = max(trials.privacy)
            lines.append(
                f"{label}: each trial is ({epsilon:.4g}, {delta:.3g})-differentially private "
                "towards its training clients; all trials together are not"
            )
    return lines


# --- Sections of the page


def gain_figure(comparison: Comparison, row: str, other: str, measure: Measure) -> Figure:
    """Returns the figure of a method's gain over another one in each domain."""
    domain_gains = gains(comparison, row, other, measure)
    return Figure(
        f"{measure.name} of {comparison.label(other)} and of {comparison.label(row)} in each "
        "domain, and the gain; error bars are 95% intervals, and those of gains hold for all "
        "domains together. Without an error bar there is no interval",
        functools.partial(verdict_figure, comparison, row, other, measure, domain_gains),
    )


def _trial_lines(
    comparison: Comparison, note_lines: Callable[[RunRecord], Sequence[str]]
) -> list[str]:
    """Returns at most `_MAX_WARNINGS` warnings about the trials of each method."""
    lines: list[str] = []
    for row, runs in comparison.records.items():
        label = comparison.label(row)
        row_lines = [
            f"{label}, trial {k + 1} (seed {run.result['seed']}): {line}"
            for k, run in enumerate(runs)
            for line in note_lines(run)
        ]
        lines += row_lines[:_MAX_WARNINGS]
        if len(row_lines) > _MAX_WARNINGS:
            lines.append(f"{label}: {len(row_lines) - _MAX_WARNINGS} more of the kind.")
    return lines


def _caveats(comparison: Comparison) -> list[str]:
    lines = [f"{line}." for line in notes(comparison)]
    lines += [*data_caveats(comparison.first), *_trial_lines(comparison, training_caveats)]
    if comparison.num_trials == 1:
        lines.append(
            "There is a single trial of each method: how much another seed would change is not "
            "known."
        )
    return lines


def _methods(comparison: Comparison) -> list[Block]:
    """Returns the methods with the settings in which they differ, and the folders of their runs."""
    settings = {row: runs[0].config for row, runs in comparison.records.items()}
    first = comparison.first.config
    different = [
        flag
        for flag in dict.fromkeys(flag for config in settings.values() for flag in config)
        if flag not in ("algorithm", "seed", *NOT_FLAGS)
        and any(config.get(flag) != first.get(flag) for config in settings.values())
    ]
    rows: list[Sequence[Cell]] = []
    folders: list[Sequence[Cell]] = []
    for row, runs in comparison.records.items():
        label, paper = comparison.label(row), runs[0].about("algorithm", "paper")
        algorithm = str(runs[0].result["algorithm"]) + (f" ({paper})" if paper else "")
        texts = [
            f"--{f}={setting_value(settings[row][f])}" for f in different if f in settings[row]
        ]
        rows.append([label, algorithm, ", ".join(texts) or "-"])
        folders.append([label, runs[0].where, ", ".join(str(r.result["seed"]) for r in runs)])
    headings = ["", "algorithm", "settings that differ"]
    return [
        Table("Every method trains on the same data", headings, rows),
        Table("Trials", ["", "folder of the first", "seeds"], folders),
        Sentences(["`./run report --run=FOLDER` writes the report of a trial."]),
    ]


# --- Figures


def figure(comparison: Comparison, measure: str) -> matplotlib.figure.Figure:
    """Returns a figure of the worst domain over the rounds, and of all domains at the end.

    Error bars and bands are one standard deviation over the trials.
    """
    labels = _labels(comparison)
    below = domains_height(len(comparison.domain_names), len(labels))
    result = new_figure(WIDTH, 3.2 + below + LEGEND_ROW * len(labels))
    curves, ends = result.subplots(2, 1, height_ratios=(3.2, below))
    measured = comparison.measures[measure]
    course = Column(tested_worst(measured, comparison.split))
    title = f"{measure} on the {split_name(comparison.split)} clients"
    draw_courses(curves, zip(labels, comparison.trials.values()), course, title)
    curves.set_title("Worst domain")
    series = _domain_series(comparison, measure)
    ends.set_title("Every domain after the last round")
    higher = measured.higher_is_better
    draw_domains(ends, series, title, measured.unit, higher, comparison.not_counted)
    legend_above(result, curves, ncols=1)
    return result


def draw_courses(
    axes: matplotlib.axes.Axes, trials: Iterable[tuple[str, Trials]], course: Column, title: str
) -> None:
    """Draws a column of metrics.csv over the rounds: means and spreads of labelled trials."""
    for i, (label, entry) in enumerate(trials):
        by_trial = np.array([history[course.name] for history in entry.histories])
        plot_spread(axes, entry.histories[0][ROUND], by_trial, i, label)
    finish_course(axes, title, course.quantity.unit)


def _domain_series(comparison: Comparison, measure: str) -> list[Series]:
    """Returns the mean of each method in every domain, with one standard deviation over trials."""
    series = []
    for label, trials in zip(_labels(comparison), comparison.trials.values()):
        by_domain = {}
        for domain in comparison.domain_names:
            mean, std = trials.mean(domain, measure), trials.std(domain, measure)
            by_domain[domain] = Estimate(mean, mean - std, mean + std)
        series.append(Series(label, by_domain))
    return series


def _labels(comparison: Comparison) -> list[str]:
    return short_names([comparison.label(row) for row in comparison.trials], _LABEL_WIDTH)
