"""The figures of a run."""

import dataclasses
import io
import json
import math
import re
from collections import OrderedDict
from typing import Any

import defusedxml.ElementTree
import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from tests.run.harness import (
    is_png,
    make_columns,
    make_evaluation,
    make_task,
    make_values,
)
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.report_fields import ReportField, Unit
from tff_agnostic.computations.evaluation import ClientDistribution, SizeSums
from tff_agnostic.metrics.evaluation_report import (
    ClientValues,
    client_values,
    client_values_from_json,
)
from tff_agnostic.metrics.metrics_file import Column
from tff_agnostic.models import logistic_regression
from tff_agnostic.models.metrics import perplexity, root_mean_squared_error
from tff_agnostic.models.model import Measure, measures_of
from tff_agnostic.program.reports.distributions import (
    Estimate,
    Series,
    client_figure,
    domain_figure,
)
from tff_agnostic.program.reports.figures import (
    COLORS,
    draw_grid,
    figure_of,
    look,
    new_figure,
    save,
)
from tff_agnostic.program.reports.html import compact_svg
from tff_agnostic.program.runs.results import client_figures, draw_run

_LOSS = ReportField("test/loss", "loss on the test clients", per_domain=True)


def _draw(folder, task):
    columns = make_columns(task)
    draw_run(folder, task, columns, make_values(columns))


@pytest.mark.nightly
def test_a_figure_for_every_quantity_that_is_to_be_drawn(tmp_path):
    _draw(tmp_path / "plots", make_task(("phone", "tablet")))
    paths = sorted((tmp_path / "plots").iterdir())
    assert [path.name for path in paths] == [
        "before_loss.png",
        "domain_weights.png",
        "test_accuracy.png",
        "test_loss.png",
    ]
    assert all(is_png(path.read_bytes()) for path in paths)


@pytest.mark.nightly
def test_a_task_adds_its_own_figures(tmp_path):
    def draw(task, columns):
        # Of what a column was called before, nothing is drawn.
        assert "lambda/phone" not in columns
        figure = Figure()
        figure.subplots().plot(columns["round"], columns["pull/phone"])
        return figure

    task = dataclasses.replace(make_task(("phone", "tablet")), figures={"own": draw})
    _draw(tmp_path, task)
    assert is_png((tmp_path / "own.png").read_bytes())


@pytest.mark.nightly
def test_equal_runs_have_equal_figures(tmp_path):
    task = make_task(("phone", "tablet"))
    for folder in ("first", "second"):
        _draw(tmp_path / folder, task)
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()


@pytest.mark.parametrize("name", ["$", "$x^$", "$\\undefined$", "a $1 to $2", "_hidden"])
def test_a_name_is_neither_a_formula_nor_left_out_of_the_legend(tmp_path, name):
    values = {"round": np.arange(2.0), f"test/loss/{name}": np.arange(2.0)}
    figure = figure_of(_LOSS, [Column(_LOSS, name)], values)
    save(figure, tmp_path / "figure.png")
    (text,) = figure.legends[0].get_texts()
    assert text.get_text().replace(r"\$", "$").strip() == name


def test_curves_go_through_the_rounds_that_have_a_value():
    values = {
        "round": np.arange(1.0, 5.0),
        "test/loss/phone": np.array([np.nan, 3.0, np.nan, 1.0]),
        "test/loss/tablet": np.array([np.nan, np.nan, np.nan, 2.0]),
    }
    figure = figure_of(_LOSS, [Column(_LOSS, name) for name in ("phone", "tablet")], values)
    phone, tablet = figure.axes[0].lines
    np.testing.assert_array_equal(phone.get_xdata(), [2, 4])
    np.testing.assert_array_equal(phone.get_ydata(), [3, 1])
    assert len(tablet.get_xdata()) == 1
    assert figure.axes[0].get_ylabel() == "loss on the test clients"


@pytest.mark.parametrize(("unit", "scale"), [(Unit.NONE, "linear"), (Unit.FACTOR, "log")])
def test_factors_stand_on_a_log_axis(tmp_path, unit, scale):
    quantity = ReportField("x", "x", unit=unit)
    values = {"round": np.arange(4.0), "x": np.array([np.inf, 9e3, 100.0, 50.0])}
    figure = figure_of(quantity, [Column(quantity)], values)
    assert figure.axes[0].get_yscale() == scale
    # What is infinite is left out, and a single curve needs no legend.
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), [1, 2, 3])
    assert not figure.legends
    save(figure, tmp_path / "figure.png")


