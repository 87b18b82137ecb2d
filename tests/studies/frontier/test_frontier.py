"""The mixtures of frontiers, and tables, figures and verdicts of made-up numbers."""

import dataclasses
import json
import math

import numpy as np
import pytest

from tests.support import golden
from tests.support.results import AWKWARD_NAMES, measures
from tff_agnostic.program.reports.document import Figure
from tff_agnostic.program.reports.html import svg
from tff_agnostic.program.studies.comparison import SUMMARIES, Comparison, Trials
from tff_agnostic.program.studies.frontier import (
    Frontier,
    FrontierOutcome,
    Verdict,
    judge,
    mixtures,
)
from tff_agnostic.program.studies.frontier_page import figure, frontier_table, to_json


def _trials(by_domain):
    """Returns two trials, with numbers slightly more than 0.01 above and below each value."""
    worst = min(value for value in by_domain.values() if not np.isnan(value))
    defined = {**by_domain, **dict.fromkeys(SUMMARIES, worst)}
    values = {
        name: {
            "loss": np.array([1 - v, 1 - v]),
            "accuracy": v + (0.01 + 0.001 * v) * np.array([-1, 1]),
        }
        for name, v in defined.items()
    }
    not_counted = {name for name, v in by_domain.items() if np.isnan(v)}
    return Trials(values, [{}, {}], not_counted, seeds=(0, 1))


def _frontier(names, without=()):
    shares = np.linspace(1, 2, len(names)) / np.linspace(1, 2, len(names)).sum()
    points = mixtures(3, shares, names, 1000)

    def accuracies(weights):
        return {
            name: np.nan if name in without else 0.5 + 0.4 * weight**0.5
            for name, weight in zip(names, weights)
        }

    rows = {point.name: _trials(accuracies(point.weights)) for point in points}
    rows["fed_avg"] = _trials(accuracies(shares))
    rows["mine"] = _trials(accuracies([1 / len(names)] * len(names)))
    labels = {**{point.name: point.label for point in points}, "fed_avg": "FedAvg", "mine": "m|ne"}
    return Frontier(Comparison(tuple(names), measures("loss", "accuracy"), rows, labels), points)


def test_table_marks_the_best_mixture():
    table = frontier_table(_frontier(("a", "b")))
    (best,) = [row for row in table.rows if row[1].mark == "best" and "(best)" in row[0]]
    assert best[0] == "50% a, 50% b (best)"
    # A wide table names the worst domain only.
    many = frontier_table(_frontier(tuple("cdefghijkl")))
    assert many.columns[:3] == ["trained with", "worst", "worst domain"]
    assert many.rows[0][2] == "c" and len(many.columns) == 5


def test_json_has_the_verdict():
    frontier = _frontier(("a", "b"))
    content = json.loads(json.dumps(to_json(frontier), allow_nan=False))
    assert (content["outcome"], content["best"]) == ("found", "lambda_0-0.5_1-0.5")
    assert (content["found_by"], content["missed_by"]) == (["mine"], ["fed_avg"])
    assert content["mixtures"]["only_0"] == {"label": "a only", "lambda": {"a": 1.0, "b": 0.0}}
    assert content["results"] == json.loads(json.dumps(frontier.comparison.to_json()))
    first, better, *_ = lines = content["sentences"]
    assert first == "A mixture helps, and m|ne found it."
    assert better.startswith("50% a, 50% b is better than training mixture in the worst domain (a)")
    assert any(line.startswith("FedAvg is worse than 50% a, 50% b in the worst") for line in lines)
    assert not any(line.startswith("Next: ") for line in lines)


def test_figure_of_two_domains_is_a_curve():
    axes, colors = figure(_frontier(("a", "b"))).axes
    assert colors.get_ylabel() == "weight of a in fixed mixtures"
    curve = axes.lines[0]
    # The curve leads from the mixture that is only b to the mixture that is only a.
    np.testing.assert_allclose(curve.get_xdata()[[0, -1]], [50, 90])
    np.testing.assert_allclose(curve.get_ydata()[[0, -1]], [90, 50])
    assert {
        *("fixed mixtures", "training mixture", "best worst domain: 50% a, 50% b"),
        *("FedAvg", "m|ne", "equal"),
    } == set(axes.get_legend_handles_labels()[1])


def test_figure_with_several_domains_has_panels():
    panels = figure(_frontier(("a", "b", "c"))).axes
    assert [axes.get_title() for axes in panels] == ["a", "b", "c", ""]
    # A panel's first two lines are the curves of the two other domains.
    domain, worst = panels[0].lines[2:4]
    assert domain.get_ydata()[np.argmax(domain.get_xdata())] == pytest.approx(90)
    assert worst.get_ydata()[np.argmax(worst.get_xdata())] == pytest.approx(50)
    names = [f"domain {k}" for k in range(30)]
    assert [axes.get_title() for axes in figure(_frontier(names)).axes] == names[:12]


@pytest.mark.parametrize("names", [("_x", "$y"), AWKWARD_NAMES])
def test_figures_are_drawn_for_any_names(names):
    frontier = _frontier(names, without=names[1:2])
    assert svg(Figure("", lambda: figure(frontier)))
    json.dumps(to_json(frontier), allow_nan=False)


# --- Mixtures lie on lines between domains


_SHARES = np.array([0.5, 0.3, 0.2])
_NAMES = ("a", "b", "c")


def _mixtures(points, shares=_SHARES, names=_NAMES, max_mixtures=1000):
    return mixtures(points, np.asarray(shares), names, max_mixtures)


