"""Epsilon against what dp-accounting's own tests, closed forms and hand-made events say."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from tff_agnostic.errors import UserError
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.mechanisms import (
    CentralNoise,
    TreeNoise,
    effective_noise_multiplier,
)
from tff_agnostic.privacy.sampling import FixedSizeCohorts, PoissonCohorts
from tff_agnostic.privacy.tree import Participations

# Clients, of a round, z, T, delta, and epsilon by PLD and by RDP, computed with dp-accounting 0.4.3
# at intervals of 1e-4. Settings: MNIST by writer, Stack Overflow's users, McMahan et al. 2018.
_REFERENCES = [
    (1, 1, 1.0, 1, 1e-5, 4.3772, 4.7285),
    (1, 1, 4.0, 16, 1e-5, 4.3772, 4.7285),
    (100, 1, 1.0, 1000, 1e-5, 1.8282, 2.1014),
    (100, 1, 0.8, 1000, 1e-5, 3.1410, 3.6954),
    (10, 1, 1.0, 100, 1e-5, 7.0466, 7.8993),
    (5, 1, 2.0, 200, 1e-2, 4.0621, 4.8156),
    (539, 50, 1.0, 120, 1e-3, 4.8576, 5.7097),
    (539, 50, 2.0, 120, 1e-3, 1.5673, 1.8227),
    (539, 50, 4.0, 120, 1e-3, 0.6303, 0.7383),
    (342477, 100, 0.3, 1500, 1e-6, 14.76, 18.04),
    (342477, 100, 0.5, 1500, 1e-6, 2.6036, 3.9172),
    (342477, 1000, 1.0, 1500, 1e-6, 0.6954, 1.1961),
    (763430, 5000, 1.0, 4120, 1e-9, 3.5538, 3.8559),
]


def _epsilon(mechanism, rounds, delta, name=None):
    return PrivacyAccountant([mechanism], delta, name).epsilon(rounds)


@pytest.mark.parametrize(("clients", "drawn", "z", "rounds", "delta", "pld", "rdp"), _REFERENCES)
def test_reference_epsilons(clients, drawn, z, rounds, delta, pld, rdp):
    mechanism = CentralNoise(z, PoissonCohorts(clients, drawn))
    assert _epsilon(mechanism, rounds, delta) == pytest.approx(pld, rel=1e-3)
    assert _epsilon(mechanism, rounds, delta, "rdp") == pytest.approx(rdp, rel=1e-3)


@pytest.mark.parametrize(("z", "rounds"), [(4.0, 4), (1.0, 1), (2.0, 16)])
def test_without_sampling_epsilon_is_the_closed_form(z, rounds):
    mu = math.sqrt(rounds) / z

    def delta(epsilon):
        near, far = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return norm.cdf(near) - math.exp(epsilon) * norm.cdf(far)

    expected = brentq(lambda epsilon: delta(epsilon) - 1e-5, 0, 50)
    mechanism = CentralNoise(z, PoissonCohorts(7, 7))
    assert _epsilon(mechanism, rounds, 1e-5) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("z", "clients", "drawn", "expected"), [(3**0.5, 1, 1, 0.126936), (0.5, 5, 1, 0.15594)]
)
def test_deltas_of_dp_accountings_own_tests(z, clients, drawn, expected):
    mechanism = CentralNoise(z, PoissonCohorts(clients, drawn))
    loss = mechanism.privacy_loss(3, mechanism.interval(3))
    assert loss.get_delta_for_epsilon(1.0) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("z", "expected"), [(2.0, 11.01), (1.0, 85.02), (4.0, 4.06)])
def test_fixed_cohorts_are_accounted_for_at_twice_the_sensitivity(z, expected):
    mechanism = CentralNoise(z, FixedSizeCohorts(539, 50))
    assert _epsilon(mechanism, 120, 1e-3) == pytest.approx(expected, abs=5e-3)


_DELTA = 1e-5
_Q = 0.01
_COHORTS = PoissonCohorts(100, 1)


def _by_events(*events):
    event = dp.ComposedDpEvent(list(events))
    return RdpAccountant().compose(event).get_epsilon(_DELTA)


def _sampled(*multipliers):
    gaussians = [dp.GaussianDpEvent(z) for z in multipliers]
    return dp.PoissonSampledDpEvent(_Q, dp.ComposedDpEvent(gaussians))


# Of shares 0.9, 0.05 and 0.05.
_GROUPS = (1 / 0.9**0.5, 1 / 0.05**0.5, 1 / 0.05**0.5)


def test_groups_of_one_cohort_are_one_sampled_release():
    mechanism = CentralNoise(effective_noise_multiplier(_GROUPS), _COHORTS)
    found = _epsilon(mechanism, 1000, _DELTA, "rdp")
    expected = _by_events(dp.SelfComposedDpEvent(_sampled(*_GROUPS), 1000))
    assert found == pytest.approx(expected, rel=1e-9)
    assert found == pytest.approx(2.1014, rel=1e-4)


def test_what_composes_groups_as_releases_of_their_own_is_too_optimistic():
    together = CentralNoise(effective_noise_multiplier(_GROUPS), _COHORTS)
    apart = [CentralNoise(z, _COHORTS) for z in _GROUPS]
    for name, of_one, wrong in (("rdp", 2.1014, 1.9156), ("pld", 1.8282, 1.6909)):
        counts = [1000] * len(apart)
        assert PrivacyAccountant(apart, _DELTA, name).epsilon(*counts) == pytest.approx(
            wrong, rel=1e-3
        )
        assert _epsilon(together, 1000, _DELTA, name) == pytest.approx(of_one, rel=1e-3)


def test_two_exchanges_with_one_cohort_are_one_release():
    groups = [0.9 / share**0.5 for share in (0.1, 0.1, 0.8)]
    mechanism = CentralNoise(effective_noise_multiplier(groups), _COHORTS)
    survey = dp.ComposedDpEvent([dp.GaussianDpEvent(0.9 / 0.1**0.5)] * 2)
    training = dp.GaussianDpEvent(0.9 / 0.8**0.5)
    event = dp.PoissonSampledDpEvent(_Q, dp.ComposedDpEvent([survey, training]))
    expected = _by_events(dp.SelfComposedDpEvent(event, 300))
    assert _epsilon(mechanism, 300, _DELTA, "rdp") == pytest.approx(expected, rel=1e-9)


def test_private_evaluation_is_composed_at_its_own_rate():
    training = CentralNoise(1.0, _COHORTS)
    evaluation = CentralNoise(5.0, PoissonCohorts(100, 100))
    events = (
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(_Q, dp.GaussianDpEvent(1.0)), 200),
        dp.SelfComposedDpEvent(dp.GaussianDpEvent(5.0), 4),
    )
    by_rdp = PrivacyAccountant([training, evaluation], _DELTA, "rdp")
    assert by_rdp.epsilon(200, 4) == pytest.approx(_by_events(*events), rel=1e-9)
    by_pld = PrivacyAccountant([training, evaluation], _DELTA)
    expected = PLDAccountant(value_discretization_interval=3e-4)
    expected.compose(dp.ComposedDpEvent(list(events)))
    assert by_pld.epsilon(200, 4) == pytest.approx(expected.get_epsilon(_DELTA), rel=1e-6)
    assert by_pld.epsilon(200, 0) == pytest.approx(_epsilon(training, 200, _DELTA), rel=1e-9)


def test_restarted_trees_are_composed():
    # Once in each of four trees: a participation waits for as many rounds as a tree has.
    mechanism = TreeNoise(5.0, Participations(min_separation=100, restart_every=100))
    tree = dp.SingleEpochTreeAggregationDpEvent(5.0, 100)
    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp.SelfComposedDpEvent(tree, 4))
    expected = accountant.get_epsilon(_DELTA)
    assert _epsilon(mechanism, 400, _DELTA) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("z", "rounds", "expected"),
    [(1.13, 1600, 18.7096), (8.83, 1600, 1.7732), (4.0, 1600, 4.2295), (7.0, 2000, 2.2811)],
)
def test_trees_in_which_a_client_takes_part_once(z, rounds, expected):
    mechanism = TreeNoise(z, Participations(1))
    assert _epsilon(mechanism, rounds, 1e-6) == pytest.approx(expected, rel=1e-4)
    # Nodes are one Gaussian release, of which the closed form is less.
    assert 0.9 * expected < _epsilon(mechanism, rounds, 1e-6, "pld") < expected


def test_the_published_tree_of_spanish_gboard():
    mechanism = TreeNoise(7.0, Participations(6, 313))
    assert mechanism.rho(2000) == pytest.approx(0.81, abs=5e-3)
    assert _epsilon(mechanism, 2000, 1e-10) == pytest.approx(8.90, abs=5e-3)


@pytest.mark.parametrize("kind", [float, np.float32, np.float64, int])
def test_numbers_of_any_kind_are_counted_alike(kind):
    """dp-accounting counts only the first of composed multipliers that are no `float`."""
    multipliers = [kind(1), kind(1)]
    mechanism = CentralNoise(effective_noise_multiplier(multipliers), _COHORTS)
    assert _epsilon(mechanism, 1000, _DELTA, "rdp") == pytest.approx(5.2595, rel=1e-4)
    alone = CentralNoise(kind(1), _COHORTS)
    assert _epsilon(alone, 1000, _DELTA, "rdp") == pytest.approx(2.1014, rel=1e-4)


def test_epsilon_grows_with_the_rounds_and_begins_with_none():
    accountant = PrivacyAccountant([CentralNoise(4.0, PoissonCohorts(539, 50))], 1e-3)
    found = [accountant.epsilon(n) for n in (0, 1, 2, 10, 100)]
    assert found[0] == 0
    assert np.all(np.diff(found) > 0)


def test_without_noise_epsilon_is_infinite():
    for mechanism in (CentralNoise(0.0, _COHORTS), TreeNoise(0.0, Participations(1))):
        assert _epsilon(mechanism, 1, _DELTA) == math.inf
        assert _epsilon(mechanism, 0, _DELTA) == 0


def test_what_does_not_fit_together_is_refused():
    fixed = CentralNoise(1.0, FixedSizeCohorts(100, 1))
    poisson = CentralNoise(1.0, _COHORTS)
    with pytest.raises(UserError, match=r"one kind of neighbours.*'add or remove.*'replace one"):
        PrivacyAccountant([poisson, fixed], _DELTA)
    with pytest.raises(UserError, match=r"--privacy_accountant: expected rdp for .*, found pld"):
        PrivacyAccountant([fixed], _DELTA, "pld")
    with pytest.raises(UserError, match="unknown privacy accountant 'prv'"):
        PrivacyAccountant([fixed], _DELTA, "prv")
