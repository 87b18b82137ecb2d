"""The expected fraction of rounds with a domain matches simulated cohorts."""

import numpy as np
import pytest

from tff_agnostic.data.clients import InMemoryClients
from tff_agnostic.data.presence import PRESENCE, clients_for_presence, expected_presence
from tff_agnostic.data.sampling import COHORT_SAMPLINGS
from tff_agnostic.program.runs.data_notes import rarely_present

# Examples by client and domain. Of 30 clients, 28 have domain a and 2 have d. Of these 28 clients,
# 6 have b as a second domain and 1 has c.
_COUNTS = np.zeros([30, 4], np.int64)
_COUNTS[:28, 0] = 5
_COUNTS[:6, 1] = 1
_COUNTS[6, 2] = 1
_COUNTS[28:, 3] = 2


def _clients() -> InMemoryClients:
    ids = {
        f"client_{k:02d}": {"domain_id": np.repeat(np.arange(4, dtype=np.int32), row)}
        for k, row in enumerate(_COUNTS)
    }
    return InMemoryClients(ids)


@pytest.mark.parametrize("sampling", sorted(COHORT_SAMPLINGS))
@pytest.mark.parametrize("clients_per_round", [1, 4, 16, 30])
def test_expected_presence_matches_simulated_cohorts(sampling, clients_per_round):
    clients, seeds, rounds = _clients(), 60, 30
    row_by_client = {client_id: row for client_id, row in zip(clients.client_ids, _COUNTS)}
    present = np.zeros([4])
    for seed in range(seeds):
        draw = COHORT_SAMPLINGS[sampling](clients, 4, clients_per_round, seed)
        for t in range(1, rounds + 1):
            rows = [row_by_client[client_id] for client_id in draw(t)]
            present += np.sum(rows, axis=0) > 0 if rows else 0
    assert set(PRESENCE) == set(COHORT_SAMPLINGS)
    expected = expected_presence(_COUNTS, sampling, clients_per_round)
    # With turns, rounds are dependent: allow five standard deviations of a third of the draws.
    draws = seeds * rounds / 3
    allowed = 5 * np.sqrt(expected * (1 - expected) / draws) + 1e-9
    assert np.all(np.abs(present / (seeds * rounds) - expected) <= allowed), (present, expected)


def test_smallest_number_of_clients_for_presence_is_returned():
    for holders in (1, 2, 7):
        counts = np.zeros([40, 1], np.int64)
        counts[:holders] = 1
        needed = clients_for_presence(holders, 40, 0.5)
        assert expected_presence(counts, "uniform", needed)[0] >= 0.5
        if needed > 1:
            assert expected_presence(counts, "uniform", needed - 1)[0] < 0.5


def test_rarely_present_domains_are_reported():
    (result,) = rarely_present(_COUNTS, list("abcd"), "uniform", 10, "falls", ["do this"])
    # Only c, with one client of 30, is in fewer than half of the rounds of 10 clients.
    assert result.figures["expected_in_rounds"] == pytest.approx({"c": 1 / 3})
    assert "its lambda falls. do this; --clients_per_round=15" in result.text


def test_warning_suggests_stratified_sampling_where_it_helps():
    counts = np.repeat(np.eye(2, dtype=np.int64), [18, 2], axis=0)
    (result,) = rarely_present(counts, ["often", "rare"], "uniform", 5, "stays as it is")
    assert "rare (45%)" in result.text
    assert "--cohort_sampling=stratified has rare in 50%" in result.text
    assert not rarely_present(counts, ["often", "rare"], "stratified", 10, "stays as it is")


def test_frequent_and_absent_domains_raise_no_warning():
    counts = np.array([[1, 1, 0]] * 20)
    assert not rarely_present(counts, list("abc"), "uniform", 2, "falls")
