"""Epsilons equal dp-accounting's and closed forms, and attacks do not refute them."""

import math

import dp_accounting as dp
import numpy as np
import pytest
import tensorflow as tf
from dp_accounting import (
    GaussianDpEvent,
    NeighboringRelation,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.integrate import quad
from scipy.stats import norm

from tests.privacy.attacks.audit import MODES
from tests.privacy.closed_forms import gaussian_epsilon
from tests.support.marks import usually
from tff_agnostic.aggregations.noise import TreeResidual
from tff_agnostic.base.errors import UserError
from tff_agnostic.privacy.accountant import (
    PrivacyAccountant,
    check_delta,
    default_delta,
    noise_for_epsilon,
    rounds_for_budget,
)
from tff_agnostic.privacy.amplification import (
    poisson_sampled,
    poisson_sampled_gaussian,
    sampled_without_replacement,
)
from tff_agnostic.privacy.distributed import DistributedNoise, IntegerGroup
from tff_agnostic.privacy.mechanisms import CentralNoise, TreeNoise, effective_noise_multiplier
from tff_agnostic.privacy.sampling import FixedSizeCohorts, PoissonCohorts, SecretCohorts
from tff_agnostic.privacy.tree import Participations, noise_covariance
from tff_agnostic.program.commands.privacy_options import AccountingOptions

# Clients, clients per round, z, T, delta, and epsilons by PLD and by RDP from dp-accounting 0.4.3
# at intervals of 1e-4. Settings include MNIST by writer, Stack Overflow and McMahan et al. 2018.
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
def test_epsilons_match_references(clients, drawn, z, rounds, delta, pld, rdp):
    mechanism = CentralNoise(z, PoissonCohorts(clients, drawn))
    assert _epsilon(mechanism, rounds, delta) == pytest.approx(pld, rel=1e-3)
    assert _epsilon(mechanism, rounds, delta, "rdp") == pytest.approx(rdp, rel=1e-3)


@pytest.mark.parametrize(("z", "clients", "drawn"), [(1.0, 100, 1), (0.5, 539, 50), (4.0, 539, 50)])
def test_poisson_divergences_equal_integrals(z, clients, drawn):
    """The integrals are moments of density ratios, Mironov, Talwar, Zhang 2019, equation (3)."""
    q, orders = drawn / clients, (1.5, 2.0, 4.3, 10.9, 12.0)

    def integral(order):
        def f(x):
            ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * x - 1) / (2 * z * z))
            return math.exp(order * ratio - x * x / (2 * z * z)) / (z * math.sqrt(2 * math.pi))

        ends = (-12 * z, order + 12 * z)
        points = (0, 1, order / 2, order)
        return quad(f, *ends, points=points, epsabs=0, epsrel=1e-12, limit=400)[0]

    expected = [3 * math.log(integral(order)) / (order - 1) for order in orders]
    actual = CentralNoise(z, PoissonCohorts(clients, drawn)).rdp(3, orders)
    np.testing.assert_allclose(actual, expected, rtol=1e-8)


@pytest.mark.parametrize(("z", "rounds"), [(4.0, 4), (1.0, 1), (2.0, 16)])
def test_epsilon_without_sampling_equals_closed_form(z, rounds):
    expected = gaussian_epsilon(math.sqrt(rounds) / z, 1e-5)
    mechanism = CentralNoise(z, PoissonCohorts(7, 7))
    assert _epsilon(mechanism, rounds, 1e-5) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("z", "clients", "drawn"), [(0.72, 100, 1), (1.0, 2, 1), (0.4, 1000, 999), (20.0, 10, 1)]
)
@pytest.mark.slow_cases("100-0.4-1000-999", "1-0.4-1000-999", "100-20.0-10-1", "100-0.72-100-1")
@pytest.mark.parametrize("rounds", [1, 100])
def test_sampled_losses_match_dp_accounting(z, clients, drawn, rounds):
    mechanism, interval = CentralNoise(z, PoissonCohorts(clients, drawn)), 1e-3
    ours = mechanism.privacy_loss(rounds, interval)
    theirs = dp.pld.privacy_loss_distribution.from_gaussian_mechanism(
        z, value_discretization_interval=interval, sampling_prob=drawn / clients
    ).self_compose(rounds)
    for delta in (1e-2, 1e-5, 1e-8):
        expected = theirs.get_epsilon_for_delta(delta)
        assert ours.get_epsilon_for_delta(delta) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(("z", "expected"), [(2.0, 11.01), (1.0, 85.02), (4.0, 4.06)])
