"""Samplings of cohorts: sizes, probabilities, and dependence on seed and round."""

import numpy as np
import pytest

from tests.support import golden
from tff_agnostic.base.errors import UserError
from tff_agnostic.data.clients import InMemoryClients, rows_of
from tff_agnostic.data.sampling import (
    COHORT_SAMPLINGS,
    PooledExamples,
    SecretCoins,
    check_cohort_size,
    dealt,
    domain_strata,
    num_turns,
    poisson_cohort,
    sample_cohort,
    turns,
)

_IDS = [f"client_{k}" for k in range(7)]
_STRATA = np.array([0] * 6 + [1] * 3 + [2])
_TEN = [f"client_{k}" for k in range(10)]


def test_cohort_has_distinct_clients():
    for round_num in range(50):
        cohort = sample_cohort(_IDS, 4, seed=0, round_num=round_num)
        assert len(cohort) == len(set(cohort)) == 4
        assert set(cohort) <= set(_IDS)
    assert sorted(sample_cohort(_IDS, 7, seed=3, round_num=1)) == _IDS


def test_cohorts_depend_on_seed_and_round():
    assert sample_cohort(_IDS, 3, 5, 9) == sample_cohort(list(_IDS), 3, 5, 9)
    assert len({tuple(sample_cohort(_IDS, 3, 5, t)) for t in range(1, 30)}) > 20
    assert len({tuple(sample_cohort(_IDS, 3, seed, 1)) for seed in range(30)}) > 20
    assert sample_cohort(_IDS, 4, seed=1, round_num=2) != sample_cohort(_IDS, 4, 2, 1)
    assert sample_cohort(_TEN, 4, 3, 8, _STRATA) == sample_cohort(_TEN, 4, 3, 8, _STRATA)
    assert len({tuple(sample_cohort(_TEN, 4, 3, t, _STRATA)) for t in range(20)}) > 10


@pytest.mark.nightly
def test_pairs_of_clients_are_equally_likely():
    draws = 4000
    pairs = np.zeros([7, 7])
    for t in range(draws):
        drawn = [_IDS.index(k) for k in sample_cohort(_IDS, 3, seed=0, round_num=t)]
        pairs[np.ix_(drawn, drawn)] += 1
    # Allow 5 standard deviations of a binomial.
    off_diagonal = pairs[~np.eye(7, dtype=bool)] / draws
    np.testing.assert_allclose(off_diagonal, 1 / 7, atol=5 * np.sqrt(1 / 7 * 6 / 7 / draws))


@pytest.mark.parametrize("clients_per_round", [-1, 0, 8])
def test_impossible_cohort_size_raises(clients_per_round):
    message = golden.refusal(check_cohort_size, 7, clients_per_round)
    assert message.startswith("clients_per_round: expected 1 to 7, ")
    with pytest.raises(UserError):
        sample_cohort(_IDS, clients_per_round, seed=0, round_num=1)


def test_stratified_cohort_has_proportional_strata():
    for t in range(40):
        drawn = [_TEN.index(k) for k in sample_cohort(_TEN, 5, 0, t, _STRATA)]
        assert len(set(drawn)) == 5
        counts = np.bincount(_STRATA[drawn], minlength=3)
        # 5 of 10 clients: strata of 6, 3 and 1 clients get 3, 1.5 and 0.5 on average.
        assert counts[0] == 3
        assert counts[1] in (1, 2)
        assert counts[2] in (0, 1)


def test_equal_strata_get_equal_cohort_counts():
    strata = np.repeat([4, 7, 9], 7)
    ids = [f"c{k:02d}" for k in range(21)]
    for t in range(20):
        drawn = [ids.index(k) for k in sample_cohort(ids, 9, 0, t, strata)]
        np.testing.assert_array_equal(np.unique(strata[drawn], return_counts=True)[1], [3, 3, 3])


@pytest.mark.nightly
def test_stratified_clients_are_equally_likely():
    draws = 4000
    hits = np.zeros(10)
    for t in range(draws):
        hits[[_TEN.index(k) for k in sample_cohort(_TEN, 4, 0, t, _STRATA)]] += 1
    # Allow 5 standard deviations of a binomial, which is an upper bound here.
    np.testing.assert_allclose(hits / draws, 0.4, atol=5 * np.sqrt(0.4 * 0.6 / draws))


def test_client_stratum_is_its_most_frequent_domain():
    domains = {"a": [2, 2, 0], "b": [1], "c": [0, 1, 1, 1]}
    clients = InMemoryClients({k: {"domain_id": np.array(ids)} for k, ids in domains.items()})
    np.testing.assert_array_equal(domain_strata(clients, 3), [2, 1, 1])


def test_poisson_cohorts_sample_clients_independently():
    ids = [f"{k:03d}" for k in range(200)]
    rounds = 1500
    took_part = np.zeros([rounds, len(ids)])
    for t in range(rounds):
        took_part[t, [int(k) for k in poisson_cohort(ids, 30, seed=1, round_num=t + 1)]] = 1
    sizes, q = took_part.sum(axis=1), 30 / 200
    # N = 200 clients with probability q: mean q N, variance q (1 - q) N.
    assert np.mean(sizes) == pytest.approx(30, abs=4 * np.sqrt(q * (1 - q) * 200 / rounds))
    assert np.var(sizes) == pytest.approx(q * (1 - q) * 200, rel=0.1)
    shares = took_part.mean(axis=0)
    assert np.max(np.abs(shares - q)) < 4.5 * np.sqrt(q * (1 - q) / rounds)
    # Neither clients nor rounds are correlated.
    assert abs(np.corrcoef(took_part[:, 0], took_part[:, 1])[0, 1]) < 0.12
    assert abs(np.corrcoef(took_part[:-1, 0], took_part[1:, 0])[0, 1]) < 0.12
    assert poisson_cohort(ids, 30, 5, 9) == poisson_cohort(list(ids), 30, 5, 9)
    assert sorted(poisson_cohort(_IDS, 7, seed=3, round_num=1)) == _IDS
    assert {0, 1, 2} <= {len(poisson_cohort(_IDS, 1, seed=0, round_num=t)) for t in range(60)}


