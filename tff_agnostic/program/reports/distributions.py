"""Figures of a measure's distribution over domains, with the worst on top, and over clients.

Figures over clients are drawn from sums, as the server has no values of single clients. They show
the fraction of clients up to each value, and the clients' mean by number of examples. Instead,
figures 4 and 5 of Laguel et al. 2021 show a histogram, and a dot per client.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Optional

import numpy as np

from tff_agnostic.base.later import matplotlib
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.evaluation_report import ClientValues
from tff_agnostic.metrics.formatting import short_names, shown, with_percent
from tff_agnostic.program.reports.figures import (
    LEGEND_ROW,
    STRIPE,
    WIDTH,
    draw_grid,
    legend_above,
    look,
    new_figure,
    plain_text,
    plot_series,
    scale_axis,
)

# Maximum number of drawn domains; with more, only the worst are drawn.
MAX_DOMAINS = 20
_NAME_WIDTH = 24
_LABEL_WIDTH = 30
_INCHES_PER_ROW = 0.27
_INCHES_PER_DOT = 0.07
_NOT_COUNTED = " (not counted)"
_NO_INTERVAL = " (no interval)"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number with its error bar.

    Attributes:
        low: Lower end of the error bar; NaN without one.
    """

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclasses.dataclass(frozen=True)
class Series:
    """The values of one model or method.

    Attributes:
        by_domain: Value of each domain.
        overall: Value for all examples together; None if it is not drawn.
    """

    name: str
    by_domain: Mapping[str, Estimate]
    overall: Optional[float] = None


def worst_first(series: Sequence[Series], higher_is_better: bool) -> list[str]:
    """Returns the domains sorted by the first series: the worst first, undefined values last."""
    sign = 1.0 if higher_is_better else -1.0
    first = series[0].by_domain
    return sorted(first, key=lambda name: (math.isnan(first[name].value), sign * first[name].value))


def draw_domains(
    axes: matplotlib.axes.Axes,
    series: Sequence[Series],
    label: str,
    unit: Unit,
    higher_is_better: bool,
    not_counted: Collection[str] = (),
) -> None:
    """Draws the values of series in each domain, the worst domain on top.

    Args:
        series: The compared series; the first one determines the order.
        unit: Unit of the values; shares are drawn in percent, factors on a logarithmic axis.
        higher_is_better: Whether larger values are better.
    """
    names = worst_first(series, higher_is_better)
    num_hidden, names = len(names[MAX_DOMAINS:]), names[:MAX_DOMAINS]
    places, height = np.arange(len(names)), 0.8 / len(series)
    for i, one in enumerate(series):
        values, errors = _drawn([one.by_domain[name] for name in names], unit)
        axes.errorbar(
            values,
            places + (i - (len(series) - 1) / 2) * height,
            xerr=errors,
            color=look(i).color,
            marker=look(i).marker,
            markersize=5,
            linestyle="",
            linewidth=1,
            capsize=2,
            label=plain_text(one.name),
        )
        if one.overall is not None and math.isfinite(one.overall):
            axes.axvline(shown(one.overall, unit), color=look(i).color, linestyle="--")
    # Stripes connect each dot to its name.
    for place in places[1::2].tolist():
        axes.axhspan(place - 0.5, place + 0.5, color=STRIPE, linewidth=0)
    bare = {n for n in names if all(math.isnan(one.by_domain[n].low) for one in series)}
    has_bars = len(bare) < len(names)
    ticks = [
        plain_text(text)
        + (_NOT_COUNTED if name in not_counted else _NO_INTERVAL * (has_bars and name in bare))
        for name, text in zip(names, short_names(names, _NAME_WIDTH))
    ]
    axes.set_yticks(places, ticks, fontsize="small")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(with_percent(label, unit))
    if num_hidden:
        axes.set_title(f"the worst {len(names)}; {num_hidden} more are not drawn", fontsize="small")
    scale_axis(axes, unit, "x")
    draw_grid(axes, "x")


def domains_height(num_domains: int, num_series: int) -> float:
    """Returns the height in inches of `draw_domains`."""
    rows = min(num_domains, MAX_DOMAINS)
    return 1.2 + rows * max(_INCHES_PER_ROW, _INCHES_PER_DOT * num_series)


def domain_figure(
    series: Sequence[Series],
    label: str,
    unit: Unit,
    higher_is_better: bool,
    not_counted: Collection[str] = (),
) -> matplotlib.figure.Figure:
    """Returns a figure drawn by `draw_domains`, with a legend above it."""
    height = domains_height(len(series[0].by_domain), len(series))
    figure = new_figure(WIDTH, height + LEGEND_ROW * len(series))
    axes = figure.subplots()
    draw_domains(axes, series, label, unit, higher_is_better, not_counted)
    if len(series) > 1:
        legend_above(figure, axes, ncols=1)
    return figure


