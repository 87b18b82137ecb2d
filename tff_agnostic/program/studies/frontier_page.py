"""The figure and the page of a frontier, and the frontier read back from its folder."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import finite_or_none, read_json
from tff_agnostic.base.later import matplotlib
from tff_agnostic.metrics.formatting import sentence, short_names, shown, with_percent
from tff_agnostic.program.reports.claims import split_name
from tff_agnostic.program.reports.document import (
    Block,
    Cell,
    Figure,
    Page,
    Section,
    Table,
    text,
    warnings,
)
from tff_agnostic.program.reports.figures import (
    LEGEND_ROW,
    MUTED,
    REFERENCE,
    WIDTH,
    Look,
    draw_grid,
    look,
    new_figure,
    plain_text,
    plot_known,
    scale_axis,
)
from tff_agnostic.program.reports.html import write_page
from tff_agnostic.program.reports.run_page import (
    data_blocks,
    measure_facts,
    typed_blocks,
    versions_blocks,
)
from tff_agnostic.program.reports.run_record import RunRecord, read_run
from tff_agnostic.program.reports.run_warnings import data_caveats
from tff_agnostic.program.studies.comparison import DIFFERENCE, OVERALL, WORST, trial_folder
from tff_agnostic.program.studies.comparison_page import caption, marked, mean_and_spread, notes
from tff_agnostic.program.studies.comparison_record import read_rows
from tff_agnostic.program.studies.frontier import TRAINING_MIXTURE, Frontier, Mixture, TrialMean

FRONTIER = "frontier.json"
# Maximum number of panels; of more domains, the worst ones have one.
_MAX_PANELS = 12
_PANEL_COLUMNS = 2
# Thin curves of other domains in a panel.
_MAX_OTHERS = 20
_TRAINING = Look("black", "-", "s")
_BEST = Look("gold", "-", "*")
_OWN = look(3).color
_TITLE_WIDTH = 24
_RULE = (
    "A mixture helps if its worst domain is significantly better off than with the training "
    "mixture: the interval of the difference is above 0. Intervals are over other test clients, "
    "other seeds, or both, as far as the runs show how these vary. A method found the best mixture "
    "if it is better than the training mixture by the same rule, and not significantly worse than "
    "the best mixture. It missed the best mixture if it is significantly worse. The best mixture "
    "was chosen by the numbers shown: of several equal ones it is the luckiest."
)
# With more domains, a table has the worst one only.
_MAX_DOMAIN_COLUMNS = 5
_SUMMARIES = {OVERALL: "all examples", DIFFERENCE: "best - worst"}


def figure(frontier: Frontier) -> matplotlib.figure.Figure:
    """Returns the measure of all mixtures and methods.

    With two domains each is an axis, and the mixtures are a curve. With more there is a panel for
    each domain: the worst domain's measure and that domain's own on the way to it, with methods as
    horizontal lines.
    """
    if len(frontier.comparison.domain_names) == 2:
        return _plane(frontier)
    return _panels(frontier)


def _plane(frontier: Frontier) -> matplotlib.figure.Figure:
    first, second = names = frontier.comparison.domain_names
    result = new_figure(WIDTH, 5.2 + LEGEND_ROW * (2 + len(frontier.algorithms)))
    axes = result.subplots()
    ordered = sorted(frontier.mixtures, key=lambda mixture: mixture.weights[0])
    x, y = (_means(frontier, ordered, name) for name in names)
    known = np.isfinite(x) & np.isfinite(y)
    axes.plot(x[known], y[known], color=REFERENCE, linewidth=1, zorder=1)
    weights = np.array([mixture.weights[0] for mixture in ordered])
    dots = axes.scatter(
        x[known], y[known], 25, c=weights[known], vmin=0, vmax=1, label="fixed mixtures", zorder=2
    )
    result.colorbar(dots, label=f"weight of {plain_text(first)} in fixed mixtures")

    def mark(row: str, label: str, own: Look, size: int) -> None:
        trials = frontier.comparison.trials[row]
        at_x, at_y = (_mean(frontier, row, name) for name in names)
        if not (math.isfinite(at_x) and math.isfinite(at_y)):
            return
        stds = [_shown(frontier, trials.std(name, frontier.measure.name)) for name in names]
        x_spread, y_spread = np.nan_to_num(stds)
        style: dict[str, Any] = {"color": own.color, "alpha": 0.5, "capsize": 2, "zorder": 2}
        axes.errorbar(at_x, at_y, y_spread, x_spread, **style)
        text = plain_text(label)
        axes.scatter(
            *(at_x, at_y, size),
            color=own.color,
            edgecolor="black",
            marker=own.marker,
            label=text,
            zorder=3,
        )

    mark(frontier.best.name, _best_label(frontier), _BEST, 220)
    mark(frontier.training_mixture.name, "training mixture", _TRAINING, 45)
    for i, row in enumerate(frontier.algorithms):
        mark(row, frontier.comparison.label(row), look(i), 60)
    scale_axis(axes, frontier.measure.unit, "xy")
    low = max(axes.get_xlim()[0], axes.get_ylim()[0])
    high = min(axes.get_xlim()[1], axes.get_ylim()[1])
    if low < high:
        axes.plot([low, high], [low, high], ":", color="grey", zorder=0, label="equal")
    axes.set(xlabel=_axis_label(frontier, first), ylabel=_axis_label(frontier, second))
    draw_grid(axes)
    handles, labels = axes.get_legend_handles_labels()
    result.legend(handles, labels, loc="outside upper center", fontsize="small")
    return result


def _panels(frontier: Frontier) -> matplotlib.figure.Figure:
    domains = _drawn_domains(frontier)
    num_columns = min(_PANEL_COLUMNS, len(domains))
    num_rows = math.ceil(len(domains) / num_columns)
    result = new_figure(WIDTH, 2.4 * num_rows + 1.0 + LEGEND_ROW * (4 + len(frontier.algorithms)))
    grid = result.subplots(num_rows, num_columns, sharey=True, squeeze=False)
    for axes, domain in zip(grid.flat, domains):
        _panel(axes, frontier, domain)
    for axes in grid.flat[len(domains) :]:
        axes.set_axis_off()
    is_on_lines = any(mixture.line is not None for mixture in frontier.mixtures)
    what = "way from the training mixture to the domain" if is_on_lines else "weight of the domain"
    num_hidden = len(frontier.comparison.domain_names) - len(domains)
    if num_hidden:
        what += f"\n(the worst {len(domains)} domains; {num_hidden} more are not drawn)"
    result.supxlabel(what)
    label = f"{_measure_name(frontier)} on the {_split(frontier)} clients"
    result.supylabel(with_percent(label, frontier.measure.unit))
    handles, labels = grid.flat[0].get_legend_handles_labels()
    result.legend(handles, labels, loc="outside upper center", fontsize="small")
    return result


def _panel(axes: matplotlib.axes.Axes, frontier: Frontier, domain: int) -> None:
    name = frontier.comparison.domain_names[domain]
    line = [m for m in frontier.mixtures if m.line == domain]
    if line:
        line = sorted([frontier.training_mixture, *line], key=lambda mixture: mixture.way)
        x = np.array([mixture.way for mixture in line])
        style = {"marker": "."}
    else:
        line = sorted(frontier.mixtures, key=lambda mixture: mixture.weights[domain])
        x = np.array([mixture.weights[domain] for mixture in line])
        style = {"marker": ".", "linestyle": ""}
    others = [n for n in frontier.comparison.domain_names if n != name][:_MAX_OTHERS]
    for i, other in enumerate(others):
        label = "" if i else "other domains"
        plot_known(axes, x, _means(frontier, line, other), color=MUTED, label=label, **style)
    own, worst = (_means(frontier, line, of) for of in (name, WORST))
    plot_known(axes, x, own, color=_OWN, label="the panel's own domain", **style)
    plot_known(axes, x, worst, color=REFERENCE, label="worst domain", **style)
    for mixture, label, own_look, size in (
        (frontier.best, _best_label(frontier), _BEST, 14),
        (frontier.training_mixture, "training mixture", _TRAINING, 5),
    ):
        at = [i for i, other in enumerate(line) if other == mixture]
        # Without a point if the mixture is on another line: the legend is of all panels.
        axes.plot(
            *(x[at], worst[at], own_look.marker),
            color=own_look.color,
            markeredgecolor="black",
            markersize=size,
            label=plain_text(label),
        )
    for i, row in enumerate(frontier.algorithms):
        label = f"{plain_text(frontier.comparison.label(row))}, worst domain"
        axes.axhline(_mean(frontier, row, WORST), color=look(i).color, linestyle="--", label=label)
    scale_axis(axes, frontier.measure.unit)
    (short,) = short_names([name], _TITLE_WIDTH)
    axes.set_title(plain_text(short), fontsize=9)
    draw_grid(axes)


def _drawn_domains(frontier: Frontier) -> list[int]:
    """Returns the domains with a panel, in their order."""
    trained = [i for i, share in enumerate(frontier.training_mixture.weights) if share > 0]
    names, sign = frontier.comparison.domain_names, 1 if frontier.measure.higher_is_better else -1

    def goodness(domain: int) -> float:
        mean = frontier.mean(frontier.training_mixture.name, names[domain])
        return math.inf if math.isnan(mean) else sign * mean

    return sorted(sorted(trained, key=goodness)[:_MAX_PANELS])


def _best_label(frontier: Frontier) -> str:
    return f"best worst domain: {frontier.best.label}"


def _axis_label(frontier: Frontier, domain: str) -> str:
    return with_percent(
        f"{_measure_name(frontier)} of {plain_text(domain)} on the {_split(frontier)} clients",
        frontier.measure.unit,
    )


def _split(frontier: Frontier) -> str:
    return split_name(frontier.comparison.split)


def _measure_name(frontier: Frontier) -> str:
    return frontier.measure.name.replace("_", " ")


def _means(frontier: Frontier, mixtures: Sequence[Mixture], domain: str) -> np.ndarray:
    return np.array([_mean(frontier, mixture.name, domain) for mixture in mixtures])


def _mean(frontier: Frontier, row: str, domain: str) -> float:
    return _shown(frontier, frontier.mean(row, domain))


def _shown(frontier: Frontier, value: float) -> float:
    return shown(value, frontier.measure.unit)


def frontier_table(frontier: Frontier) -> Table:
    """Returns the measure of each mixture and method; of many domains the worst one alone."""
    comparison, measure = frontier.comparison, frontier.measure
    domains = comparison.domain_names
    has_all = len(domains) <= _MAX_DOMAIN_COLUMNS
    groups = (*(domains if has_all else ()), *_SUMMARIES)
    worst = {row: trials.values[WORST][measure.name] for row, trials in comparison.trials.items()}
    rows: list[Sequence[Cell]] = []
    for (row, trials), number in zip(comparison.trials.items(), marked(worst, measure)):
        label = comparison.label(row) + (" (best)" if row == frontier.best.name else "")
        name = [] if has_all else [worst_domain(frontier, row) or "-"]
        numbers = [mean_and_spread(trials.values[group][measure.name], measure) for group in groups]
        rows.append([label, number, *name, *numbers])
    headings = ["trained with", "worst", *([] if has_all else ["worst domain"])]
    headings += [_SUMMARIES.get(group, group) for group in groups]
    return Table(caption(measure, comparison.split), headings, rows)


def to_json(frontier: Frontier, command: str) -> dict[str, Any]:
    """Returns the verdict, the mixtures, and every trial's measures as JSON values."""
    verdict, comparison = frontier.verdict, frontier.comparison
    return {
        "command": command,
        "sentence": frontier.sentence,
        "outcome": verdict.outcome.value,
        "measure": frontier.measure.name,
        "higher_is_better": frontier.measure.higher_is_better,
        "split": comparison.split,
        "worst_min_examples": comparison.worst_min_examples,
        "not_counted": list(comparison.not_counted),
        "worst_domain": {
            "training_mixture": _end_json(verdict.training_end),
            "best": {"mixture": frontier.best.name, **_end_json(verdict.best_end)},
            "gain": finite_or_none(verdict.gain),
            "algorithms": {
                row: {
                    **_end_json(end),
                    "missed_by": finite_or_none(verdict.gaps[row]),
                    "found": row in verdict.found_by,
                }
                for row, end in verdict.ends.items()
            },
        },
        "mixtures": {
            mixture.name: {
                "label": mixture.label,
                "lambda": dict(zip(comparison.domain_names, mixture.weights)),
                **_line_json(mixture, comparison.domain_names),
            }
            for mixture in frontier.mixtures
        },
        "results": comparison.to_json(),
    }


