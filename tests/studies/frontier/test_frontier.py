"""The table, the figure and the grids of frontiers with made-up numbers."""

import itertools
import json
import math

import numpy as np
import pytest

from tests import golden
from tests.run.harness import AWKWARD_NAMES, MEASURES, measures
from tff_agnostic.program.reports.document import Figure
from tff_agnostic.program.reports.html import svg
from tff_agnostic.program.studies.comparison import SUMMARIES, Comparison, Trials
from tff_agnostic.program.studies.frontier import (
    Frontier,
    FrontierOutcome,
    check_time,
    judge,
    mixtures,
    sentence,
)
from tff_agnostic.program.studies.frontier_page import figure, frontier_table, to_json


def _trials(by_domain):
    """Two trials, 0.01 above and below what is given; their spread grows with it."""
    worst = min(value for value in by_domain.values() if not np.isnan(value))
    known = {**by_domain, **dict.fromkeys(SUMMARIES, worst)}
    values = {
        name: {
            "accuracy": v + (0.01 + 0.001 * v) * np.array([-1, 1]),
            "loss": np.array([1 - v, 1 - v]),
        }
        for name, v in known.items()
    }
    left_out = {name for name, v in by_domain.items() if np.isnan(v)}
    return Trials(values, [{}, {}], left_out, seeds=(0, 1))


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


def test_table_of_many_domains_has_the_worst():
    table = frontier_table(_frontier(("a", "b")))
    assert table.columns == ["trained with", "worst", "a", "b", "all examples", "best - worst"]
    assert [row[0] for row in table.rows][-2:] == ["FedAvg", "m|ne"]
    (best,) = [row for row in table.rows if row[1].mark == "best" and "(best)" in row[0]]
    assert best[0] == "50% a, 50% b (best)"
    many = frontier_table(_frontier(("c", "d", "e|f", *"ghijkl")))
    assert many.columns[:3] == ["trained with", "worst", "worst domain"]
    assert many.rows[0][2] == "c" and len(many.columns) == 5


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
    assert [axes.get_title() for axes in panels] == ["a", "b", "c", ""]
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
def test_figures_are_drawn_with_awkward_names(names, measure):
    frontier = _frontier(names, measure=measure, without=names[1:2])
    assert svg(Figure("", lambda: figure(frontier)))
    json.dumps(to_json(frontier, ""), allow_nan=False)
    assert len(frontier_table(frontier).rows) == len(frontier.comparison.trials)


# --- Grids of fixed lambdas


_SHARES = np.array([0.5, 0.3, 0.2])
_NAMES = ("a", "b", "c")


def _found(grid, points, shares=_SHARES, names=_NAMES, most=1000):
    return mixtures(grid, points, np.asarray(shares), names, most)


def test_lines_go_from_the_training_mixture_to_each_domain():
    first, *others = _found("lines", 3)
    assert (first.name, first.weights) == ("training_mixture", (0.5, 0.3, 0.2))
    assert [(m.name, m.label, m.line, m.way) for m in others] == [
        ("to_0_0.5", "50% of the way to a", 0, 0.5),
        ("only_0", "a only", 0, 1.0),
        ("to_1_0.5", "50% of the way to b", 1, 0.5),
        ("only_1", "b only", 1, 1.0),
        ("to_2_0.5", "50% of the way to c", 2, 0.5),
        ("only_2", "c only", 2, 1.0),
    ]
    np.testing.assert_allclose([m.weights for m in others[::2]], (_SHARES + np.eye(3)) / 2)
    np.testing.assert_array_equal([m.weights for m in others[1::2]], np.eye(3))


@pytest.mark.parametrize(("domains", "points"), [(2, 2), (2, 6), (3, 4), (5, 3)])
def test_the_simplex_has_every_multiple_once(domains, points):
    steps = points - 1
    shares = np.full(domains, 0.01)
    shares[0] += 1 - shares.sum()
    first, *others = _found("simplex", points, shares, list("abcde")[:domains])
    expected = {
        counts
        for counts in itertools.product(range(steps + 1), repeat=domains)
        if sum(counts) == steps
    }
    counts = [tuple(np.rint(np.multiply(m.weights, steps)).astype(int)) for m in others]
    assert len(counts) == len(set(counts)) and set(counts) == expected
    np.testing.assert_allclose([np.sum(m.weights) for m in (first, *others)], 1)
    assert len({m.name for m in (first, *others)}) == 1 + len(others)


