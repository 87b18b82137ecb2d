"""The figures of pages."""

import dataclasses
import io
import json
import math
import re
from typing import Any

import defusedxml.ElementTree
import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG

from tff_agnostic.base.report_fields import ReportField, Unit
from tff_agnostic.computations.evaluation import ClientDistribution, SizeSums
from tff_agnostic.metrics.evaluation_report import (
    ClientValues,
    client_values,
    client_values_from_json,
)
from tff_agnostic.metrics.metrics_file import Column
from tff_agnostic.models.metrics import perplexity
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.distributions import (
    MAX_DOMAINS,
    Estimate,
    Series,
    client_figure,
    domain_figure,
    worst_first,
)
from tff_agnostic.program.reports.document import Figure
from tff_agnostic.program.reports.figures import (
    COLORS,
    draw_grid,
    new_figure,
    quantity_figure,
)
from tff_agnostic.program.reports.html import compact_svg, svg

_LOSS = ReportField("test/loss", "loss on the test clients", per_domain=True)


def _draw(figure: Any) -> str:
    """Draws a figure, and returns its SVG."""
    return svg(Figure("", lambda: figure))


def test_curves_connect_known_rounds():
    values = {
        "round": np.arange(1.0, 5.0),
        "test/loss/$x^$": np.array([np.nan, 3.0, np.nan, 1.0]),
        "test/loss/_hidden": np.array([np.nan, np.nan, np.nan, 2.0]),
    }
    figure = quantity_figure(_LOSS, [Column(_LOSS, name) for name in ("$x^$", "_hidden")], values)
    first, second = figure.axes[0].lines
    np.testing.assert_array_equal(first.get_xydata(), [[2, 3], [4, 1]])
    assert len(second.get_xdata()) == 1
    assert figure.axes[0].get_ylabel() == "loss on the test clients"
    # A name with $ is not a formula, and the legend includes a name that begins with _.
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == [r"\$x^\$", " _hidden"]
    assert "$x^$" in _draw(figure)


@pytest.mark.parametrize(
    ("unit", "curve", "scale"),
    [
        (Unit.NONE, [np.inf, 9e3, 100.0, 50.0], "linear"),
        # On an axis within one decade, matplotlib by itself would draw few labels.
        (Unit.FACTOR, [60.0, 57.0, 56.5, 56.4], "log"),
    ],
)
def test_factors_have_log_axes(unit, curve, scale):
    quantity = ReportField("x", "x", unit=unit)
    values = {"round": np.arange(4.0), "x": np.array(curve)}
    figure = quantity_figure(quantity, [Column(quantity)], values)
    (axes,) = figure.axes
    assert axes.get_yscale() == scale and not figure.legends
    assert len(axes.lines[0].get_xdata()) == np.isfinite(curve).sum()
    _draw(figure)
    low, high = axes.get_ylim()
    shown = [text.get_text() for text in axes.get_yticklabels(which="both") if text.get_text()]
    assert sum(low <= float(text.replace("\u2212", "-")) <= high for text in shown) >= 3


def test_worst_domains_are_highlighted():
    quantity, num_domains = dataclasses.replace(_LOSS, higher_is_better=True), 50
    names = [f"country of a rather long name, number {k} of them all" for k in range(num_domains)]
    order = np.random.default_rng(0).permutation(num_domains)
    values = {f"test/loss/{name}": np.array([0.0, end]) for name, end in zip(names, order)}
    # A missing value is not the worst.
    values[f"test/loss/{names[-1]}"][:] = np.nan
    values["round"] = np.arange(2.0)
    figure = quantity_figure(quantity, [Column(quantity, name) for name in names], values)
    _draw(figure)
    *shown, others = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(figure.axes[0].lines) == num_domains
    assert others == f"{num_domains - len(COLORS)} others"
    worst = sorted(range(num_domains - 1), key=lambda k: order[k])
    assert [int("".join(filter(str.isdigit, text))) for text in shown] == worst[: len(COLORS)]


def test_client_values_are_transformed_and_read_back():
    histogram = np.zeros([1, 1001], np.int64)
    histogram[0, [0, 100]] = 1, 3
    size = SizeSums(np.array([0, 2, 0, 1]), np.array([0, 2 * math.log(30), 0, 1e4], np.float32))
    clients = ClientDistribution(histogram.sum(1), np.zeros([1]), histogram)
    result = client_values(Measure("perplexity", Unit.FACTOR, False, perplexity(5)), clients, size)
    # Bins are 0.02 nats wide.
    assert result.values == pytest.approx([1, math.exp(2)], rel=1e-5)
    assert (result.clients, result.sizes) == ([1, 3], [2, 8])
    assert result.size_means == [pytest.approx(30), math.inf]
    content = json.loads(json.dumps(result.to_json(), allow_nan=False))
    again = client_values_from_json(content)
    assert (again.values, again.sizes) == (result.values, result.sizes)
    assert again.size_means[0] == result.size_means[0] and math.isnan(again.size_means[1])


def test_client_figure_draws_incomplete_values():
    nothing = ClientValues([], [], [], [], [])
    some = ClientValues([0.0, 20.0, math.nan], [1, 2, 1], [1, 2**23], [1, 1], [0.0, math.inf])
    for rows in ({"a": [nothing]}, {"$a$": [nothing, some], "_b": [some]}):
        figure = client_figure("error", Unit.FACTOR, rows, "test")
        assert _draw(figure) and len(figure.legends) == (len(rows) > 1)