def test_fixed_cohorts_have_twice_the_sensitivity(z, expected):
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


def _assert_as_tight(actual, expected):
    """Allows slightly smaller values, as dp-accounting 0.6 bounds fractional orders from above."""
    assert expected * (1 - 1e-5) < actual <= expected * (1 + 1e-9)


# Noise multipliers of groups with the budget shares 0.9, 0.05 and 0.05.
_GROUPS = (1 / 0.9**0.5, 1 / 0.05**0.5, 1 / 0.05**0.5)


def test_groups_of_one_cohort_are_one_release():
    mechanism = CentralNoise(effective_noise_multiplier(_GROUPS), _COHORTS)
    actual = _epsilon(mechanism, 1000, _DELTA, "rdp")
    expected = _by_events(dp.SelfComposedDpEvent(_sampled(*_GROUPS), 1000))
    _assert_as_tight(actual, expected)
    assert actual == pytest.approx(2.1014, rel=1e-4)


def test_private_evaluations_compose_at_their_own_sampling_rate():
    training = CentralNoise(1.0, _COHORTS)
    evaluation = CentralNoise(5.0, PoissonCohorts(100, 100))
    events = (
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(_Q, dp.GaussianDpEvent(1.0)), 200),
        dp.SelfComposedDpEvent(dp.GaussianDpEvent(5.0), 4),
    )
    by_rdp = PrivacyAccountant([training, evaluation], _DELTA, "rdp")
    assert by_rdp.epsilon(200, 4) == pytest.approx(_by_events(*events), rel=1e-6)
    by_pld = PrivacyAccountant([training, evaluation], _DELTA)
    expected = PLDAccountant(value_discretization_interval=3e-4)
    expected.compose(dp.ComposedDpEvent(list(events)))
    assert by_pld.epsilon(200, 4) == pytest.approx(expected.get_epsilon(_DELTA), rel=1e-6)
    assert by_pld.epsilon(200, 0) == pytest.approx(_epsilon(training, 200, _DELTA), rel=1e-9)


def test_restarted_trees_are_composed():
    # Participations are a tree's length apart, so a client takes part once in each of four trees.
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
def test_single_participation_trees_match_known_epsilons(z, rounds, expected):
    mechanism = TreeNoise(z, Participations(1))
    assert _epsilon(mechanism, rounds, 1e-6) == pytest.approx(expected, rel=1e-4)
    # By PLD all nodes are one Gaussian release, whose exact epsilon is smaller.
    assert 0.9 * expected < _epsilon(mechanism, rounds, 1e-6, "pld") < expected


def test_spanish_gboard_tree_matches_its_paper():
    mechanism = TreeNoise(7.0, Participations(6, 313))
    assert mechanism.rho(2000) == pytest.approx(0.81, abs=5e-3)
    assert _epsilon(mechanism, 2000, 1e-10) == pytest.approx(8.90, abs=5e-3)


@pytest.mark.parametrize("kind", [float, np.float32, np.float64, int])
def test_multiplier_type_does_not_change_epsilon(kind):
    """dp-accounting ignores composed multipliers after the first, unless they have type float."""
    multipliers = [kind(1), kind(1)]
    mechanism = CentralNoise(effective_noise_multiplier(multipliers), _COHORTS)
    assert _epsilon(mechanism, 1000, _DELTA, "rdp") == pytest.approx(5.2595, rel=1e-4)
    alone = CentralNoise(kind(1), _COHORTS)
    assert _epsilon(alone, 1000, _DELTA, "rdp") == pytest.approx(2.1014, rel=1e-4)


def test_epsilon_grows_with_rounds_from_zero():
    accountant = PrivacyAccountant([CentralNoise(4.0, PoissonCohorts(539, 50))], 1e-3)
    actual = [accountant.epsilon(n) for n in (0, 1, 2, 10, 100)]
    assert actual[0] == 0
    assert np.all(np.diff(actual) > 0)