@pytest.mark.parametrize("grid", ["lines", "simplex"])
def test_two_domains_have_one_line_whatever_their_shares(grid):
    found = _found(grid, 5, [0.01, 0.99], ("rare", "frequent"))
    weights = [m.weights[0] for m in found]
    np.testing.assert_allclose(weights, [0.01, 0, 0.25, 0.5, 0.75, 1])
    assert [m.label for m in found[1:4]] == [
        "frequent only",
        "25% rare, 75% frequent",
        "50% rare, 50% frequent",
    ]


def test_a_point_that_is_the_training_mixture_is_not_trained_twice():
    assert [m.weights[0] for m in _found("lines", 3, [0.5, 0.5], ("a", "b"))] == [0.5, 0, 1]


def test_a_finer_grid_has_the_same_points_by_the_same_names():
    for grid in ("lines", "simplex"):
        coarse, fine = ({m.name: m for m in _found(grid, points)} for points in (3, 5))
        assert coarse.keys() < fine.keys()
        assert all(fine[name] == mixture for name, mixture in coarse.items())


@pytest.mark.parametrize("grid", ["lines", "simplex"])
def test_there_is_no_way_to_a_domain_without_training_examples(grid):
    found = _found(grid, 3, [0.5, 0.3, 0.2, 0.0], (*_NAMES, "d"))
    assert all(m.weights[3] == 0 for m in found)
    assert [m.weights[:3] for m in found] == [m.weights for m in _found(grid, 3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("lines", 3, [1.0, 0.0], ("a", "b")),
            "--task: expected at least 2 domains with training examples to mix, found 1 of 2",
        ),
        (
            ("lines", 3, _SHARES, _NAMES, 6),
            "--grid_points: expected a grid of at most 6 mixtures, found more with 3 points a line",
        ),
        (
            ("simplex", 4, np.full(40, 1 / 40), [str(k) for k in range(40)]),
            "--grid_points: expected a grid of at most 1000 mixtures, found more with 4 points a ",
        ),
        (("simplex", 10**12), "--grid_points: expected a grid of at most 1000 mixtures, found mor"),
    ],
)
def test_grids_that_cannot_be(arguments, message):
    assert golden.refusal(_found, *arguments).startswith(message)


def test_as_many_mixtures_as_there_may_be():
    assert len(_found("lines", 3, most=7)) == 7


# --- What follows from trials made by hand, and the sentence that says it


_LABELS = {"fed_avg": "FedAvg", "agnostic_fed_avg": "AgnosticFedAvg"}


def _around(mean, std=0.02):
    """Three trials with this mean and sample standard deviation."""
    return mean + np.array([-std, 0.0, std])


def _judge(means, fed_avg, agnostic, higher_is_better=True, margin=0.02):
    """Where two rows are told apart if they differ by more than a margin."""
    mixtures = {f"m{k}": _around(mean) for k, mean in enumerate(means)}
    algorithms = {"fed_avg": _around(fed_avg), "agnostic_fed_avg": _around(agnostic)}
    return judge(mixtures, algorithms, higher_is_better, _by_margin(mixtures, algorithms, margin))


def _by_margin(mixtures, algorithms, margin, sign=1):
    means = {name: np.mean(values) for name, values in {**mixtures, **algorithms}.items()}

    def told(row, other):
        gain = sign * (means[row] - means[other])
        return int(gain > margin) - int(gain < -margin)

    return told


def _said(verdict, measure="accuracy", split="test", best="b only"):
    return sentence(verdict, best, 3, _LABELS, MEASURES[measure], split)


