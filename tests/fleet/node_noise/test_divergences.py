"""Epsilon of sums with noise matches dp-accounting and closed forms; false claims raise."""

import itertools
import math
from fractions import Fraction

import dp_accounting
import numpy as np
import pytest

from fleet.node_noise.account import NodeAccount
from fleet.node_noise.divergences import (
    ORDERS,
    SkellamSum,
    composed_epsilon,
    epsilon_lower_bound,
    gaussian,
    gaussian_epsilon,
    poisson_sampled_gaussian,
    sampled_without_replacement,
    skellam_divergences,
    tree_sensitivity,
)
from fleet.node_noise.noise import NodeNoise, NoisedGroup, PrivacyRequirements
from plan_runner.errors import PlanError
from tests.fleet.gaussian import exact_gaussian_epsilon
from tff_agnostic.privacy.distributed import Sensitivity, skellam
from tff_agnostic.privacy.tree import Participations, squared_sensitivity

_CLIP, _DELTA = 1000, 1e-5


def _noise(multiplier, sums, claimed=None, delta=_DELTA):
    """Returns a plan's noise, whose sum over three clients has this noise multiplier."""
    variance = (multiplier * _CLIP) ** 2 / 3
    group = NoisedGroup("update", ("a",), 1 << 40, _CLIP**2, variance, 100)
    noise = NodeNoise((group,), {}, 3, Fraction(1), delta, ())
    claimed = [noise.epsilon(n) for n in range(1, sums + 1)] if claimed is None else claimed
    return NodeNoise((group,), {}, 3, Fraction(1), delta, tuple(claimed))


def _num_accepted_sums(path, noise, required, max_sums):
    account = NodeAccount(path, noise, required)
    for number in range(max_sums):
        try:
            account.charge(b"%g %d" % (noise.noise_multiplier, number))
        except PlanError:
            return number
    return max_sums


def test_node_account_composes_noise_of_two_plans(tmp_path):
    required = PrivacyRequirements(0.5, max_epsilon=8.0, delta=_DELTA)
    path = tmp_path / "sums.jsonl"
    assert _num_accepted_sums(path, _noise(1.0, 2), required, 2) == 2
    later = _num_accepted_sums(path, _noise(4.0, 42), required, 42)
    sums = NodeAccount(path, _noise(1.0, 1), PrivacyRequirements()).sums
    exact = exact_gaussian_epsilon(math.sqrt(2 + later / 16), _DELTA)
    assert 6.5 < exact <= composed_epsilon(sums, _DELTA) <= min(8.0, 1.1 * exact)


def test_node_ignores_false_epsilon_claims(tmp_path):
    claimed = [0.001 * n for n in range(1, 1001)]
    required = PrivacyRequirements(0.5, max_epsilon=1.0, delta=_DELTA)
    false = _noise(0.5, 1000, claimed)
    assert _num_accepted_sums(tmp_path / "sums.jsonl", false, required, 1000) == 0


def test_node_uses_its_own_delta(tmp_path):
    """With a delta of nearly 1, a plan can truthfully claim epsilon 0."""
    void = _noise(1.0, 3, delta=0.999)
    assert void.claimed == (0.0, 0.0, 0.0)
    required = PrivacyRequirements(0.5, max_epsilon=1.0, delta=_DELTA)
    assert _num_accepted_sums(tmp_path / "sums.jsonl", void, required, 3) == 0


def test_gaussian_epsilon_equals_closed_form():
    for mu in (0.05, 0.7, 3.0, 12.0):
        for delta in (1e-10, 1e-5, 1e-2):
            expected = exact_gaussian_epsilon(mu, delta)
            assert gaussian_epsilon(mu, delta) == pytest.approx(expected, rel=1e-7)
    assert gaussian_epsilon(0.0, 1e-5) == 0
    assert math.isinf(gaussian_epsilon(math.inf, 1e-5))


@pytest.mark.parametrize(("z", "rate"), [(0.7, 0.01), (1.0, 0.15625), (3.0, 0.5)])
def test_sampled_divergences_equal_dp_accounting(z, rate):
    is_whole = (ORDERS <= 64) & (ORDERS % 1 == 0)
    orders = ORDERS[is_whole]
    gaussian_event = dp_accounting.GaussianDpEvent
    accountant = dp_accounting.rdp.RdpAccountant(orders.tolist())
    accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian_event(z)))
    result = poisson_sampled_gaussian(z, rate)
    np.testing.assert_allclose(result[is_whole], accountant.rdp, rtol=1e-9)
    # Divergences increase with the order, also between integer orders.
    assert np.all(np.diff(result[ORDERS <= 64]) > 0)
    replaced = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = dp_accounting.rdp.RdpAccountant(orders.tolist(), replaced)
    drawn = int(6400 * rate)
    accountant.compose(
        dp_accounting.SampledWithoutReplacementDpEvent(6400, drawn, gaussian_event(z / 2))
    )
    expected = np.minimum(accountant.rdp, orders * 2 / z**2)
    result = sampled_without_replacement(gaussian(2 / z), rate)[is_whole]
    # dp-accounting bounds some terms of the same theorem more tightly.
    assert np.all(result >= expected * (1 - 1e-9))
    np.testing.assert_allclose(result, expected, rtol=0.1)


def test_node_skellam_divergence_equals_the_exporters():
    noise = SkellamSum(((900, 4000.0, 50), (100, 300.0, 4)), Fraction(1))
    expected = sum(
        skellam(
            Sensitivity(math.sqrt(squared), math.sqrt(squared) * min(size**0.5, squared**0.5)),
            mu / 5,
            5,
            size,
            ORDERS,
        )
        for squared, mu, size in noise.groups
    )
    np.testing.assert_allclose(skellam_divergences(noise), expected)


@pytest.mark.parametrize(("z", "rate", "rounds"), [(1.0, 0.15625, 2), (0.72, 0.01, 500)])
def test_epsilon_lower_bound_is_below_exact_epsilon(z, rate, rounds):
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(z))
    # A coarse grid suffices, because it can only overestimate epsilon.
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-2)
    exact = accountant.compose(event, rounds).get_epsilon(_DELTA)
    assert 0.2 * exact < epsilon_lower_bound(z, rate, rounds, _DELTA, 1.0) <= exact * (1 + 1e-3)
    for sensitivity in (1, 2):
        result = epsilon_lower_bound(z, 1.0, rounds, _DELTA, sensitivity)
        expected = gaussian_epsilon(sensitivity * math.sqrt(rounds) / z, _DELTA)
        assert result == pytest.approx(expected, rel=2e-3) and result <= expected


@pytest.mark.parametrize("restart", [None, 4, 5])
def test_tree_sensitivity_matches_worst_pattern(restart):
    last = 11
    limits = Participations(max_participations=last, restart_every=restart)
    result = tree_sensitivity(range(1, last + 1), last, restart)
    assert result**2 == pytest.approx(squared_sensitivity(limits, last))
    spaced = Participations(min_separation=3, restart_every=restart)
    subsets = [[n + 1 for n in range(last) if mask >> n & 1] for mask in range(1 << last)]
    patterns = [s for s in subsets if all(b - a >= 3 for a, b in itertools.pairwise(s))]
    worst = max(tree_sensitivity(rounds, last, restart) for rounds in patterns)
    assert worst**2 == pytest.approx(squared_sensitivity(spaced, last))
