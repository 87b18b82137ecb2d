"""Tables, figures and the page of a comparison."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import agreeing, counted
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
    Link,
    Number,
    Page,
    Section,
    Sentences,
    Table,
    names,
    text,
    warnings,
)
from tff_agnostic.program.reports.evaluation_table import not_counted_line
from tff_agnostic.program.reports.figures import (
    LEGEND_ROW,
    WIDTH,
    draw_grid,
    label_course,
    legend_above,
    new_figure,
    percent_axis,
    plot_spread,
    scale_axis,
)
from tff_agnostic.program.reports.html import REPORT
from tff_agnostic.program.reports.run_page import (
    NOT_FLAGS,
    TAIL,
    command_blocks,
    course_figure,
    data_blocks,
    measure_facts,
    server_blocks,
    setting_value,
    versions_blocks,
)
from tff_agnostic.program.reports.run_record import RunRecord, metrics_first, weight_quantity
from tff_agnostic.program.reports.run_warnings import data_caveats, harm, training_caveats
from tff_agnostic.program.studies.comparison import (
    DIFFERENCE,
    OVERALL,
    WORST,
    Comparison,
    mean_of,
    std_of,
)
from tff_agnostic.program.studies.comparison_record import ComparisonRecord
from tff_agnostic.program.studies.gains import Gain, gains, tied
from tff_agnostic.program.studies.methods import BASELINE
from tff_agnostic.program.studies.verdict import baseline_row, verdict_figure, verdicts

# Maximum numbers: methods with drawn weights, warnings of a method, methods with a verdict's
# figure.
_MAX_CURVES = 5
_MAX_WARNINGS = 3
_MAX_FIGURES = 3
# Domains of the majority named in a sentence.
_MAX_MAJORITY = 3
_DECIMALS = 3
_LABEL_WIDTH = 30
_SUMMARIES = {WORST: "worst domain", OVERALL: "all examples", DIFFERENCE: "best - worst"}
_STATISTICS = {"superquantile": TAIL}
_TIED_NOTE = (
    "Numbers with ~ do not differ significantly from the best of their row (95% intervals), or "
    "have too few clients or trials for an interval."
)


def comparison_page(
    record: ComparisonRecord,
    command: Sequence[str],
    warned: Sequence[str] = (),
    title: Optional[str] = None,
) -> Page:
    """Returns the page.

    Args:
        command: Command of the comparison.
        warned: A line for each neglected domain; see `neglected`.
        title: Heading; by default the task.
    """
    comparison, first = record.comparison, record.first
    count = max(len(runs) for runs in record.runs.values())
    labels = ", ".join(comparison.label(row) for row in comparison.trials)
    verdict = verdicts(comparison, record.algorithms)
    harms = [*(f"{line}." for line in warned), *_of_methods(record, harm)]
    return Page(
        title or default_title(record),
        f"{labels}: {counted(count, 'trial')} each. Numbers are means over the trials and, in "
        "parentheses, standard deviations.",
        [
            Section("The verdict", [*text(verdict), *_verdict_figures(record)]),
            Section("In short", [*warnings(harms), *summaries(comparison)]),
            Section("What to know first", warnings(_caveats(record))),
            Section("What was compared", _methods(record)),
            Section("Settings that do not differ", _shared_settings(record), is_folded=True),
            Section("The data", data_blocks(first, record.is_private), is_folded=True),
            Section("What was measured", [measure_facts(first)], is_folded=True),
            Section("Results by domain", by_domain(comparison)),
            Section("The price", price(record)),
            Section("The tail of the clients", over_clients(comparison), is_folded=True),
            Section("Weights of the domains", _weights(record), is_folded=True),
            Section("What the server saw", _server(record), is_folded=True),
            Section(
                "How to make it again",
                [*command_blocks(command, record.is_private), *versions_blocks(first)],
                is_folded=True,
            ),
        ],
    )


def terminal_page(
    comparison: Comparison, verdict: Sequence[str], warned: Sequence[str] = ()
) -> Page:
    """Returns the sections of a comparison for the terminal.

    Args:
        verdict: Sentences of the verdict.
        warned: A line for each neglected domain.
    """
    blocks: list[Block] = []
    for measure in comparison.measures.values():
        blocks.append(measure_table(comparison, measure))
        blocks += _client_table(comparison, measure)
    lines = [*warned, *notes(comparison)]
    return Page(
        "",
        "",
        [
            Section("The verdict", text(verdict), in_terminal=True),
            Section("Results by domain", blocks, in_terminal=True),
            Section("What to know first", warnings(lines), in_terminal=True),
        ],
    )


def default_title(record: ComparisonRecord) -> str:
    """Returns the title of a comparison's page without a given one."""
    return f"Comparison on {record.first.result['task']}"


