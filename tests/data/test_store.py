"""Stores as SQLite files: written by exports and by TFF, changed, damaged."""

import contextlib
import multiprocessing
import sqlite3
import threading

import numpy as np
import pytest

from tests import golden
from tests.data.stores import text_store, tff_store
from tff_agnostic.base.errors import UserError
from tff_agnostic.data.clients import (
    FirstExamples,
    InMemoryClients,
    SelectedClients,
    client_domain_counts,
    domain_counts,
    known_counts,
)
from tff_agnostic.data.store import StoreClients, load_store, vocabulary_digest
from tff_agnostic.data.store_format import Feature
from tff_agnostic.data.tff_store import parse_examples

_TEXT = {"tokens": Feature("string"), "domain": Feature("string")}


def test_written_texts_are_read(tmp_path):
    store = load_store(text_store(tmp_path / "s.sqlite"))
    assert store.description.kind == "text"
    assert store.description.domains == ("answer", "question")
    assert store.description.features == _TEXT
    assert store.description.source == "by hand"
    assert store.splits() == ("heldout", "test", "train")
    assert store.client_ids("train") == ["a", "b"]
    columns = store.columns("train", "b", _TEXT)
    assert columns["tokens"].tolist() == [b"the cat", b"sat", b"the the dog"]
    assert columns["domain"].tolist() == [b"question", b"answer", b"question"]
    assert store.vocabulary() == ("the", "cat", "sat")
    assert store.vocabulary(2) == ("the", "cat")
    with pytest.raises(UserError, match="split dev, found the splits heldout, test, train"):
        store.client_ids("dev")


def test_digests_differ_for_other_vocabularies():
    assert vocabulary_digest(["a", "b"]) == vocabulary_digest(("a", "b"))
    assert len({vocabulary_digest(w) for w in (["a", "b"], ["b", "a"], ["a"], ["ab"])}) == 4


def test_tff_store_has_first_examples_features(tmp_path):
    rows = [
        ("train", "f0001_02", {"pixels": np.zeros(784, np.float32), "label": 3}),
        ("test", "f0001_02", {"pixels": np.ones(784, np.float32), "label": 4}),
    ]
    store = load_store(tff_store(tmp_path / "s.sqlite", rows))
    assert store.description.kind is None
    assert store.description.features == {
        "label": Feature("int64"),
        "pixels": Feature("float32", (784,)),
    }
    assert store.domain_table("train") is None
    with pytest.raises(UserError, match="found a store without one"):
        store.vocabulary()


