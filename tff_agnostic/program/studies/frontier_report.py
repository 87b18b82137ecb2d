"""The table, the figure and the page of a frontier, and the frontier read back from its folder."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
from tabulate import tabulate

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import finite_or_none, read_json, write_text
from tff_agnostic.base.later import matplotlib
from tff_agnostic.metrics.formatting import (
    UNDEFINED,
    csv_text,
    sentence,
    short_names,
    shown,
    with_percent,
)
from tff_agnostic.program.reports.figures import (
    MUTED,
    REFERENCE,
    Look,
    draw_grid,
    look,
    new_figure,
    plain_text,
    plot_known,
    scale_axis,
)
from tff_agnostic.program.reports.page import (
    Block,
    Bullets,
    Line,
    Name,
    Page,
    Paragraph,
    Part,
    Picture,
    Section,
    Source,
    Table,
    Warnings,
    in_line,
    rendered,
)
from tff_agnostic.program.reports.run_page import (
    REPORT,
    data_section,
    measure_facts,
    typed_blocks,
    use_section,
    versions_blocks,
)
from tff_agnostic.program.reports.run_record import RunRecord, data_caveats, read_run
from tff_agnostic.program.studies.comparison import (
    DIFFERENCE,
    OVERALL,
    SUMMARIES,
    WORST,
    trial_folder,
)
from tff_agnostic.program.studies.comparison_record import read_rows
from tff_agnostic.program.studies.comparison_report import (
    caption,
    in_table,
    mean_and_spread,
    notes,
    title_of,
)
from tff_agnostic.program.studies.frontier import TRAINING_MIXTURE, Frontier, Mixture, TrialMean

FRONTIER = "frontier.json"
# More panels than these are too small to read: those of the domains that are worst off are drawn.
_MAX_PANELS = 12
_MAX_COLUMNS = 3
# Thin curves of other domains in a panel.
_MAX_OTHERS = 20
_TRAINING = Look("black", "-", "s", "")
_BEST = Look("gold", "-", "*", "")
_OWN = look(3).color
_TITLE_WIDTH = 36
RULE = (
    "A mixture helps if its worst domain is better off than with the training mixture: the "
    "interval of the difference is above 0. Intervals are over other test clients, other seeds, or "
    "both, as far as the runs show how these vary; without an interval nothing is shown. An "
    "algorithm found the best mixture if it is better than the training mixture by the same rule, "
    "and not shown to be worse than the best mixture. It missed it if it is shown to be worse."
)
# With more domains than this, a table has the worst one only.
MAX_DOMAIN_COLUMNS = 5
_SUMMARIES = {OVERALL: "all examples", DIFFERENCE: "best - worst"}


def figure(frontier: Frontier) -> matplotlib.figure.Figure:
    """Returns what mixtures attain, and where the training mixture, the best and algorithms end.

    Of two domains each is an axis, and the mixtures a curve. Of more there is a panel for each
    domain: the worst domain's measure and that domain's own on the way to it, algorithms as
    horizontal lines.
    """
    if len(frontier.comparison.domain_names) == 2:
        return _plane(frontier)
    return _panels(frontier)


def _plane(frontier: Frontier) -> matplotlib.figure.Figure:
    first, second = names = frontier.comparison.domain_names
    result = new_figure(7.5, 6.5)
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
    result.legend(handles, labels, loc="outside upper center", ncols=2)
    return result


def _panels(frontier: Frontier) -> matplotlib.figure.Figure:
    domains = _drawn_domains(frontier)
    num_columns = min(_MAX_COLUMNS, len(domains))
    num_rows = math.ceil(len(domains) / num_columns)
    result = new_figure(3.2 * num_columns, 2.8 * num_rows + 0.8)
    grid = result.subplots(num_rows, num_columns, sharey=True, squeeze=False)
    for axes, domain in zip(grid.flat, domains):
        _panel(axes, frontier, domain)
    for axes in grid.flat[len(domains) :]:
        axes.set_axis_off()
    is_on_lines = any(mixture.line is not None for mixture in frontier.mixtures)
    what = "way from the training mixture to the domain" if is_on_lines else "weight of the domain"
    left_out = len(frontier.comparison.domain_names) - len(domains)
    if left_out:
        what += f" (the worst {len(domains)} domains; {left_out} more are not drawn)"
    result.supxlabel(what)
    label = f"{_measure_name(frontier)} on the {frontier.comparison.split} clients"
    result.supylabel(with_percent(label, frontier.measure.unit))
    handles, labels = grid.flat[0].get_legend_handles_labels()
    result.legend(handles, labels, loc="outside upper center", ncols=3)
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
        # Drawn without a point where the mixture is on another line: the legend is of all panels.
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
    """Returns the domains that have a panel, in their order."""
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
        f"{_measure_name(frontier)} of {plain_text(domain)} on the {frontier.comparison.split} "
        "clients",
        frontier.measure.unit,
    )


def _measure_name(frontier: Frontier) -> str:
    return frontier.measure.name.replace("_", " ")


def _means(frontier: Frontier, mixtures: Sequence[Mixture], domain: str) -> np.ndarray:
    return np.array([_mean(frontier, mixture.name, domain) for mixture in mixtures])


def _mean(frontier: Frontier, row: str, domain: str) -> float:
    return _shown(frontier, frontier.mean(row, domain))


def _shown(frontier: Frontier, value: float) -> float:
    return shown(value, frontier.measure.unit)


def table(frontier: Frontier, table_format: str) -> str:
    """Returns a row for each mixture and each algorithm, with the mean and standard deviation.

    With many domains it has the worst domain's measure and name, and not every domain's.

    Args:
        table_format: A format of tabulate; "github" is Markdown.
    """
    comparison, is_markdown = frontier.comparison, table_format == "github"
    domains = comparison.domain_names
    has_all = len(domains) <= MAX_DOMAIN_COLUMNS
    columns = [WORST, *(domains if has_all else ()), OVERALL, DIFFERENCE]
    headers = [
        "trained with",
        *(n.strip("()") if n in SUMMARIES else in_table(n, table_format) for n in columns),
    ]
    if not has_all:
        headers.insert(2, "worst domain")
    rows = []
    for row in comparison.trials:
        trials = comparison.trials[row]
        cells = [mean_and_spread(trials, name, frontier.measure) for name in columns]
        label = in_table(comparison.label(row), table_format)
        if row == frontier.best.name:
            label += " (best)"
            cells[0] = f"**{cells[0]}**" if is_markdown else cells[0]
        if not has_all:
            cells.insert(1, in_table(worst_domain(frontier, row) or UNDEFINED, table_format))
        rows.append([label, *cells])
    return tabulate(rows, headers=headers, tablefmt=table_format, disable_numparse=True)


def markdown(
    frontier: Frontier, title: str, command: str, image: str, first: Sequence[str] = ()
) -> str:
    """Returns the page of a frontier.

    Args:
        image: Where its figure is.
        first: Lines to be read before the rest.
    """
    measure, comparison = frontier.measure, frontier.comparison
    parts = [
        f"# {title}",
        "\n".join(f"- {line}" for line in frontier.sentences),
        f"`{command}`",
        *map(sentence, first),
        f"![What is attainable]({image})",
        _rule(frontier),
        *map(sentence, notes(comparison)),
        f"{with_percent(title_of(measure.name), measure.unit, 'percent')} on the "
        f"{comparison.split} clients, {measure.better} is better; mean and standard deviation over "
        f"{counted(comparison.num_trials, 'seed')}:",
        table(frontier, "github"),
    ]
    return "\n\n".join(parts) + "\n"


def _rule(frontier: Frontier) -> str:
    return (
        f"{RULE} The best mixture was chosen by the numbers that are shown, those of the "
        f"{frontier.comparison.split} clients: of several that are alike it is the luckiest."
    )


def to_json(frontier: Frontier, command: str) -> dict[str, Any]:
    """Returns all of a frontier: the verdict, the mixtures, and every trial's measures."""
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


