"""Sampling of any release, against what is known of Gaussian ones."""

import math

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.rdp import RdpAccountant
from scipy.integrate import quad
from scipy.stats import norm

from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.amplification import poisson_sampled, sampled_without_replacement
from tff_agnostic.privacy.distributed import DistributedNoise, IntegerGroup
from tff_agnostic.privacy.sampling import FixedSizeCohorts, SecretCohorts

_ORDERS = np.array([1.5, 2.0, 3.0, 4.0, 8.0, 32.0, 64.0, 300.0])


def _gaussian(z):
    return lambda orders: np.asarray(orders) / (2 * z**2)


@pytest.mark.parametrize("z", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_poisson_cohorts_are_between_the_exact_divergence_and_none(z, rate):
    found = poisson_sampled(_gaussian(z), rate, _ORDERS)
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(z))
    exact = RdpAccountant(_ORDERS).compose(event).rdp
    assert np.all(found >= exact * (1 - 1e-9))
    assert np.all(found <= _gaussian(z)(_ORDERS))
    # 1 + q^2 (e^eps - 1), which is exact.
    assert found[1] == pytest.approx(math.log1p(rate**2 * math.expm1(1 / z**2)))


def test_order_3_by_hand_and_by_integration():
    q, z = 0.2, 1.5
    two, three = 1 / z**2, 1.5 / z**2
    terms = (1 - q) ** 2 * (2 * q + 1) + 3 * (1 - q) * q**2 * math.exp(two)
    bound = terms + 3 * q**3 * math.exp(2 * three)
    (found,) = poisson_sampled(_gaussian(z), q, np.array([3.0]))
    assert found == pytest.approx(math.log(bound) / 2)

    def integrand(x):
        ratio = (1 - q) + q * math.exp((2 * x - 1) / (2 * z**2))
        return norm.pdf(x, scale=z) * ratio**3

    exact = quad(integrand, -12 * z, 14 * z)[0]
    assert found >= math.log(exact) / 2
    assert exact == pytest.approx(terms + q**3 * math.exp(2 * three))


@pytest.mark.parametrize("z", [1.0, 4.0])
@pytest.mark.parametrize("rate", [0.01, 0.1])
def test_fixed_cohorts_of_any_release_are_no_better_than_those_of_gaussian_ones(z, rate):
    found = sampled_without_replacement(_gaussian(z), rate, _ORDERS)
    event = SampledWithoutReplacementDpEvent(1000, round(1000 * rate), GaussianDpEvent(z))
    known = RdpAccountant(_ORDERS, NeighboringRelation.REPLACE_ONE).compose(event).rdp
    assert np.all(found >= np.minimum(known, _gaussian(z)(_ORDERS)) * (1 - 1e-9))
    assert np.all(found <= _gaussian(z)(_ORDERS))
    eps = 1 / z**2
    second = rate**2 * min(4 * math.expm1(eps), 2 * math.exp(eps))
    assert found[1] == pytest.approx(min(math.log1p(second), eps))


@pytest.mark.parametrize("sampled", [poisson_sampled, sampled_without_replacement])
def test_the_whole_fleet_has_no_amplification(sampled):
    np.testing.assert_array_equal(sampled(_gaussian(2.0), 1.0, _ORDERS), _gaussian(2.0)(_ORDERS))


def test_clients_in_turns_are_accounted_for_their_turns():
    groups = (IntegerGroup(1.0, 2.0**14, 8192),)

    def epsilon(clients, answering, rounds):
        sampling = SecretCohorts(clients, answering, 10)
        mechanism = DistributedNoise(groups, "skellam", sampling, answering, answering)
        return PrivacyAccountant([mechanism], 1e-5).epsilon(rounds)

    # Ten turns of 100 clients each: of 31 rounds a client answers four at the most.
    assert epsilon(1000, 100, 31) == epsilon(100, 100, 4)
    assert epsilon(1000, 100, 30) == epsilon(100, 100, 3)
    assert epsilon(1000, 1000, 31) < epsilon(1000, 100, 31)


@pytest.mark.parametrize(
    ("cohorts", "least", "most"),
    # By RDP 1.8227 and 11.01 with Gaussian noise of a server.
    [(SecretCohorts(539, 539, 50), 1.8227, 2.7), (FixedSizeCohorts(539, 50), 11.0, 11.1)],
)
def test_distributed_noise_costs_a_little_more_than_central(cohorts, least, most):
    clients = 539 if isinstance(cohorts, SecretCohorts) else 50
    groups = (IntegerGroup(2.0, 1e4, 4096),)
    mechanism = DistributedNoise(groups, "skellam", cohorts, clients, clients)
    assert least < PrivacyAccountant([mechanism], 1e-3).epsilon(120) < most
