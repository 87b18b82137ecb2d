"""Bounds of integer noise's divergences hold against exact sums over all integers."""

import math

import numpy as np
import pytest
from scipy.stats import skellam as skellam_distribution

from tff_agnostic.privacy.distributed import (
    INTEGER_NOISES,
    DistributedNoise,
    IntegerGroup,
    Sensitivity,
    discrete_gaussian,
    rounded_sensitivity,
    skellam,
)
from tff_agnostic.privacy.sampling import SecretCohorts

_ORDERS = np.array([1.5, 2.0, 4.0, 8.0])
_SUPPORT = np.arange(-400, 401)


def _discrete_gaussian_sum(variance, num_clients):
    """Returns the probabilities of a sum of discrete Gaussians, by convolution."""
    one = np.exp(-(_SUPPORT**2) / (2 * variance))
    one /= one.sum()
    total = one
    for _ in range(num_clients - 1):
        total = np.convolve(total, one, mode="same")
    return total / total.sum()


def _skellam_sum(variance, num_clients):
    mu = variance * num_clients / 2
    return skellam_distribution.pmf(_SUPPORT, mu, mu)


def _divergence(noise, shift, order):
    """Returns the Renyi divergence between noise and shifted noise."""
    p, q = noise[: len(noise) - shift], noise[shift:]
    positive = (p > 1e-250) & (q > 1e-250)
    return math.log(
        np.sum(np.exp(order * np.log(p[positive]) + (1 - order) * np.log(q[positive])))
    ) / (order - 1)


@pytest.mark.parametrize(
    ("bound", "summed_noise"),
    [(skellam, _skellam_sum), (discrete_gaussian, _discrete_gaussian_sum)],
)
@pytest.mark.parametrize(
    ("variance", "num_clients", "shift"), [(4.0, 10, 3), (100.0, 4, 10), (2.0, 3, 1)]
)
def test_divergence_bounds_hold_and_are_tight(bound, summed_noise, variance, num_clients, shift):
    result = bound(Sensitivity(shift, shift), variance, num_clients, 1, _ORDERS)
    noise = summed_noise(variance, num_clients)
    exact = [_divergence(noise, shift, order) for order in _ORDERS]
    assert np.all(result >= np.array(exact) * (1 - 1e-9))
    if variance * num_clients >= 40:
        np.testing.assert_allclose(result, exact, rtol=0.1)


@pytest.mark.parametrize("name", list(INTEGER_NOISES))
def test_noise_on_fine_grid_is_gaussian(name):
    clip, dimension = 1e6, 100
    sensitivity = rounded_sensitivity(clip, dimension, math.exp(-0.5))
    result = INTEGER_NOISES[name](sensitivity, (2 * clip) ** 2 / 50, 50, dimension, _ORDERS)
    np.testing.assert_allclose(result, _ORDERS / (2 * 2**2), rtol=1e-4)


@pytest.mark.parametrize("l2", [0.5, 6.0])
def test_discrete_gaussian_divergence_equals_gaussian(l2):
    """A single client's tau is 0, so the divergence is alpha l2^2 / (2 sigma^2)."""
    orders = np.array([1.5, 2.0, 30.0])
    result = discrete_gaussian(Sensitivity(l2, l2**2), 4.0, 1, 10, orders)
    np.testing.assert_allclose(result, orders * l2**2 / 8, rtol=1e-12)


def test_narrow_discrete_gaussians_divergence_has_a_floor():
    # Two clients have tau = 10 exp(-pi^2 sigma^2), which does not depend on the sensitivity.
    result = discrete_gaussian(Sensitivity(1e-9, 1e-9), 0.25, 2, 4, np.array([2.0]))
    assert result == pytest.approx((math.sqrt(4) * 10 * math.exp(-(math.pi**2) / 4)) ** 2)


def test_rounded_sensitivity_matches_closed_form():
    # l2 = min(10 + 10, sqrt(100 + 100/4 + 1 * (10 + 5))), and l1 = l2 * min(10, l2).
    l2, l1 = rounded_sensitivity(10.0, 100, math.exp(-0.5))
    assert l2 == pytest.approx(math.sqrt(140))
    assert l1 == pytest.approx(10 * math.sqrt(140))
    # Rounding changes one value by at most 1. Integers' l1 norm is at most their squared l2 norm.
    assert rounded_sensitivity(0.5, 1, 1e-9) == pytest.approx((1.5, 1.5))
    assert rounded_sensitivity(1.0, 10**6, math.exp(-0.5)).l1 < 10**6


def test_roundings_exceed_the_bound_with_probability_beta():
    """Roundings of a vector at the clip norm exceed the bound with probability beta at most."""
    rng, beta = np.random.default_rng(0), 0.2
    clip, dimension = 5.0, 64
    values = np.full(dimension, clip / math.sqrt(dimension))
    rounded = np.floor(values) + (rng.uniform(size=(5000, dimension)) < values % 1)
    norms = np.linalg.norm(rounded, axis=1)
    assert np.mean(norms > rounded_sensitivity(clip, dimension, beta).l2) <= beta


@pytest.mark.parametrize("name", list(INTEGER_NOISES))
def test_fewer_clients_add_less_noise(name):
    cohorts = SecretCohorts(1000, 50, 50)
    expected = DistributedNoise((IntegerGroup(2.0, 1000.0, 64),), name, cohorts, 50, 50)
    fewer = DistributedNoise((IntegerGroup(2.0, 1000.0, 64),), name, cohorts, 50, 32)
    as_few = DistributedNoise((IntegerGroup(1.6, 1000.0, 64),), name, cohorts, 32, 32)
    np.testing.assert_allclose(fewer.release_rdp(_ORDERS), as_few.release_rdp(_ORDERS), rtol=1e-9)
    assert np.all(fewer.release_rdp(_ORDERS) > expected.release_rdp(_ORDERS))


def test_group_divergences_add_up():
    cohorts = SecretCohorts(1000, 50, 50)
    groups = (IntegerGroup(1.0, 1e6, 64), IntegerGroup(3.0, 1e4, 8))
    together = DistributedNoise(groups, "skellam", cohorts, 50, 50)
    apart = [DistributedNoise((group,), "skellam", cohorts, 50, 50) for group in groups]
    total = np.sum([mechanism.release_rdp(_ORDERS) for mechanism in apart], axis=0)
    np.testing.assert_allclose(together.release_rdp(_ORDERS), total)
    assert together.noise_multiplier == pytest.approx((1 + 1 / 9) ** -0.5)
    np.testing.assert_allclose(total, _ORDERS / 2 * (1 + 1 / 9), rtol=1e-2)