def test_factors_of_one_decade_stand_on_an_axis_with_plain_numbers(tmp_path):
    quantity = ReportField("x", "x", unit=Unit.FACTOR)
    values = {"round": np.arange(3.0), "x": np.array([60.0, 57.0, 56.5])}
    figure = figure_of(quantity, [Column(quantity)], values)
    save(figure, tmp_path / "figure.png")
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels(which="both")]
    low, high = figure.axes[0].get_ylim()
    assert sum(low <= float(label) <= high for label in labels if label) > 2


def test_series_look_different_also_in_a_print_without_colours():
    looks = [look(i) for i in range(77)]
    assert len({(own.color, own.marker) for own in looks}) == 77
    # Of ten algorithms all have markers of their own, and those of a colour other hatches.
    assert len({own.marker for own in looks[:10]}) == 10
    assert len({(own.color, own.hatch) for own in looks[:14]}) == 14


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "plots").write_text("")
    task = make_task(("phone", "tablet"))
    with pytest.raises(UserError, match=r"plots: cannot write: File exists"):
        _draw(tmp_path / "plots", task)


@pytest.mark.parametrize(("num_domains", "higher"), [(3, False), (30, False), (200, True)])
def test_the_worst_of_many_domains_are_told_apart(tmp_path, num_domains, higher):
    quantity = dataclasses.replace(_LOSS, higher_is_better=higher)
    names = [f"country of a rather long name, number {k} of them all" for k in range(num_domains)]
    order = np.random.default_rng(0).permutation(num_domains)
    values = {f"test/loss/{name}": np.array([0.0, end]) for name, end in zip(names, order)}
    # That has no value at the end is not the same as being the worst.
    values[f"test/loss/{names[-1]}"][:] = np.nan
    values["round"] = np.arange(2.0)
    figure = figure_of(quantity, [Column(quantity, name) for name in names], values)
    save(figure, tmp_path / "figure.png")
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    if num_domains == 3:
        assert len(shown) == 3
    else:
        *shown, others = shown
        assert others == f"{num_domains - len(COLORS)} others"
        known = [k for k in range(num_domains - 1)]
        worst = sorted(known, key=lambda k: order[k], reverse=not higher)[: len(COLORS)]
        # The middle of a long name is left out.
        assert all("…" in text for text in shown)
        numbers = [int("".join(filter(str.isdigit, text))) for text in shown]
        assert numbers == worst
    assert len(figure.axes[0].lines) == num_domains
    # However long the legend is, the curves keep their room.
    size = figure.get_size_inches() * figure.axes[0].get_position().size
    assert size[0] > 3.5 and size[1] > 3


# --- The clients of an evaluation, from sums to a figure


_MEASURES = measures_of(logistic_regression(2, 3))
_PERPLEXITY = Measure("perplexity", Unit.FACTOR, False, perplexity(5))


def _sums(bins: dict[int, int], num_bins: int) -> ClientDistribution:
    histogram = np.zeros([1, num_bins], np.int64)
    for position, count in bins.items():
        histogram[0, position] = count
    return ClientDistribution(histogram.sum(1), np.zeros([1]), histogram)


def test_what_is_of_a_transform_is_transformed():
    size = SizeSums(np.array([0, 2, 0, 1]), np.array([0, 2 * math.log(30), 0, 1e4], np.float32))
    of = client_values(_PERPLEXITY, _sums({0: 1, 100: 3}, 1001), size)
    # Steps of 0.02 nats.
    assert of.values == pytest.approx([1, math.exp(2)], rel=1e-5)
    assert of.clients == [1, 3]
    assert of.sizes == [2, 8]
    assert of.size_means == [pytest.approx(30), math.inf]
    found: Any = json.loads(json.dumps(of.to_json(), allow_nan=False))
    assert found["by_size"]["mean"][1] is None
    again = client_values_from_json(found)
    assert again.values == of.values and again.sizes == of.sizes
    assert again.size_means[0] == of.size_means[0] and math.isnan(again.size_means[1])