def test_client_figure_joins_trials():
    trials = [
        ClientValues([0.2, 0.5], [1, 2], [1, 4], [1, 2], [0.2, 0.4]),
        ClientValues([0.2, 0.3, math.nan], [2, 1, 4], [4], [7], [0.8]),
    ]
    shares, by_size = client_figure("error", Unit.NONE, {"a": trials}, "test").axes
    (steps,) = shares.lines
    np.testing.assert_allclose(steps.get_xdata(), [0.2, 0.2, 0.2, 0.3, 0.5])
    # 3 of 10 clients have .2, 1 has .3, 2 have .5, and 4 have an infinite value.
    np.testing.assert_allclose(steps.get_ydata(), [0, 10, 30, 40, 60])
    np.testing.assert_allclose(by_size.lines[0].get_xdata(), np.array([1, 4]) * 2**0.5)
    np.testing.assert_allclose(by_size.lines[0].get_ydata(), [0.2, 0.6])
    ((bar,),) = [lines.get_segments() for _, _, (lines,) in by_size.containers]
    np.testing.assert_allclose(bar[:, 1], 0.6 + np.array([-1, 1]) * 0.2 * 2**0.5)


def _error_bars(axes: Any) -> np.ndarray:
    bars = [c.lines[2] for c in axes.containers if not hasattr(c, "patches")]
    ends = [s[:, 0] for lines in bars for line in lines for s in line.get_segments() if len(s)]
    return np.concatenate(ends)


def test_error_bars_of_fractions_stay_in_range():
    values = {"a": Estimate(0.9, 0.23, 1.57), "b": Estimate(0.1, -0.4, 0.6), "c": Estimate(0.5)}
    figure = domain_figure([Series("one", values, 0.5)], "accuracy", Unit.SHARE, True)
    (axes,) = figure.axes
    ends = _error_bars(axes)
    np.testing.assert_allclose(sorted(ends[np.isfinite(ends)]), [0, 23, 60, 100])
    assert axes.get_xlim()[0] >= 0 and axes.get_xlim()[1] <= 100
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["b", "c (no interval)", "a"]
    assert axes.get_xlabel() == "accuracy, %"


def test_domain_figure_draws_the_worst_domains():
    values = {f"domain {k}": Estimate(float(k), k - 0.5, k + 0.5) for k in range(1, 41)}
    values |= {"$x^$": Estimate(math.nan), "_hidden": Estimate(math.inf)}
    series = [Series("one", values, 0.5), Series("$two$", values, math.nan)]
    assert worst_first(series, True)[:2] == ["domain 1", "domain 2"]
    assert worst_first(series, False)[:2] == ["_hidden", "domain 40"]
    assert worst_first(series, False)[-1] == "$x^$"
    figure = domain_figure(series, "x", Unit.FACTOR, True, not_counted=["domain 1"])
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert len(labels) == MAX_DOMAINS and labels[0] == "domain 1 (not counted)"
    assert "22 more are not drawn" in figure.axes[0].get_title()
    assert "$two$" in _draw(figure)


def test_legend_does_not_shrink_domain_axes():
    values = {f"domain {k}": Estimate(k / 3) for k in range(3)}
    heights = []
    for count in (1, 3):
        series = [Series(f"method {k}", values) for k in range(count)]
        figure = domain_figure(series, "loss", Unit.NONE, False)
        _draw(figure)
        heights.append(figure.get_size_inches()[1] * figure.axes[0].get_position().height)
    assert heights[1] > 0.7 * heights[0]


_LABEL = "0.123456; style:  one #s0"
_NUMBER = r"-?\d+\.?\d*(?![\w.])"


def _elements(drawing: str) -> list[tuple[str, str]]:
    elements = defusedxml.ElementTree.fromstring(drawing).iter()
    return [(f"{e.tag} {e.attrib}", (e.text or "").strip()) for e in elements]


def test_compact_svg_keeps_elements_and_texts():
    figure = new_figure(4, 3)
    axes = figure.subplots()
    axes.bar(range(3), [0.1, 0.2, 0.3], yerr=[0.01, 0.02, 0.03], hatch="//", label=_LABEL)
    axes.plot([0, 1, 2], [0.3, -0.123456, 0.1], "--o", alpha=0.25)
    axes.set_title("a <b> & 'c'\nsecond line")
    draw_grid(axes)
    axes.legend()
    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        FigureCanvasSVG(figure).print_svg(text)
    before = text.getvalue()
    after = compact_svg(before)
    assert len(after) < 0.9 * len(before) and after.startswith('<?xml version="1.0"')
    old, new = _elements(before), _elements(after)
    assert len(old) == len(new) and _LABEL in {text for _, text in old}
    for (drawn, text_before), (compact, text_after) in zip(old, new):
        assert text_before == text_after
        assert re.sub(_NUMBER, "", drawn) == re.sub(_NUMBER, "", compact)
        numbers = [[float(x) for x in re.findall(_NUMBER, part)] for part in (drawn, compact)]
        np.testing.assert_allclose(numbers[1], numbers[0], rtol=0, atol=0.0051)
