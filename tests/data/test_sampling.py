"""Cohorts: uniform without replacement, and a function of seed and round."""

import numpy as np
import pytest

from tff_agnostic.data.clients import InMemoryClients
from tff_agnostic.data.sampling import check_cohort_size, sample_cohort
from tff_agnostic.errors import UserError

_IDS = [f"client_{k}" for k in range(7)]


def test_a_cohort_has_different_clients_of_the_dataset():
    for round_num in range(50):
        cohort = sample_cohort(_IDS, 4, seed=0, round_num=round_num)
        assert len(cohort) == len(set(cohort)) == 4
        assert set(cohort) <= set(_IDS)


def test_all_clients_can_be_drawn_at_once():
    assert sorted(sample_cohort(_IDS, 7, seed=3, round_num=1)) == _IDS


def test_the_draw_is_a_function_of_seed_and_round():
    assert sample_cohort(_IDS, 3, 5, 9) == sample_cohort(list(_IDS), 3, 5, 9)
    by_round = {tuple(sample_cohort(_IDS, 3, 5, t)) for t in range(1, 30)}
    by_seed = {tuple(sample_cohort(_IDS, 3, seed, 1)) for seed in range(30)}
    assert len(by_round) > 20
    assert len(by_seed) > 20


def test_seed_and_round_do_not_stand_in_for_each_other():
    assert sample_cohort(_IDS, 4, seed=1, round_num=2) != sample_cohort(_IDS, 4, 2, 1)


def test_every_client_and_every_pair_is_equally_likely():
    draws = 4000
    singles, pairs = np.zeros(7), np.zeros([7, 7])
    for t in range(draws):
        drawn = [_IDS.index(k) for k in sample_cohort(_IDS, 3, seed=0, round_num=t)]
        singles[drawn] += 1
        pairs[np.ix_(drawn, drawn)] += 1
    # Binomial means, plus or minus 5 standard deviations.
    np.testing.assert_allclose(singles / draws, 3 / 7, atol=5 * np.sqrt(3 / 7 * 4 / 7 / draws))
    off_diagonal = pairs[~np.eye(7, dtype=bool)] / draws
    np.testing.assert_allclose(off_diagonal, 1 / 7, atol=5 * np.sqrt(1 / 7 * 6 / 7 / draws))


def test_the_draw_does_not_depend_on_the_order_in_which_clients_were_stored():
    examples = {"x": np.zeros([1, 1]), "y": np.zeros([1]), "domain_id": np.zeros([1], np.int32)}
    forward = InMemoryClients({k: examples for k in _IDS})
    backward = InMemoryClients({k: examples for k in reversed(_IDS)})
    assert list(forward.client_ids) == list(backward.client_ids) == sorted(_IDS)
    assert sample_cohort(forward.client_ids, 3, 0, 1) == sample_cohort(backward.client_ids, 3, 0, 1)


@pytest.mark.parametrize("clients_per_round", [-1, 0, 8])
def test_a_cohort_that_cannot_be_drawn_is_refused(clients_per_round):
    message = (
        "--clients_per_round: expected 1 to 7, the number of training clients, "
        f"found {clients_per_round}"
    )
    with pytest.raises(UserError) as error:
        check_cohort_size(7, clients_per_round)
    assert str(error.value) == message
    with pytest.raises(UserError):
        sample_cohort(_IDS, clients_per_round, seed=0, round_num=1)