def _drawn(estimates: Sequence[Estimate], unit: Unit) -> tuple[np.ndarray, np.ndarray]:
    """Returns the values to draw [n], and the lengths of their error bars [2, n].

    Error bars of shares are limited to the range from 0% to 100%.
    """
    values = _shown([e.value for e in estimates], unit)
    values[~np.isfinite(values)] = np.nan
    low, high = (_shown(ends, unit) for ends in zip(*((e.low, e.high) for e in estimates)))
    if unit is Unit.SHARE:
        low, high = np.maximum(low, 0.0), np.minimum(high, 100.0)
    low, high = values - low, high - values
    # matplotlib draws no error bar for NaN.
    errors = np.array([low, high])
    errors[:, ~np.isfinite(errors).all(axis=0)] = np.nan
    return values, np.maximum(errors, 0.0)


def client_figure(
    name: str, unit: Unit, rows: Mapping[str, Sequence[ClientValues]], split: str
) -> matplotlib.figure.Figure:
    """Returns a figure of the clients' distribution function, and of their means by size.

    The size of a client is its number of examples. Clients whose values are not finite are counted,
    but not drawn.

    Args:
        rows: The trials of each method by its label. The distribution function is over the clients
            of all trials. Means by size are over the trials with clients of that size; error bars
            are one standard deviation.
    """
    figure = new_figure(WIDTH, 6.4 + LEGEND_ROW * len(rows))
    below, by_size = figure.subplots(2, 1)
    labels = map(plain_text, short_names(list(rows), _LABEL_WIDTH))
    for i, (label, trials) in enumerate(zip(labels, rows.values())):
        _draw_shares(below, trials, unit, i, label)
        _draw_by_size(by_size, trials, unit, i, label)
    title = with_percent(f"{name} on a {split} client", unit)
    below.set(xlabel=title, ylabel=f"{split} clients up to that, %", ylim=(0, 102))
    scale_axis(below, unit, "x")
    by_size.set(xlabel="examples of the client", ylabel=f"mean {title}")
    by_size.set_xscale("log", base=2)
    by_size.xaxis.set_major_formatter(matplotlib.ticker.LogFormatter(base=2))
    scale_axis(by_size, unit)
    for axes in (below, by_size):
        draw_grid(axes)
    if len(rows) > 1:
        legend_above(figure, by_size, ncols=1)
    return figure


def _draw_shares(
    axes: matplotlib.axes.Axes, trials: Sequence[ClientValues], unit: Unit, index: int, label: str
) -> None:
    values = np.concatenate([np.asarray(one.values, np.float64) for one in trials])
    clients = np.concatenate([np.asarray(one.clients, np.float64) for one in trials])
    order = np.argsort(values)  # Sort NaN last.
    values, clients = _shown(values[order], unit), clients[order]
    share = 100 * np.cumsum(clients) / max(1.0, clients.sum())
    is_finite, series_style = np.isfinite(values), look(index)
    if is_finite.any():
        x, y = values[is_finite], share[is_finite]
        style = {"color": series_style.color, "linestyle": series_style.line, "label": label}
        axes.step([x[0], *x], [0.0, *y], where="post", **style)


def _draw_by_size(
    axes: matplotlib.axes.Axes, trials: Sequence[ClientValues], unit: Unit, index: int, label: str
) -> None:
    by_size: dict[int, list[float]] = {}
    for one in trials:
        for size, mean in zip(one.sizes, _shown(one.size_means, unit)):
            by_size.setdefault(size, []).append(mean)
    ordered = sorted(by_size.items())
    means = np.array([np.mean(trial_means) for _, trial_means in ordered])
    # A bin is from size to 2 * size: draw its mean in the middle of the logarithmic axis.
    x = np.array([size for size, _ in ordered]) * 2**0.5
    plot_series(axes, x, means, index, label=label)
    with np.errstate(invalid="ignore"):  # Values may be infinite.
        spreads = np.array([np.std(v, ddof=1) if len(v) > 1 else 0.0 for _, v in ordered])
    drawn = np.isfinite(means) & (spreads > 0)
    axes.errorbar(x[drawn], means[drawn], spreads[drawn], color=look(index).color, linestyle="")


def _shown(values: Iterable[float], unit: Unit) -> np.ndarray:
    return np.array([shown(value, unit) for value in values], np.float64)
