"""Noise for an epsilon, rounds for a budget."""

import pytest

from tff_agnostic.errors import UserError
from tff_agnostic.privacy.accountant import (
    PrivacyAccountant,
    check_delta,
    default_delta,
    noise_for_epsilon,
    rounds_for_budget,
)
from tff_agnostic.privacy.distributed import DistributedNoise, IntegerGroup
from tff_agnostic.privacy.mechanisms import CentralNoise, TreeNoise
from tff_agnostic.privacy.sampling import FixedSizeCohorts, PoissonCohorts, SecretCohorts
from tff_agnostic.privacy.tree import Participations

_WRITERS = PoissonCohorts(539, 50)
_SECRET = SecretCohorts(539, 50, 50)


def _central(z):
    return [CentralNoise(z, _WRITERS)]


@pytest.mark.parametrize(("epsilon", "expected"), [(2.0, 1.6903), (8.0, 0.7853)])
def test_calibrated_noise(epsilon, expected):
    found = noise_for_epsilon(_central, [120], epsilon, 1e-3)
    assert found == pytest.approx(expected, abs=1e-4)


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
def test_the_noise_is_enough_and_hardly_more(mechanisms, epsilon):
    def epsilon_of(z):
        return PrivacyAccountant(mechanisms(z), 1e-4, "rdp").epsilon(50, 5)

    noise = noise_for_epsilon(mechanisms, [50, 5], epsilon, 1e-4, "rdp")
    assert epsilon_of(noise) <= epsilon < epsilon_of(noise * (1 - 1e-3))


def test_what_no_noise_reaches_is_refused():
    narrow = IntegerGroup(1.0, 2.0, 4096)

    def mechanisms(z):
        group = IntegerGroup(z, narrow.clip, narrow.dimension)
        return [DistributedNoise((group,), "discrete_gaussian", _SECRET, 50, 50)]

    with pytest.raises(UserError, match="--target_epsilon: expected one that some noise reaches"):
        noise_for_epsilon(mechanisms, [120], 1e-4, 1e-6)
    with pytest.raises(UserError, match=r"--target_epsilon: expected less than .* has already"):
        noise_for_epsilon(lambda z: [TreeNoise(z, Participations(1))], [1], 1e9, 1e-3)


@pytest.mark.parametrize(
    ("mechanism", "epsilon"),
    [
        (CentralNoise(1.0, _WRITERS), 4.0),
        (CentralNoise(8.0, FixedSizeCohorts(539, 50)), 2.0),
        (TreeNoise(4.0, Participations(None, 50)), 6.0),
    ],
)
def test_the_next_round_would_be_too_much(mechanism, epsilon):
    rounds = rounds_for_budget(mechanism, epsilon, 1e-3)
    accountant = PrivacyAccountant([mechanism], 1e-3)
    assert accountant.epsilon(rounds) <= epsilon < accountant.epsilon(rounds + 1)


def test_budgets_of_no_rounds_and_of_all_are_refused():
    with pytest.raises(
        UserError, match=r"--target_epsilon: expected at least 0\.599.*, found 0\.1"
    ):
        rounds_for_budget(CentralNoise(1.0, _WRITERS), 0.1, 1e-3)
    with pytest.raises(UserError, match="expected a budget that rounds exhaust, found 6"):
        rounds_for_budget(TreeNoise(4.0, Participations(1, 1, 8)), 6.0, 1e-3)


def test_delta():
    assert default_delta(1000) == pytest.approx(1e-4)
    check_delta(0.9e-3, 1000)
    for delta in (1e-3, 0.5, 0.0, -1.0, float("nan")):
        with pytest.raises(UserError, match=r"--delta: expected more than 0 and less than 0\.001"):
            check_delta(delta, 1000)
