"""Reading stores: ours and TFF's, whole, changed, damaged."""

import multiprocessing
import sqlite3
import threading

import numpy as np
import pytest

from tests import golden
from tests.data.stores import image, text_store, tff_store, write_store
from tff_agnostic.data.store import Store, parse_examples, vocabulary_digest
from tff_agnostic.data.store_format import Feature
from tff_agnostic.errors import UserError

_TEXT = {"tokens": Feature("string"), "domain": Feature("string")}


def test_what_was_written_is_read(tmp_path):
    store = Store(text_store(tmp_path / "s.sqlite"))
    assert store.description.kind == "text"
    assert store.description.domains == ("answer", "question")
    assert store.description.features == _TEXT
    assert store.description.source == "by hand"
    assert store.splits() == ("heldout", "test", "train")
    assert store.client_ids("train") == ["a", "b"]
    columns = parse_examples(store.read("train", "b"), _TEXT, "client b")
    assert columns["tokens"].tolist() == [b"the cat", b"sat", b"the the dog"]
    assert columns["domain"].tolist() == [b"question", b"answer", b"question"]


def test_images_keep_their_shape_and_values(tmp_path):
    records = [("train", image("a", "d", k, ink=k / 10)) for k in range(3)]
    store = Store(write_store(tmp_path / "s.sqlite", records, "features", class_names="xyz"))
    assert store.description.class_names == ("x", "y", "z")
    columns = parse_examples(store.read("train", "a"), store.description.features, "a")
    assert columns["pixels"].shape == (3, 28, 28)
    assert columns["pixels"].dtype == np.float32
    np.testing.assert_array_equal(columns["pixels"][:, 5, 5], np.float32([0.0, 0.1, 0.2]))
    np.testing.assert_array_equal(columns["label"], [0, 1, 2])


def test_the_vocabulary_is_in_order_of_counts(tmp_path):
    store = Store(text_store(tmp_path / "s.sqlite"))
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
    store = Store(tff_store(tmp_path / "s.sqlite", rows))
    assert store.description.kind is None
    assert store.description.features == {
        "label": Feature("int64"),
        "pixels": Feature("float32", (784,)),
    }
    assert store.domain_counts("train") is None
    with pytest.raises(UserError, match="found a store without one"):
        store.vocabulary()


def test_threads_and_forked_processes_read_at_once(tmp_path):
    store = Store(text_store(tmp_path / "s.sqlite"))
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
    store = Store(path)
    store.read("train", "a")
    with pytest.raises(UserError, match="cannot read the store: attempt to write a readonly"):
        store._query("DELETE FROM examples")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["s.sqlite"]


def test_a_store_that_is_written_to_while_it_is_read_is_told(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    store = Store(path)
    other = sqlite3.connect(path)
    other.execute("DELETE FROM examples WHERE client_id = 'a'")
    other.commit()
    with pytest.raises(UserError, match="the store was changed while it was read"):
        store.read("train", "b")
    with pytest.raises(UserError, match="the store was changed while it was read"):
        store.digest()


def test_a_store_that_is_locked_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("tff_agnostic.data.store._PATIENCE", 0.05)
    path = text_store(tmp_path / "s.sqlite")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UserError, match="another process is writing to the store"):
        Store(path)


def test_a_store_that_is_removed_is_told(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    store = Store(path)
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
        (_text_file, "expected an SQLite file, found a damaged one"),
        (lambda path: path.unlink(), "--data: expected a client store, found no file at"),
        (lambda path: path.write_bytes(b""), "expected a client store with the table examples"),
        (_without("DROP TABLE client_metadata"), "expected a client store with the table client_m"),
        (_without("DELETE FROM tff_agnostic"), "expected a complete store, found one half-written"),
        (
            _without("UPDATE tff_agnostic SET description = '{\"version\": 2}'"),
            "expected a store of version 1, found 2",
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
        store = Store(path)
        for client in store.client_ids("train"):
            store.read("train", client)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


_NO_CONSTRAINTS = (
    "PRAGMA writable_schema=ON; UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', ''); "
    "PRAGMA writable_schema=RESET; "
)
_RENAMED = "ALTER TABLE client_metadata RENAME TO other; "


@golden.values
def test_what_a_store_says_that_is_not_so(tmp_path, case):
    path = text_store(tmp_path / "s.sqlite")
    connection = sqlite3.connect(path)
    connection.executescript(case)
    connection.close()
    with pytest.raises(UserError) as error:
        store = Store(path)
        store.client_ids("train")
        store.domain_counts("train")
        store.sentence_lengths("train")
    return str(error.value)


def test_a_split_without_clients_names_those_there_are(tmp_path):
    store = Store(text_store(tmp_path / "s.sqlite"))
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
    store = Store(text_store(tmp_path / "s.sqlite"))
    examples = serialized or store.read("train", "a")
    assert golden.refusal(parse_examples, examples, features, "client a").startswith(
        "client a: expected examples with "
    )