def _line_json(mixture: Mixture, names: Sequence[str]) -> dict[str, Any]:
    if mixture.line is None:
        return {}
    return {"line": names[mixture.line], "way": mixture.way}


def worst_domain(frontier: Frontier, row: str) -> Optional[str]:
    """Returns the domain with the worst mean of the domains that are counted in every trial."""
    comparison = frontier.comparison
    candidates = [name for name in comparison.domain_names if name not in comparison.not_counted]
    known = [name for name in candidates if not math.isnan(frontier.mean(row, name))]
    choose = min if frontier.measure.higher_is_better else max
    return choose(known, key=lambda name: frontier.mean(row, name)) if known else None


def _end_json(end: TrialMean) -> dict[str, Any]:
    return {"mean": finite_or_none(end.mean), "std": finite_or_none(end.spread)}


def default_title(task: str) -> str:
    """Returns the title of a frontier's page without a given one."""
    return f"What is attainable on {task}"


def frontier_page(
    frontier: Frontier, first: RunRecord, title: str, command: str, warned: Sequence[str] = ()
) -> Page:
    """Returns the page, which a terminal shows in part.

    Args:
        first: A run of the frontier, for the facts that all runs share.
        warned: A line for each neglected domain; see `neglected`.
    """
    comparison = frontier.comparison
    labels = ", ".join(comparison.label(row) for row in frontier.algorithms)
    caveats = [*map(sentence, notes(comparison)), *data_caveats(first)]
    verdict: list[Block] = [*text(frontier.sentences), *warnings([f"{line}." for line in warned])]
    return Page(
        title,
        f"{counted(len(frontier.mixtures), 'mixture')} of {len(comparison.domain_names)} domains, "
        f"and {labels}. Numbers are means over {counted(comparison.num_trials, 'seed')} and, in "
        "parentheses, standard deviations.",
        [
            Section("The verdict", [*verdict, _figure(frontier)], in_terminal=True),
            Section("Every mixture and method", [frontier_table(frontier)], in_terminal=True),
            Section("What to know first", warnings(caveats), in_terminal=True),
            Section("What the verdict means", text([_RULE]), is_folded=True),
            Section("The data", data_blocks(first, is_private=False), is_folded=True),
            Section("What was measured", [measure_facts(first)], is_folded=True),
            Section(
                "How to make it again",
                [*typed_blocks(command), *versions_blocks(first)],
                is_folded=True,
            ),
        ],
    )


