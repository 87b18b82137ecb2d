"""Projections, starts and worst mixtures of each set equal a solver's and values by hand."""

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests.support import solvers
from tff_agnostic.base.errors import UserError
from tff_agnostic.domain_weights import Ball, Box, Hull, LambdaSet, Simplex

_CENTER = np.array([0.6, 0.25, 0.1, 0.05])
_BOX = Box((0.1, 0.0, 0.05, 0.2), (0.6, 0.5, 1.0, 0.4))
_BALL = Ball(tuple(_CENTER), 0.3)
_MIXTURES = ((0.7, 0.1, 0.1, 0.1), (0.0, 0.5, 0.5, 0.0), (0.25, 0.25, 0.25, 0.25))


class _Case(NamedTuple):
    """A set Lambda, its constraints for a solver, and the solver's start."""

    set: Any
    bounds: Any
    inside: solvers.Inside
    start: np.ndarray


_ALL = [(0.0, 1.0)] * 4
_CASES = {
    "simplex": _Case(Simplex(), _ALL, None, np.full(4, 0.25)),
    "box": _Case(_BOX, list(zip(_BOX.lower, _BOX.upper)), None, np.array([0.3, 0.25, 0.15, 0.3])),
    "ball": _Case(_BALL, _ALL, lambda x: 0.3 - np.sum((x - _CENTER) ** 2 / _CENTER), _CENTER),
}


class _Compiled:
    """A set whose projections are traced once."""

    def __init__(self, lambda_set: LambdaSet) -> None:
        self.project = tf.function(lambda_set.project, autograph=False)
        self.project_kl = tf.function(lambda_set.project_kl, autograph=False)
        self.worst = lambda_set.worst


@pytest.fixture(params=list(_CASES), scope="module")
def case(request) -> _Case:
    case = _CASES[request.param]
    return case._replace(set=_Compiled(case.set))


def _points(seed: int) -> np.ndarray:
    """Returns points near the simplex and far from it."""
    rng = np.random.default_rng(seed)
    scales = np.geomspace(0.05, 20.0, 12)[:, np.newaxis]
    return (_CENTER + scales * rng.normal(size=(12, 4))).astype(np.float32)


def test_projection_matches_solver(case):
    for point in _points(1):
        expected = solvers.nearest(point.astype(np.float64), case.bounds, case.inside, case.start)
        np.testing.assert_allclose(case.set.project(tf.constant(point)), expected, atol=2e-4)


def test_entropy_projection_matches_solver(case):
    rng = np.random.default_rng(2)
    for concentration in (0.3, 1.0, 5.0):
        point = rng.dirichlet(np.full(4, concentration)) + 1e-6
        point = (point / point.sum()).astype(np.float32)
        expected = solvers.nearest_in_entropy(
            point.astype(np.float64), case.bounds, case.inside, case.start
        )
        actual = case.set.project_kl(tf.constant(point))
        np.testing.assert_allclose(actual, expected, atol=3e-4)