# --- Tables


def caption(measure: Measure, split: str) -> str:
    """Returns the caption of a measure's table."""
    heading = with_percent(measure.name, measure.unit)
    return f"{heading} on the {split_name(split)} clients ({measure.better} is better)"


def mean_and_spread(values: Optional[np.ndarray], measure: Measure) -> Number:
    """Returns the mean of trials with their standard deviation; undefined without trials."""
    mean = math.nan if values is None else mean_of(values)
    if values is None or math.isnan(mean):
        return Number(None, measure.unit)
    std = std_of(values)
    return Number(mean, measure.unit, _DECIMALS, None if math.isnan(std) else std)


def marked(
    values: Mapping[str, Optional[np.ndarray]],
    measure: Measure,
    higher_is_better: Optional[bool] = None,
    tied_rows: frozenset[str] = frozenset(),
) -> list[Number]:
    """Returns the means of the trials of each method, of which the best one is marked.

    Args:
        values: The trials of each method; None if it did not report the number.
        higher_is_better: Direction, if it is not the measure's.
        tied_rows: The methods that do not differ significantly from the best one.
    """
    numbers = {row: mean_and_spread(trials, measure) for row, trials in values.items()}
    known = {row: number.value for row, number in numbers.items() if number.value is not None}
    higher = measure.higher_is_better if higher_is_better is None else higher_is_better
    best = (max if higher else min)(known, key=lambda row: known[row]) if len(known) > 1 else None
    return [
        _marked(number, "best" if row == best else "tied" if row in tied_rows else "")
        for row, number in numbers.items()
    ]


def _marked(number: Number, mark: Any) -> Number:
    return Number(number.value, number.unit, number.decimals, number.spread, mark=mark)


def group_numbers(comparison: Comparison, group: str, measure: Measure) -> list[Number]:
    """Returns a measure of each method in a group: a domain or a summary."""
    values = {row: trials.values[group][measure.name] for row, trials in comparison.trials.items()}
    if group == DIFFERENCE:
        return marked(values, measure, higher_is_better=False)
    return marked(values, measure, tied_rows=tied(comparison, group, measure))


def measure_table(
    comparison: Comparison, measure: Measure, domains: Optional[Sequence[str]] = None
) -> Table:
    """Returns a measure of every domain, with a column for each method.

    Args:
        domains: The domains in order; by default the comparison's.
    """
    titles = {n: n for n in (comparison.domain_names if domains is None else domains)}
    numbers = {group: group_numbers(comparison, group, measure) for group in (*titles, *_SUMMARIES)}
    rows: list[Sequence[Cell]] = [
        [title, *numbers[group]] for group, title in {**titles, **_SUMMARIES}.items()
    ]
    has_tied = any(number.mark == "tied" for of_group in numbers.values() for number in of_group)
    labels = [comparison.label(row) for row in comparison.trials]
    table_notes = [_TIED_NOTE] if has_tied else []
    return Table(caption(measure, comparison.split), ["domain", *labels], rows, table_notes)


def _client_table(comparison: Comparison, measure: Measure) -> list[Block]:
    """Returns the distribution of a measure over the clients; nothing if no trial reported it."""
    reported = dict.fromkeys(
        s for trials in comparison.trials.values() for s in trials.over_clients
    )
    rows: list[Sequence[Cell]] = []
    for statistic in reported:
        values = {
            row: trials.over_clients.get(statistic, {}).get(measure.name)
            for row, trials in comparison.trials.items()
        }
        known = [of for of in values.values() if of is not None and not np.isnan(of).all()]
        if known:
            rows.append([_STATISTICS.get(statistic, statistic), *marked(values, measure)])
    if not rows:
        return []
    heading = f"{caption(measure, comparison.split)}, over clients, each counted once"
    labels = [comparison.label(row) for row in comparison.trials]
    return [Table(heading, ["clients", *labels], rows)]


