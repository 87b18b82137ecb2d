"""The page of an experiment: our numbers next to the paper's."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from tff_agnostic.base.errors import counted
from tff_agnostic.base.later import matplotlib
from tff_agnostic.metrics.columns import tested
from tff_agnostic.metrics.formatting import UNDEFINED, sentence, with_percent
from tff_agnostic.metrics.metrics_file import Column
from tff_agnostic.models.model import Measure
from tff_agnostic.program.experiments.experiment import (
    OVER_CLIENTS,
    SUMMARY_HEADINGS,
    Experiment,
)
from tff_agnostic.program.reports.claims import split_name
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
)
from tff_agnostic.program.reports.figures import LEGEND_ROW, WIDTH, new_figure, plain_text
from tff_agnostic.program.runs.spec import RunSettings, resolve
from tff_agnostic.program.studies.comparison import OVERALL, Comparison, Trials
from tff_agnostic.program.studies.comparison_page import (
    draw_courses,
    last_sections,
    mean_and_spread,
    notes,
)

# Settings that the page does not list if they differ from the experiment's.
_NOT_NUMBERS = (
    *("seed", "evaluate_every", "evaluation_clients", "client_percentiles", "checkpoint_every"),
    "runtime",
    # The page describes base predictors instead of listing their paths.
    "base_predictors",
)
# Number of decimals of our numbers in tables with a paper's numbers; percentages have two fewer.
_DECIMALS = 3


def page(
    experiment: Experiment, comparison: Comparison, command: str, facts: Sequence[str]
) -> Page:
    """Returns the page of an experiment; a terminal shows only the section with the results.

    Args:
        facts: Lines about the execution.
    """
    lines = [*facts]
    if experiment.task_options:
        options = ", ".join(f"{name} {value}" for name, value in experiment.task_options.items())
        lines.append(f"Options of the task {experiment.task}: {options}.")
    if experiment.base_predictors is not None:
        lines.append(f"Base predictors: {experiment.base_predictors.about}.")
    lines += map(sentence, notes(comparison))
    tables: list[Block] = [table(experiment, comparison, m) for m in experiment.measures]
    domain = harder_domain(experiment, comparison)
    about = (
        f"{experiment.curve} of {domain} on {split_name(comparison.split)} clients: those of "
        "evaluations between rounds, and all of them after the last round. Mean and standard "
        "deviation over the trials"
    )
    trials = counted(comparison.num_trials, "trial")
    source = f"Ours: mean (standard deviation) of {trials}. Paper: {experiment.paper.source}."
    draw = functools.partial(curve, experiment, comparison)
    return Page(
        experiment.title,
        f"Our numbers next to the paper's ({experiment.paper.source}).",
        [
            Section("Results", [*tables, Sentences([source])], in_terminal=True),
            Section("The course of training", [Figure(about, draw)]),
            Section("How it was run", text(*lines)),
            *last_sections(comparison, [Sentences([command], "command")]),
        ],
    )


def table(experiment: Experiment, comparison: Comparison, name: str) -> Table:
    """Returns the table of a measure: a row per method, with our numbers and the paper's."""
    measure = comparison.measures[name]
    columns = _columns(experiment, comparison)
    rows: list[Sequence[Cell]] = []
    for arm, description in experiment.arms.items():
        row: list[Cell] = [description.label]
        for column in columns:
            row.append(_number(comparison.trials[arm], column, measure))
            row.append(experiment.paper.cell(name, arm, column) or UNDEFINED)
        rows.append(row)
    headings = [""]
    for column in columns:
        headings += [SUMMARY_HEADINGS.get(column, column), "paper"]
    caption = f"{with_percent(name, measure.unit)} ({measure.better} is better)"
    return Table(caption, headings, rows)


def curve(experiment: Experiment, comparison: Comparison) -> matplotlib.figure.Figure:
    """Returns the curves of the harder domain over the rounds, like figure 1 of Ro et al. 2021."""
    result = new_figure(WIDTH, 3.6 + LEGEND_ROW * len(experiment.arms))
    domain = harder_domain(experiment, comparison)
    course = Column(tested(comparison.measures[experiment.curve], comparison.split), domain)
    trials = ((arm.label, comparison.trials[name]) for name, arm in experiment.arms.items())
    title = f"{experiment.curve} of {plain_text(domain)}"
    draw_courses(result.subplots(), trials, course, title)
    result.legend(loc="outside upper center", fontsize="small")
    return result


def harder_domain(experiment: Experiment, comparison: Comparison) -> str:
    """Returns the domain of the curves: by default FedAvg's worst domain."""
    if experiment.harder_domain is not None:
        return experiment.harder_domain
    fed_avg = comparison.trials.get("fed_avg") or next(iter(comparison.trials.values()))
    measure = experiment.measures[0]
    pick = min if comparison.measures[measure].higher_is_better else max
    return pick(comparison.domain_names, key=lambda domain: fed_avg.mean(domain, measure))


def settings_that_differ(specs: Mapping[str, RunSettings], experiment: Experiment) -> list[str]:
    """Returns a line for each setting in which the runs differ from the experiment."""
    changes: dict[tuple[str, str, str], list[str]] = {}
    for row, arm in experiment.arms.items():
        usual = resolve(experiment.task, dict(arm.settings), experiment.task_options).flags()
        for name, value in specs[row].flags().items():
            skipped = name in _NOT_NUMBERS or name.startswith("data")
            if not skipped and value != usual.get(name):
                texts = _text(value), _text(usual.get(name))
                changes.setdefault((name, *texts), []).append(arm.label)
    lines = []
    for (name, value, before), labels in changes.items():
        scope = "" if len(labels) == len(specs) else f" for {', '.join(labels)}"
        lines.append(f"--{name} is {value}{scope}; the task's default is {before}.")
    return lines


def _columns(experiment: Experiment, comparison: Comparison) -> list[str]:
    """Returns the columns: all examples, then domains, then other summaries and statistics."""
    others = [c for c in experiment.columns if c in SUMMARY_HEADINGS or c.endswith(OVER_CLIENTS)]
    domains = [c for c in experiment.columns if c not in others]
    domains += [d for d in comparison.domain_names if d not in domains]
    first = [c for c in others if c == OVERALL]
    return [*first, *domains, *(c for c in others if c != OVERALL)]


def _number(trials: Trials, column: str, measure: Measure) -> Number:
    if column.endswith(OVER_CLIENTS):
        values = trials.over_clients.get(column.removesuffix(OVER_CLIENTS))
    else:
        values = trials.values.get(column)
    number = mean_and_spread(None if values is None else values[measure.name], measure)
    return dataclasses.replace(number, decimals=_DECIMALS)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
