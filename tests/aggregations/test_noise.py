"""Noise has the accounted distribution and is independent across values, steps and keys."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp
from scipy import stats
from tensorflow_privacy.privacy.dp_query import tree_aggregation

from tests.support.models import linear_model
from tff_agnostic.aggregations.noise import NoisedGroup, Release, TreeResidual, gaussian
from tff_agnostic.aggregations.noise_generators import add_noise
from tff_agnostic.computations.server import Momentum, ServerUpdate

_KEY = (5, -7, 2, 1)
_ONE = tf.constant(1.0, tf.float64)
_KINDS = {"central": gaussian, "tree": TreeResidual(), "trees": TreeResidual(restart_every=4)}


@pytest.fixture
def draw():
    """Returns a function that draws the noise of one released value; the value itself is 0."""

    def draw(noise, release, shape=(10_000,), exchange=0, value=0, key=_KEY):
        values = [tf.zeros(shape, tf.float64)] * (value + 1)
        # All values of a release share one random stream, so draw all values up to this one.
        groups = [NoisedGroup(range(value + 1), _ONE, _ONE)]
        drawn_for = Release(tf.constant(key, tf.int64), exchange, tf.constant(release, tf.int64))
        noisy, _ = add_noise(noise, drawn_for, values, groups)
        return noisy[value].numpy().astype(np.float32)

    draw.keys = [tuple(k + (i == j) for j, k in enumerate(_KEY)) for i in range(4)]
    return draw


def test_central_noise_is_normal(draw):
    draws = draw(gaussian, 3)
    assert np.var(draws) == pytest.approx(1.0, rel=0.03)
    assert stats.kstest(draws, "norm").pvalue > 0.01


@pytest.mark.parametrize("name", ["tree", "trees"])
def test_prefix_sums_have_noise_of_their_tree_nodes(draw, name):
    noise = _KINDS[name]
    prefix = np.zeros(10_000)
    for t in range(1, 14):
        prefix = prefix + draw(noise, t - 1)
        # Each earlier complete tree contributes the noise of its root.
        whole, in_tree = divmod(t, 4) if name == "trees" else (0, t)
        num_nodes = whole + bin(in_tree).count("1")
        assert np.var(prefix) == pytest.approx(num_nodes, rel=0.05), t
    assert stats.kstest(prefix / np.sqrt(num_nodes), "norm").pvalue > 0.01


class _KeyedNodes(tree_aggregation.ValueGenerator):
    """Noise of tree nodes, in tensorflow-privacy's order.

    For t from 1, node t is the largest node that ends with release t. After a tree's last release,
    tensorflow-privacy draws one more node.
    """

    def __init__(self, per_tree):
        self._per_tree = per_tree

    def initialize(self):
        return tf.constant(0, tf.int64)

    def next(self, state):
        tree, t = state // (self._per_tree + 1), state % (self._per_tree + 1) + 1
        level = tf.cast(tf.math.log(tf.cast(t & -t, tf.float64)) / np.log(2.0) + 0.5, tf.int64)
        return _node(level, t // 2**level + tree * 2**40), state + 1


def _node(level, number):
    return tf.random.stateless_normal([3], tf.stack([level, number]))


@pytest.mark.slow_cases("6")
@pytest.mark.parametrize("restart_every", [None, 6])
def test_tree_noise_equals_tensorflow_privacys(restart_every):
    releases = 19
    query = tfp.TreeResidualSumQuery(
        tf.TensorSpec([3]),
        _KeyedNodes(restart_every or releases),
        clip_fn=tf.clip_by_global_norm,
        clip_value=1.0,
        use_efficient=False,
    )
    if restart_every is not None:
        indicator = tfp.restart_query.PeriodicRoundRestartIndicator(restart_every)
        query = tfp.RestartQuery(query, indicator)
    state, noise = query.initial_global_state(), TreeResidual(restart_every)
    for t in range(releases):
        expected, state, _ = query.get_noised_result(tf.zeros([3]), state)
        actual = noise(_node, tf.constant(t, tf.int64), tf.TensorSpec([3]))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5, err_msg=str(t))


@pytest.mark.parametrize("name", _KINDS)
def test_noise_is_independent_across_values_and_keys(draw, name):
    noise = _KINDS[name]
    others = [
        draw(noise, 0, value=1),
        draw(noise, 0, exchange=1),
        *(draw(noise, 0, key=key) for key in draw.keys),
    ]
    first = draw(noise, 0)
    for other in others:
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.04
    if name == "central":
        assert abs(np.corrcoef(first, draw(noise, 1))[0, 1]) < 0.04


@pytest.mark.parametrize("name", _KINDS)
def test_repeated_release_has_the_same_noise(draw, name):
    noise = _KINDS[name]
    for release in (0, 6, 7, 1_000_000):
        np.testing.assert_array_equal(draw(noise, release, (3,)), draw(noise, release, (3,)))


def test_momentum_with_tree_noise_is_dp_ftrl(draw):
    """v_t = gamma v_{t-1} + noisy prefix sum, theta_t = theta_0 - eta v_t (Kairouz et al. 2021)."""
    rng, gamma, eta = np.random.default_rng(0), 0.9, 0.5
    gradients = rng.normal(size=(11, 3)).astype(np.float32)
    residuals = [draw(_KINDS["tree"], t, (3,)) for t in range(11)]
    optimizer = ServerUpdate(Momentum(gamma), eta).build(linear_model())
    start = np.float32([1.0, 2.0, 3.0])
    state = optimizer.initialize([tf.TensorSpec([3])])
    theta, momentum = tf.constant(start), np.zeros(3)
    for t in range(11):
        state, (theta,) = optimizer.next(state, [theta], [gradients[t] + residuals[t]])
        momentum = gamma * momentum + gradients[: t + 1].sum(0) + np.sum(residuals[: t + 1], axis=0)
        np.testing.assert_allclose(theta, start - eta * momentum, rtol=1e-4, atol=1e-3)
