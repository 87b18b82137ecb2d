"""The page of an experiment: the numbers of its methods next to a paper's."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_agnostic.base.errors import counted
from tff_agnostic.base.later import matplotlib
from tff_agnostic.metrics.columns import tested
from tff_agnostic.metrics.formatting import UNDEFINED, sentence, with_percent
from tff_agnostic.metrics.metrics_file import ROUND, Column
from tff_agnostic.models.model import Measure
from tff_agnostic.program.experiments.experiment import (
    SUMMARY_HEADINGS,
    AnyColumn,
    Experiment,
    OverClients,
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
from tff_agnostic.program.reports.figures import (
    LEGEND_ROW,
    WIDTH,
    draw_grid,
    label_course,
    new_figure,
    percent_axis,
    plain_text,
    plot_spread,
    scale_axis,
)
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.comparison import OVERALL, Comparison, Trials
from tff_agnostic.program.studies.comparison_page import mean_and_spread, notes

# Settings that do not change the numbers after the last round.
_NOT_NUMBERS = (
    *("seed", "evaluate_every", "evaluation_clients", "client_percentiles", "checkpoint_every"),
    "runtime",
    # Paths of predictors that the page describes.
    "base_predictors",
)
# Digits of a table next to a paper's: accuracies have one in percent.
_DECIMALS = 3


@dataclasses.dataclass(frozen=True)
class Record:
    """The execution of an experiment.

    Attributes:
        command: The command, without paths of this machine.
        data: A line about the data of each split.
        trials: Trials of each method.
        scale: Factor of the task's number of rounds.
        seconds: Seconds of training and evaluation, all trials together.
        date: Day of the execution.
        cores: Processor cores that the command could use.
    """

    command: str
    data: Sequence[str]
    trials: int
    scale: float
    seconds: float
    date: datetime.date
    cores: int


def page(
    experiment: Experiment, comparison: Comparison, record: Record, differences: Sequence[str]
) -> Page:
    """Returns the page, which a terminal shows in part.

    Args:
        differences: See `settings_that_differ`.
    """
    cores, trials = counted(record.cores, "processor core"), counted(record.trials, "trial")
    facts = [
        f"{trials}, each with its own seed; {record.date.isoformat()}; training and evaluation "
        f"took {record.seconds / 60:.0f} minutes on {cores}.",
        *record.data,
    ]
    if experiment.task_options:
        options = ", ".join(f"{name} {value}" for name, value in experiment.task_options.items())
        facts.append(f"Options of the task {experiment.task}: {options}.")
    if experiment.base_predictors is not None:
        facts.append(f"Base predictors: {experiment.base_predictors.about}.")
    if record.scale != 1:
        facts.append(f"Shortened: {record.scale:g} times the task's rounds.")
    facts += [*differences, *map(sentence, notes(comparison))]
    tables: list[Block] = [table(experiment, comparison, m) for m in experiment.measures]
    domain = harder_domain(experiment, comparison)
    about = (
        f"{experiment.curve} of {domain} on {split_name(comparison.split)} clients: those of "
        "evaluations between rounds, and all of them after the last round. Mean and standard "
        "deviation over the trials"
    )
    source = f"Ours: mean (standard deviation) of {trials}. Paper: {experiment.paper.source}."
    return Page(
        experiment.title,
        f"Our numbers next to the paper's ({experiment.paper.source}).",
        [
            Section("Results", [*tables, Sentences([source])], in_terminal=True),
            Section(
                "The course of training",
                [Figure(about, functools.partial(curve, experiment, comparison))],
            ),
            Section("How it was run", [Sentences([record.command], "command"), *text(facts)]),
        ],
    )


def table(experiment: Experiment, comparison: Comparison, name: str) -> Table:
    """Returns a measure of each method, with our number and the paper's in each column."""
    measure = comparison.measures[name]
    columns = _columns(experiment, comparison)
    rows: list[Sequence[Cell]] = []
    for arm, description in experiment.arms.items():
        row: list[Cell] = [description.label]
        for column in columns:
            row.append(_ours(comparison.trials[arm], column, measure))
            row.append(experiment.paper.cell(name, arm, column) or UNDEFINED)
        rows.append(row)
    headings = [""]
    for column in columns:
        headings += [_heading(column), "paper"]
    caption = f"{with_percent(name, measure.unit)} ({measure.better} is better)"
    return Table(caption, headings, rows)