def test_worst_mixture_matches_solver(case):
    for losses in _points(3).astype(np.float64):
        expected = losses @ solvers.worst(losses, case.bounds, case.inside, case.start)
        actual = case.set.worst(losses)
        np.testing.assert_allclose(losses @ actual, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(actual.sum(), 1.0, rtol=1e-9)


def test_projection_does_not_change_points_in_the_set(case):
    for point in _points(4):
        inside = case.set.project(tf.constant(point))
        np.testing.assert_allclose(case.set.project(inside), inside, atol=2e-6)
        positive = np.maximum(inside, 1e-8)
        np.testing.assert_allclose(case.set.project_kl(positive), positive, atol=2e-6)


def test_projected_points_are_in_the_set(case):
    rng = np.random.default_rng(5)
    for point in np.concatenate([_points(6), 1e4 * _points(7), 1e-4 * _points(8)]):
        for actual in (
            np.asarray(case.set.project(tf.constant(point))),
            np.asarray(case.set.project_kl(rng.dirichlet(np.ones(4)).astype(np.float32))),
        ):
            np.testing.assert_allclose(actual.sum(), 1.0, atol=1e-6)
            lower, upper = np.transpose(case.bounds)
            assert np.all((actual >= lower - 1e-6) & (actual <= upper + 1e-6))
            assert case.inside is None or case.inside(actual.astype(np.float64)) > -1e-5


def test_entropy_projection_of_tiny_weights_is_finite():
    lambda_set = _BOX
    tiny = np.finfo(np.float32).tiny
    actual = np.asarray(lambda_set.project_kl(tf.constant([1.0, tiny, tiny, tiny])))
    assert np.all(np.isfinite(actual))
    np.testing.assert_allclose(actual.sum(), 1.0, atol=1e-6)
    np.testing.assert_allclose(actual, [0.6, 0.1, 0.1, 0.2], atol=1e-6)


def test_wide_ball_equals_simplex():
    # The farthest vertex has the chi2 distance 1 / 0.05 - 1 = 19.
    ball = Ball(tuple(_CENTER), 19.1)
    for point in _points(10):
        expected = Simplex().project(tf.constant(point))
        np.testing.assert_allclose(ball.project(tf.constant(point)), expected, atol=1e-6)
    np.testing.assert_allclose(ball.worst(np.array([0.0, 0, 0, 1])), [0, 0, 0, 1], atol=1e-12)


def test_ball_worst_mixture_matches_solver_for_radii():
    # The radii range from a small ball to one that contains all vertices.
    rng = np.random.default_rng(12)
    for _ in range(30):
        p = int(rng.integers(2, 6))
        center = rng.dirichlet(np.ones(p))
        radius = float(rng.choice([0.05, 0.5, 1.0 / center.max() - 1.0, 5.0, 2.0 / center.min()]))
        losses = rng.normal(size=p) * rng.choice([1e-3, 1.0, 1e3]) + rng.choice([0.0, 50.0, -1e4])
        mixture = Ball(tuple(center), radius).worst(losses)
        np.testing.assert_allclose(mixture.sum(), 1.0, rtol=1e-9)
        assert np.all(mixture >= 0)
        assert np.sum((mixture - center) ** 2 / center) <= radius * (1 + 1e-9) + 1e-12
        relative = (losses - losses.min()) / np.ptp(losses)
        expected = solvers.worst(
            relative,
            [(0.0, 1.0)] * p,
            lambda x, center=center, radius=radius: radius - np.sum((x - center) ** 2 / center),
            # At the centre, the constraint's gradient is 0 and the solver stops.
            0.9 * center + 0.1 * np.full(p, 1 / p) if radius > 0.4 else center,
        )
        np.testing.assert_allclose(relative @ mixture, relative @ expected, atol=1e-5)


@pytest.mark.parametrize("losses", [(0.0, 2.0, 2.0, 1.0), (-7.0, -7.0, -7.0, -7.0)])
def test_ball_around_all_vertices_reaches_largest_loss(losses):
    mixture = Ball(tuple(_CENTER), 1e3).worst(np.array(losses))
    np.testing.assert_allclose(mixture @ losses, max(losses), rtol=1e-12)


def test_projection_with_thirty_domains_matches_solver():
    rng = np.random.default_rng(11)
    center = rng.dirichlet(np.ones(30))
    ball = Ball(tuple(center), 0.5)
    box = Box((0.0,) * 30, (0.1,) * 30)
    for scale in (0.01, 1.0):
        point = (center + scale * rng.normal(size=30)).astype(np.float32)
        expected = solvers.nearest(point, [(0, 0.1)] * 30, None, np.full(30, 1 / 30))
        np.testing.assert_allclose(box.project(tf.constant(point)), expected, atol=1e-4)
        actual = np.asarray(ball.project(tf.constant(point)), np.float64)
        np.testing.assert_allclose(actual.sum(), 1.0, atol=1e-6)
        assert np.sum((actual - center) ** 2 / center) < 0.5 + 1e-4


def test_hull_returns_mixtures_losses_and_worst():
    hull = Hull(("day", "night", "mean"), _MIXTURES)
    losses = np.array([1.0, 2.0, 4.0, 0.0])
    np.testing.assert_allclose(hull.gradient(tf.constant(losses, tf.float32)), [1.3, 3.0, 1.75])
    coordinates = tf.constant([0.5, 0.25, 0.25])
    expected = 0.5 * np.array(_MIXTURES[0]) + 0.25 * np.array(_MIXTURES[1]) + 0.0625
    np.testing.assert_allclose(hull.mixture(coordinates), expected, rtol=1e-6)
    np.testing.assert_array_equal(hull.worst(losses), _MIXTURES[1])
    np.testing.assert_allclose(hull.start(np.full(4, 0.25)), np.full(3, 1 / 3))


@pytest.mark.parametrize("lambda_set", [_BOX, _BALL])
def test_rejects_lambda_0_outside_set(lambda_set):
    with pytest.raises(UserError, match=r"^initial: expected a lambda_0"):
        lambda_set.start(np.array([0.0, 0.0, 0.0, 1.0]))
