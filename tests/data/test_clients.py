"""What is accepted as a client's examples."""

import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests import golden
from tff_agnostic.base.errors import UserError
from tff_agnostic.data.clients import (
    FirstExamples,
    InMemoryClients,
    check_labels,
    checked_examples,
    dirichlet_partition,
    domain_counts,
    even_partition,
)
from tff_agnostic.data.sampling import CohortReader, Cohorts, sample_cohort

_SPEC = OrderedDict(
    x=tf.TensorSpec([None, 2], tf.float32),
    y=tf.TensorSpec([None], tf.int32),
    domain_id=tf.TensorSpec([None], tf.int32),
)
_NESTED_SPEC = OrderedDict(
    x=OrderedDict(
        tokens=tf.TensorSpec([None, 3], tf.int32), weight=tf.TensorSpec([None], tf.float32)
    ),
    y=tf.TensorSpec([None], tf.int32),
    domain_id=tf.TensorSpec([None], tf.int32),
)


def _columns(**changed: Any) -> dict[str, Any]:
    columns = {
        "domain_id": np.array([0, 2, 1], np.int32),
        "y": np.array([1, 0, 1], np.int32),
        "x": np.arange(6, dtype=np.float32).reshape(3, 2),
    }
    return {name: value for name, value in {**columns, **changed}.items() if value is not None}


def _error(columns: dict[str, Any], spec: Any = _SPEC) -> str:
    return golden.refusal(checked_examples, columns, spec, num_domains=3, where="client 7")


def test_good_columns_come_back_in_the_order_of_the_spec():
    columns = _columns()
    checked = checked_examples(columns, _SPEC, num_domains=3, where="client 7")
    assert list(checked) == ["x", "y", "domain_id"]
    assert all(checked[name] is columns[name] for name in checked)


def test_columns_that_nobody_asked_for_are_left_out():
    columns = _columns(writer=np.zeros([3]))
    assert "writer" not in checked_examples(columns, _SPEC, 3, "client 7")


def test_a_client_may_be_empty():
    columns = {name: column[:0] for name, column in _columns().items()}
    assert len(checked_examples(columns, _SPEC, 3, "client 7")["y"]) == 0


@pytest.mark.parametrize("name", ["x", "y", "domain_id"])
def test_a_missing_column(name):
    found = ", ".join(n for n in ("domain_id", "y", "x") if n != name)
    expected = f"client 7: expected columns x, y, domain_id, found {found}"
    assert _error(_columns(**{name: None})) == expected


def test_no_column_at_all():
    assert _error({}) == "client 7: expected columns x, y, domain_id, found none"


@golden.values
def test_another_dtype(case):
    return _error(_columns(**case))


@golden.values
def test_another_shape(case):
    return _error(_columns(**case))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite(value):
    x = np.zeros([3, 2], np.float32)
    x[1, 1] = value
    expected = "client 7: x: expected finite numbers, found NaN or infinity in row 1"
    assert _error(_columns(x=x)) == expected


def test_columns_of_different_lengths():
    expected = (
        "client 7: expected columns of one length, found x, y, domain_id with lengths 3, 2, 3"
    )
    assert _error(_columns(y=np.zeros([2], np.int32))) == expected


@pytest.mark.parametrize("value", [-1, 3, 2**31 - 1])
def test_a_domain_id_out_of_range(value):
    expected = f"client 7: expected domain ids from 0 to 2, found {value} in row 2"
    assert _error(_columns(domain_id=np.array([0, 1, value], np.int32))) == expected


def test_a_label_out_of_range():
    check_labels(np.array([0, 9], np.int32), 10, "client 7")
    with pytest.raises(UserError, match=r"^client 7: expected labels from 0 to 9, found 10 in row"):
        check_labels(np.array([0, 10], np.int32), 10, "client 7")


def test_a_mapping_of_arrays_is_checked_array_by_array():
    x = {"weight": np.ones([3], np.float32), "tokens": np.zeros([3, 3], np.int32)}
    assert checked_examples(_columns(x=x), _NESTED_SPEC, 3, "client 7")["x"] is x

    wrong = {**x, "weight": np.array([1, np.nan, 1], np.float32)}
    expected = "client 7: x.weight: expected finite numbers, found NaN or infinity in row 1"
    assert _error(_columns(x=wrong), _NESTED_SPEC) == expected
    missing = {"tokens": x["tokens"]}
    expected = "client 7: x: expected arrays tokens, weight, found tokens"
    assert _error(_columns(x=missing), _NESTED_SPEC) == expected
    expected = "client 7: x: expected arrays tokens, weight, found ndarray"
    assert _error(_columns(), _NESTED_SPEC) == expected


def test_the_first_examples_of_each_client_are_kept():
    clients = FirstExamples(InMemoryClients({"b": _columns(), "a": _columns()}), 2)
    assert list(clients.client_ids) == ["a", "b"]
    found = clients.read("b")
    assert list(found) == list(_columns())
    for name, column in _columns().items():
        np.testing.assert_array_equal(found[name], column[:2])
    np.testing.assert_array_equal(domain_counts(clients, 3), [2, 0, 2])


@pytest.mark.parametrize("max_examples", [3, 4, 2**31 - 1])
def test_clients_with_fewer_examples_are_whole(max_examples):
    clients = FirstExamples(InMemoryClients({"a": _columns()}), max_examples)
    for name, column in clients.read("a").items():
        np.testing.assert_array_equal(column, _columns()[name])


def test_the_first_examples_of_a_mapping_of_arrays():
    x = {
        "tokens": np.arange(9, dtype=np.int32).reshape(3, 3),
        "more": {"weight": np.arange(3, dtype=np.float32)},
    }
    found = FirstExamples(InMemoryClients({"a": _columns(x=x)}), 1).read("a")["x"]
    np.testing.assert_array_equal(found["tokens"], [[0, 1, 2]])
    np.testing.assert_array_equal(found["more"]["weight"], [0])


# --- Cohorts that are read one round ahead


_IDS = [f"client_{k}" for k in range(9)]


class _Clients:
    """Clients that hold their own number, and say who was read."""

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


def test_a_run_may_go_on_after_any_round():
    with CohortReader(_Clients(), Cohorts(_sampled), last_round=9) as reader:
        for t in (7, 8, 3):
            assert _ids(reader.read(t)) == _sampled(t)


def test_the_next_cohort_is_read_before_it_is_asked_for():
    clients = _Clients()
    with CohortReader(clients, Cohorts(_sampled), last_round=2) as reader:
        reader.read(1)
        assert clients.all_read.wait(timeout=30)
    assert clients.read_ids == _sampled(1) + _sampled(2)


def test_nothing_is_read_after_the_last_round():
    clients = _Clients()
    with CohortReader(clients, Cohorts(_sampled), last_round=2) as reader:
        reader.read(1)
        reader.read(2)
    assert clients.read_ids == _sampled(1) + _sampled(2)


def test_a_damaged_client_is_an_error_of_its_own_round():
    damaged = next(k for k in _sampled(2) if k not in _sampled(1))
    with CohortReader(_Clients(damaged), Cohorts(_sampled), last_round=9) as reader:
        assert _ids(reader.read(1)) == _sampled(1)
        with pytest.raises(UserError, match=f"{damaged}: damaged"):
            reader.read(2)


# --- Pooled examples dealt to clients


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