def summaries(comparison: Comparison) -> list[Block]:
    """Returns a table of each measure: the worst domain, all examples, the tail of the clients."""
    headings = ["", *_SUMMARIES.values(), TAIL]
    blocks: list[Block] = []
    for measure in metrics_first(comparison.measures):
        columns = [group_numbers(comparison, group, measure) for group in _SUMMARIES]
        tails = {
            row: trials.over_clients.get("superquantile", {}).get(measure.name)
            for row, trials in comparison.trials.items()
        }
        columns.append(marked(tails, measure))
        labels = [comparison.label(row) for row in comparison.trials]
        rows = [list(row) for row in zip(labels, *columns)]
        has_tied = any(number.mark == "tied" for column in columns for number in column)
        table_notes = [_TIED_NOTE.replace("row", "column")] if has_tied else []
        blocks.append(Table(caption(measure, comparison.split), headings, rows, table_notes))
    return blocks


def by_domain(comparison: Comparison) -> list[Block]:
    """Returns a table and a figure of each measure; the first method's worst domain comes first."""
    blocks: list[Block] = []
    for measure in metrics_first(comparison.measures):
        ordered = worst_first(domain_series(comparison, measure.name), measure.higher_is_better)
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
    figures = client_figures(comparison)
    for measure in metrics_first(comparison.measures):
        blocks += _client_table(comparison, measure)
        if measure.name in figures:
            about = (
                f"{measure.name} in all trials of each method: the share of the clients with a "
                "value up to that, and the mean of the clients by their number of examples, with "
                "one standard deviation over the trials"
            )
            blocks.append(Figure(about, figures[measure.name]))
    return blocks


def notes(comparison: Comparison) -> list[str]:
    """Returns lines about the making of methods, excluded domains and privacy."""
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


def _verdict_figures(record: ComparisonRecord) -> list[Block]:
    comparison, baseline = record.comparison, baseline_row(record.algorithms)
    measure = comparison.main_measure
    rows = [row for row in comparison.trials if row != baseline]
    return [gain_figure(comparison, row, baseline, measure) for row in rows[:_MAX_FIGURES]]


def gain_figure(comparison: Comparison, row: str, other: str, measure: Measure) -> Figure:
    """Returns the figure of what a method gains over another one in each domain."""
    of_domains = gains(comparison, row, other, measure)
    return Figure(
        f"{measure.name} of {comparison.label(other)} and of {comparison.label(row)} in each "
        "domain, and the gain; error bars are 95% intervals, and those of gains hold for all "
        "domains together. Without an error bar there is no interval",
        functools.partial(verdict_figure, comparison, row, other, measure, of_domains),
    )


def _of_methods(
    record: ComparisonRecord, lines_of: Callable[[RunRecord], Sequence[str]]
) -> list[str]:
    """Returns the first warnings about the trials of each method."""
    lines: list[str] = []
    for row, runs in record.runs.items():
        label = record.comparison.label(row)
        of_row = [
            f"{label}, trial {k + 1} (seed {run.result['seed']}): {line}"
            for k, run in enumerate(runs)
            for line in lines_of(run)
        ]
        lines += of_row[:_MAX_WARNINGS]
        if len(of_row) > _MAX_WARNINGS:
            lines.append(f"{label}: {len(of_row) - _MAX_WARNINGS} more of the kind.")
    return lines


def _caveats(record: ComparisonRecord) -> list[str]:
    remarks = record.comparison.remarks.items()
    lines = [f"{record.comparison.label(row)}: {remark}." for row, remark in remarks]
    lines += [*data_caveats(record.first), *_of_methods(record, training_caveats)]
    if max(map(len, record.runs.values())) == 1:
        lines.append(
            "There is a single trial of each method: how much another seed would change is not "
            "known."
        )
    return lines


def _methods(record: ComparisonRecord) -> list[Block]:
    """Returns the methods with the settings in which they differ, and links to their runs."""
    settings, different, _ = _settings(record)
    rows: list[Sequence[Cell]] = []
    links: list[list[Cell]] = []
    for row, runs in record.runs.items():
        label, paper = record.comparison.label(row), runs[0].about("algorithm", "paper")
        algorithm = str(runs[0].result["algorithm"]) + (f" ({paper})" if paper else "")
        rows.append([label, algorithm, _flags(settings[row], different) or "-"])
        seeds = [Link(f"seed {run.result['seed']}", f"{run.where}{REPORT}") for run in runs]
        links.append([label, *seeds])
    headings = ["", "algorithm", "settings that differ"]
    trials = [f"trial {k + 1}" for k in range(max(map(len, links)) - 1)]
    pages = [[*row, *[""] * (len(trials) + 1 - len(row))] for row in links]
    return [
        Table("Every method trains on the same data", headings, rows),
        Table("Pages of the trials", ["", *trials], pages),
    ]


