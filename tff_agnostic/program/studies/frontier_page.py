"""The figure and the page of a frontier."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_agnostic.base.errors import counted
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
from tff_agnostic.program.reports.run_warnings import data_caveats
from tff_agnostic.program.reports.sections import typed_blocks
from tff_agnostic.program.studies.comparison import DIFFERENCE, OVERALL, WORST
from tff_agnostic.program.studies.comparison_page import (
    caption,
    last_sections,
    marked,
    mean_and_spread,
    notes,
)
from tff_agnostic.program.studies.frontier import Frontier, Mixture
from tff_agnostic.program.studies.gains import worst_domain

# Maximum number of panels; if there are more domains, only the worst ones get panels.
_MAX_PANELS = 12
_PANEL_COLUMNS = 2
# Maximum number of thin curves of other domains in a panel.
_MAX_OTHERS = 20
_TRAINING = Look("black", "-", "s")
_BEST = Look("gold", "-", "*")
_PANEL_COLOR = look(3).color
_TITLE_WIDTH = 24
_RULE = (
    "A mixture helps if its worst domain is significantly better off than with the training "
    "mixture: the interval of the difference is above 0. Intervals are over other test clients, "
    "other seeds, or both, as far as the runs show how these vary. A method found the best mixture "
    "if it is better than the training mixture by the same rule, and not significantly worse than "
    "the best mixture. It missed the best mixture if it is significantly worse. The best mixture "
    "was chosen by the numbers shown: of several equal ones it is the luckiest."
)
# With more domains than this, a table has only the worst domain.
_MAX_DOMAIN_COLUMNS = 5
_SUMMARIES = {OVERALL: "all examples", DIFFERENCE: "best - worst"}


def figure(frontier: Frontier) -> matplotlib.figure.Figure:
    """Returns a figure of the measure for all mixtures and methods.

    With two mixed domains, each domain is an axis, and the mixtures are a curve. With more domains,
    each domain has a panel. Its curves are the domain's measure and the worst domain's measure, on
    the line from the training mixture to the domain; methods are horizontal lines.
    """
    mixed = _mixed_domains(frontier)
    return _plane(frontier, *mixed) if len(mixed) == 2 else _panels(frontier)


def _mixed_domains(frontier: Frontier) -> list[int]:
    """Returns the domains with training examples."""
    return [i for i, share in enumerate(frontier.training_mixture.weights) if share > 0]


def _plane(frontier: Frontier, across: int, upwards: int) -> matplotlib.figure.Figure:
    first, second = names = [frontier.comparison.domain_names[i] for i in (across, upwards)]
    result = new_figure(WIDTH, 5.2 + LEGEND_ROW * (2 + len(frontier.algorithms)))
    axes = result.subplots()
    ordered = sorted(frontier.mixtures, key=lambda mixture: mixture.weights[across])
    x, y = (_means(frontier, ordered, name) for name in names)
    defined = np.isfinite(x) & np.isfinite(y)
    axes.plot(x[defined], y[defined], color=REFERENCE, linewidth=1, zorder=1)
    weights = np.array([mixture.weights[across] for mixture in ordered])
    dots = axes.scatter(
        x[defined],
        y[defined],
        25,
        c=weights[defined],
        vmin=0,
        vmax=1,
        label="fixed mixtures",
        zorder=2,
    )
    result.colorbar(dots, label=f"weight of {plain_text(first)} in fixed mixtures")

    def mark(row: str, label: str, method: Look, size: int) -> None:
        trials, measure = frontier.comparison.trials[row], frontier.measure
        at_x, at_y = (_mean(frontier, row, name) for name in names)
        if not (math.isfinite(at_x) and math.isfinite(at_y)):
            return
        stds = [shown(trials.std(name, measure.name), measure.unit) for name in names]
        x_spread, y_spread = np.nan_to_num(stds)
        style: dict[str, Any] = {"color": method.color, "alpha": 0.5, "capsize": 2, "zorder": 2}
        axes.errorbar(at_x, at_y, y_spread, x_spread, **style)
        style = {"color": method.color, "marker": method.marker, "edgecolor": "black", "zorder": 3}
        axes.scatter(at_x, at_y, size, label=plain_text(label), **style)

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
    what = "way from the training mixture to the domain"
    num_hidden = len(frontier.comparison.domain_names) - len(domains)
    if num_hidden:
        what += f"\n(the worst {len(domains)} domains; {num_hidden} more are not drawn)"
    result.supxlabel(what)
    result.supylabel(_axis_label(frontier))
    handles, labels = grid.flat[0].get_legend_handles_labels()
    result.legend(handles, labels, loc="outside upper center", fontsize="small")
    return result


def _panel(axes: matplotlib.axes.Axes, frontier: Frontier, domain: int) -> None:
    name = frontier.comparison.domain_names[domain]
    line = [frontier.training_mixture, *(m for m in frontier.mixtures if m.line == domain)]
    x, style = np.array([mixture.way for mixture in line]), {"marker": "."}
    others = [n for n in frontier.comparison.domain_names if n != name][:_MAX_OTHERS]
    for i, other in enumerate(others):
        label = "" if i else "other domains"
        plot_known(axes, x, _means(frontier, line, other), color=MUTED, label=label, **style)
    this, worst = (_means(frontier, line, group) for group in (name, WORST))
    plot_known(axes, x, this, color=_PANEL_COLOR, label="the panel's own domain", **style)
    plot_known(axes, x, worst, color=REFERENCE, label="worst domain", **style)
    for mixture, label, marked_look, size in (
        (frontier.best, _best_label(frontier), _BEST, 14),
        (frontier.training_mixture, "training mixture", _TRAINING, 5),
    ):
        at = [i for i, other in enumerate(line) if other == mixture]
        # If the mixture is not on this line, draw no point, but keep its entry in the legend.
        axes.plot(
            *(x[at], worst[at], marked_look.marker),
            color=marked_look.color,
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
    names, sign = frontier.comparison.domain_names, 1 if frontier.measure.higher_is_better else -1

    def goodness(domain: int) -> float:
        mean = frontier.mean(frontier.training_mixture.name, names[domain])
        return math.inf if math.isnan(mean) else sign * mean

    return sorted(sorted(_mixed_domains(frontier), key=goodness)[:_MAX_PANELS])


def _best_label(frontier: Frontier) -> str:
    return f"best worst domain: {frontier.best.label}"


def _axis_label(frontier: Frontier, domain: str = "") -> str:
    name = frontier.measure.name.replace("_", " ") + (f" of {plain_text(domain)}" if domain else "")
    clients = f"{split_name(frontier.comparison.split)} clients"
    return with_percent(f"{name} on the {clients}", frontier.measure.unit)


def _means(frontier: Frontier, mixtures: Sequence[Mixture], domain: str) -> np.ndarray:
    return np.array([_mean(frontier, mixture.name, domain) for mixture in mixtures])


def _mean(frontier: Frontier, row: str, domain: str) -> float:
    return shown(frontier.mean(row, domain), frontier.measure.unit)


def frontier_table(frontier: Frontier) -> Table:
    """Returns the table of mixtures and methods; with many domains, only for the worst domain."""
    comparison, measure = frontier.comparison, frontier.measure
    domains = comparison.domain_names
    has_all = len(domains) <= _MAX_DOMAIN_COLUMNS
    groups = (*(domains if has_all else ()), *_SUMMARIES)
    worst = {row: trials.values[WORST][measure.name] for row, trials in comparison.trials.items()}
    rows: list[Sequence[Cell]] = []
    for (row, trials), number in zip(comparison.trials.items(), marked(worst, measure)):
        label = comparison.label(row) + (" (best)" if row == frontier.best.name else "")
        name = [] if has_all else [worst_domain(trials, domains, measure)]
        numbers = [mean_and_spread(trials.values[group][measure.name], measure) for group in groups]
        rows.append([label, number, *name, *numbers])
    headings = ["trained with", "worst", *([] if has_all else ["worst domain"])]
    headings += [_SUMMARIES.get(group, group) for group in groups]
    return Table(caption(measure, comparison.split), headings, rows)


def to_json(frontier: Frontier) -> dict[str, Any]:
    """Returns the verdict, the mixtures, and every trial's measures as JSON values."""
    verdict, comparison = frontier.verdict, frontier.comparison
    return {
        "sentences": frontier.sentences,
        "outcome": verdict.outcome.value,
        "measure": frontier.measure.name,
        "best": verdict.best,
        "found_by": list(verdict.found_by),
        "missed_by": list(verdict.missed_by),
        "mixtures": {
            mixture.name: {
                "label": mixture.label,
                "lambda": dict(zip(comparison.domain_names, mixture.weights)),
            }
            for mixture in frontier.mixtures
        },
        "results": comparison.to_json(),
    }


