"""What is claimed of cohorts."""

import dp_accounting as dp
import pytest

from tff_agnostic.errors import UserError
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.mechanisms import CentralNoise
from tff_agnostic.privacy.sampling import (
    COHORT_SAMPLINGS,
    FixedSizeCohorts,
    PoissonCohorts,
    StratifiedCohorts,
)


def test_events():
    gaussian = dp.GaussianDpEvent(2.0)
    assert PoissonCohorts(100, 5).event(2.0) == dp.PoissonSampledDpEvent(0.05, gaussian)
    assert PoissonCohorts(100, 100).event(2.0) == gaussian
    halved = dp.SampledWithoutReplacementDpEvent(100, 5, dp.GaussianDpEvent(1.0))
    assert FixedSizeCohorts(100, 5).event(2.0) == halved
    assert COHORT_SAMPLINGS["uniform"](100, 5) == COHORT_SAMPLINGS["fixed_size"](100, 5)


@pytest.mark.parametrize(
    ("strata", "drawn", "rate"),
    [((50, 50), 10, 0.1), ((90, 10), 10, 0.1), ((95, 5), 10, 1 / 5), ((99, 1), 10, 1.0)],
)
def test_strata_have_the_largest_rate_of_any(strata, drawn, rate):
    # Shares of the places are 5 and 5, 9 and 1, 9.5 and .5, 9.9 and .1: rounded up at times.
    cohorts = StratifiedCohorts(strata, drawn)
    assert cohorts.rate == pytest.approx(rate)
    stratified = PrivacyAccountant([CentralNoise(4.0, cohorts)], 1e-4).epsilon(10)
    uniform = CentralNoise(4.0, FixedSizeCohorts(sum(strata), drawn))
    assert stratified >= PrivacyAccountant([uniform], 1e-4).epsilon(10) * (1 - 1e-9)


def test_a_stratum_that_is_always_drawn_has_no_amplification():
    stratified = CentralNoise(4.0, StratifiedCohorts((99, 1), 10))
    everybody = CentralNoise(2.0, PoissonCohorts(5, 5))
    found = PrivacyAccountant([stratified], 1e-4).epsilon(10)
    expected = PrivacyAccountant([everybody], 1e-4, "rdp").epsilon(10)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PoissonCohorts(10, 11),
        lambda: PoissonCohorts(10, 0),
        lambda: FixedSizeCohorts(10, 11),
        lambda: StratifiedCohorts((5, 5), 11),
    ],
)
def test_cohorts_larger_than_the_fleet_are_refused(make):
    with pytest.raises(UserError, match="--clients_per_round: expected more than 0 and at most 10"):
        make()


def test_strata_without_clients_are_refused():
    with pytest.raises(UserError, match="strata: expected clients in each"):
        StratifiedCohorts((5, 0), 2)