def test_lines_lead_from_training_mixture_to_domains():
    first, *others = _mixtures(3)
    assert (first.name, first.weights) == ("training_mixture", (0.5, 0.3, 0.2))
    assert [(m.name, m.label, m.line, m.way) for m in others[:3]] == [
        ("to_0_0.5", "50% of the way to a", 0, 0.5),
        ("only_0", "a only", 0, 1.0),
        ("to_1_0.5", "50% of the way to b", 1, 0.5),
    ]
    np.testing.assert_allclose([m.weights for m in others[::2]], (_SHARES + np.eye(3)) / 2)
    np.testing.assert_array_equal([m.weights for m in others[1::2]], np.eye(3))
    # A finer grid keeps the names of the coarser grid's mixtures.
    assert {m.name: m for m in others}.items() <= {m.name: m for m in _mixtures(5)}.items()


def test_two_domains_have_one_line():
    points = _mixtures(5, [0.01, 0.99], ("rare", "frequent"))
    np.testing.assert_allclose([m.weights[0] for m in points], [0.01, 0, 0.25, 0.5, 0.75, 1])
    assert [(m.name, m.label) for m in points[1:3]] == [
        ("only_1", "frequent only"),
        ("lambda_0-0.25_1-0.75", "25% rare, 75% frequent"),
    ]
    # A training mixture that is also on the grid is trained only once.
    assert [m.weights[0] for m in _mixtures(3, [0.5, 0.5], ("a", "b"))] == [0.5, 0, 1]
    # A domain without training examples has no weight.
    points = _mixtures(3, [0.5, 0.0, 0.5])
    assert [m.weights for m in points] == [(0.5, 0, 0.5), (0, 0, 1), (1, 0, 0)]


def test_impossible_mixtures_raise_user_error():
    message = golden.refusal(_mixtures, 3, [1.0, 0.0], ("a", "b"))
    assert message.startswith("--task: expected at least 2 domains with training examples")
    message = golden.refusal(_mixtures, 3, max_mixtures=6)
    assert message.startswith("--grid_points: expected at most 6 mixtures, found 7 with 3 poi")
    # Mixtures are counted before they are made.
    message = golden.refusal(_mixtures, 10**12)
    assert message.startswith(
        "--grid_points: expected at most 1000 mixtures, found 2999999999998 w"
    )


# --- The verdict


def _judge(means, fed_avg, agnostic, higher_is_better=True, margin=0.02):
    """Returns the verdict when differences above `margin` count as significant."""
    sign = 1 if higher_is_better else -1
    by_name = {f"m{k}": mean for k, mean in enumerate(means)}
    every = {**by_name, "fed_avg": fed_avg, "agnostic": agnostic}

    def direction(row, other):
        gain = sign * (every[row] - every[other])
        return int(gain > margin) - int(gain < -margin)

    return judge(by_name, ("fed_avg", "agnostic"), higher_is_better, direction)


@pytest.mark.parametrize(
    ("means", "algorithms", "more", "expected"),
    [
        # The difference is smaller than the margin.
        ([0.6, 0.615, 0.5], (0.6, 0.55), {}, ("NONE_HELPS", "m1", (), ("agnostic",), ())),
        # An algorithm is between the mixtures.
        ([0.6, 0.7], (0.6, 0.65), {"margin": 0.06}, ("OPEN", "m1", (), ("fed_avg",), ())),
        ([0.6, 0.7], (0.6, 0.65), {}, ("MISSED", "m1", (), ("fed_avg", "agnostic"), ())),
        # The first of equal mixtures is the best.
        ([0.7, 0.6, 0.7], (0.7, 0.6), {}, ("NONE_HELPS", "m0", (), ("agnostic",), ())),
        # An algorithm is better than all mixtures.
        ([0.6, 0.7], (0.65, 0.8), {}, ("FOUND", "m1", ("agnostic",), ("fed_avg",), ("agnostic",))),
        # Small losses are good; an infinite one is the worst.
        (
            [1.0, 0.7, math.inf],
            (1.0, 0.71),
            {"higher_is_better": False},
            ("FOUND", "m1", ("agnostic",), ("fed_avg",), ()),
        ),
        # These mixtures have no domain that is counted.
        ([0.6, math.nan, 0.7], (0.6, 0.7), {}, ("FOUND", "m2", ("agnostic",), ("fed_avg",), ())),
        ([math.nan, 0.7], (0.6, 0.7), {}, ("UNKNOWN", "m0", (), (), ())),
    ],
)
def test_verdict_follows_significant_differences(means, algorithms, more, expected):
    outcome, *others = expected
    assert _judge(means, *algorithms, **more) == Verdict(FrontierOutcome[outcome], *others)


@pytest.mark.parametrize(
    ("worst", "start"),
    [
        ({"only_1": 0.4}, "No mixture helps."),
        ({"only_1": 0.6, "mine": 0.5}, "A mixture helps, and it was missed."),
        (
            {"only_1": 0.4, "mine": 0.9},
            "No mixture of this grid helps, but m|ne is better than all",
        ),
    ],
)
def test_first_sentence_answers_whether_mixtures_help(worst, start):
    frontier = _frontier(("a", "b"))
    trials = {
        row: _trials({"a": worst.get(row, 0.5), "b": 0.95}) for row in frontier.comparison.trials
    }
    compared = dataclasses.replace(frontier.comparison, trials=trials)
    first, *others = dataclasses.replace(frontier, comparison=compared).sentences
    assert first.startswith(start)
    assert sum(line.startswith(("FedAvg ", "m|ne ", "No significant")) for line in others) >= 2
    assert any(line.startswith("Next: ") for line in others)