def frontier_page(frontier: Frontier, title: str, command: str, warned: Sequence[str] = ()) -> Page:
    """Returns the page of a frontier; a terminal shows only some of its sections.

    Args:
        warned: A line for each neglected domain; see `neglected`.
    """
    comparison = frontier.comparison
    labels = ", ".join(comparison.label(row) for row in frontier.algorithms)
    caveats = [*map(sentence, notes(comparison)), *data_caveats(comparison.first)]
    verdict: list[Block] = [*text(*frontier.sentences), *warnings([f"{line}." for line in warned])]
    return Page(
        title,
        f"{counted(len(frontier.mixtures), 'mixture')} of {len(comparison.domain_names)} domains, "
        f"and {labels}. Numbers are means over {counted(comparison.num_trials, 'seed')} and, in "
        "parentheses, standard deviations.",
        [
            Section("The verdict", [*verdict, _figure(frontier)], in_terminal=True),
            Section("Every mixture and method", [frontier_table(frontier)], in_terminal=True),
            Section("What to know first", warnings(caveats), in_terminal=True),
            Section("What the verdict means", text(_RULE), is_folded=True),
            *last_sections(comparison, typed_blocks(command)),
        ],
    )


def _figure(frontier: Frontier) -> Figure:
    measure = frontier.measure.name
    if len(_mixed_domains(frontier)) == 2:
        about = f"{measure} of one domain against that of the other, for every mixture"
    else:
        about = (
            f"{measure} of the worst domain, and of each domain by itself, on the way from the "
            "training mixture; of many domains those that are worst with that mixture"
        )
    return Figure(about, functools.partial(figure, frontier))
