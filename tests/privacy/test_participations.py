"""Tree noise's sensitivity equals all patterns' maximum; samplings give dp-accounting's events."""

import itertools

import dp_accounting as dp
import pytest

from tests.support import golden
from tff_agnostic.base.errors import UserError
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.mechanisms import CentralNoise
from tff_agnostic.privacy.sampling import (
    COHORT_SAMPLINGS,
    FixedSizeCohorts,
    PoissonCohorts,
    StratifiedCohorts,
)
from tff_agnostic.privacy.tree import Participations, squared_sensitivity


def _nodes(rounds, restart_every):
    """Yields the rounds of each complete node in all trees, as a range."""
    per_tree = restart_every or max(rounds, 1)
    for start in range(0, rounds, per_tree):
        length = min(per_tree, rounds - start)
        size = 1
        while size <= length:
            for i in range(length // size):
                yield range(start + i * size, start + (i + 1) * size)
            size *= 2


def _largest(participations, rounds):
    nodes = list(_nodes(rounds, participations.restart_every))
    most = min(participations.max_participations or rounds, rounds)
    patterns = itertools.chain.from_iterable(
        itertools.combinations(range(rounds), k) for k in range(most + 1)
    )
    return max(
        sum(sum(t in node for t in pattern) ** 2 for node in nodes)
        for pattern in patterns
        if all(b - a >= participations.min_separation for a, b in itertools.pairwise(pattern))
    )


_CASES = [(1,), (2,), (3, 2), (None, 2), (2, 5), (None, 3, 4), (4, 2, 3), (2, 1, 6), (3, 4)]


@pytest.mark.parametrize("case", _CASES, ids=str)
def test_sensitivity_equals_the_largest_pattern(case):
    participations = Participations(*case)
    for rounds in (0, 1, 2, 5, 7, 8, 11, 12):
        assert squared_sensitivity(participations, rounds) == _largest(participations, rounds)


@pytest.mark.parametrize(("most", "apart", "rounds"), [(4, 9, 60), (3, 7, 64), (5, 1, 33)])
def test_trees_without_restart_equal_tensorflow_privacy(most, apart, rounds):
    from tensorflow_privacy.privacy.analysis import tree_aggregation_accountant

    # TensorFlow Privacy's last argument is the number of rounds between two participations.
    rho = tree_aggregation_accountant.compute_zcdp_single_tree(1.0, rounds, most, apart - 1)
    assert squared_sensitivity(Participations(most, apart), rounds) == 2 * rho


def test_sensitivity_equals_known_values():
    # A client in every round is in 8 leaves, 4 nodes of 2 rounds, 2 of 4 rounds, and the root.
    assert squared_sensitivity(Participations(8), 8) == 8 + 4 * 4 + 2 * 16 + 64
    assert squared_sensitivity(Participations(6, 313), 2000) == 79
    # The client is at most once in each of 40 trees of 100 rounds, and six times in total.
    assert squared_sensitivity(Participations(6, 313, 100), 4000) == 6 * 7


@golden.values
def test_rejects_invalid_bounds(case):
    return golden.refusal(Participations, *case)


@pytest.mark.parametrize(
    ("participations", "rounds"),
    [
        (Participations(min_separation=2), 10**6),
        (Participations(max_participations=10**5), 10**6),
        (Participations(min_separation=100, restart_every=1000), 10**6),
    ],
)
def test_rejects_too_many_patterns(participations, rounds):
    with pytest.raises(
        UserError, match=r"^rounds: expected fewer rounds with tree privacy, found 10"
    ):
        squared_sensitivity(participations, rounds)


@pytest.mark.parametrize("most", [2**31 - 1, 10**6])
def test_unreached_bounds_equal_unlimited_participation(most):
    rounds = 10**6
    every_round = sum((rounds >> h) * (1 << h) ** 2 for h in range(rounds.bit_length()))
    assert squared_sensitivity(Participations(max_participations=most), rounds) == every_round
    far = Participations(min_separation=2**31 - 1)
    assert squared_sensitivity(far, rounds) == rounds.bit_length()


# --- Samplings of cohorts give events for dp-accounting


def test_sampling_gives_dp_accounting_events():
    gaussian = dp.GaussianDpEvent(2.0)
    assert PoissonCohorts(100, 5).event(2.0) == dp.PoissonSampledDpEvent(0.05, gaussian)
    assert PoissonCohorts(100, 100).event(2.0) == gaussian
    halved = dp.SampledWithoutReplacementDpEvent(100, 5, dp.GaussianDpEvent(1.0))
    assert FixedSizeCohorts(100, 5).event(2.0) == halved
    assert COHORT_SAMPLINGS["uniform"](100, 5) == COHORT_SAMPLINGS["fixed_size"](100, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strata", "drawn", "rate"),
    [((50, 50), 10, 0.1), ((90, 10), 10, 0.1), ((95, 5), 10, 1 / 5), ((99, 1), 10, 1.0)],
)
def test_stratified_rate_is_the_largest_stratums(strata, drawn, rate):
    # The strata draw 5 and 5, 9 and 1, 9.5 and 0.5, 9.9 and 0.1 clients, rounded up.
    cohorts = StratifiedCohorts(strata, drawn)
    assert cohorts.rate == pytest.approx(rate)
    stratified = PrivacyAccountant([CentralNoise(4.0, cohorts)], 1e-4).epsilon(10)
    uniform = CentralNoise(4.0, FixedSizeCohorts(sum(strata), drawn))
    assert stratified >= PrivacyAccountant([uniform], 1e-4).epsilon(10) * (1 - 1e-9)


def test_fully_drawn_stratum_has_no_amplification():
    stratified = CentralNoise(4.0, StratifiedCohorts((99, 1), 10))
    full_cohort = CentralNoise(2.0, PoissonCohorts(5, 5))
    actual = PrivacyAccountant([stratified], 1e-4).epsilon(10)
    expected = PrivacyAccountant([full_cohort], 1e-4, "rdp").epsilon(10)
    assert actual == pytest.approx(expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoissonCohorts(10, 11), "clients_per_round: expected more than 0 and at most 10"),
        (lambda: PoissonCohorts(10, 0), "clients_per_round: expected more than 0 and at most 10"),
        (lambda: FixedSizeCohorts(10, 11), "clients_per_round: expected more than 0 and at most"),
        (lambda: StratifiedCohorts((5, 5), 11), "clients_per_round: expected more than 0 and at"),
        (lambda: StratifiedCohorts((5, 0), 2), "strata: expected clients in each"),
    ],
)
def test_rejects_invalid_cohort_sizes(make, message):
    with pytest.raises(UserError, match=message):
        make()
