"""What a search leaves: table, figures, importance, flag files."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState
from tabulate import tabulate

from tff_agnostic.base.later import matplotlib
from tff_agnostic.metrics.formatting import UNDEFINED, cell, csv_text, shown, with_percent
from tff_agnostic.program.commands.command_line import arm_text, with_algorithm_options
from tff_agnostic.program.options.defaults import DEFAULTS
from tff_agnostic.program.options.flags import flag_text
from tff_agnostic.program.reports.figures import draw_grid, new_figure, plain_text, scale_axis
from tff_agnostic.program.studies.methods import OF_ALL_ROWS
from tff_agnostic.program.studies.optuna_studies import ENDED, SECONDS
from tff_agnostic.program.studies.search import best
from tff_agnostic.program.studies.search_space import DECIMALS, Distribution, Objective
from tff_agnostic.program.studies.searched_method import SearchedArm

_MAX_COLUMNS = 2
_PANEL_INCHES = (4.2, 3.6)
_EARLY, _BEST = "0.6", "gold"
# Of the range of the complete trials, above and below them.
_MARGIN = 0.25
# Longer texts of choices are upright.
_MAX_TEXT = 8
# Of the trees of the analysis.
_SEED = 0
# With fewer there is nothing to analyse.
_MIN_TRIALS = 2


def slices(
    label: str,
    distributions: Mapping[str, Distribution],
    trials: Sequence[FrozenTrial],
    objective: Objective,
) -> matplotlib.figure.Figure:
    """Returns a panel for each setting: the objective of the trials against its values.

    Later trials are brighter, the best one is a star; one that ended early is a cross at the last
    value that it reported, or at the edge if it lies far from those that are complete.

    Args:
        label: What the algorithm is called.
        distributions: Where each setting was searched, by flag.
        trials: The finished trials.
    """
    columns = min(_MAX_COLUMNS, len(distributions))
    rows = -(-len(distributions) // columns)
    width, height = _PANEL_INCHES
    figure = new_figure(width * columns + 1, height * rows + 0.6)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    with_value = [t for t in trials if t.value is not None and np.isfinite(t.value)]
    edges = _edges(with_value)
    for axes, (name, of) in zip(panels, distributions.items()):
        dots = _draw(axes, name, of, with_value, objective, edges)
    for axes in panels[::columns]:
        axes.set_ylabel(with_percent(plain_text(objective.name), objective.unit))
    for axes in panels[len(distributions) :]:
        axes.set_visible(False)
    if dots.get_array().size:
        ticks = matplotlib.ticker.MaxNLocator(integer=True)
        figure.colorbar(dots, ax=list(panels), label="trial", ticks=ticks)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels) or 1)
    figure.suptitle(plain_text(label))
    return figure


def importance_figure(label: str, shares: Mapping[str, float]) -> matplotlib.figure.Figure:
    """Returns a bar for each setting: its share in the variance of the objective.

    Args:
        label: What the algorithm is called.
        shares: The shares by flag, the largest first.
    """
    figure = new_figure(7, 1.2 + 0.45 * len(shares))
    axes = figure.subplots()
    names = [plain_text(name) for name in shares]
    percent = [100 * share for share in shares.values()]
    bars = axes.barh(names, percent)
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.invert_yaxis()
    axes.set(xlabel="share of the objective's variance, %", title=plain_text(label))
    axes.set_xlim(0, 110)
    draw_grid(axes, "x")
    return figure


def _edges(trials: Sequence[FrozenTrial]) -> tuple[float, float]:
    """Returns between which values trials are drawn: a bit more than complete ones need."""
    values = [float(t.value or 0.0) for t in trials if t.state is TrialState.COMPLETE]
    if not values:
        return -math.inf, math.inf
    margin = _MARGIN * (max(values) - min(values) or abs(values[0]) or 1.0)
    return min(values) - margin, max(values) + margin


def _draw(
    axes: matplotlib.axes.Axes,
    name: str,
    of: Distribution,
    trials: Sequence[FrozenTrial],
    objective: Objective,
    edges: tuple[float, float],
) -> Any:
    complete = [t for t in trials if t.state is TrialState.COMPLETE]
    early = [t for t in trials if t.state is not TrialState.COMPLETE]
    choices = getattr(of, "choices", None)

    def place(some: Sequence[FrozenTrial]) -> tuple[np.ndarray, np.ndarray]:
        values = [t.params[name] for t in some]
        x = [choices.index(v) for v in values] if choices is not None else values
        y = [shown(float(np.clip(t.value or 0.0, *edges)), objective.unit) for t in some]
        return np.array(x, np.float64), np.array(y, np.float64)

    axes.scatter(*place(early), 30, color=_EARLY, marker="x", label="ended early", zorder=1)
    numbers = [t.number for t in complete]
    dots = axes.scatter(*place(complete), 35, c=numbers, edgecolor="black", linewidth=0.4, zorder=2)
    found = best(complete, objective)
    if found is not None:
        axes.scatter(
            *place([found]), 200, color=_BEST, edgecolor="black", marker="*", label="best", zorder=3
        )
    if choices is not None:
        is_long = max(map(len, choices)) > _MAX_TEXT
        axes.set_xticks(range(len(choices)), choices, rotation=90 if is_long else 0)
    elif getattr(of, "log", False):
        axes.set_xscale("log")
    axes.set_xlabel(plain_text(name))
    scale_axis(axes, objective.unit)
    draw_grid(axes)
    return dots


# The trials of each algorithm, by its name.
Trials = Mapping[str, Sequence[FrozenTrial]]


def to_csv(trials: Trials, objective: Objective) -> str:
    """Returns a line for each trial; what it does not have is empty. Lines end as RFC 4180 has it.

    Args:
        objective: What was searched for; its values are as they were measured, not in percent.
    """
    names = settings_of(trials)
    heads = ("algorithm", "trial", "state", "step", objective.name, SECONDS, *names, ENDED)
    lines = (
        [
            *(algorithm, trial.number, trial.state.name.lower()),
            "" if trial.last_step is None else trial.last_step,
            "" if trial.value is None else repr(trial.value),
            f"{trial.user_attrs.get(SECONDS, 0.0):.1f}",
            *(trial.params.get(name, "") for name in names),
            trial.user_attrs.get(ENDED, ""),
        ]
        for algorithm, of_it in trials.items()
        for trial in of_it
    )
    return csv_text([heads, *lines], "\r\n")


def table(name: str, trials: Sequence[FrozenTrial], objective: Objective) -> str:
    """Returns a table of one algorithm's trials; see `rows_of`."""
    headings, rows = rows_of(name, trials, objective)
    text: str = tabulate(rows, headers=headings, disable_numparse=True, stralign="right")
    return text


