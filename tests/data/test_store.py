"""Reading stores: ours and TFF's, whole, changed, damaged."""

import multiprocessing
import sqlite3
import threading

import numpy as np
import pytest
import tensorflow as tf

from tests import golden
from tests.data.stores import text_store, tff_store, write_store
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
from tff_agnostic.data.store_format import Feature, Record
from tff_agnostic.data.tff_store import parse_examples

_TEXT = {"tokens": Feature("string"), "domain": Feature("string")}


def test_what_was_written_is_read(tmp_path):
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


def test_the_vocabulary_is_in_order_of_counts(tmp_path):
    store = load_store(text_store(tmp_path / "s.sqlite"))
    assert store.vocabulary() == ("the", "cat", "sat")
    assert store.vocabulary(2) == ("the", "cat")


def test_digests_tell_vocabularies_apart():
    assert vocabulary_digest(["a", "b"]) == vocabulary_digest(("a", "b"))
    assert len({vocabulary_digest(w) for w in (["a", "b"], ["b", "a"], ["a"], ["ab"])}) == 4


def test_a_store_of_tff_describes_itself_by_its_first_example(tmp_path):
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
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(store.read("train", "b"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4
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


def test_a_store_is_opened_read_only(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    path.chmod(0o444)
    before = path.read_bytes()
    store = load_store(path)
    store.read("train", "a")
    with pytest.raises(UserError, match="cannot read the store: attempt to write a readonly"):
        store._query("DELETE FROM examples")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["s.sqlite"]


def test_a_store_that_is_written_to_while_it_is_read_is_told(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    store = load_store(path)
    other = sqlite3.connect(path)
    other.execute("DELETE FROM examples WHERE client_id = 'a'")
    other.commit()
    with pytest.raises(UserError, match="the store was changed while it was read"):
        store.read("train", "b")
    with pytest.raises(UserError, match="the store was changed while it was read"):
        store.digest()


def test_a_store_that_is_locked_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("plan_runner.client_store._PATIENCE", 0.05)
    path = text_store(tmp_path / "s.sqlite")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UserError, match="another process is writing to the store"):
        load_store(path)


def test_a_store_that_is_removed_is_told(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    store = load_store(path)
    path.unlink()
    with pytest.raises(UserError, match="the store is gone"):
        store.read("train", "a")


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
        (_text_file, "expected a client store, found another file (./run import_data"),
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
            "expected the description of a store, found another one",
        ),
    ],
)
def test_what_is_no_store_is_one_line(tmp_path, damage, message):
    path = text_store(tmp_path / "s.sqlite")
    damage(path)
    with pytest.raises(UserError) as error:
        store = load_store(path)
        for client in store.client_ids("train"):
            store.read("train", client)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@golden.values
def test_what_a_store_says_that_is_not_so(tmp_path, case):
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


def test_a_split_without_clients_names_those_there_are(tmp_path):
    store = load_store(text_store(tmp_path / "s.sqlite"))
    with pytest.raises(UserError, match="split dev, found the splits heldout, test, train"):
        store.client_ids("dev")


@pytest.mark.parametrize(
    ("serialized", "features"),
    [
        ([b"\xff\xff\xff"], _TEXT),
        (None, {"words": Feature("string")}),
        (None, {"tokens": Feature("int64")}),
        (None, {"tokens": Feature("string", (2,))}),
    ],
)
def test_examples_of_another_kind_are_one_line(tmp_path, serialized, features):
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


def test_a_client_has_its_examples_in_the_order_in_which_they_came(tmp_path):
    clients = _clients(text_store(tmp_path / "s.sqlite"))
    assert list(clients.client_ids) == ["a", "b"]
    np.testing.assert_array_equal(clients.read("b")["x"], [[7], [3], [11]])
    np.testing.assert_array_equal(clients.read("b")["domain_id"], [0, 1, 0])


def test_the_first_clients_that_are_read_stay_in_memory_until_it_is_full(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    parsed = []

    def noted(client_id, columns):
        parsed.append(client_id)
        return _lengths(client_id, columns)

    # Of "b": three examples with two numbers of 4 bytes and a domain id of 4.
    clients = _clients(path, to_examples=noted, most_kept=36)
    for client in ("b", "a", "b", "a"):
        found, alone = clients.read(client), _clients(path).read(client)
        for name in alone:
            np.testing.assert_array_equal(found[name], alone[name])
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
    with pytest.raises(UserError, match="client a: expected 1 example in split train, as the "):
        _clients(path).read("a")


# --- Serialized examples: those of TensorFlow's own message


def test_exported_examples_are_tensorflows(tmp_path):
    # A name that begins with another one comes before it.
    texts = ["", "a b", "\u00e9" * 100, "x" * 20_000]
    shared = {"text_at": "1", "te": -5, "zoo": np.float32([1.5, -2]), "big": 2**62, "u": "x" * 200}
    records = [("train", Record("a", "d", {**shared, "text": text})) for text in texts]
    store = load_store(write_store(tmp_path / "s.sqlite", records, "features"))
    for serialized, text in zip(store.read("train", "a"), texts, strict=True):
        train = tf.train
        feature = {
            "domain": train.Feature(bytes_list=train.BytesList(value=[b"d"])),
            "text": train.Feature(bytes_list=train.BytesList(value=[text.encode()])),
            "text_at": train.Feature(bytes_list=train.BytesList(value=[b"1"])),
            "te": train.Feature(int64_list=train.Int64List(value=[-5])),
            "zoo": train.Feature(float_list=train.FloatList(value=[1.5, -2])),
            "big": train.Feature(int64_list=train.Int64List(value=[2**62])),
            "u": train.Feature(bytes_list=train.BytesList(value=[b"x" * 200])),
        }
        message = train.Example(features=train.Features(feature=feature))
        assert serialized == message.SerializeToString(deterministic=True)