def curve(experiment: Experiment, comparison: Comparison) -> matplotlib.figure.Figure:
    """Returns the measure of the harder domain over the rounds, as figure 1 of Ro et al. 2021."""
    result = new_figure(WIDTH, 3.6 + LEGEND_ROW * len(experiment.arms))
    axes = result.subplots()
    domain = harder_domain(experiment, comparison)
    course = Column(tested(comparison.measures[experiment.curve], comparison.split), domain)
    for i, (name, arm) in enumerate(experiment.arms.items()):
        histories = comparison.trials[name].histories
        rounds = histories[0][ROUND]
        by_trial = np.array([history[course.name] for history in histories])
        plot_spread(axes, rounds, by_trial, i, arm.label)
    label_course(axes, f"{experiment.curve} of {plain_text(domain)}")
    unit = comparison.measures[experiment.curve].unit
    scale_axis(axes, unit, whole=1.0)
    percent_axis(axes, unit)
    draw_grid(axes)
    result.legend(loc="outside upper center", fontsize="small")
    return result


def harder_domain(experiment: Experiment, comparison: Comparison) -> str:
    """Returns the domain of the curves: by default FedAvg's worst one."""
    if experiment.harder_domain is not None:
        return experiment.harder_domain
    fed_avg = comparison.trials.get("fed_avg") or next(iter(comparison.trials.values()))
    measure = experiment.measures[0]
    pick = min if comparison.measures[measure].higher_is_better else max
    return pick(comparison.domain_names, key=lambda domain: fed_avg.mean(domain, measure))


def settings_that_differ(
    specs: Mapping[str, RunSettings], paper: Mapping[str, RunSettings], labels: Mapping[str, str]
) -> list[str]:
    """Returns a line for each setting in which the runs differ from the paper's.

    Args:
        specs: A run of each method.
        paper: The run of each method without the user's flags.
        labels: Labels of the methods.
    """
    changes: dict[tuple[str, str, str], list[str]] = {}
    for arm, spec in specs.items():
        ours, theirs = spec.flags(), paper[arm].flags()
        for name, value in ours.items():
            skipped = name in _NOT_NUMBERS or name.startswith("data")
            if not skipped and value != theirs.get(name):
                changes.setdefault((name, _text(value), _text(theirs.get(name))), []).append(arm)
    lines = []
    for (name, value, before), arms in changes.items():
        whose = "" if len(arms) == len(specs) else f" for {', '.join(labels[a] for a in arms)}"
        lines.append(f"--{name} is {value}{whose}; the task's default is {before}.")
    return lines


def _columns(experiment: Experiment, comparison: Comparison) -> list[AnyColumn]:
    others = [c for c in experiment.columns if not _is_domain(c)]
    planned = [c for c in experiment.columns if _is_domain(c)]
    domains = planned + [d for d in comparison.domain_names if d not in planned]
    first = [c for c in others if c == OVERALL]
    return [*first, *domains, *(c for c in others if c != OVERALL)]


def _is_domain(column: AnyColumn) -> bool:
    return not isinstance(column, OverClients) and column not in SUMMARY_HEADINGS


def _heading(column: AnyColumn) -> str:
    if isinstance(column, OverClients):
        return column.heading
    return SUMMARY_HEADINGS.get(column, column)


def _ours(trials: Trials, column: AnyColumn, measure: Measure) -> Number:
    if isinstance(column, OverClients):
        values = trials.over_clients.get(column.statistic)
    else:
        values = trials.values.get(column)
    number = mean_and_spread(None if values is None else values[measure.name], measure)
    return dataclasses.replace(number, decimals=_DECIMALS)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