def rows_of(
    name: str, trials: Sequence[FrozenTrial], objective: Objective
) -> tuple[list[str], list[list[str]]]:
    """Returns headings and a row for each trial of an algorithm, the best complete one marked.

    Args:
        name: What the algorithm is called.
        objective: What was searched for; shares are in percent.
    """
    settings = settings_of({name: trials})
    found = best(trials, objective)
    rows = []
    for trial in trials:
        is_best = found is not None and trial.number == found.number
        value = UNDEFINED if trial.value is None else cell(trial.value, objective.unit, DECIMALS)
        cells = [trial.params.get(setting, UNDEFINED) for setting in settings]
        rows.append(
            [
                f"{trial.number}{' (best)' if is_best else ''}",
                *(f"{c:.4g}" if isinstance(c, float) else str(c) for c in cells),
                value,
                trial.state.name.lower(),
                UNDEFINED if trial.last_step is None else str(trial.last_step),
                f"{trial.user_attrs.get(SECONDS, 0.0):.1f}",
            ]
        )
    headings = ["trial", *settings, with_percent(objective.name, objective.unit)]
    return [*headings, "state", "round", SECONDS], rows


def settings_of(trials: Trials) -> list[str]:
    """Returns the settings that were searched of any algorithm."""
    return list(
        dict.fromkeys(name for of_it in trials.values() for t in of_it for name in t.params)
    )


def importances(study: optuna.Study) -> Optional[Mapping[str, float]]:
    """Returns the share of each setting in the variance of the objective, the largest first.

    By functional analysis of variance over the complete trials (Hutter, Hoos, Leyton-Brown 2014).
    None where it has nothing to go by: fewer than two complete trials, or no differences.
    """
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < _MIN_TRIALS or len({trial.value for trial in complete}) < _MIN_TRIALS:
        return None
    # It loads scikit-learn.
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=_SEED))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


# The settings of each algorithm by flag, by its name.
Settings = Mapping[str, Mapping[str, Any]]


def flags_of_one(arm: SearchedArm, settings: Mapping[str, Any], remark: str) -> str:
    """Returns the flags of one algorithm with its best settings, for `train` and `compare`.

    Args:
        settings: Its settings; see `SearchedArm.settings`.
        remark: A line that says what they are.
    """
    if arm.has_two_stages:
        # A run has one stage, a row may have two.
        of_all = {*DEFAULTS[arm.task].spec.option_names, *OF_ALL_ROWS, *arm.shared}
        common = {flag: value for flag, value in settings.items() if flag in of_all}
        return _file(remark, {**_of_task(arm), **common, "arms": _row(arm, settings, of_all)})
    # Each of the two commands has one of these flags, and is told to overlook the other.
    which = {"undefok": "algorithm,algorithms", "algorithm": arm.file_or_name}
    which["algorithms"] = arm.file_or_name
    return _file(remark, {**_of_task(arm), **which, **settings})


def flags_of_all(arms: Mapping[str, SearchedArm], settings: Settings, remark: str) -> Optional[str]:
    """Returns the flags of a comparison, each algorithm with its own best settings.

    None where they have different options of the task, which rows of a comparison share.

    Args:
        arms: The algorithms, by their names.
        remark: A line that says what they are.
    """
    first = next(iter(arms.values()))
    own_of_any = {f for arm in arms.values() for f in (*arm.given, *arm.dimensions)}
    shared = set(first.shared) - own_of_any
    of_all = {*DEFAULTS[first.task].spec.option_names, *OF_ALL_ROWS, *shared}
    common: dict[str, Any] = {}
    for of in settings.values():
        for flag, value in of.items():
            if flag in of_all and common.setdefault(flag, value) != value:
                return None
    rows = [_row(arm, settings[name], of_all) for name, arm in arms.items()]
    return _file(remark, {**_of_task(first), **common, "arms": ";".join(rows)})


def _row(arm: SearchedArm, settings: Mapping[str, Any], of_all: Collection[str]) -> str:
    """Returns what --arms has of an algorithm: what its settings are, but for those of all rows."""
    own = {flag: value for flag, value in settings.items() if flag not in of_all}
    return arm_text(arm.name, arm.file_or_name, own)


def _of_task(arm: SearchedArm) -> dict[str, Any]:
    paths = {"data_dir": arm.data_dir, "data": arm.data}
    # Whoever uses the file may be in another folder.
    given = {name: str(path.resolve()) for name, path in paths.items() if path is not None}
    return {"task": arm.task, **given}


def _file(remark: str, flags: Mapping[str, Any]) -> str:
    given = {flag: flag_text(value) for flag, value in flags.items() if value is not None}
    lines = [f"--{flag}={text}" for flag, text in with_algorithm_options(given).items()]
    return "\n".join([f"# {remark}", *lines, ""])
