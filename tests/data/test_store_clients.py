"""The clients of a split, as rounds see them."""

import sqlite3

import numpy as np
import pytest

from tests.data.stores import text_store, tff_store
from tff_agnostic.data.clients import (
    FirstExamples,
    InMemoryClients,
    SelectedClients,
    client_domain_counts,
    domain_counts,
    known_counts,
)
from tff_agnostic.data.store import Store, StoreClients
from tff_agnostic.data.store_format import Feature
from tff_agnostic.errors import UserError

_NAMES = ("question", "answer")


def _lengths(client_id, columns):
    del client_id
    domain_id = [_NAMES.index(name.decode()) for name in columns["domain"]]
    x = np.array([[len(tokens)] for tokens in columns["tokens"]], np.float32)
    return {"x": x, "y": x[:, 0], "domain_id": np.array(domain_id, np.int32)}


def _clients(path, split="train", to_examples=_lengths):
    features = {"tokens": Feature("string"), "domain": Feature("string")}
    return StoreClients(Store(path), split, features, to_examples, _NAMES)


def test_a_client_has_its_examples_in_the_order_in_which_they_came(tmp_path):
    clients = _clients(text_store(tmp_path / "s.sqlite"))
    assert list(clients.client_ids) == ["a", "b"]
    np.testing.assert_array_equal(clients.read("b")["x"], [[7], [3], [11]])
    np.testing.assert_array_equal(clients.read("b")["domain_id"], [0, 1, 0])


def test_counts_need_no_reading(tmp_path):
    def unread(client_id, columns):
        raise AssertionError("read")

    clients = _clients(text_store(tmp_path / "s.sqlite"), to_examples=unread)
    np.testing.assert_array_equal(client_domain_counts(clients, 2), [[0, 1], [2, 1]])
    np.testing.assert_array_equal(domain_counts(clients, 2), [2, 2])
    np.testing.assert_array_equal(
        client_domain_counts(SelectedClients(clients, ["b"]), 2), [[2, 1]]
    )


def test_reading_a_client_touches_no_other(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    connection = sqlite3.connect(path)
    plan = connection.execute(
        "EXPLAIN QUERY PLAN SELECT serialized_example_proto FROM examples "
        "WHERE client_id = 'a' AND split_name = 'train'"
    ).fetchall()
    assert "USING INDEX examples_by_client" in plan[0][-1]
    # The rows of a client stand together.
    order = connection.execute("SELECT split_name, client_id FROM examples ORDER BY rowid")
    rows = order.fetchall()
    assert rows == sorted(rows)


@pytest.mark.parametrize("client", ["c", "t", ""])
def test_a_client_of_another_split_or_none_is_told(tmp_path, client):
    clients = _clients(text_store(tmp_path / "s.sqlite"))
    with pytest.raises(UserError, match=f"client {client}: expected examples in split train"):
        clients.read(client)


def test_a_client_without_examples_is_told(tmp_path):
    path = tff_store(tmp_path / "s.sqlite", [("train", "a", {"tokens": "x", "domain": "answer"})])
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO client_metadata VALUES ('b', 'train', 0)")
    connection.commit()
    connection.close()
    clients = _clients(path)
    assert list(clients.client_ids) == ["a", "b"]
    with pytest.raises(UserError, match="client b: expected examples in split train, found none"):
        clients.read("b")


def _in_memory(sizes):
    def client(n):
        return {"x": np.zeros([n, 1]), "y": np.zeros(n), "domain_id": np.arange(n) % 2}

    return InMemoryClients({f"{k:03d}": client(n) for k, n in enumerate(sizes)})


def test_counts_of_others_are_read():
    clients = _in_memory([3, 0, 4])
    assert known_counts(clients) is None
    np.testing.assert_array_equal(client_domain_counts(clients, 2), [[2, 1], [0, 0], [2, 2]])
    np.testing.assert_array_equal(domain_counts(FirstExamples(clients, 2), 2), [2, 2])


def test_of_many_clients_some_are_read_and_scaled_up():
    clients = _in_memory([4] * 100)
    reads = []
    read = clients.read
    clients.read = lambda client_id: reads.append(client_id) or read(client_id)
    np.testing.assert_array_equal(domain_counts(clients, 2, max_reads=10), [200, 200])
    assert len(set(reads)) == 10
    assert {"000", "099"} <= set(reads)


def test_a_client_of_another_number_of_examples_is_told(tmp_path):
    rows = [("train", "a", {"tokens": "x", "domain": "answer"})] * 2
    path = tff_store(tmp_path / "s.sqlite", rows)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE client_metadata SET num_examples = 1")
    connection.commit()
    connection.close()
    with pytest.raises(UserError, match="client a: expected 1 examples in split train, as the "):
        _clients(path).read("a")
