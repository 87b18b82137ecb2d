"""Stores as folders and as TFF's SQLite files: reads, exports, changes and damage."""

import contextlib
import json
import multiprocessing
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support import golden
from tests.support.comparing import assert_identical
from tests.support.stores import mixed_records, text_store, tff_store, write_store
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf, tff
from tff_agnostic.data.clients import SelectedClients, client_domain_counts, domain_counts
from tff_agnostic.data.store import (
    CLIENTS,
    EXAMPLES,
    STORE,
    Store,
    StoreClients,
    load_store,
    vocabulary_digest,
)
from tff_agnostic.data.store_format import Feature, Record
from tff_agnostic.data.tff_store import TffStore, parse_examples, to_tff

_TEXT = {"tokens": Feature("string"), "domain": Feature("string")}
_both_forms = pytest.mark.parametrize("name", ["s.store", "s.sqlite"])


def _execute(path: Path, sql: str, *parameters: Any) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as database:
        if parameters:
            database.execute(sql, parameters)
        else:
            database.executescript(sql)
        database.commit()
    return path


@_both_forms
def test_store_returns_written_texts(tmp_path, name):
    store = load_store(text_store(tmp_path / name))
    assert store.description.kind == "text"
    assert store.description.domains == ("answer", "question")
    assert store.description.features == _TEXT
    assert store.description.source == "by hand"
    assert store.splits() == ("heldout", "test", "train")
    assert list(store.client_counts("train").items()) == [("a", 1), ("b", 3)]
    columns = store.columns("train", "b", _TEXT)
    assert columns["tokens"].tolist() == [b"the cat", b"sat", b"the the dog"]
    assert columns["domain"].tolist() == [b"question", b"answer", b"question"]
    np.testing.assert_array_equal(store.domain_table("train"), [[1, 0], [1, 2]])
    assert store.vocabulary() == ("the", "cat", "sat")
    assert store.vocabulary(2) == ("the", "cat")
    assert store.sentence_lengths("train") == {1: 1, 2: 1, 3: 2}


@_both_forms
@pytest.mark.parametrize(
    ("split", "client", "features", "message"),
    [
        ("dev", "a", _TEXT, "split dev, found the splits heldout, test, train"),
        ("train", "t", _TEXT, "client t: expected examples in split train, found none"),
        ("train", "a", {"tokens": Feature("int64")}, "client a: expected examples with tokens"),
        ("train", "a", {"words": Feature("string")}, "client a: expected examples with words"),
    ],
)
def test_absent_split_client_or_feature_raises(tmp_path, name, split, client, features, message):
    store = load_store(text_store(tmp_path / name))

    def read() -> None:
        store.client_ids(split)
        store.columns(split, client, features)

    assert message in golden.refusal(read)


def test_sqlite_export_equals_the_store(tmp_path):
    store = load_store(write_store(tmp_path / "s.store", mixed_records(500), "features"))
    to_tff(store, tmp_path / "s.sqlite")
    other = load_store(tmp_path / "s.sqlite")
    assert isinstance(other, TffStore)
    assert (store.description, store.splits()) == (other.description, other.splits())
    features = store.description.features
    for split in store.splits():
        assert [*store.client_counts(split).items()] == [*other.client_counts(split).items()]
        np.testing.assert_array_equal(store.domain_table(split), other.domain_table(split))
        for client in store.client_ids(split):
            assert_identical(*(one.columns(split, client, features) for one in (store, other)))


def test_exported_protos_contain_the_values(tmp_path):
    texts = ["", "a b", "\u00e9" * 100, "x" * 20_000]
    shared = {"text_at": "1", "te": -5, "zoo": np.float32([1.5, -2]), "big": 2**62}
    records = [("train", Record("a", "d", {**shared, "text": text})) for text in texts]
    store = load_store(write_store(tmp_path / "s.sqlite", records, "features"))
    for serialized, text in zip(store.read("train", "a"), texts, strict=True):
        feature = tf.train.Example.FromString(serialized).features.feature
        assert sorted(feature) == ["big", "domain", "te", "text", "text_at", "zoo"]
        assert feature["text"].bytes_list.value[:] == [text.encode()]
        assert feature["zoo"].float_list.value[:] == [1.5, -2]
        assert [feature[name].int64_list.value[:] for name in ("te", "big")] == [[-5], [2**62]]