def test_one_helps_and_the_algorithm_found_it():
    verdict = _judge([0.6, 0.7, 0.8], fed_avg=0.61, agnostic=0.79)
    assert (verdict.outcome, verdict.best) == (FrontierOutcome.FOUND, "m2")
    assert verdict.gain == pytest.approx(0.2)
    assert verdict.best_end.spread == pytest.approx(0.02)
    assert (verdict.found_by, verdict.missed_by) == (("agnostic_fed_avg",), ("fed_avg",))
    assert verdict.gaps == pytest.approx({"fed_avg": 0.19, "agnostic_fed_avg": 0.01})
    assert _said(verdict) == (
        "A mixture helps, and AgnosticFedAvg found it: accuracy of the worst domain on the test "
        "clients is 80.0% (2.0) with the best of 3 mixtures (b only), against 60.0% (2.0) with the "
        "training mixture; FedAvg ended at 61.0% (2.0) and missed it by 19.0 points; "
        "AgnosticFedAvg ended at 79.0% (2.0)."
    )


def test_no_mixture_helps():
    # By less than can be told.
    verdict = _judge([0.6, 0.615, 0.5], fed_avg=0.6, agnostic=0.55)
    assert (verdict.outcome, verdict.best) == (FrontierOutcome.NONE_HELPS, "m1")
    assert (verdict.found_by, verdict.missed_by) == ((), ("agnostic_fed_avg",))
    assert _said(verdict, best="25% of the way to b") == (
        "No mixture is shown to help: accuracy of the worst domain on the test clients is 61.5% "
        "(2.0) with the best of 3 mixtures (25% of the way to b), against 60.0% (2.0) with the "
        "training mixture; FedAvg ended at 60.0% (2.0); AgnosticFedAvg ended at 55.0% (2.0), worse "
        "than the best by 6.5 points."
    )


def test_an_algorithm_in_between_neither_found_it_nor_missed_it():
    # It is told from neither end.
    verdict = _judge([0.6, 0.7], fed_avg=0.6, agnostic=0.65, margin=0.06)
    assert (verdict.outcome, verdict.found_by) == (FrontierOutcome.OPEN, ())
    assert verdict.missed_by == ("fed_avg",)
    said = _said(verdict)
    assert said.startswith("A mixture helps, and whether it was found cannot be told: accuracy ")
    assert said.endswith("; AgnosticFedAvg ended at 65.0% (2.0).")
    missed = _judge([0.6, 0.7], fed_avg=0.6, agnostic=0.65)
    assert missed.outcome is FrontierOutcome.MISSED
    assert _said(missed).startswith("A mixture helps, and it was missed: ")


def test_the_training_mixture_is_itself_the_best():
    verdict = _judge([0.7, 0.6, 0.7], fed_avg=0.7, agnostic=0.6)
    assert (verdict.outcome, verdict.best, verdict.gain) == (FrontierOutcome.NONE_HELPS, "m0", 0)
    assert _said(verdict) == (
        "No mixture helps: accuracy of the worst domain on the test clients is 70.0% (2.0) with "
        "the training mixture, the best of 3; FedAvg ended at 70.0% (2.0); AgnosticFedAvg ended "
        "at 60.0% (2.0), worse than the best by 10.0 points."
    )


@pytest.mark.parametrize(
    ("means", "outcome"),
    [([0.6, 0.7], FrontierOutcome.FOUND), ([0.7, 0.6], FrontierOutcome.NONE_HELPS)],
)
def test_an_algorithm_may_be_better_than_the_grid(means, outcome):
    verdict = _judge(means, fed_avg=0.65, agnostic=0.8)
    assert verdict.outcome is outcome
    assert verdict.beyond == ("agnostic_fed_avg",)
    assert verdict.gaps["agnostic_fed_avg"] == pytest.approx(-0.1)
    assert _said(verdict).endswith(
        "AgnosticFedAvg ended at 80.0% (2.0), better than any mixture by 10.0 points."
    )