@pytest.mark.nightly
@pytest.mark.parametrize(
    "measure",
    [
        _MEASURES["accuracy"],
        _PERPLEXITY,
        Measure("error", Unit.NONE, False, root_mean_squared_error(10.0)),
    ],
    ids=lambda measure: measure.name,
)
@pytest.mark.parametrize(
    "of",
    [
        ClientValues([], [], [], [], []),
        ClientValues([0.0], [1], [1], [1], [0.0]),
        ClientValues([1.0, 20.0, math.nan], [1, 2, 1], [1, 4, 2**23], [1, 2, 1], [1, 20, math.inf]),
    ],
    ids=["nobody", "one at 0", "some infinite"],
)
def test_whatever_there_is_can_be_drawn(tmp_path, measure, of):
    for rows in ({"a": [of]}, {"$a$": [of, of], "_b": [of]}):
        figure = client_figure(measure.name, measure.unit, rows, "test")
        save(figure, tmp_path / "figure.png")
        assert is_png((tmp_path / "figure.png").read_bytes())
        assert len(figure.legends) == (len(rows) > 1)


def test_error_bars_of_shares_stay_within_0_and_100():
    values = {"a": Estimate(0.9, 0.23, 1.57), "b": Estimate(0.1, -0.4, 0.6), "c": Estimate(0.5)}
    figure = domain_figure([Series("one", values)], "accuracy", Unit.SHARE, True)
    (axes,) = figure.axes
    segments = np.concatenate(
        [
            segment[:, 0]
            for container in axes.containers
            if not hasattr(container, "patches")
            for lines in container.lines[2]
            for segment in lines.get_segments()
            if len(segment)
        ]
    )
    np.testing.assert_allclose(sorted(segments[np.isfinite(segments)]), [0, 23, 60, 100])
    assert axes.get_xlim()[0] >= 0 and axes.get_xlim()[1] <= 100
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["b", "c (no interval)", "a"]


def test_clients_of_several_trials_are_joined_and_infinite_ones_count():
    trials = [
        ClientValues([0.2, 0.5], [1, 2], [1, 4], [1, 2], [0.2, 0.4]),
        ClientValues([0.2, 0.3, math.nan], [2, 1, 4], [4], [7], [0.8]),
    ]
    figure = client_figure("error", Unit.NONE, {"a": trials}, "test")
    shares, by_size = figure.axes
    (steps,) = shares.lines
    np.testing.assert_allclose(steps.get_xdata(), [0.2, 0.2, 0.2, 0.3, 0.5])
    # 10 clients: 3 at .2, 1 at .3, 2 at .5; of 4 the value is infinite.
    np.testing.assert_allclose(steps.get_ydata()[-3:], [30, 40, 60])
    assert steps.get_ydata()[0] == 0
    means = by_size.lines[0]
    np.testing.assert_allclose(means.get_xdata(), np.array([1, 4]) * 2**0.5)
    np.testing.assert_allclose(means.get_ydata(), [0.2, 0.6])
    ((bar,),) = [lines.get_segments() for _, _, (lines,) in by_size.containers]
    np.testing.assert_allclose(bar[:, 1], 0.6 + np.array([-1, 1]) * 0.2 * 2**0.5)


def test_the_models_of_a_run_lie_over_each_other():
    report = make_evaluation({"phone": 1.0}, split="heldout")
    drawn = client_figures(OrderedDict(main=report, average=report))
    assert list(drawn) == ["heldout clients loss", "heldout clients accuracy"]
    figure = drawn["heldout clients accuracy"]()
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["main", "average"]
    assert "heldout" in figure.axes[0].get_xlabel()


# --- Drawings in fewer bytes: the same elements, texts, styles and places


_LABEL = "0.123456; style:  one #s0"
_NUMBER = r"-?\d+\.?\d*(?![\w.])"


def _drawn() -> str:
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
    return text.getvalue()


def _elements(svg: str) -> list[tuple[str, str]]:
    elements = defusedxml.ElementTree.fromstring(svg).iter()
    return [(f"{e.tag} {e.attrib}", (e.text or "").strip()) for e in elements]


def test_what_is_drawn_stays_what_it_is():
    before = _drawn()
    after = compact_svg(before)
    assert len(after) < 0.9 * len(before) and after.startswith('<?xml version="1.0"')
    pairs = list(zip(_elements(before), _elements(after)))
    assert len(pairs) == len(_elements(before)) == len(_elements(after))
    assert _LABEL in {text for (_, text), _ in pairs}
    for (drawn, text), (found, found_text) in pairs:
        assert text == found_text
        assert re.sub(_NUMBER, "", drawn) == re.sub(_NUMBER, "", found)
        numbers = [[float(x) for x in re.findall(_NUMBER, part)] for part in (drawn, found)]
        np.testing.assert_allclose(numbers[1], numbers[0], rtol=0, atol=0.0051)