def test_tff_reads_exports_through_an_index(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    spec = {name: tf.TensorSpec([], tf.string) for name in _TEXT}
    load = tff.simulation.datasets.load_and_parse_sql_client_data
    train = load(str(path), spec, split_name="train")
    assert train.client_ids == ["a", "b"]
    examples = list(train.create_tf_dataset_for_client("b").as_numpy_iterator())
    assert [e["tokens"] for e in examples] == [b"the cat", b"sat", b"the the dog"]
    assert [e["domain"] for e in examples] == [b"question", b"answer", b"question"]
    with contextlib.closing(sqlite3.connect(path)) as database:
        plan = database.execute(
            "EXPLAIN QUERY PLAN SELECT serialized_example_proto FROM examples "
            "WHERE client_id = 'a' AND split_name = 'train'"
        ).fetchall()
        assert "USING INDEX examples_by_client" in plan[0][-1]
        # Each client's rows are consecutive.
        order = database.execute("SELECT split_name, client_id FROM examples ORDER BY rowid")
        rows = order.fetchall()
        assert rows == sorted(rows)


def test_tff_store_infers_features_from_first_example(tmp_path):
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


def test_threads_and_forked_processes_read_concurrently(tmp_path):
    store = load_store(text_store(tmp_path / "s.sqlite"))
    expected = store.read("train", "b")
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda _: store.read("train", "b"), range(4))] == [expected] * 4
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=lambda: queue.put(store.read("train", "b")))
    child.start()
    assert queue.get() == expected
    child.join()


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


@_both_forms
def test_changed_or_removed_store_raises(tmp_path, name):
    path = text_store(tmp_path / name)
    store, examples = load_store(path), path / EXAMPLES if path.is_dir() else path
    examples.touch()
    for read in (lambda: store.columns("train", "b", _TEXT), store.digest):
        assert "the store was changed while it was read" in golden.refusal(read)
    examples.unlink()
    assert f"cannot read {examples.name}" in golden.refusal(store.digest)


def test_locked_store_raises(tmp_path, monkeypatch):
    monkeypatch.setattr("tff_agnostic.data.tff_store._PATIENCE", 0.05)
    path = text_store(tmp_path / "s.sqlite")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode=EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    assert "another process is writing to the store" in golden.refusal(load_store, path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:20000]), "expected an SQLite file, found a damag"),
        (lambda p: p.write_text("no store " * 99), "found a file of another format (./run"),
        (lambda p: p.unlink(), "expected a client store, found nothing"),
        (lambda p: p.write_bytes(b""), "expected a client store with the table examples"),
    ],
)
def test_damaged_sqlite_file_raises(tmp_path, damage, message):
    path = text_store(tmp_path / "s.sqlite")
    damage(path)
    assert message in golden.refusal(_used, lambda: load_store(path))


def _json(**changed: Any) -> Callable[[Path], None]:
    """Returns a function that changes entries of `store.json`; the value None removes an entry."""

    def change(path: Path) -> None:
        content = {**json.loads((path / STORE).read_text()), **changed}
        content = {name: value for name, value in content.items() if value is not None}
        (path / STORE).write_text(json.dumps(content))

    return change


