"""Claimed epsilons of clients' noise exceed exact and simulated attacks' lower bounds."""

import dataclasses

import numpy as np
import pytest

from tests.privacy import attack_curves
from tests.privacy.attacks.scores import lower_bound
from tests.privacy.closed_forms import gaussian_epsilon
from tests.support.marks import usually
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.distributed import DistributedNoise, IntegerGroup
from tff_agnostic.privacy.sampling import CountedCohorts, FixedSizeCohorts, SecretCohorts


@dataclasses.dataclass(frozen=True)
class Fleet:
    """A fleet whose clients add the noise; independent coins choose a round's clients.

    Attributes:
        clients: Number of clients.
        drawn: Mean number of clients per round.
        z: The noise multiplier.
        rounds: Number of rounds.
        delta: The delta that epsilon is for.
        least: Minimum number of clients in a released sum, if the number is public.
        counted: Epsilon of an attack with exactly `drawn` clients per round, from dp-accounting. It
            rounds losses down, so that the value is too small by up to 1e-3 per round.
    """

    clients: int
    drawn: int
    z: float
    rounds: int
    delta: float
    least: int
    counted: float

    @property
    def rate(self):
        return self.drawn / self.clients

    def claimed(self, sampling, noise_clients, least):
        groups = (IntegerGroup(self.z, 2.0**14, 8192),)
        mechanism = DistributedNoise(groups, "skellam", sampling, noise_clients, least)
        return PrivacyAccountant([mechanism], self.delta).epsilon(self.rounds)

    @property
    def claimed_if_secret(self):
        """Claimed epsilon if all clients answer, and clients not chosen by a coin send zeros."""
        secret = SecretCohorts(self.clients, self.clients, self.drawn)
        return self.claimed(secret, self.clients, self.clients)

    @property
    def claimed_if_counted(self):
        counted = CountedCohorts(self.clients, self.drawn, self.least)
        return self.claimed(counted, self.drawn, self.least)

    @property
    def wrongly_claimed(self):
        """Epsilon claimed as if the number of clients were secret, although it is public."""
        return self.claimed(
            SecretCohorts(self.clients, self.clients, self.drawn), self.drawn, self.least
        )


_FLEETS = [
    Fleet(100_000, 1000, 0.850, 500, 1e-6, 900, 14.48),
    Fleet(10_000, 100, 1.0, 1000, 1e-5, 100, 9.32),
    Fleet(10_000, 100, 1.0, 100, 1e-5, 100, 4.96),
    Fleet(1000, 100, 1.0, 1, 1e-4, 100, 3.04),
    Fleet(1000, 100, 1.0, 100, 1e-4, 100, 14.78),
    Fleet(1000, 100, 2.0, 100, 1e-4, 100, 3.30),
]
_SIMULATED = Fleet(10_000, 100, 1.0, 100, 5e-5, 80, 2.604)


@pytest.mark.slow
@pytest.mark.parametrize("fleet", usually([_FLEETS[0], _FLEETS[3]], _FLEETS), ids=str)
def test_attacks_stay_below_claimed_epsilon(fleet):
    account = fleet.rounds, fleet.delta
    # Knowing which other clients take part makes the attack stronger.
    coins_known = attack_curves.epsilon(attack_curves.coins_known(fleet.rate, fleet.z), *account)
    coins_secret = attack_curves.coins_secret(fleet.clients, fleet.drawn, fleet.z)
    assert 0 < attack_curves.epsilon(coins_secret, *account) < coins_known
    assert coins_known < fleet.claimed_if_secret < 2 * coins_known
    # Knowing the number of clients per round makes the attack much stronger.
    seen = attack_curves.counted(fleet.drawn, fleet.clients, fleet.z, fleet.drawn)
    counted = attack_curves.epsilon([seen], *account)
    assert fleet.counted - 0.01 < counted < fleet.counted + 1.1e-3 * fleet.rounds + 0.01
    assert fleet.wrongly_claimed < counted < fleet.claimed_if_counted


@pytest.mark.slow
def test_simulated_rounds_stay_below_claimed_epsilon():
    fleet, runs = _SIMULATED, 50_000
    rng = np.random.default_rng(0)
    secret, counted = np.zeros([2, runs]), np.zeros([2, runs])
    for _ in range(fleet.rounds):
        for with_client in (0, 1):
            # All clients' noise is in the sum. The attacker knows which other clients take part.
            drawn = rng.random(runs) < fleet.rate
            seen = with_client * drawn + fleet.z * rng.normal(size=runs)
            secret[with_client] += np.log1p(fleet.rate * np.expm1((seen - 0.5) / fleet.z**2))
            # The noise of n clients is in the sum, and the attacker knows n. All others send -C.
            n = rng.binomial(fleet.clients, fleet.rate, size=runs)
            rate, deviation = n / fleet.clients, fleet.z * np.sqrt(n / fleet.drawn)
            drawn = rng.random(runs) < rate
            seen = (1 + with_client) * drawn + deviation * rng.normal(size=runs)
            one_round, two_rounds = (np.expm1((k * seen - k**2 / 2) / deviation**2) for k in (1, 2))
            ratio = np.log1p(rate * two_rounds) - np.log1p(rate * one_round)
            counted[with_client] += np.where(n >= fleet.least, ratio, 0.0)
    secret_bound = lower_bound(*secret, fleet.delta)
    counted_bound = lower_bound(*counted, fleet.delta)
    assert 0 < secret_bound < fleet.claimed_if_secret
    assert fleet.wrongly_claimed < counted_bound < fleet.claimed_if_counted
    sizes = attack_curves.counted_sizes(fleet.clients, fleet.z, fleet.drawn, fleet.least)
    assert counted_bound < attack_curves.epsilon(sizes, fleet.rounds, fleet.delta)


def test_counted_epsilon_of_full_cohorts_equals_fixed_cohorts():
    fleet = Fleet(100, 100, 1.0, 10, 1e-4, 100, 0.0)
    all_take_part = fleet.claimed(FixedSizeCohorts(100, 100), 100, 100)
    assert fleet.claimed_if_counted == pytest.approx(all_take_part)


@pytest.mark.parametrize("shows_absence", [False, True])
def test_bounds_are_close_below_true_epsilon(shows_absence):
    """The scores are normal. A bound may exceed the true epsilon in one of twenty cases."""
    rng, shift, delta, runs = np.random.default_rng(1), 1.5, 0.01, 2000
    true = gaussian_epsilon(shift, delta)
    result = []
    for _ in range(40):
        without, with_client = rng.normal(size=[2, runs])
        with_client += shift
        if shows_absence:
            # Now low scores reveal that the client is absent.
            without, with_client = -with_client, -without
        result.append(lower_bound(without, with_client, delta))
    assert np.mean(np.array(result) > true) <= 0.05
    assert 0.4 * true < np.median(result) < true


def test_equal_and_distinct_scores_give_extreme_bounds():
    same = np.random.default_rng(2).normal(size=[2, 2000])
    assert lower_bound(*same, 0.01) < 0.1
    assert lower_bound(np.zeros(500), np.zeros(500), 0.01) == 0.0
    apart = lower_bound(np.full(1000, -np.inf), np.full(1000, np.inf), 0.01)
    # Bounds of the frequencies 500 of 500 and 0 of 500, each with confidence 97.5%.
    largest = 1 - 0.025 ** (1 / 500)
    assert apart == pytest.approx(np.log((1 - largest - 0.01) / largest))
