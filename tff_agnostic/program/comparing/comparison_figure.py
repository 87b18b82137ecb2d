"""A comparison as figures: the worst domain over the rounds, and every domain at the end."""

import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tff_agnostic.files import make_folder
from tff_agnostic.program.comparing.comparison import Comparison
from tff_agnostic.program.reporting.bars import Estimate, Series, domains_height, draw_domains
from tff_agnostic.program.reporting.client_figure import client_figure
from tff_agnostic.program.reporting.column import ROUND, Column
from tff_agnostic.program.reporting.columns import tested_worst
from tff_agnostic.program.reporting.curves import label_course, plot_spread
from tff_agnostic.program.reporting.image import save
from tff_agnostic.program.reporting.names import short_names
from tff_agnostic.program.reporting.style import draw_grid, new_figure, percent_axis, scale_axis

# Domains whose bars fit beside the curves.
_MAX_BESIDE = 10
_LABEL_WIDTH = 40
_LEGEND_ROW = 0.25


def draw_comparison(folder: Path, comparison: Comparison) -> None:
    """Writes the figures of every measure into a folder, which it makes.

    Raises:
        UserError: If they cannot be written.
    """
    make_folder(folder)
    for measure in comparison.measures:
        save(figure(comparison, measure), folder / f"compare_{measure}.png")
    for measure, of_clients in client_figures(comparison).items():
        save(of_clients, folder / f"compare_{measure}_clients.png")


def figure(comparison: Comparison, measure: str) -> Figure:
    """Returns the worst domain's measure over rounds, and every domain's at the end.

    Error bars and bands are one standard deviation over the trials.
    """
    labels = _labels(comparison)
    num_domains = len(comparison.domain_names)
    is_wide = num_domains <= _MAX_BESIDE
    below = max(3.5, domains_height(num_domains, len(labels)))
    legend = _LEGEND_ROW * math.ceil(len(labels) / 2)
    size = (12.0, max(4.0, below) + legend) if is_wide else (9.0, 4.0 + below + legend)
    result = new_figure(*size)
    if is_wide:
        curves, ends = result.subplots(1, 2)
    else:
        curves, ends = result.subplots(2, 1, height_ratios=(4.0, below))
    measured = comparison.measures[measure]
    course = Column(tested_worst(measured, comparison.split))
    for i, (label, trials) in enumerate(zip(labels, comparison.trials.values())):
        rounds = trials.histories[0][ROUND]
        by_trial = np.array([course.find(history) for history in trials.histories])
        plot_spread(curves, rounds, by_trial, i, label)
    text = f"{measure} on the {comparison.split} clients"
    label_course(curves, text)
    curves.set_title("Worst domain")
    scale_axis(curves, measured.unit)
    percent_axis(curves, measured.unit)
    draw_grid(curves)
    series = domain_series(comparison, measure)
    ends.set_title("Every domain after the last round")
    draw_domains(
        ends, series, text, measured.unit, measured.higher_is_better, comparison.not_counted
    )
    handles, texts = curves.get_legend_handles_labels()
    result.legend(handles, texts, loc="outside upper center", ncols=2, fontsize="small")
    return result


def domain_series(comparison: Comparison, measure: str) -> list[Series]:
    """Returns each row's mean over the trials in every domain, with a standard deviation."""
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


def client_figures(comparison: Comparison) -> dict[str, Figure]:
    """Returns a figure of the clients for each measure of which a trial reported their values."""
    figures = {}
    for name, measure in comparison.measures.items():
        rows = {
            comparison.label(row): trials.client_values[name]
            for row, trials in comparison.trials.items()
            if trials.client_values.get(name)
        }
        if rows:
            figures[name] = client_figure(measure, rows, comparison.split)
    return figures


def _labels(comparison: Comparison) -> list[str]:
    return short_names([comparison.label(row) for row in comparison.trials], _LABEL_WIDTH)


def _estimate(mean: float, std: float) -> Estimate:
    return Estimate(mean, mean - std, mean + std)