def _clients_column(name: str, values: list[Any]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        table = parquet.read_table(path / CLIENTS, memory_map=False)
        place = table.column_names.index(name)
        parquet.write_table(table.set_column(place, name, pa.array(values)), path / CLIENTS)

    return change


def _without_tokens(path: Path) -> None:
    table = pa.ipc.open_file(pa.BufferReader((path / EXAMPLES).read_bytes())).read_all()
    place = table.column_names.index("tokens")
    table = table.set_column(place, "tokens", pa.nulls(len(table), pa.string()))
    with pa.ipc.new_file(str(path / EXAMPLES), table.schema) as file:
        file.write_table(table)


# The rows of the clients table are h, t, a and b, with 1, 1, 1 and 3 examples.
@pytest.mark.parametrize(
    "damage",
    [
        *(lambda path, n=n: (path / n).unlink() for n in (EXAMPLES, STORE)),
        *(lambda path, n=n: (path / n).write_bytes(b"\xff") for n in (EXAMPLES, CLIENTS, STORE)),
        lambda path: (path / EXAMPLES).write_bytes(b""),
        _json(version=2),
        _json(digest=None),
        _json(digest=5),
        _json(notes=[5]),
        _json(domains=["answer"]),
        _json(features={"tokens": {"dtype": "string", "shape": []}}),
        _clients_column("count", [1, 1, -1, 5]),
        _clients_column("count", [1, 1, 1, None]),
        _clients_column("first", [0, 0, 0, 0]),
        _clients_column("client", ["h", "t", "b", "b"]),
        _clients_column("client", [1, 2, 3, 4]),
        _clients_column("split", ["train", "test", "heldout", "train"]),
        _without_tokens,
    ],
)
def test_damaged_store_folder_raises(tmp_path, damage):
    path = text_store(tmp_path / "s")
    damage(path)
    assert golden.refusal(load_store, path).startswith(f"{path}: expected a client store")


def _used(load: Callable[[], Store]) -> None:
    store = load()
    clients = _clients(store, to_examples=lambda client, columns: {})
    for client in clients.client_ids:
        store.columns("train", client, store.description.features)
    clients.client_domain_counts()
    if store.description.kind is not None:
        store.vocabulary()
        store.sentence_lengths("train")


@golden.values
def test_changed_export_raises(tmp_path, case):
    """A case is SQL, SQL with a parameter, or changed entries of the description."""
    path = text_store(tmp_path / "s.sqlite")
    statement = (case,) if isinstance(case, str) else case
    if isinstance(case, dict):
        description = json.loads(load_store(path).description.to_json())
        changed = json.dumps({**description, **case})
        statement = ("UPDATE tff_agnostic SET description = ?", changed)
    try:
        _execute(path, *statement)
    except sqlite3.OperationalError as e:
        if "no such module" not in str(e):
            raise
        pytest.skip(f"SQLite of this Python: {e}")
    return golden.refusal(_used, lambda: load_store(path))


@golden.values
def test_changed_tff_store_raises(tmp_path, case):
    rows = [(split, "a", {"tokens": "the cat"}) for split in ("train", "test")]
    path = _execute(tff_store(tmp_path / "s.sqlite", rows), case)
    return golden.refusal(_used, lambda: load_store(path))


def test_invalid_protos_raise():
    message = golden.refusal(parse_examples, [b"\xff\xff\xff"], _TEXT, "client a")
    assert message.startswith("client a: expected examples with ")


def test_vocabulary_digest_depends_on_words_and_order():
    assert vocabulary_digest(["a", "b"]) == vocabulary_digest(("a", "b"))
    assert len({vocabulary_digest(w) for w in (["a", "b"], ["b", "a"], ["a"], ["ab"])}) == 4


# --- `StoreClients` reads the clients of a split


_NAMES = ("question", "answer")


def _lengths(client_id, columns):
    del client_id
    domain_id = [_NAMES.index(name.decode()) for name in columns["domain"]]
    x = np.array([[len(tokens)] for tokens in columns["tokens"]], np.float32)
    return {"x": x, "y": x[:, 0], "domain_id": np.array(domain_id, np.int32)}


def _clients(store: Store, to_examples=_lengths, **more: Any) -> StoreClients:
    return StoreClients(store, "train", _TEXT, to_examples, _NAMES, **more)


def test_clients_that_are_read_first_stay_in_memory(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    parsed = []

    def noted(client_id, columns):
        parsed.append(client_id)
        return _lengths(client_id, columns)

    # The 36 bytes fit client b only: 3 examples with x, y and a domain id of 4 bytes each.
    clients = _clients(load_store(path), to_examples=noted, max_kept_bytes=36)
    assert list(clients.client_ids) == ["a", "b"]
    for client in ("b", "a", "b", "a"):
        clients.read(client)
    np.testing.assert_array_equal(clients.read("b")["x"], [[7], [3], [11]])
    np.testing.assert_array_equal(clients.read("b")["domain_id"], [0, 1, 0])
    assert parsed == ["b", "a", "a"]
    _execute(path, "DELETE FROM examples WHERE client_id = 'a'")
    with pytest.raises(UserError, match="the store was changed while it was read"):
        clients.read("b")


def test_domain_counts_read_no_examples(tmp_path):
    def unread(client_id, columns):
        raise AssertionError("read")

    clients = _clients(load_store(text_store(tmp_path / "s.sqlite")), to_examples=unread)
    np.testing.assert_array_equal(client_domain_counts(clients, 2), [[0, 1], [2, 1]])
    np.testing.assert_array_equal(domain_counts(clients, 2), [2, 2])
    np.testing.assert_array_equal(
        client_domain_counts(SelectedClients(clients, ["b"]), 2), [[2, 1]]
    )