def _shared_settings(record: ComparisonRecord) -> list[Block]:
    settings, _, shared = _settings(record)
    lines = []
    for having, flags in shared.items():
        labels = names([record.comparison.label(row) for row in having], len(having))
        who = "All methods have"
        if len(having) < len(record.runs):
            who = f"{labels} alone {agreeing(len(having), 'has', 'have')}"
        lines.append(f"{who} {_flags(settings[having[0]], flags)}.")
    return text(lines)


def _settings(
    record: ComparisonRecord,
) -> tuple[dict[str, dict[str, Any]], list[str], dict[tuple[str, ...], list[str]]]:
    """Returns the settings of each method, those that differ, and equal ones by their methods."""
    settings = {row: dict(runs[0].config) for row, runs in record.runs.items()}
    elsewhere = ("algorithm", "seed", *NOT_FLAGS)
    flags = dict.fromkeys(n for of in settings.values() for n in of if n not in elsewhere)
    shared: dict[tuple[str, ...], list[str]] = {}
    different = []
    for flag in flags:
        having = tuple(row for row, of in settings.items() if flag in of)
        if any(settings[row][flag] != settings[having[0]][flag] for row in having):
            different.append(flag)
        else:
            shared.setdefault(having, []).append(flag)
    return settings, different, shared


def _flags(settings: Mapping[str, Any], flags: Sequence[str]) -> str:
    given = [flag for flag in flags if flag in settings]
    return ", ".join(f"--{flag}={setting_value(settings[flag])}" for flag in given)


def _weights(record: ComparisonRecord) -> list[Block]:
    quantities = {row: weight_quantity(runs[0]) for row, runs in record.runs.items()}
    # FedAvg's weights are the data's, and say nothing about a method.
    of_data = {
        quantity.name
        for row, quantity in quantities.items()
        if quantity is not None and record.runs[row][0].result["algorithm"] == BASELINE
    }
    blocks: list[Block] = []
    for row, runs in record.runs.items():
        quantity = quantities[row]
        if quantity is None or quantity.name in of_data or not quantity.is_drawn:
            continue
        if len(blocks) < 2 * _MAX_CURVES:
            blocks += text([f"{record.comparison.label(row)}, first trial:"])
            blocks.append(course_figure(runs[0], quantity))
    return blocks


def _server(record: ComparisonRecord) -> list[Block]:
    """Returns what reached the server, once for all methods with equal facts."""
    shared: dict[str, tuple[list[str], Sequence[Block]]] = {}
    for row, runs in record.runs.items():
        blocks = server_blocks(runs[0])
        labels, _ = shared.setdefault(repr(blocks), ([], blocks))
        labels.append(record.comparison.label(row))
    content: list[Block] = []
    for labels, facts in shared.values():
        content += text([f"{', '.join(labels)}:"]) if len(shared) > 1 else []
        content += facts
    return content


def majority(examples: Mapping[str, int]) -> Sequence[str]:
    """Returns the smallest set of domains with more than half of the examples.

    Args:
        examples: Examples of each domain.
    """
    total, reached, members = sum(examples.values()), 0, []
    for name in sorted(examples, key=lambda n: -examples[n]):
        if 2 * reached > total or not examples[name]:
            break
        members.append(name)
        reached += examples[name]
    return members


def price(record: ComparisonRecord) -> list[Block]:
    """Returns the gains over FedAvg, or over the first method; nothing of a single method."""
    comparison = record.comparison
    if len(comparison.trials) < 2:
        return []
    baseline = baseline_row(record.algorithms)
    domains: Any = record.first.about("data", "train", "domains") or {}
    members = majority({name: domain["examples"] for name, domain in domains.items()})
    split = split_name(comparison.split)
    over = f"other seeds; they do not cover other {split} clients"
    if all(trials.resampled for trials in comparison.trials.values()):
        over = f"other {split} clients and other seeds"
    lines = [
        f"Gain of each method over {comparison.label(baseline)}: negative numbers are the price. "
        f"In brackets are 95% confidence intervals over {over}, each by itself, of differences "
        "between trials of the same seed."
    ]
    if members:
        lines.append(
            f"The majority: {names(members, _MAX_MAJORITY)}, the smallest set of domains with more "
            "than half of the training examples."
        )
    tables = [_price_table(comparison, m, baseline, members) for m in comparison.measures.values()]
    return [Sentences(lines), *tables]


