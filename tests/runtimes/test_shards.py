"""How cohorts are cut into shards."""

import inspect

import numpy as np
import pytest

from tff_agnostic.runtimes.sharding import MAX_STREAMED_SHARDS, streamed_shards, vectorised_shards

# What a shard's padding may be whatever its rows, and otherwise a part of them.
_FREE_ROWS, _PART = 2048, 0.25


def _random_sizes(seed: int) -> list[int]:
    """Sizes of a cohort: some equal, some empty, some a hundred times as large as others."""
    rng = np.random.default_rng(seed)
    sizes = rng.lognormal(mean=rng.uniform(0, 6), sigma=rng.uniform(0, 2), size=rng.integers(1, 90))
    return [int(size) for size in sizes]


_SIZES = [
    *map(_random_sizes, range(40)),
    [0],
    [0, 0, 0],
    [7] * 50,
    [100_000, 1, 1, 1],
    list(range(200)),
]


def _padding(sizes: list[int], shard: tuple[int, ...]) -> tuple[int, int]:
    """Returns the rows of padding, and all rows."""
    rows = [sizes[k] for k in shard]
    return max(rows) * len(rows) - sum(rows), max(rows) * len(rows)


@pytest.mark.parametrize("sizes", _SIZES, ids=range(len(_SIZES)))
@pytest.mark.parametrize("max_clients", [1, 2, 7, 256])
def test_groups_hold_every_client_once_within_the_bounds(sizes, max_clients):
    cut = vectorised_shards(sizes, max_clients)
    assert sorted(k for shard in cut for k in shard) == list(range(len(sizes)))
    for shard in cut:
        assert 1 <= len(shard) <= max_clients
        padding, rows = _padding(sizes, shard)
        assert padding <= max(_FREE_ROWS, _PART * rows)


@pytest.mark.parametrize("sizes", _SIZES, ids=range(len(_SIZES)))
def test_clients_of_like_size_share_a_group(sizes):
    cut = vectorised_shards(sizes, 8)
    in_order = [sizes[k] for shard in cut for k in shard]
    assert in_order == sorted(sizes, reverse=True)


def test_groups_are_as_few_as_the_bounds_allow_and_nearly_equal():
    assert [len(shard) for shard in vectorised_shards([10] * 10, 4)] == [4, 4, 2]
    assert [len(shard) for shard in vectorised_shards([10] * 9, 8)] == [5, 4]
    assert [len(shard) for shard in vectorised_shards([10] * 8, 8)] == [8]


def test_a_large_client_is_not_padded_to():
    """Of 100,000 rows each small client would add 99,999 of padding."""
    assert vectorised_shards([1, 100_000, 1, 1], 4) == [(1,), (0, 2, 3)]


def test_groups_are_a_function_of_the_sizes_alone():
    """Nothing says how many devices, lanes or workers there are."""
    assert list(inspect.signature(vectorised_shards).parameters) == ["sizes", "max_clients"]
    assert list(inspect.signature(streamed_shards).parameters) == ["num_clients"]
    for sizes in _SIZES:
        assert vectorised_shards(list(sizes), 7) == vectorised_shards(tuple(sizes), 7)


def test_equal_sizes_keep_the_order_of_the_cohort():
    assert vectorised_shards([5, 9, 5, 9], 2) == [(1, 3), (0, 2)]


@pytest.mark.parametrize("num_clients", [1, 2, 31, 32, 33, 100, 10_000])
def test_neighbours_are_streamed_together_and_each_once(num_clients):
    cut = streamed_shards(num_clients)
    assert [k for shard in cut for k in shard] == list(range(num_clients))
    lengths = [len(shard) for shard in cut]
    assert len(cut) == min(num_clients, MAX_STREAMED_SHARDS)
    assert max(lengths) - min(lengths) <= 1


def test_a_cohort_without_clients_has_no_shards():
    assert streamed_shards(0) == []
    assert vectorised_shards([], 5) == []


def test_positions_are_plain_integers():
    """They travel to workers, and index lists."""
    for cut in (streamed_shards(3), vectorised_shards([1, 2, 3], 2)):
        assert {type(k) for shard in cut for k in shard} == {int}
