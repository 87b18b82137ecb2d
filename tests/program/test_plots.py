"""The figures of a run."""

import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

from tests.program.harness import AWKWARD_NAMES, is_png, make_columns, make_task
from tff_agnostic.errors import UserError
from tff_agnostic.program.plots import domain_colors, draw_run, per_domain_figure, save


def test_a_figure_for_lambda_and_for_every_measure(tmp_path):
    task = make_task(("phone", "tablet"))
    draw_run(tmp_path / "plots", task, make_columns(task))
    paths = sorted((tmp_path / "plots").iterdir())
    assert [path.name for path in paths] == [
        "domain_weights.png",
        "test_accuracy.png",
        "test_loss.png",
        "train_accuracy.png",
        "train_loss.png",
    ]
    assert all(is_png(path.read_bytes()) for path in paths)


def test_a_task_adds_its_own_figures(tmp_path):
    def draw(task, columns):
        figure = Figure()
        figure.subplots().plot(columns["round"], columns["lambda/phone"])
        return figure

    task = dataclasses.replace(make_task(("phone", "tablet")), figures={"own": draw})
    draw_run(tmp_path, task, make_columns(task))
    assert is_png((tmp_path / "own.png").read_bytes())


def test_equal_runs_have_equal_figures(tmp_path):
    task = make_task(("phone", "tablet"))
    for folder in ("first", "second"):
        draw_run(tmp_path / folder, task, make_columns(task))
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes()


def test_awkward_names_are_shown_as_they_are(tmp_path):
    task = make_task(AWKWARD_NAMES)
    draw_run(tmp_path, task, make_columns(task))
    assert is_png((tmp_path / "test_loss.png").read_bytes())


@pytest.mark.parametrize("name", ["$", "$x^$", "$\\undefined$", "a $1 to $2", "_hidden"])
def test_a_name_is_neither_a_formula_nor_left_out_of_the_legend(tmp_path, name):
    columns = {"round": np.arange(2.0), f"lambda/{name}": np.arange(2.0)}
    figure = per_domain_figure([name], columns, "lambda", "lambda")
    save(figure, tmp_path / "figure.png")
    (text,) = figure.legends[0].get_texts()
    assert text.get_text().replace(r"\$", "$").strip() == name


def test_curves_go_through_the_rounds_that_have_a_value():
    task = make_task(("phone", "tablet"))
    columns = make_columns(task, rounds=4)
    columns["test/loss/phone"] = np.array([np.nan, 3.0, np.nan, 1.0])
    figure = per_domain_figure(task.domain_names, columns, "test/loss", "loss")
    phone, tablet = figure.axes[0].lines
    np.testing.assert_array_equal(phone.get_xdata(), [2, 4])
    np.testing.assert_array_equal(phone.get_ydata(), [3, 1])
    assert len(tablet.get_xdata()) == 1


@pytest.mark.parametrize(("measure", "scale"), [("loss", "linear"), ("perplexity", "log")])
def test_perplexities_stand_on_a_log_axis(tmp_path, measure, scale):
    columns = {"round": np.arange(4.0), f"test/{measure}/a": np.array([np.inf, 9e3, 100.0, 50.0])}
    figure = per_domain_figure(["a"], columns, f"test/{measure}", measure)
    assert figure.axes[0].get_yscale() == scale
    # What is infinite is left out.
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xdata(), [1, 2, 3])
    save(figure, tmp_path / "figure.png")


@pytest.mark.parametrize("count", [1, 10, 11, 50])
def test_domains_have_colours_of_their_own(count):
    assert len({tuple(color) for color in domain_colors(count)}) == count


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "plots").write_text("")
    task = make_task(("phone", "tablet"))
    with pytest.raises(UserError, match=r"plots: cannot write: File exists"):
        draw_run(tmp_path / "plots", task, make_columns(task))
