"""What a search leaves: table, figures, importance, flag files."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np
import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState
from tabulate import tabulate

from tff_agnostic.algorithms.user_algorithm import algorithm_label
from tff_agnostic.errors import UserError
from tff_agnostic.files import folder_lock, make_folder, write_errors, write_json, write_text
from tff_agnostic.later import matplotlib
from tff_agnostic.metrics.formatting import UNDEFINED, cell, csv_text, shown, with_percent
from tff_agnostic.models.model import measures_of
from tff_agnostic.reports.figures import draw_grid, new_figure, plain_text, save, scale_axis
from tff_agnostic.run.folder import RunFolder
from tff_agnostic.settings import flag_text
from tff_agnostic.studies.arms import BASELINE, OF_ALL_ROWS
from tff_agnostic.studies.comparison import Comparison, collect
from tff_agnostic.studies.harmed import harmed
from tff_agnostic.studies.optuna_studies import ENDED, FINISHED, SAME_AS, SECONDS, trial_folder
from tff_agnostic.studies.search import Search, best
from tff_agnostic.studies.search_space import DECIMALS, Dimension, Objective
from tff_agnostic.studies.searched_method import SearchedArm
from tff_agnostic.tasks.registry import option_flags

_MAX_COLUMNS = 3
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
BEST_FLAGS, COMPARE_FLAGS = "best.flags", "compare.flags"
TRIALS_CSV, RESULT = "trials.csv", "tuned.json"


def slices(
    label: str,
    dimensions: Mapping[str, Dimension],
    trials: Sequence[FrozenTrial],
    objective: Objective,
) -> matplotlib.figure.Figure:
    """Returns a panel for each setting: the objective of the trials against its values.

    Later trials are brighter, the best one is a star; one that ended early is a cross at the last
    value that it reported, or at the edge if it lies far from those that are complete.

    Args:
        label: What the algorithm is called.
        dimensions: What was searched, by flag.
        trials: The finished trials.
        objective: What was searched for.
    """
    columns = min(_MAX_COLUMNS, len(dimensions))
    rows = -(-len(dimensions) // columns)
    width, height = _PANEL_INCHES
    figure = new_figure(width * columns + 1, height * rows + 0.6)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    with_value = [t for t in trials if t.value is not None and np.isfinite(t.value)]
    edges = _edges(with_value)
    for axes, (name, of) in zip(panels, dimensions.items()):
        dots = _draw(axes, name, of, with_value, objective, edges)
    for axes in panels[::columns]:
        axes.set_ylabel(with_percent(plain_text(objective.name), objective.unit))
    for axes in panels[len(dimensions) :]:
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
    of: Dimension,
    trials: Sequence[FrozenTrial],
    objective: Objective,
    edges: tuple[float, float],
) -> Any:
    complete = [t for t in trials if t.state is TrialState.COMPLETE]
    early = [t for t in trials if t.state is not TrialState.COMPLETE]
    choices = getattr(of.distribution, "choices", None)

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
    elif of.is_log:
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
    names = _settings(trials)
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
    """Returns a table of one algorithm's trials, the best complete one marked.

    Args:
        name: What the algorithm is called.
        objective: What was searched for; shares are in percent.
    """
    settings = _settings({name: trials})
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
                UNDEFINED if trial.last_step is None else trial.last_step,
                f"{trial.user_attrs.get(SECONDS, 0.0):.1f}",
            ]
        )
    headers = ["trial", *settings, with_percent(objective.name, objective.unit)]
    headers += ["state", "round", SECONDS]
    text: str = tabulate(rows, headers=headers, disable_numparse=True, stralign="right")
    return text


def _settings(trials: Trials) -> list[str]:
    return list(
        dict.fromkeys(name for of_it in trials.values() for t in of_it for name in t.params)
    )


def importances(study: optuna.Study) -> Optional[Mapping[str, float]]:
    """Returns the share of each setting in the variance of the objective, the largest first.

    By functional analysis of variance over the complete trials (Hutter, Hoos, Leyton-Brown 2014).
    None where it has nothing to go by: fewer than two complete trials, or no differences.

    Args:
        study: The study of an algorithm.
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
        arm: The algorithm.
        settings: Its settings; see `SearchedArm.settings`.
        remark: A line that says what they are.
    """
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
    of_all = {*option_flags(first.task), *OF_ALL_ROWS, *shared}
    common: dict[str, Any] = {}
    for of in settings.values():
        for flag, value in of.items():
            if flag in of_all and common.setdefault(flag, value) != value:
                return None
    rows = []
    for name, arm in arms.items():
        label = "" if name == algorithm_label(arm.file_or_name) else f"{name}="
        own = [f"{f}={flag_text(v)}" for f, v in settings[name].items() if f not in of_all]
        rows.append(f"{label}{arm.file_or_name}{':' * bool(own)}{','.join(own)}")
    return _file(remark, {**_of_task(first), **common, "arms": ";".join(rows)})


def _of_task(arm: SearchedArm) -> dict[str, Any]:
    paths = {"data_dir": arm.data_dir, "data": arm.data}
    # Whoever uses the file may be in another folder.
    given = {name: str(path.resolve()) for name, path in paths.items() if path is not None}
    return {"task": arm.task, **given}


def _file(remark: str, flags: Mapping[str, Any]) -> str:
    lines = [f"--{flag}={flag_text(value)}" for flag, value in flags.items() if value is not None]
    return "\n".join([f"# {remark}", *lines, ""])


def report(search: Search, split: str, command: str) -> None:
    """Prints the trials and the best of them, and writes all that a search leaves.

    Args:
        search: The search, ended; other processes may still run trials of it.
        split: Whose clients were evaluated.
        command: What made it.
    """
    # What one process writes is of the same trials, and not replaced by what another saw before.
    with folder_lock(search.folder, wait=True):
        _report(search, split, command)


def _report(search: Search, split: str, command: str) -> None:
    objective, path = search.runner.objective, search.folder
    trials = {name: search.studies.trials(name, FINISHED) for name in search.arms}
    shares = {name: importances(search.studies.study(name)) for name in search.arms}
    found = {name: best(of_it, objective) for name, of_it in trials.items()}
    write_text(path / TRIALS_CSV, to_csv(trials, objective))
    write_json(
        path / RESULT,
        {
            "command": command,
            "objective": objective.name,
            "higher_is_better": objective.higher_is_better,
            "split": split,
            "seeds": list(search.runner.seeds),
            "algorithms": {
                name: {
                    "trials": len(trials[name]),
                    "best": _to_json(found[name]),
                    "importance": shares[name],
                }
                for name in search.arms
            },
        },
    )
    _draw_report(search, trials, shares)
    for name, of_it in trials.items():
        print(f"\n{search.arms[name].label}: {objective.name} on the {split} clients")
        print(table(name, of_it, objective))
        if shares[name] is None:
            print("importance: not known without two complete trials of different values")
        else:
            print(f"importance: {_in_percent(shares[name] or {})}")
    for line in what_it_proves(len(search.runner.seeds), len(search.arms), split):
        print(f"\nnote: {line}")
    print(f"\ntrials: {path / TRIALS_CSV}, plots: {path / 'plots'}")
    elsewhere = search.num_elsewhere()
    if elsewhere:
        print(f"note: {elsewhere} trials have not ended: another process runs them, or did")
    complete = {n: t for n, t in found.items() if t is not None}
    for line in _harmed(search, complete, split):
        print(f"note: {line}")
    _write_flags(search, trials, complete, split)
    none = [name for name, trial in found.items() if trial is None]
    if none:
        raise UserError(
            f"{', '.join(none)}: expected a complete trial, found none: {path / TRIALS_CSV} says "
            "how they ended; search in other ranges, or go on with more --trials and --resume"
        )


def _harmed(search: Search, found: Mapping[str, FrozenTrial], split: str) -> list[str]:
    """Returns a line for each domain that the best trial of an algorithm gave up."""
    seeds, load_task = search.runner.seeds, search.runner.load_task
    specs = {name: search.arms[name].spec(trial.params, seeds[0]) for name, trial in found.items()}
    if not any(spec.config.algorithm == BASELINE for spec in specs.values()):
        return []
    rows = {}
    for name, trial in found.items():
        task = load_task(specs[name])
        measures = measures_of(task.model)
        number = int(trial.user_attrs.get(SAME_AS, trial.number))
        path = trial_folder(search.folder, name, number)
        folders = [RunFolder(path / f"seed_{seed}") for seed in seeds]
        if not all(folder.result.exists() for folder in folders):
            # Somebody took the runs away; the trials are in the studies.
            return []
        fewest = [specs[name].config.worst_min_examples] * len(seeds)
        rows[name] = collect(folders, task.domain_names, measures, fewest)
    labels = {name: search.arms[name].label for name in rows}
    return harmed(Comparison(task.domain_names, measures, rows, labels, split), specs)


def what_it_proves(num_seeds: int, num_algorithms: int, split: str) -> list[str]:
    """Returns lines that say what the best of several trials does not prove.

    Args:
        num_seeds: Runs of each trial.
        num_algorithms: How many were searched.
        split: Whose clients were evaluated.
    """
    lines = []
    if num_seeds == 1:
        lines.append(
            "each trial is one run of one seed (--repeats=1): how much of a difference between "
            "trials is chance is not known, and another seed may choose other settings; "
            "--repeats=3 tells more"
        )
    lines.append(
        f"the best of several trials looks better than it is, on the {split} clients that it was "
        "chosen on"
        + (
            ": which algorithm is better is for ./run compare to tell, with its best settings and "
            "new seeds"
            if num_algorithms > 1
            else ""
        )
    )
    return lines


def _draw_report(
    search: Search, trials: Trials, shares: Mapping[str, Optional[Mapping[str, float]]]
) -> None:
    folder = search.folder / "plots"
    make_folder(folder)
    for name, arm in search.arms.items():
        figure = slices(arm.label, arm.dimensions, trials[name], search.runner.objective)
        save(figure, folder / f"{name}_slices.png")
        of_it = shares[name]
        if of_it is not None:
            save(importance_figure(arm.label, of_it), folder / f"{name}_importance.png")


def _write_flags(
    search: Search, trials: Trials, found: Mapping[str, FrozenTrial], split: str
) -> None:
    objective, path = search.runner.objective, search.folder
    settings = {}
    for name, trial in found.items():
        arm = search.arms[name]
        settings[name] = arm.settings(trial.params, search.runner.seeds[0])
        which = (
            f"trial {trial.number}, the best of {len(trials[name])}: {objective.name} "
            f"{objective.text(float(trial.value or 0.0))} on the {split} clients"
        )
        file = path / name / BEST_FLAGS
        write_text(file, flags_of_one(arm, settings[name], f"{arm.label} on {arm.task}: {which}."))
        print(f"{name}: {which}: ./run train --flagfile={file}")
    # One of other trials is worse than none.
    with write_errors(path):
        (path / COMPARE_FLAGS).unlink(missing_ok=True)
    if len(search.arms) == 1 or len(found) < len(search.arms):
        return
    remark = f"The best of each by {objective.name} on the {split} clients."
    text = flags_of_all(search.arms, settings, remark)
    if text is None:
        print("note: rows of a comparison share the options of the task, and these have others")
    else:
        write_text(path / COMPARE_FLAGS, text)
        print(f"all of them: ./run compare --flagfile={path / COMPARE_FLAGS}")


def _to_json(trial: Optional[FrozenTrial]) -> Optional[dict[str, Any]]:
    if trial is None:
        return None
    return {"trial": trial.number, "value": trial.value, "settings": dict(trial.params)}


def _in_percent(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * share:.0f}%" for name, share in shares.items())