def test_epsilon_without_noise_is_infinite():
    for mechanism in (CentralNoise(0.0, _COHORTS), TreeNoise(0.0, Participations(1))):
        assert _epsilon(mechanism, 1, _DELTA) == math.inf
        assert _epsilon(mechanism, 0, _DELTA) == 0


def test_rejects_invalid_accountants():
    fixed = CentralNoise(1.0, FixedSizeCohorts(100, 1))
    poisson = CentralNoise(1.0, _COHORTS)
    with pytest.raises(UserError, match=r"one kind of neighbours.*'add or remove.*'replace one"):
        PrivacyAccountant([poisson, fixed], _DELTA)
    with pytest.raises(UserError, match=r"privacy_accountant: expected rdp for .*, found pld"):
        PrivacyAccountant([fixed], _DELTA, "pld")
    with pytest.raises(UserError, match="unknown privacy accountant 'prv'"):
        PrivacyAccountant([fixed], _DELTA, "prv")


# --- Attacks refute none of the private modes, only controls that claim too small epsilons


@pytest.mark.parametrize("restart_every", [None, 3])
def test_tree_noise_has_the_accounted_covariance(restart_every):
    """Each node's noise is a separate unit vector, so that products are exact covariances."""
    noise, rounds, nodes = TreeResidual(restart_every), 11, {}
    spec = tf.TensorSpec([64], tf.float64)

    def draw(level, number):
        node = nodes.setdefault((int(level), int(number)), len(nodes))
        return tf.one_hot(node, 64, dtype=tf.float64)

    drawn = np.array([noise(draw, tf.constant(t, tf.int64), spec) for t in range(rounds)])
    participations = Participations(1, restart_every=restart_every)
    np.testing.assert_array_equal(drawn @ drawn.T, noise_covariance(participations, rounds))


# Number of attacked runs of slow modes, instead of 2,000.
_FEWER = {"distributed, 2 of 6, a secret": 600, "control: half the noise that is claimed": 1000}


@pytest.mark.nightly_cases("control: half the noise that is claimed")
@pytest.mark.slow
@pytest.mark.parametrize("name", usually(_FEWER, MODES))
def test_attacks_respect_every_modes_account(name):
    """Attacks refute only the controls, which claim too small epsilons."""
    mode = MODES[name]
    actual = mode.audited(runs=_FEWER.get(name, 2000), seed=1)
    assert actual.is_refuted == mode.is_control
    # Published models derive from the noisy sums, so each attack's bound holds for both. A bound
    # from a rare event can be low, so require only the larger bound.
    attacks = (actual.findings.noisy_sums, actual.findings.published)
    assert max(attacks) > 0.2
    # The attacked client changes the sums by exactly the account's sensitivity.
    if mode.account is None and "counted" not in name:
        per_client = mode.mechanism.noise_multiplier * actual.findings.shift
        is_replaced = "3 of" in name
        assert per_client == pytest.approx(2.0 if is_replaced else 1.0, rel=1e-3)
    is_shown = name == "control: counted, claimed as a secret"
    assert actual.findings.shows_participation == is_shown


# --- Groups of values share the privacy budget


@pytest.mark.parametrize(("z", "share"), [(1.0, 0.9), (0.3, 0.8), (7.0, 0.02)])
def test_groups_noise_composes_to_the_total(z, share):
    options = AccountingOptions(clients=100, clients_per_round=10, update_share=share)
    groups = options.noise_multipliers(z)
    assert groups["update"] == pytest.approx(z / share**0.5)
    assert effective_noise_multiplier(groups.values()) == pytest.approx(z)


def test_group_without_noise_makes_total_multiplier_zero():
    assert effective_noise_multiplier([1.0, 0.0]) == 0


# --- Noise is calibrated to a target epsilon, and rounds end with the budget


_WRITERS = PoissonCohorts(539, 50)
_SECRET = SecretCohorts(539, 50, 50)