def to_csv(frontier: Frontier) -> str:
    """Returns a line for each mixture and algorithm: lambda, and the mean and standard deviation.

    Algorithms have no lambda, and what is not known is empty. Lines end as RFC 4180 has it.
    """
    comparison, measure = frontier.comparison, frontier.measure.name
    weights = {mixture.name: mixture.weights for mixture in frontier.mixtures}
    domains = comparison.domain_names
    measured = (*domains, WORST, OVERALL, DIFFERENCE)
    heads = [
        *("row", "label", "kind"),
        *(f"lambda/{name}" for name in domains),
        *(f"{measure}/{name}" for name in measured),
        *(f"{measure} std/{name}" for name in measured),
    ]
    lines = [
        [
            *(row, comparison.label(row), "mixture" if row in weights else "algorithm"),
            *weights.get(row, [None] * len(domains)),
            *(finite_or_none(trials.mean(name, measure)) for name in measured),
            *(finite_or_none(trials.std(name, measure)) for name in measured),
        ]
        for row, trials in comparison.trials.items()
    ]
    return csv_text([heads, *lines], "\r\n")


def worst_domain(frontier: Frontier, row: str) -> Optional[str]:
    """Returns the domain with the worst mean, of those that are counted in every trial."""
    comparison = frontier.comparison
    counted = [name for name in comparison.domain_names if name not in comparison.not_counted]
    known = [name for name in counted if not math.isnan(frontier.mean(row, name))]
    choose = min if frontier.measure.higher_is_better else max
    return choose(known, key=lambda name: frontier.mean(row, name)) if known else None


