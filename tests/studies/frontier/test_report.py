"""The table, the page, the files and the figure of a frontier made by hand."""

import csv
import io
import json

import numpy as np
import pytest

from tests.run.harness import AWKWARD_NAMES, is_png, measures
from tff_agnostic.reports.figures import save
from tff_agnostic.studies.comparison import SUMMARIES, Comparison, Trials
from tff_agnostic.studies.frontier import Frontier, mixtures
from tff_agnostic.studies.frontier_report import figure, markdown, table, to_csv, to_json


def _trials(by_domain):
    """Two trials, 0.01 above and below what is given."""
    worst = min(value for value in by_domain.values() if not np.isnan(value))
    known = {**by_domain, **dict.fromkeys(SUMMARIES, worst)}
    values = {
        name: {"accuracy": np.array([v - 0.01, v + 0.01]), "loss": np.array([1 - v, 1 - v])}
        for name, v in known.items()
    }
    return Trials(values, [{}, {}], {name for name, v in by_domain.items() if np.isnan(v)})


def _frontier(names, grid="lines", measure="accuracy", without=()):
    shares = np.linspace(1, 2, len(names)) / np.linspace(1, 2, len(names)).sum()
    points = mixtures(grid, 3, shares, names, 1000)

    def accuracies(weights):
        return {
            name: np.nan if name in without else 0.5 + 0.4 * weight**0.5
            for name, weight in zip(names, weights)
        }

    rows = {point.name: _trials(accuracies(point.weights)) for point in points}
    rows["fed_avg"] = _trials(accuracies(shares))
    rows["mine"] = _trials(accuracies([1 / len(names)] * len(names)))
    labels = {**{point.name: point.label for point in points}, "fed_avg": "FedAvg", "mine": "m|ne"}
    comparison = Comparison(tuple(names), measures("loss", "accuracy"), rows, labels)
    return Frontier(comparison, points, comparison.measures[measure])


def _cells(text):
    lines = [line for line in text.splitlines() if not set(line) <= set("|-: ")]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]


def test_the_table_has_every_mixture_and_algorithm():
    cells = _cells(table(_frontier(("a", "b")), "github"))
    assert cells[0] == ["trained with", "worst", "a", "b", "overall", "difference"]
    assert [row[0] for row in cells[1:]] == [
        "training mixture",
        "b only",
        "50% a, 50% b (best)",
        "a only",
        "FedAvg",
        r"m\|ne",
    ]
    assert cells[3][1:4] == ["**78.3 (1.4)**", "78.3 (1.4)", "78.3 (1.4)"]
    assert "**" not in table(_frontier(("a", "b")), "simple")


def test_of_many_domains_the_table_has_the_worst():
    cells = _cells(table(_frontier(AWKWARD_NAMES), "github"))
    assert cells[0] == ["trained with", "worst", "worst domain", "overall", "difference"]
    assert len(cells) == 1 + 1 + 2 * len(AWKWARD_NAMES) + 2
    assert {len(row) for row in cells} == {5}
    # Weighed least in training, and in FedAvg.
    assert cells[1][2] == cells[-2][2] == "a/b"


def test_the_page():
    frontier = _frontier(("a", "b"))
    page = markdown(frontier, "What is attainable on shop", "./run frontier", "frontier.png")
    lines = page.splitlines()
    assert lines[0] == "# What is attainable on shop"
    assert "`./run frontier`" in lines and frontier.sentence in lines
    assert "![What is attainable](frontier.png)" in lines
    assert "chosen by the numbers that are shown, those of the test clients" in page
    assert "Accuracy, percent on the test clients, higher is better; mean and standard" in page
    assert table(frontier, "github") in page


def test_json_has_the_answer_and_every_trial():
    frontier = _frontier(("a", "b"))
    found = json.loads(json.dumps(to_json(frontier, "./run frontier"), allow_nan=False))
    assert (found["outcome"], found["measure"], found["split"]) == ("found", "accuracy", "test")
    assert found["sentence"] == frontier.sentence
    assert found["mixtures"]["only_0"] == {"label": "a only", "lambda": {"a": 1.0, "b": 0.0}}
    worst = found["worst_domain"]
    assert worst["best"]["mixture"] == "lambda_0-0.5_1-0.5"
    assert worst["algorithms"]["mine"]["found"] is True
    assert worst["algorithms"]["fed_avg"]["missed_by"] == pytest.approx(worst["gain"])
    assert found["results"] == json.loads(json.dumps(frontier.comparison.to_json()))


@pytest.mark.parametrize("names", [("a", "b"), AWKWARD_NAMES])
def test_csv_has_lambda_and_every_domain(names):
    frontier = _frontier(names)
    rows = list(csv.DictReader(io.StringIO(to_csv(frontier), newline="")))
    assert [row["row"] for row in rows] == list(frontier.comparison.trials)
    for row, mixture in zip(rows, frontier.mixtures):
        assert row["kind"] == "mixture"
        assert [float(row[f"lambda/{name}"]) for name in names] == list(mixture.weights)
        for name in names:
            expected = frontier.mean(mixture.name, name)
            assert float(row[f"accuracy/{name}"]) == expected
    assert (rows[-1]["kind"], rows[-1][f"lambda/{names[0]}"]) == ("algorithm", "")


def test_of_two_domains_the_figure_is_a_curve():
    axes, colors = figure(_frontier(("a", "b"))).axes
    assert colors.get_ylabel() == "weight of a in fixed mixtures"
    curve = axes.lines[0]
    # From nothing but b to nothing but a.
    np.testing.assert_allclose(curve.get_xdata()[[0, -1]], [50, 90])
    np.testing.assert_allclose(curve.get_ydata()[[0, -1]], [90, 50])
    labels = axes.get_legend_handles_labels()[1]
    assert {
        "fixed mixtures",
        "training mixture",
        "best worst domain: 50% a, 50% b",
        "FedAvg",
        "m|ne",
        "equal",
    } == set(labels)


@pytest.mark.parametrize("grid", ["lines", "simplex"])
def test_of_more_domains_it_has_a_panel_for_each(grid):
    panels = figure(_frontier(("a", "b", "c"), grid)).axes
    assert [axes.get_title() for axes in panels] == ["a", "b", "c"]
    # Behind them the other domains.
    own, worst = panels[0].lines[2:4]
    assert own.get_ydata()[np.argmax(own.get_xdata())] == pytest.approx(90)
    assert worst.get_ydata()[np.argmax(worst.get_xdata())] == pytest.approx(50)


def test_of_very_many_domains_those_that_are_worst_off_have_panels():
    names = [f"domain {k}" for k in range(30)]
    titles = [axes.get_title() for axes in figure(_frontier(names)).axes]
    assert titles == names[:12]


@pytest.mark.parametrize("names", [("_x", "$y"), AWKWARD_NAMES])
@pytest.mark.parametrize("measure", ["accuracy", "loss"])
def test_figures_are_images_whatever_names_and_gaps_there_are(tmp_path, names, measure):
    frontier = _frontier(names, measure=measure, without=names[1:2])
    save(figure(frontier), tmp_path / "frontier.png")
    assert is_png((tmp_path / "frontier.png").read_bytes())
    json.dumps(to_json(frontier, ""), allow_nan=False)
    assert to_csv(frontier) and markdown(frontier, "title", "command", "frontier.png")