@pytest.mark.parametrize(
    "mechanisms",
    [
        lambda z: [CentralNoise(z, PoissonCohorts(100, 10)), CentralNoise(3 * z, _WRITERS)],
        lambda z: [TreeNoise(z, Participations(4, 10)), TreeNoise(9 * z, Participations(1))],
        lambda z: [
            DistributedNoise((IntegerGroup(z, 1e3, 64),), "skellam", _SECRET, 50, 40),
            DistributedNoise((IntegerGroup(9 * z, 1e3, 64),), "skellam", _SECRET, 50, 40),
        ],
    ],
    ids=["central", "tree", "distributed"],
)
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_calibrated_noise_is_minimal(mechanisms, epsilon):
    def epsilon_at(z):
        return PrivacyAccountant(mechanisms(z), 1e-4, "rdp").epsilon(50, 5)

    noise = noise_for_epsilon(mechanisms, [50, 5], epsilon, 1e-4, "rdp")
    assert epsilon_at(noise) <= epsilon < epsilon_at(noise * (1 - 2e-6))


# At the second epsilon, the grid of privacy losses becomes finer, which makes epsilon jump.
@pytest.mark.parametrize("epsilon", [0.05, 4.3527, 300.0])
def test_calibrated_noise_meets_epsilon_of_final_account(epsilon):
    noise = noise_for_epsilon(lambda z: [CentralNoise(z, _COHORTS)], [500], epsilon, 1e-6)
    actual, above = (
        _epsilon(CentralNoise(z, _COHORTS), 500, 1e-6) for z in (noise, noise * (1 - 2e-6))
    )
    assert actual <= epsilon < above


def test_rejects_unreachable_epsilons():
    narrow = IntegerGroup(1.0, 2.0, 4096)

    def mechanisms(z):
        group = IntegerGroup(z, narrow.clip, narrow.dimension)
        return [DistributedNoise((group,), "discrete_gaussian", _SECRET, 50, 50)]

    with pytest.raises(
        UserError, match="target_epsilon: expected a budget that some noise attains"
    ):
        noise_for_epsilon(mechanisms, [120], 1e-4, 1e-6)
    with pytest.raises(UserError, match=r"target_epsilon: expected less than .* has already"):
        noise_for_epsilon(lambda z: [TreeNoise(z, Participations(1))], [1], 1e9, 1e-3)


@pytest.mark.parametrize(
    ("mechanism", "epsilon"),
    [
        (CentralNoise(1.0, _WRITERS), 4.0),
        (CentralNoise(8.0, FixedSizeCohorts(539, 50)), 2.0),
        (TreeNoise(4.0, Participations(None, 50)), 6.0),
    ],
)
def test_budget_ends_before_the_next_round(mechanism, epsilon):
    rounds = rounds_for_budget(mechanism, epsilon, 1e-3)
    accountant = PrivacyAccountant([mechanism], 1e-3)
    assert accountant.epsilon(rounds) <= epsilon < accountant.epsilon(rounds + 1)


def test_rejects_budgets_for_no_or_unlimited_rounds():
    with pytest.raises(UserError, match=r"target_epsilon: expected at least 0\.599.*, found 0\.1"):
        rounds_for_budget(CentralNoise(1.0, _WRITERS), 0.1, 1e-3)
    with pytest.raises(UserError, match="expected a budget that rounds exhaust, found 6"):
        rounds_for_budget(TreeNoise(4.0, Participations(1, 1, 8)), 6.0, 1e-3)


def test_delta_has_default_and_range():
    assert default_delta(1000) == pytest.approx(1e-4)
    check_delta(0.9e-3, 1000)
    for delta in (1e-3, 0.5, 0.0, -1.0, float("nan")):
        with pytest.raises(UserError, match=r"delta: expected more than 0 and less than 0\.001"):
            check_delta(delta, 1000)


# --- Sampling amplifies the privacy of any release; references are for Gaussian releases


_ORDERS = np.array([1.5, 2.0, 3.0, 4.0, 8.0, 32.0, 64.0, 300.0])


def _gaussian(z):
    return lambda orders: np.asarray(orders) / (2 * z**2)


