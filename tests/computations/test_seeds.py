"""Stateless seeds of clients."""

import numpy as np
import pytest

from tests.computations.harness import random_client
from tff_agnostic.computations.seeds import fingerprint, fold_in


def _client(size: int = 7) -> dict[str, np.ndarray]:
    return random_client(np.random.default_rng(0), size, range(3))


def test_fingerprint_is_the_same_for_equal_data():
    assert fingerprint(_client()) == fingerprint(_client())


def test_fingerprint_is_a_non_negative_int32():
    rng = np.random.default_rng(1)
    values = [int(fingerprint(random_client(rng, n, range(3)))) for n in range(1, 40)]
    assert min(values) >= 0
    assert max(values) < 2**31
    assert len(set(values)) == len(values)


@pytest.mark.parametrize("column", ["x", "y", "domain_id"])
def test_fingerprint_changes_with_any_value(column):
    changed = _client()
    changed[column] = changed[column].copy()
    changed[column].flat[-1] += 1
    assert fingerprint(changed) != fingerprint(_client())


def test_fingerprint_changes_with_the_order_of_examples():
    client = _client()
    reordered = {key: column[::-1] for key, column in client.items()}
    assert fingerprint(reordered) != fingerprint(client)


def test_fingerprint_ignores_padding():
    client = _client()
    padded = {
        key: np.concatenate([column, np.zeros_like(column[:3])]) for key, column in client.items()
    }
    assert fingerprint(padded) == fingerprint(client)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint8, np.bool_])
def test_fingerprint_takes_any_numeric_column(dtype):
    client = {"x": np.array([1, 0, 1], dtype), "domain_id": np.zeros([3], np.int32)}
    other = {**client, "x": np.array([0, 1, 1], dtype)}
    assert fingerprint(client) != fingerprint(other)


def test_fingerprint_sees_float64_differences_below_float32():
    client = {"x": np.array([1.0, 1.0])}
    assert fingerprint({"x": np.array([1.0, 1.0 + 1e-12])}) != fingerprint(client)


def test_fold_in_gives_distinct_seeds():
    seed = np.array([3, 4], np.int32)
    seeds = {tuple(np.asarray(fold_in(seed, i))) for i in range(-50, 50)}
    assert len(seeds) == 100
