"""The expected fraction of rounds with a domain, against the draws themselves."""

import numpy as np
import pytest

from tff_agnostic.data.clients import InMemoryClients
from tff_agnostic.data.presence import PRESENCE, clients_for_presence, expected_presence
from tff_agnostic.data.sampling import COHORT_SAMPLINGS
from tff_agnostic.program.runs.data_notes import rarely_present

# 28 of 30 clients hold a; six of these also hold b, another one also c; two hold d alone.
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


def test_every_sampling_has_its_presence():
    assert set(PRESENCE) == set(COHORT_SAMPLINGS)


@pytest.mark.parametrize("sampling", sorted(COHORT_SAMPLINGS))
@pytest.mark.parametrize("clients_per_round", [1, 4, 16, 30])
def test_presence_matches_the_draws(sampling, clients_per_round):
    clients, seeds, rounds = _clients(), 60, 30
    row_by_client = {client_id: row for client_id, row in zip(clients.client_ids, _COUNTS)}
    present = np.zeros([4])
    for seed in range(seeds):
        draw = COHORT_SAMPLINGS[sampling](clients, 4, clients_per_round, seed)
        for t in range(1, rounds + 1):
            rows = [row_by_client[client_id] for client_id in draw(t)]
            present += np.sum(rows, axis=0) > 0 if rows else 0
    expected = expected_presence(_COUNTS, sampling, clients_per_round)
    # Rounds of turns depend on each other: allow five standard deviations of a third of the draws.
    draws = seeds * rounds / 3
    allowed = 5 * np.sqrt(expected * (1 - expected) / draws) + 1e-9
    assert np.all(np.abs(present / (seeds * rounds) - expected) <= allowed), (present, expected)


def test_clients_for_presence_reach_half_the_rounds():
    for holders in (1, 2, 7):
        counts = np.zeros([40, 1], np.int64)
        counts[:holders] = 1
        needed = clients_for_presence(holders, 40, 0.5)
        assert expected_presence(counts, "uniform", needed)[0] >= 0.5
        if needed > 1:
            assert expected_presence(counts, "uniform", needed - 1)[0] < 0.5


def test_domains_in_few_rounds_are_reported():
    (result,) = rarely_present(_COUNTS, list("abcd"), "uniform", 10, "falls", ["do this"])
    # c has one client of 30; b and d, with 10 clients a round, are in more than half of the rounds.
    assert result.figures["expected_in_rounds"] == pytest.approx({"c": 1 / 3})
    assert result.text == (
        "1 of 4 domains are expected in fewer than half of the rounds: c (33%). In a round without "
        "a domain its lambda falls. do this; --clients_per_round=15 is expected to have each in "
        "half of them."
    )


def test_stratified_sampling_is_named_where_it_helps():
    counts = np.repeat(np.eye(2, dtype=np.int64), [18, 2], axis=0)
    (result,) = rarely_present(counts, ["often", "rare"], "uniform", 5, "stays as it is")
    assert "rare (45%)" in result.text
    assert "--cohort_sampling=stratified has rare in 50%" in result.text
    assert not rarely_present(counts, ["often", "rare"], "stratified", 10, "stays as it is")


def test_frequent_and_absent_domains_are_not_reported():
    counts = np.array([[1, 1, 0]] * 20)
    assert not rarely_present(counts, list("abc"), "uniform", 2, "falls")
