"""Checked client examples, cohorts read ahead, and pooled examples dealt to clients."""

import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support import golden
from tff_agnostic.base.errors import UserError
from tff_agnostic.data.clients import (
    FirstExamples,
    InMemoryClients,
    check_labels,
    checked_examples,
    client_domain_counts,
    dirichlet_partition,
    domain_counts,
    even_partition,
    known_counts,
)
from tff_agnostic.data.sampling import CohortReader, Cohorts, sample_cohort

_SPEC = OrderedDict(
    x=tf.TensorSpec([None, 2], tf.float32),
    y=tf.TensorSpec([None], tf.int32),
    domain_id=tf.TensorSpec([None], tf.int32),
)
_NESTED_SPEC = OrderedDict(
    _SPEC,
    x={"tokens": tf.TensorSpec([None, 3], tf.int32), "weight": tf.TensorSpec([None], tf.float32)},
)


def _columns(**changed: Any) -> dict[str, Any]:
    columns = {
        "domain_id": np.array([0, 2, 1], np.int32),
        "y": np.array([1, 0, 1], np.int32),
        "x": np.arange(6, dtype=np.float32).reshape(3, 2),
    }
    return {name: value for name, value in {**columns, **changed}.items() if value is not None}


def test_checked_columns_follow_the_spec():
    columns = _columns(writer=np.zeros([3]))
    checked = checked_examples(columns, _SPEC, num_domains=3, where="client 7")
    assert list(checked) == ["x", "y", "domain_id"]
    assert all(checked[name] is columns[name] for name in checked)
    empty = {name: column[:0] for name, column in columns.items()}
    assert len(checked_examples(empty, _SPEC, 3, "client 7")["y"]) == 0


@golden.values
def test_wrong_columns_raise(case):
    return golden.refusal(checked_examples, _columns(**case), _SPEC, 3, "client 7")


def test_label_out_of_range_raises():
    check_labels(np.array([0, 9], np.int32), 10, "client 7")
    with pytest.raises(UserError, match=r"^client 7: expected labels from 0 to 9, found 10 in row"):
        check_labels(np.array([0, 10], np.int32), 10, "client 7")


def test_nested_columns_are_checked():
    x = {"weight": np.ones([3], np.float32), "tokens": np.zeros([3, 3], np.int32)}
    assert checked_examples(_columns(x=x), _NESTED_SPEC, 3, "client 7")["x"] is x
    wrong = {**x, "weight": np.array([1, np.nan, 1], np.float32)}
    for value, expected in (
        (wrong, "x.weight: expected finite numbers, found NaN or infinity in row 1"),
        ({"tokens": x["tokens"]}, "x: expected arrays tokens, weight, found tokens"),
        (np.zeros([3, 2], np.float32), "x: expected arrays tokens, weight, found ndarray"),
    ):
        message = golden.refusal(checked_examples, _columns(x=value), _NESTED_SPEC, 3, "client 7")
        assert message == f"client 7: {expected}"


def test_each_client_is_truncated_to_its_first_examples():
    x = {"tokens": np.arange(9, dtype=np.int32).reshape(3, 3), "more": {"w": np.arange(3)}}
    columns = _columns(x=x)
    clients = FirstExamples(InMemoryClients({"b": columns, "a": columns}), 2)
    assert list(clients.client_ids) == ["a", "b"]
    first = clients.read("b")
    np.testing.assert_array_equal(first["x"]["tokens"], x["tokens"][:2])
    np.testing.assert_array_equal(first["x"]["more"]["w"], [0, 1])
    np.testing.assert_array_equal(first["y"], columns["y"][:2])
    np.testing.assert_array_equal(domain_counts(clients, 3), [2, 0, 2])
    whole = FirstExamples(InMemoryClients({"a": columns}), 3).read("a")
    np.testing.assert_array_equal(whole["y"], columns["y"])


def _in_memory(sizes: list[int]) -> InMemoryClients:
    clients = {f"{k:03d}": {"domain_id": np.arange(n) % 2} for k, n in enumerate(sizes)}
    return InMemoryClients(clients)


def test_unknown_domain_counts_are_computed():
    clients = _in_memory([3, 0, 4])
    assert known_counts(clients) is None
    np.testing.assert_array_equal(client_domain_counts(clients, 2), [[2, 1], [0, 0], [2, 2]])
    np.testing.assert_array_equal(domain_counts(FirstExamples(clients, 2), 2), [2, 2])