@pytest.mark.parametrize(("num_clients", "size"), [(10, 2), (11, 2), (7, 7), (9, 5)])
def test_turns_put_each_client_into_one_cohort(num_clients, size):
    ids = [f"{k:02d}" for k in range(num_clients)]
    cohorts = turns(ids, size, seed=4)
    assert len(cohorts) == num_turns(num_clients, size) == num_clients // size
    assert sorted(client for cohort in cohorts for client in cohort) == ids
    assert {len(cohort) for cohort in cohorts} <= {size + k for k in range(size)}
    draw = COHORT_SAMPLINGS["turns"](InMemoryClients({key: {} for key in ids}), 1, size, 4)
    rounds = [draw(t) for t in range(1, 3 * len(cohorts) + 1)]
    for client in ids:
        client_turns = [t for t, cohort in enumerate(rounds) if client in cohort]
        assert len(client_turns) == 3
        assert set(np.diff(client_turns)) == {len(cohorts)}


def test_secret_cohorts_are_subsets_of_public_turns():
    ids = [f"c{k:03d}" for k in range(60)]
    coins = SecretCoins(ids, 20, 5, seed=4, secret_seed=99)
    other_coins = SecretCoins(ids, 20, 5, seed=4, secret_seed=100)
    other_turns = SecretCoins(ids, 20, 5, seed=5, secret_seed=99)
    drawn = [coins.drawn(t) for t in range(1, 301)]
    # Turns are public: they depend on the seed only. Each cohort is a subset of its turn.
    public_turns = turns(ids, 20, 4)
    assert all({*cohort} <= {*public_turns[t % 3]} for t, cohort in enumerate(drawn))
    assert all(coins.num_silent(t, 3) == 17 for t in (1, 2, 3))
    assert drawn == [coins.drawn(t) for t in range(1, 301)]
    assert drawn != [other_coins.drawn(t) for t in range(1, 301)]
    assert drawn != [other_turns.drawn(t) for t in range(1, 301)]
    sizes = [len(cohort) for cohort in drawn]
    # Binomial(20, 1/4) cohort sizes: over 300 rounds their mean has standard deviation 0.11.
    assert abs(np.mean(sizes) - 5) < 0.5 and np.var(sizes) > 2.5
    everyone = SecretCoins(ids, 60, 5, seed=4, secret_seed=99)
    assert everyone.drawn(7) == poisson_cohort(ids, 5, 99, 7)
    assert everyone.num_silent(7, 5) == 55


# --- `PooledExamples`: each pass contains all clients' examples once, in a new order


@pytest.mark.parametrize(("num_examples", "size"), [(10, 4), (10, 25), (7, 7), (1, 3)])
def test_each_pass_contains_every_example_once(num_examples, size):
    rounds = 12
    stream = np.concatenate([dealt(num_examples, size, t, 3) for t in range(1, rounds + 1)])
    assert len(stream) == rounds * size
    whole = stream[: len(stream) // num_examples * num_examples].reshape(-1, num_examples)
    for pass_rows in whole:
        np.testing.assert_array_equal(np.sort(pass_rows), np.arange(num_examples))


def test_passes_and_seeds_have_different_orders():
    first, second, other = dealt(50, 50, 1, 3), dealt(50, 50, 2, 3), dealt(50, 50, 1, 4)
    assert not np.array_equal(first, second) and not np.array_equal(first, other)
    np.testing.assert_array_equal(dealt(50, 50, 1, 3), first)


def test_pooled_rounds_contain_complete_examples():
    ids, owners = np.arange(24, dtype=np.float32), np.repeat(np.arange(4), (3, 9, 6, 6))
    x = {"a": ids[:, np.newaxis], "b": 2 * ids}
    columns = {"x": x, "y": 3 * ids, "domain_id": owners}
    clients = InMemoryClients(
        {f"c{k}": rows_of(columns, np.flatnonzero(owners == k)) for k in range(4)}
    )
    pooled = PooledExamples(clients, 2, 4, seed=5)
    draw = pooled.draw()
    (one,), (two,) = (list(map(pooled.read, draw(t))) for t in (1, 2))
    # 2 of 4 clients per round get 12 of 24 examples, so two rounds are a pass.
    assert len(one["y"]) == len(two["y"]) == 12
    result = np.concatenate([one["y"], two["y"]]) / 3
    np.testing.assert_array_equal(np.sort(result), np.arange(24))
    for examples in (one, two):
        ids = examples["y"] / 3
        np.testing.assert_array_equal(examples["x"]["a"][:, 0], ids)
        np.testing.assert_array_equal(examples["x"]["b"], 2 * ids)
        np.testing.assert_array_equal(examples["domain_id"], owners[ids.astype(int)])
    # Round 2 is the same in a run of more rounds.
    longer = PooledExamples(clients, 2, 9, seed=5)
    np.testing.assert_array_equal(longer.read(longer.draw()(2)[0])["y"], two["y"])