def test_threads_and_forked_processes_read_at_once(tmp_path):
    store = load_store(text_store(tmp_path / "s.sqlite"))
    expected = store.read("train", "b")
    result = []
    threads = [
        threading.Thread(target=lambda: result.append(store.read("train", "b"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert result == [expected] * 4
    read = _ReadB(store)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(read, range(4)) == [expected] * 4


class _ReadB:
    _store = None

    def __init__(self, store):
        # Not pickled: a forked process has it already.
        _ReadB._store = store

    def __call__(self, _):
        return _ReadB._store.read("train", "b")


def test_store_is_opened_read_only(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    path.chmod(0o444)
    before = path.read_bytes()
    store = load_store(path)
    store.read("train", "a")
    with pytest.raises(UserError, match="cannot read the store: attempt to write a readonly"):
        list(store._query("DELETE FROM examples"))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["s.sqlite"]


def test_changed_or_removed_store_is_reported(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    store = load_store(path)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("DELETE FROM examples WHERE client_id = 'a'")
        other.commit()
    for read in (lambda: store.read("train", "b"), store.digest):
        with pytest.raises(UserError, match="the store was changed while it was read"):
            read()
    path.unlink()
    with pytest.raises(UserError, match="the store is gone"):
        store.read("train", "a")


def test_locked_store_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("tff_agnostic.data.tff_store._PATIENCE", 0.05)
    path = text_store(tmp_path / "s.sqlite")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UserError, match="another process is writing to the store"):
        load_store(path)


def _truncated(path):
    path.write_bytes(path.read_bytes()[:20000])


def _overwritten(path):
    content = bytearray(path.read_bytes())
    content[100:] = b"\xff" * (len(content) - 100)
    path.write_bytes(content)


def _text_file(path):
    path.write_text("not a store, but long enough to look like a file " * 20)


def _without(sql):
    def change(path):
        connection = sqlite3.connect(path)
        connection.execute(sql)
        connection.commit()
        connection.close()

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_truncated, "expected an SQLite file, found a damaged one"),
        (_overwritten, "expected an SQLite file, found a damaged one"),
        (_text_file, "expected a client store, found a file of another format (./run"),
        (lambda path: path.unlink(), "expected a client store, found nothing"),
        (lambda path: path.write_bytes(b""), "expected a client store with the table examples"),
        (_without("DROP TABLE client_metadata"), "expected a client store with the table client_m"),
        (_without("DELETE FROM tff_agnostic"), "expected a complete store, found one half-written"),
        (
            _without("UPDATE tff_agnostic SET description = '{\"version\": 2}'"),
            "expected a store of version 1, found 2; a newer store needs a newer program",
        ),
        (
            _without("UPDATE tff_agnostic SET description = '{\"version\": 1}'"),
            "expected the description of a store, found an invalid one",
        ),
    ],
)
def test_damaged_store_raises_one_line(tmp_path, damage, message):
    path = text_store(tmp_path / "s.sqlite")
    damage(path)
    with pytest.raises(UserError) as error:
        store = load_store(path)
        for client in store.client_ids("train"):
            store.read("train", client)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@golden.values
def test_inconsistent_counts_raise_one_line(tmp_path, case):
    path = text_store(tmp_path / "s.sqlite")
    connection = sqlite3.connect(path)
    try:
        connection.executescript(case)
    except sqlite3.OperationalError as e:
        if "no such module" not in str(e):
            raise
        pytest.skip(f"SQLite of this Python: {e}")
    finally:
        connection.close()
    with pytest.raises(UserError) as error:
        store = load_store(path)
        store.client_ids("train")
        store.domain_table("train")
        store.sentence_lengths("train")
    return str(error.value)


@pytest.mark.parametrize(
    ("serialized", "features"),
    [
        ([b"\xff\xff\xff"], _TEXT),
        (None, {"words": Feature("string")}),
        (None, {"tokens": Feature("int64")}),
        (None, {"tokens": Feature("string", (2,))}),
    ],
)
def test_examples_with_other_features_raise_user_error(tmp_path, serialized, features):
    store = load_store(text_store(tmp_path / "s.sqlite"))
    examples = serialized or store.read("train", "a")
    assert golden.refusal(parse_examples, examples, features, "client a").startswith(
        "client a: expected examples with "
    )


# --- The clients of a split, as rounds see them


_NAMES = ("question", "answer")


def _lengths(client_id, columns):
    del client_id
    domain_id = [_NAMES.index(name.decode()) for name in columns["domain"]]
    x = np.array([[len(tokens)] for tokens in columns["tokens"]], np.float32)
    return {"x": x, "y": x[:, 0], "domain_id": np.array(domain_id, np.int32)}


def _clients(path, split="train", to_examples=_lengths, **more):
    features = {"tokens": Feature("string"), "domain": Feature("string")}
    return StoreClients(load_store(path), split, features, to_examples, _NAMES, **more)


def test_client_examples_keep_their_arrival_order(tmp_path):
    clients = _clients(text_store(tmp_path / "s.sqlite"))
    assert list(clients.client_ids) == ["a", "b"]
    np.testing.assert_array_equal(clients.read("b")["x"], [[7], [3], [11]])
    np.testing.assert_array_equal(clients.read("b")["domain_id"], [0, 1, 0])


def test_first_clients_stay_in_memory(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    parsed = []

    def noted(client_id, columns):
        parsed.append(client_id)
        return _lengths(client_id, columns)

    # "b" has three examples with two numbers of 4 bytes and a domain id of 4.
    clients = _clients(path, to_examples=noted, max_kept_bytes=36)
    for client in ("b", "a", "b", "a"):
        result, alone = clients.read(client), _clients(path).read(client)
        for name in alone:
            np.testing.assert_array_equal(result[name], alone[name])
    assert parsed == ["b", "a", "a"]
    other = sqlite3.connect(path)
    other.execute("DELETE FROM examples WHERE client_id = 'a'")
    other.commit()
    with pytest.raises(UserError, match="the store was changed while it was read"):
        clients.read("b")


def test_counts_need_no_reading(tmp_path):
    def unread(client_id, columns):
        raise AssertionError("read")

    clients = _clients(text_store(tmp_path / "s.sqlite"), to_examples=unread)
    np.testing.assert_array_equal(client_domain_counts(clients, 2), [[0, 1], [2, 1]])
    np.testing.assert_array_equal(domain_counts(clients, 2), [2, 2])
    np.testing.assert_array_equal(
        client_domain_counts(SelectedClients(clients, ["b"]), 2), [[2, 1]]
    )


def test_index_finds_a_clients_rows(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    connection = sqlite3.connect(path)
    plan = connection.execute(
        "EXPLAIN QUERY PLAN SELECT serialized_example_proto FROM examples "
        "WHERE client_id = 'a' AND split_name = 'train'"
    ).fetchall()
    assert "USING INDEX examples_by_client" in plan[0][-1]
    # The rows of a client are consecutive.
    order = connection.execute("SELECT split_name, client_id FROM examples ORDER BY rowid")
    rows = order.fetchall()
    assert rows == sorted(rows)


@pytest.mark.parametrize("client", ["c", "t", ""])
def test_unknown_client_is_reported(tmp_path, client):
    clients = _clients(text_store(tmp_path / "s.sqlite"))
    with pytest.raises(UserError, match=f"client {client}: expected examples in split train"):
        clients.read(client)


def test_client_without_examples_is_reported(tmp_path):
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


def test_unknown_counts_are_read():
    clients = _in_memory([3, 0, 4])
    assert known_counts(clients) is None
    np.testing.assert_array_equal(client_domain_counts(clients, 2), [[2, 1], [0, 0], [2, 2]])
    np.testing.assert_array_equal(domain_counts(FirstExamples(clients, 2), 2), [2, 2])


def test_counts_for_many_clients_are_estimated():
    clients = _in_memory([4] * 100)
    reads = []
    read = clients.read
    clients.read = lambda client_id: reads.append(client_id) or read(client_id)
    np.testing.assert_array_equal(domain_counts(clients, 2, max_reads=10), [200, 200])
    assert len(set(reads)) == 10
    assert {"000", "099"} <= set(reads)


def test_wrong_example_count_is_reported(tmp_path):
    rows = [("train", "a", {"tokens": "x", "domain": "answer"})] * 2
    path = tff_store(tmp_path / "s.sqlite", rows)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE client_metadata SET num_examples = 1")
    connection.commit()
    connection.close()
    with pytest.raises(UserError, match="client a: expected 1 example in split train, as the "):
        _clients(path).read("a")