@pytest.mark.parametrize("z", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_poisson_bound_is_above_the_exact_divergence(z, rate):
    actual = poisson_sampled(_gaussian(z), rate, _ORDERS)
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(z))
    at_integer_orders = RdpAccountant(_ORDERS).compose(event).rdp
    integrated = poisson_sampled_gaussian(z, rate, _ORDERS)
    exact = np.where(_ORDERS % 1 == 0, at_integer_orders, integrated)
    assert np.all(actual >= exact * (1 - 1e-9))
    assert np.all(actual <= _gaussian(z)(_ORDERS))
    # The bound is exact at order 2: log(1 + q^2 (e^eps - 1)).
    assert actual[1] == pytest.approx(math.log1p(rate**2 * math.expm1(1 / z**2)))


def test_renyi_order_3_matches_closed_form_and_integral():
    q, z = 0.2, 1.5
    two, three = 1 / z**2, 1.5 / z**2
    terms = (1 - q) ** 2 * (2 * q + 1) + 3 * (1 - q) * q**2 * math.exp(two)
    bound = terms + 3 * q**3 * math.exp(2 * three)
    (actual,) = poisson_sampled(_gaussian(z), q, np.array([3.0]))
    assert actual == pytest.approx(math.log(bound) / 2)

    def integrand(x):
        ratio = (1 - q) + q * math.exp((2 * x - 1) / (2 * z**2))
        return norm.pdf(x, scale=z) * ratio**3

    exact = quad(integrand, -12 * z, 14 * z)[0]
    assert actual >= math.log(exact) / 2
    assert exact == pytest.approx(terms + q**3 * math.exp(2 * three))


@pytest.mark.parametrize("z", [1.0, 4.0])
@pytest.mark.parametrize("rate", [0.01, 0.1])
def test_bound_of_fixed_size_sampling_is_above_gaussian(z, rate):
    actual = sampled_without_replacement(_gaussian(z), rate, _ORDERS)
    event = SampledWithoutReplacementDpEvent(1000, round(1000 * rate), GaussianDpEvent(z))
    expected = RdpAccountant(_ORDERS, NeighboringRelation.REPLACE_ONE).compose(event).rdp
    assert np.all(actual >= np.minimum(expected, _gaussian(z)(_ORDERS)) * (1 - 1e-9))
    assert np.all(actual <= _gaussian(z)(_ORDERS))
    eps = 1 / z**2
    second = rate**2 * min(4 * math.expm1(eps), 2 * math.exp(eps))
    assert actual[1] == pytest.approx(min(math.log1p(second), eps))


@pytest.mark.parametrize("sampled", [poisson_sampled, sampled_without_replacement])
def test_full_fleet_has_no_amplification(sampled):
    np.testing.assert_array_equal(sampled(_gaussian(2.0), 1.0, _ORDERS), _gaussian(2.0)(_ORDERS))


def test_epsilon_with_turns_counts_rounds_of_one_client():
    groups = (IntegerGroup(1.0, 2.0**14, 8192),)

    def epsilon(clients, answering, rounds):
        sampling = SecretCohorts(clients, answering, 10)
        mechanism = DistributedNoise(groups, "skellam", sampling, answering, answering)
        return PrivacyAccountant([mechanism], 1e-5).epsilon(rounds)

    # Ten groups of 100 clients take turns, so a client takes part in at most 4 of 31 rounds.
    assert epsilon(1000, 100, 31) == epsilon(100, 100, 4)
    assert epsilon(1000, 100, 30) == epsilon(100, 100, 3)
    assert epsilon(1000, 1000, 31) < epsilon(1000, 100, 31)


@pytest.mark.parametrize(
    ("cohorts", "least", "most"),
    # By RDP, a server's Gaussian noise has the epsilons 1.8227 and 11.01.
    [(SecretCohorts(539, 539, 50), 1.8227, 2.7), (FixedSizeCohorts(539, 50), 11.0, 11.1)],
)
def test_distributed_noise_costs_slightly_more_than_central_noise(cohorts, least, most):
    clients = 539 if isinstance(cohorts, SecretCohorts) else 50
    groups = (IntegerGroup(2.0, 1e4, 4096),)
    mechanism = DistributedNoise(groups, "skellam", cohorts, clients, clients)
    assert least < PrivacyAccountant([mechanism], 1e-3).epsilon(120) < most
