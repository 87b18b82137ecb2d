"""The figures of a run."""

import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.run.harness import AWKWARD_NAMES, is_png, make_columns, make_task, make_values
from tff_agnostic.errors import UserError
from tff_agnostic.metrics.metrics_file import Column
from tff_agnostic.report_fields import ReportField, Unit
from tff_agnostic.reports.figures import COLORS, figure_of, look, save
from tff_agnostic.reports.run_figures import draw_run

_LOSS = ReportField("test/loss", "loss on the test clients", per_domain=True)


def _draw(folder, task):
    columns = make_columns(task)
    draw_run(folder, task, columns, make_values(columns))


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


def test_equal_runs_have_equal_figures(tmp_path):
    task = make_task(("phone", "tablet"))
    for folder in ("first", "second"):
        _draw(tmp_path / folder, task)
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()


def test_awkward_names_are_shown_as_they_are(tmp_path):
    task = make_task(AWKWARD_NAMES)
    _draw(tmp_path, task)
    assert is_png((tmp_path / "test_loss.png").read_bytes())


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


def _luminance(color: str) -> float:
    channels = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear))


def test_no_colour_is_lost_on_white():
    # WCAG asks for a contrast of 3 for graphics; sky blue and orange, which Okabe and Ito chose for
    # being told apart, have 2.
    assert min(1.05 / (_luminance(color) + 0.05) for color in COLORS) > 2


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
