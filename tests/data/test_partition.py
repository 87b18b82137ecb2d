"""Pooled examples dealt to clients."""

import numpy as np
import pytest

from tff_agnostic.data.clients import dirichlet_partition, even_partition
from tff_agnostic.errors import UserError


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def _domain_id(num_domains: int = 5, size: int = 400) -> np.ndarray:
    return _rng(9).integers(num_domains, size=size)


def _assert_covers(parts: list[np.ndarray], size: int) -> None:
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(size))


@pytest.mark.parametrize("concentration", [0.01, 0.5, 100.0])
@pytest.mark.parametrize("num_clients", [1, 13, 400])
def test_dirichlet_parts_cover_every_example_once_and_nobody_is_empty(concentration, num_clients):
    parts = dirichlet_partition(_domain_id(), num_clients, concentration, _rng())
    assert len(parts) == num_clients
    assert min(map(len, parts)) >= 1
    _assert_covers(parts, 400)


def test_a_small_concentration_gives_more_skewed_mixtures():
    def largest_share(concentration: float) -> float:
        domain_id = _domain_id()
        parts = dirichlet_partition(domain_id, 10, concentration, _rng())
        shares = [np.bincount(domain_id[rows]).max() / len(rows) for rows in parts]
        return float(np.mean(shares))

    assert largest_share(0.1) > largest_share(1.0) > largest_share(100.0)
    assert largest_share(1000.0) < 0.4


def test_clients_have_several_domains():
    domain_id = _domain_id()
    parts = dirichlet_partition(domain_id, 10, 1.0, _rng())
    assert all(len(np.unique(domain_id[rows])) > 1 for rows in parts)


def test_dirichlet_parts_are_a_function_of_the_random_numbers():
    first, again, other = (
        dirichlet_partition(_domain_id(), 10, 0.5, _rng(seed)) for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other))


def test_more_clients_than_examples_are_refused():
    with pytest.raises(UserError, match="at most one for each of the 3 examples, found 4"):
        dirichlet_partition(np.zeros([3], int), 4, 1.0, _rng())


@pytest.mark.parametrize("num_clients", [1, 3, 10])
def test_even_parts_cover_every_example_once_and_differ_by_one_at_most(num_clients):
    parts = even_partition(10, num_clients, _rng())
    sizes = [len(rows) for rows in parts]
    assert max(sizes) - min(sizes) <= 1
    _assert_covers(parts, 10)


def test_even_parts_are_dealt_at_random():
    parts = even_partition(100, 2, _rng())
    assert not np.array_equal(parts[0], np.arange(50))
    assert all(np.array_equal(a, b) for a, b in zip(parts, even_partition(100, 2, _rng())))
