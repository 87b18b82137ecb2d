"""The Markdown page of an experiment: our numbers next to the paper's."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from tabulate import tabulate

from tff_agnostic.base.errors import counted
from tff_agnostic.base.later import matplotlib
from tff_agnostic.metrics.columns import tested
from tff_agnostic.metrics.formatting import UNDEFINED, sentence, shown, with_percent
from tff_agnostic.metrics.metrics_file import ROUND, Column
from tff_agnostic.models.model import Measure
from tff_agnostic.program.experiments.experiment import (
    SUMMARY_HEADINGS,
    AnyColumn,
    Experiment,
    OverClients,
)
from tff_agnostic.program.reports.figures import (
    draw_grid,
    label_course,
    new_figure,
    percent_axis,
    plain_text,
    plot_spread,
    scale_axis,
)
from tff_agnostic.program.runs.spec import RunSpec
from tff_agnostic.program.studies.comparison import OVERALL, Comparison, Trials, mean_of, std_of
from tff_agnostic.program.studies.comparison_report import notes

REMARKS_HEADING = "## What agrees and what does not"
_NO_REMARKS = "Nobody has written about these numbers yet."
# Settings of a run that change what it costs to look at, not its numbers.
_NOT_NUMBERS = (
    *("seed", "evaluate_every", "evaluation_clients", "client_percentiles", "checkpoint_every"),
    "runtime",
    # Where they lie; the page says what they are.
    "base_predictors",
)


@dataclasses.dataclass(frozen=True)
class Record:
    """How an experiment was run.

    Attributes:
        command: The command, without paths of this machine.
        data: One line a split about the data.
        trials: Trials of each arm.
        scale: What the task's number of rounds was multiplied by.
        seconds: Time that training and evaluation took, all arms and trials together.
        date: The day.
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
    experiment: Experiment,
    comparison: Comparison,
    record: Record,
    differences: Sequence[str],
    image: str,
    remarks: Optional[str],
) -> str:
    """Returns the page.

    Args:
        differences: What `settings_that_differ` returned.
        image: The figure, relative to the page.
        remarks: See `written_remarks`.
    """
    minutes = record.seconds / 60
    cores, trials = counted(record.cores, "processor core"), counted(record.trials, "trial")
    facts = [
        f"- {trials}, each with its own seed; {record.date.isoformat()}; training and evaluation "
        f"took {minutes:.0f} minutes on {cores}.",
        *(f"- {line}" for line in record.data),
    ]
    if experiment.task_options:
        options = ", ".join(f"`{name}` {value}" for name, value in experiment.task_options.items())
        facts.append(f"- Of the task `{experiment.task}`: {options}.")
    if experiment.base_predictors is not None:
        facts.append(f"- Base predictors: {experiment.base_predictors.about}.")
    if record.scale != 1:
        facts.append(f"- Shortened: {record.scale:g} times the task's rounds.")
    facts += [f"- {line}" for line in differences]
    facts += [f"- {sentence(line)}" for line in notes(comparison)]
    parts = [
        f"# {experiment.title}",
        f"This page has our numbers next to the paper's ({experiment.paper.source}). Below the "
        "tables it says what agrees and what does not.",
        f"```sh\n{record.command}\n```",
        "\n".join(facts),
    ]
    for measure in experiment.measures:
        measured = comparison.measures[measure]
        parts.append(f"## {with_percent(measure, measured.unit)} ({measured.better} is better)")
        parts.append(table(experiment, comparison, measure, "github"))
    parts += [
        f"Ours: mean (standard deviation) of {trials}. Paper: {experiment.paper.source}.",
        f"![{experiment.curve} of the harder domain over rounds]({image})",
        f"*{experiment.curve} of {harder_domain(experiment, comparison)} on {comparison.split} "
        "clients: those that evaluations between rounds use, and all of them after the last "
        "round. Mean and standard deviation over the trials.*",
        *remarks_parts(remarks),
    ]
    return "\n\n".join(parts) + "\n"


def table(experiment: Experiment, comparison: Comparison, measure: str, table_format: str) -> str:
    """Returns one measure as a table: a row per arm, for each column ours and the paper's.

    Args:
        table_format: A format of tabulate.
    """
    rows = []
    columns = _columns(experiment, comparison)
    for name, arm in experiment.arms.items():
        row = [arm.label]
        for column in columns:
            printed = experiment.paper.cell(measure, name, column)
            ours = _ours(comparison.trials[name], column, comparison.measures[measure])
            row += [ours, printed or UNDEFINED]
        rows.append(row)
    headers = [""]
    for column in columns:
        headers += [_heading(column), "paper"]
    return tabulate(rows, headers=headers, tablefmt=table_format, disable_numparse=True)


def curve(experiment: Experiment, comparison: Comparison) -> matplotlib.figure.Figure:
    """Returns the measure of the harder domain over the rounds, as figure 1 of Ro et al. 2021."""
    result = new_figure(7, 4.5)
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
    scale_axis(axes, unit)
    percent_axis(axes, unit)
    draw_grid(axes)
    result.legend(loc="outside upper center", ncols=2, fontsize="small")
    return result


def harder_domain(experiment: Experiment, comparison: Comparison) -> str:
    """Returns the domain whose course is drawn: by default the worst one of FedAvg."""
    if experiment.harder_domain is not None:
        return experiment.harder_domain
    fed_avg = comparison.trials.get("fed_avg") or next(iter(comparison.trials.values()))
    measure = experiment.measures[0]
    pick = min if comparison.measures[measure].higher_is_better else max
    return pick(comparison.domain_names, key=lambda domain: fed_avg.mean(domain, measure))


def settings_that_differ(
    specs: Mapping[str, RunSpec], paper: Mapping[str, RunSpec], labels: Mapping[str, str]
) -> list[str]:
    """Returns a line for each setting in which the runs differ from the paper's.

    Args:
        specs: A run of each arm.
        paper: The run that each arm would be without the user's flags.
        labels: What the arms are called.
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
        lines.append(f"`{name}` is {value}{whose}; the task's default is {before}.")
    return lines


def remarks_parts(remarks: Optional[str]) -> tuple[str, str]:
    """Returns the end of a page: what somebody wrote about its numbers; see `written_remarks`."""
    return REMARKS_HEADING, remarks or _NO_REMARKS


def written_remarks(path: Path) -> Optional[str]:
    """Returns what somebody wrote at the end of a page that exists; None if nobody did."""
    if not path.exists():
        return None
    text = path.read_text(encoding="utf-8").partition(REMARKS_HEADING)[2].strip()
    return text if text and text != _NO_REMARKS else None


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


def _ours(trials: Trials, column: AnyColumn, measure: Measure) -> str:
    if isinstance(column, OverClients):
        values = trials.over_clients.get(column.statistic)
    else:
        values = trials.values.get(column)
    if values is None:
        return UNDEFINED
    mean, std = mean_of(values[measure.name]), std_of(values[measure.name])
    if math.isnan(mean):
        return UNDEFINED
    spread = "" if math.isnan(std) else f" ({shown(std, measure.unit):.1f})"
    return f"{shown(mean, measure.unit):.1f}{spread}"


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