def test_domain_counts_are_estimated_from_few_clients():
    clients = _in_memory([4] * 100)
    reads = []
    read = clients.read
    clients.read = lambda client_id: reads.append(client_id) or read(client_id)
    np.testing.assert_array_equal(domain_counts(clients, 2, max_reads=10), [200, 200])
    assert len(set(reads)) == 10
    assert {"000", "099"} <= set(reads)


# --- Cohorts are read one round ahead


_IDS = [f"client_{k}" for k in range(9)]


class _Clients:
    """Clients whose only example is their index; records which clients are read."""

    def __init__(self, damaged: str = "") -> None:
        self.client_ids = _IDS
        self.read_ids: list[str] = []
        self.all_read = threading.Event()
        self._damaged = damaged

    def read(self, client_id: str) -> dict[str, np.ndarray]:
        self.read_ids.append(client_id)
        if len(self.read_ids) == 6:
            self.all_read.set()
        if client_id == self._damaged:
            raise UserError(f"{client_id}: damaged")
        return {"x": np.array([_IDS.index(client_id)])}


def _sampled(round_num: int) -> list[str]:
    return sample_cohort(_IDS, 3, seed=5, round_num=round_num)


def _ids(cohort) -> list[str]:
    return [_IDS[int(client["x"][0])] for client in cohort]


def test_cohort_reader_accepts_rounds_in_any_order():
    with CohortReader(_Clients(), Cohorts(_sampled), last_round=9) as reader:
        for t in (7, 8, 3):
            assert _ids(reader.read(t)) == _sampled(t)


def test_cohort_reader_reads_one_round_ahead():
    clients = _Clients()
    with CohortReader(clients, Cohorts(_sampled), last_round=2) as reader:
        reader.read(1)
        assert clients.all_read.wait(timeout=30)
        reader.read(2)
    assert clients.read_ids == _sampled(1) + _sampled(2)


def test_damaged_client_raises_in_its_own_round():
    damaged = next(k for k in _sampled(2) if k not in _sampled(1))
    with CohortReader(_Clients(damaged), Cohorts(_sampled), last_round=9) as reader:
        assert _ids(reader.read(1)) == _sampled(1)
        with pytest.raises(UserError, match=f"{damaged}: damaged"):
            reader.read(2)


# --- Pooled examples are divided among clients


_DOMAIN_ID = np.random.default_rng(9).integers(5, size=400)


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _assert_covers(parts: list[np.ndarray], size: int) -> None:
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(size))


@pytest.mark.parametrize("concentration", [0.01, 0.5, 100.0])
@pytest.mark.parametrize("num_clients", [1, 13, 400])
def test_dirichlet_partition_has_each_example_once(concentration, num_clients):
    parts = dirichlet_partition(_DOMAIN_ID, num_clients, concentration, _rng())
    assert len(parts) == num_clients
    assert min(map(len, parts)) >= 1
    _assert_covers(parts, 400)
    again = dirichlet_partition(_DOMAIN_ID, num_clients, concentration, _rng())
    assert all(map(np.array_equal, parts, again))


def test_small_concentration_gives_skewed_mixtures():
    def largest_share(concentration: float) -> float:
        parts = dirichlet_partition(_DOMAIN_ID, 10, concentration, _rng())
        shares = [np.bincount(_DOMAIN_ID[rows]).max() / len(rows) for rows in parts]
        return float(np.mean(shares))

    assert largest_share(0.1) > largest_share(1.0) > largest_share(100.0)
    assert largest_share(1000.0) < 0.4


def test_more_clients_than_examples_raise():
    with pytest.raises(UserError, match="at most one for each of the 3 examples, found 4"):
        dirichlet_partition(np.zeros([3], int), 4, 1.0, _rng())


@pytest.mark.parametrize("num_clients", [1, 3, 10])
def test_partition_into_equal_sizes_is_random(num_clients):
    parts, again = (even_partition(100, num_clients, _rng()) for _ in range(2))
    sizes = [len(rows) for rows in parts]
    assert max(sizes) - min(sizes) <= 1
    _assert_covers(parts, 100)
    assert num_clients == 1 or not np.array_equal(parts[0], np.arange(sizes[0]))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again))