def test_an_algorithm_above_the_grid_says_that_the_grid_may_be_too_coarse():
    beyond = "No mixture of this grid helps, but AgnosticFedAvg is better than all of them, and a "
    verdict = _judge([0.7, 0.6], fed_avg=0.65, agnostic=0.8)
    assert _said(verdict).startswith(f"{beyond}finer grid (--grid_points) may have one that does: ")
    both = _said(_judge([0.7, 0.6], fed_avg=0.75, agnostic=0.8))
    assert "helps, but FedAvg and AgnosticFedAvg are better than all of them" in both
    # By less than can be told it is not; and where a mixture helps, the grid is fine enough.
    assert _said(_judge([0.7, 0.6], fed_avg=0.6, agnostic=0.71)).startswith("No mixture helps: ")
    assert "of this grid" not in _said(_judge([0.6, 0.7], fed_avg=0.65, agnostic=0.8))


def test_of_losses_the_lowest_is_best():
    mixtures = {f"m{k}": _around(mean) for k, mean in enumerate((1.0, 0.7, 1.2))}
    algorithms = {"fed_avg": _around(1.0), "agnostic_fed_avg": _around(0.71)}
    told = _by_margin(mixtures, algorithms, 0.02, sign=-1)
    verdict = judge(mixtures, algorithms, False, told)
    assert (verdict.outcome, verdict.best) == (FrontierOutcome.FOUND, "m1")
    assert verdict.gain == pytest.approx(0.3)
    assert verdict.gaps == pytest.approx({"fed_avg": 0.3, "agnostic_fed_avg": 0.01})
    assert "is 0.700 (0.020) with the best of 3 mixtures (b only)" in _said(verdict, "loss")
    assert "is 0.70 (0.02) with the best" in _said(verdict, "perplexity")


def test_without_an_interval_nothing_is_shown():
    mixtures = {"m0": np.array([0.6]), "m1": np.array([0.61])}
    verdict = judge(mixtures, {"fed_avg": np.array([0.605])}, True, lambda row, other: 0)
    assert (verdict.outcome, verdict.best) == (FrontierOutcome.NONE_HELPS, "m1")
    assert math.isnan(verdict.best_end.spread)
    said = sentence(verdict, "b only", 2, {"fed_avg": "FedAvg"}, MEASURES["accuracy"], "test")
    assert said.startswith("No mixture is shown to help: ")
    assert said.endswith(
        "is 61.0% with the best of 2 mixtures (b only), against 60.0% with the training mixture; "
        "FedAvg ended at 60.5% (one seed: what another one would change is not known)."
    )


def test_mixtures_without_a_counted_domain_are_not_the_best():
    mixtures = {"m0": np.array([0.6]), "m1": np.array([np.nan]), "m2": np.array([0.7])}
    assert judge(mixtures, {}, True, lambda row, other: 1).best == "m2"
    nothing = {**mixtures, "m0": np.array([np.nan])}
    verdict = judge(nothing, {"fed_avg": np.array([0.6])}, True, lambda row, other: 0)
    assert (verdict.outcome, verdict.best) == (FrontierOutcome.UNKNOWN, "m0")
    assert _said(verdict, split="heldout") == (
        "Nothing is known of the worst domain: no domain has enough heldout examples in every "
        "trial."
    )


def test_what_has_become_infinite_is_worst():
    mixtures = {"m0": [np.inf, np.inf], "m1": [3.0, 3.0], "m2": [np.inf, 1.0]}
    means = {name: np.array(values) for name, values in mixtures.items()}
    verdict = judge(means, {"fed_avg": np.array([np.inf, np.inf])}, False, lambda row, other: 0)
    # Nothing is told of what is infinite.
    assert (verdict.outcome, verdict.best, verdict.gain) == (
        FrontierOutcome.NONE_HELPS,
        "m1",
        math.inf,
    )


def test_a_grid_that_takes_too_long():
    check_time(1.0, seconds=36.0, trials_left=99)
    assert golden.refusal(check_time, 1.0, seconds=36.0, trials_left=129).startswith(
        "--max_hours: expected about 1.30 for 130 trials, the first of which took 36.0 s, found 1; "
        "fewer --grid_points or --trials take less, and --resume keeps the finished trials"
    )