def _price_table(
    comparison: Comparison, measure: Measure, baseline: str, members: Sequence[str]
) -> Table:
    rows: list[Sequence[Cell]] = []
    for row in comparison.trials:
        if row == baseline:
            continue
        all_gains = gains(comparison, row, baseline, measure)
        of_domains = {name: all_gains[name] for name in comparison.domain_names}
        lost = [name for name, gain in of_domains.items() if gain.mean < 0]
        paying = min(lost, key=lambda name: of_domains[name].mean, default=None)
        of_majority = min((of_domains[d] for d in members), key=lambda g: g.mean, default=None)
        rows.append(
            [
                comparison.label(row),
                gain_number(all_gains[WORST], measure),
                "-" if of_majority is None else gain_number(of_majority, measure),
                gain_number(all_gains[OVERALL], measure),
                f"{len(lost)} of {len(of_domains)}",
                paying or "-",
                "-" if paying is None else gain_number(of_domains[paying], measure),
            ]
        )
    headings = [
        *("", "worst domain"),
        "majority (its worst off)" if len(members) > 1 else "majority",
        *("all examples", "domains that lose", "largest loss of", "its gain"),
    ]
    return Table(f"Gain in {with_percent(measure.name, measure.unit)}", headings, rows)


def gain_number(gain: Gain, measure: Measure) -> Number:
    """Returns a gain with its interval as a number of a table."""
    value = None if math.isnan(gain.mean) else gain.mean
    return Number(value, measure.unit, interval=gain.interval(), is_difference=True)


# --- Figures


def figure(comparison: Comparison, measure: str) -> matplotlib.figure.Figure:
    """Returns the worst domain's measure over rounds, and below it every domain's at the end.

    Error bars and bands are one standard deviation over the trials.
    """
    labels = _labels(comparison)
    below = domains_height(len(comparison.domain_names), len(labels))
    result = new_figure(WIDTH, 3.2 + below + LEGEND_ROW * len(labels))
    curves, ends = result.subplots(2, 1, height_ratios=(3.2, below))
    measured = comparison.measures[measure]
    course = Column(tested_worst(measured, comparison.split))
    for i, (label, trials) in enumerate(zip(labels, comparison.trials.values())):
        rounds = trials.histories[0][ROUND]
        by_trial = np.array([history[course.name] for history in trials.histories])
        plot_spread(curves, rounds, by_trial, i, label)
    title = f"{measure} on the {split_name(comparison.split)} clients"
    label_course(curves, title)
    curves.set_title("Worst domain")
    scale_axis(curves, measured.unit, whole=1.0)
    percent_axis(curves, measured.unit)
    draw_grid(curves)
    series = domain_series(comparison, measure)
    ends.set_title("Every domain after the last round")
    higher = measured.higher_is_better
    draw_domains(ends, series, title, measured.unit, higher, comparison.not_counted)
    legend_above(result, curves, ncols=1)
    return result


def domain_series(comparison: Comparison, measure: str) -> list[Series]:
    """Returns the mean of each method in every domain, with one standard deviation over trials."""
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
    """Returns the drawing of the clients by measure, for measures with reported client values."""
    figures: dict[str, Callable[[], matplotlib.figure.Figure]] = {}
    for name, measure in comparison.measures.items():
        rows = {
            comparison.label(row): trials.client_values[name]
            for row, trials in comparison.trials.items()
            if trials.client_values.get(name)
        }
        if rows:
            split = split_name(comparison.split)
            figures[name] = functools.partial(client_figure, name, measure.unit, rows, split)
    return figures


def _labels(comparison: Comparison) -> list[str]:
    return short_names([comparison.label(row) for row in comparison.trials], _LABEL_WIDTH)


def _estimate(mean: float, std: float) -> Estimate:
    return Estimate(mean, mean - std, mean + std)