def _end_json(end: TrialMean) -> dict[str, Any]:
    return {"mean": finite_or_none(end.mean), "std": finite_or_none(end.spread)}


def usual_title(task: str) -> str:
    """Returns the heading of the page where none was given."""
    return f"What is attainable on {task}"


def frontier_page(
    frontier: Frontier, first: RunRecord, title: str, command: str, given_up: Sequence[str] = ()
) -> Page:
    """Returns the page.

    Args:
        first: A run of it, which says what all have in common.
        given_up: A line for each domain that a row gave up; see `harmed`.
    """
    comparison = frontier.comparison
    count = len(first.result["domains"])
    caveats: list[Line] = [*map(sentence, notes(comparison)), *data_caveats(first)]
    verdict: list[Block] = [Bullets(frontier.sentences)]
    verdict += [Warnings([f"{line}." for line in given_up])] if given_up else []
    return Page(
        title,
        [
            f"{counted(len(frontier.mixtures), 'mixture')} of {count} domains, and ",
            *in_line([comparison.label(row) for row in frontier.algorithms]),
            f". Numbers are those of {FRONTIER}: means over "
            f"{counted(comparison.num_trials, 'seed')} and, in parentheses, standard deviations.",
        ],
        [
            Section("verdict", "The verdict", [*verdict, _picture(frontier)]),
            Section("rule", "What the verdict means", [Paragraph(_rule(frontier))]),
            Section("caveats", "What to know first", [Warnings(caveats)] if caveats else []),
            Section("rows", "Every mixture and every algorithm", [_table(frontier, command)]),
            data_section(first, is_private=False),
            Section("measures", "What was measured", [measure_facts(first)]),
            Section(
                "again", "How to make it again", [*typed_blocks(command), *versions_blocks(first)]
            ),
            use_section(comparison.domain_names),
        ],
    )


def _picture(frontier: Frontier) -> Picture:
    measure = frontier.measure.name
    if len(frontier.comparison.domain_names) == 2:
        text = f"{measure} of one domain against that of the other, for every mixture"
    else:
        text = (
            f"{measure} of the worst domain, and of each domain by itself, on the way from the "
            "training mixture; of many domains those that are worst with that mixture"
        )
    return Picture(functools.partial(figure, frontier), text)


def _table(frontier: Frontier, command: str) -> Table:
    comparison, measure = frontier.comparison, frontier.measure
    source = Source(FRONTIER, to_json(frontier, command))
    has_all = len(comparison.domain_names) <= MAX_DOMAIN_COLUMNS
    domains = comparison.domain_names if has_all else ()

    def number(row: str, name: str) -> list[Part]:
        return source.mean("results", row, name, measure.name, unit=measure.unit)

    rows: list[Sequence[Line]] = []
    for row in comparison.trials:
        mark = " (best)" if row == frontier.best.name else ""
        worst: list[Line] = [number(row, WORST)]
        if not has_all:
            worst.append(Name(worst_domain(frontier, row) or "-"))
        names = (*domains, *_SUMMARIES)
        cells = [number(row, name) for name in names]
        rows.append([[Name(comparison.label(row)), mark], *worst, *cells])
    headings: list[Line] = ["trained with", "worst", *([] if has_all else ["worst domain"])]
    headings += [*(Name(name) for name in domains), *_SUMMARIES.values()]
    return Table(caption(measure, comparison.split), headings, rows)


def write_frontier_report(
    frontier: Frontier, folder: Path, title: str, command: str, given_up: Sequence[str]
) -> Path:
    """Writes the report of a frontier into its folder; see `frontier_page`."""
    first = read_run(trial_folder(folder, frontier.training_mixture.name, 0).path)
    path = folder / REPORT
    write_text(path, rendered(frontier_page(frontier, first, title, command, given_up)))
    return path


def read_frontier(folder: Path) -> tuple[Mapping[str, Any], Frontier]:
    """Returns what a frontier left in its folder: frontier.json with the task, and what it shows.

    The lines on which mixtures lie are those of the file; of a release that wrote none, panels have
    the weight of the domain as their axis.
    """
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
