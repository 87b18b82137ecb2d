"""Grids of fixed lambdas."""

import itertools

import numpy as np
import pytest

from tests import golden
from tff_agnostic.studies.frontier import mixtures

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
