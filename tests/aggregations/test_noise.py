"""Noise has the distribution that is accounted for, and no place's says anything of another's."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tff_agnostic.aggregations.noise import NoisedGroup, Release, TreeResidual, gaussian
from tff_agnostic.aggregations.noise_generators import NOISE_GENERATORS
from tff_agnostic.computations.server_optimizers import ServerOptimizerOptions

_KEYS = {"philox": (5, -7), "secure": (5, -7, 2, 1)}
_ONE = tf.constant(1.0, tf.float64)
_KINDS = {"central": gaussian, "tree": TreeResidual(), "trees": TreeResidual(restart_every=4)}


@pytest.fixture(params=_KEYS)
def draw(request):
    """Returns a function that draws the noise of one value of a release, which is 0."""
    generator = NOISE_GENERATORS[request.param]

    def draw(noise, release, shape=(10_000,), exchange=0, value=0, key=_KEYS[request.param]):
        values = [tf.zeros(shape, tf.float64)] * (value + 1)
        # Every value up to it, as there is one stream of a release.
        groups = [NoisedGroup(range(value + 1), _ONE, _ONE)]
        of_release = Release(tf.constant(key, tf.int64), exchange, tf.constant(release, tf.int64))
        noisy, _ = generator.add_noise(noise, of_release, values, groups)
        return noisy[value].numpy().astype(np.float32)

    draw.keys = [tuple(k + (i == j) for j, k in enumerate(_KEYS[request.param])) for i in range(2)]
    return draw


def test_central_noise_is_normal(draw):
    draws = draw(gaussian, 3)
    assert np.var(draws) == pytest.approx(1.0, rel=0.03)
    assert stats.kstest(draws, "norm").pvalue > 0.01


@pytest.mark.parametrize("name", ["tree", "trees"])
def test_prefix_sums_have_the_noise_of_the_nodes_that_cover_them(draw, name):
    noise = _KINDS[name]
    prefix = np.zeros(10_000)
    for t in range(1, 14):
        prefix = prefix + draw(noise, t - 1)
        # Every complete tree before leaves the noise of its root.
        whole, in_tree = divmod(t, 4) if name == "trees" else (0, t)
        num_nodes = whole + bin(in_tree).count("1")
        assert np.var(prefix) == pytest.approx(num_nodes, rel=0.05), t
    assert stats.kstest(prefix / np.sqrt(num_nodes), "norm").pvalue > 0.01


def test_prefix_sums_share_the_nodes_that_they_have_in_common(draw):
    prefixes = np.cumsum([draw(_KINDS["tree"], t) for t in range(8)], axis=0)
    covariance = np.cov(prefixes)
    # 1-4 is a node of 4, 5, 6 and 7; 8 is one of its own.
    for t in (5, 6, 7):
        assert covariance[3, t - 1] == pytest.approx(1.0, abs=0.06)
    assert covariance[3, 7] == pytest.approx(0.0, abs=0.06)
    assert covariance[4, 6] == pytest.approx(1.0, abs=0.06)
    # 1-4, 5-6 and 7.
    assert covariance[6, 6] == pytest.approx(3.0, rel=0.06)


@pytest.mark.parametrize("name", _KINDS)
def test_places_releases_and_keys_are_independent(draw, name):
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
def test_a_release_has_one_noise(draw, name):
    noise = _KINDS[name]
    for release in (0, 6, 7, 1_000_000):
        np.testing.assert_array_equal(draw(noise, release, (3,)), draw(noise, release, (3,)))


def test_momentum_on_rounds_with_tree_noise_is_dp_ftrl_with_momentum(draw):
    """v_t = gamma v_{t-1} + noisy prefix sum, theta_t = theta_0 - eta v_t (Kairouz et al. 2021)."""
    rng, gamma, eta = np.random.default_rng(0), 0.9, 0.5
    gradients = rng.normal(size=(11, 3)).astype(np.float32)
    residuals = [draw(_KINDS["tree"], t, (3,)) for t in range(11)]
    options = ServerOptimizerOptions("momentum", eta, gamma)
    optimizer = options.build_server_optimizer()
    start = np.float32([1.0, 2.0, 3.0])
    state = optimizer.initialize(tf.TensorSpec([3]))
    theta, momentum = tf.constant(start), np.zeros(3)
    for t in range(11):
        state, theta = optimizer.next(state, theta, gradients[t] + residuals[t])
        momentum = gamma * momentum + gradients[: t + 1].sum(0) + np.sum(residuals[: t + 1], axis=0)
        np.testing.assert_allclose(theta, start - eta * momentum, rtol=1e-4, atol=1e-3)