def _figure(frontier: Frontier) -> Figure:
    measure = frontier.measure.name
    if len(frontier.comparison.domain_names) == 2:
        about = f"{measure} of one domain against that of the other, for every mixture"
    else:
        about = (
            f"{measure} of the worst domain, and of each domain by itself, on the way from the "
            "training mixture; of many domains those that are worst with that mixture"
        )
    return Figure(about, functools.partial(figure, frontier))


def write_frontier_page(
    frontier: Frontier, folder: Path, title: str, command: str, warned: Sequence[str]
) -> tuple[Path, Page]:
    """Writes the page of a frontier into its folder, and returns its path and itself."""
    first = read_run(trial_folder(folder, frontier.training_mixture.name, 0).path)
    page = frontier_page(frontier, first, title, command, warned)
    return write_page(folder, page), page


def read_frontier(folder: Path) -> tuple[Mapping[str, Any], Frontier]:
    """Returns the content of frontier.json with the task, and the frontier."""
    path = folder / FRONTIER
    content = read_json(path)
    try:
        rows, measure, command = content["results"], content["measure"], str(content["command"])
        found = {name: (of["label"], of["lambda"], of) for name, of in content["mixtures"].items()}
    except (AttributeError, LookupError, TypeError) as e:
        raise UserError(
            f"{path}: expected a frontier, found something else: frontier --resume writes the file "
            "again"
        ) from e
    record = read_rows(path, rows, "frontier")
    comparison, names = record.comparison, record.comparison.domain_names
    try:
        mixtures = [
            Mixture(
                name,
                str(label),
                tuple(float(lambda_[domain]) for domain in names),
                names.index(of["line"]) if of.get("line") is not None else None,
                float(of.get("way", 0.0)),
            )
            for name, (label, lambda_, of) in found.items()
        ]
        frontier = Frontier(comparison, mixtures, comparison.measures[measure])
        known = TRAINING_MIXTURE in found and {*found} <= {*comparison.trials}
    except (LookupError, TypeError, ValueError):
        known = False
    if not known:
        raise UserError(f"{path}: expected mixtures of {', '.join(names)}, found something else")
    return {**content, "command": command, "task": record.first.result["task"]}, frontier
