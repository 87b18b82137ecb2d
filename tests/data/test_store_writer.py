"""Writes of stores: their content, and failures without leftovers."""

import contextlib
import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from tests import golden
from tests.data.stores import add_records, image, sentence, text_store, tff_store, write_store
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import is_temporary, scratch_folder
from tff_agnostic.base.later import tff
from tff_agnostic.data.store import Store, StoreClients, load_store
from tff_agnostic.data.store_format import Record
from tff_agnostic.data.store_writer import StoreWriter


def test_tff_reads_written_stores(tmp_path):
    import tensorflow as tf

    path = text_store(tmp_path / "s.sqlite")
    train = tff.simulation.datasets.load_and_parse_sql_client_data(
        str(path),
        {"tokens": tf.TensorSpec([], tf.string), "domain": tf.TensorSpec([], tf.string)},
        split_name="train",
    )
    assert train.client_ids == ["a", "b"]
    examples = list(train.create_tf_dataset_for_client("b").as_numpy_iterator())
    assert [e["tokens"] for e in examples] == [b"the cat", b"sat", b"the the dog"]
    assert [e["domain"] for e in examples] == [b"question", b"answer", b"question"]


def test_counts_are_by_client_and_domain(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    np.testing.assert_array_equal(load_store(path).domain_table("train"), [[1, 0], [1, 2]])
    rows = sqlite3.connect(path).execute("SELECT * FROM client_metadata ORDER BY client_id")
    assert rows.fetchall() == [
        ("a", "train", 1),
        ("b", "train", 3),
        ("h", "heldout", 1),
        ("t", "test", 1),
    ]


def test_client_order_changes_no_store(tmp_path):
    records = [("train", sentence(c, "d", f"{c}{k}")) for c in "xyz" for k in range(3)]
    mixed = [records[i] for i in (3, 0, 6, 4, 7, 1, 8, 2, 5)]
    one = load_store(write_store(tmp_path / "one.sqlite", records, "text", vocabulary={"a": 1}))
    two = load_store(write_store(tmp_path / "two.sqlite", mixed, "text", vocabulary={"a": 1}))
    for client in "xyz":
        assert one.read("train", client) == two.read("train", client)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            Record("a", "d", {"label": 1}),
            "pixels: expected Feature(dtype='float32', shape=(28, 28)",
        ),
        (Record("a", "d", {"pixels": np.zeros([28, 28], np.float32), "label": 0.5}), "label: exp"),
        (
            Record("a", "d", {"pixels": np.zeros([4, 4], np.float32), "label": 1}),
            "pixels: expected",
        ),
        (Record("a", "d", {**image("a", "d", 1).features, "more": 1}), "more: expected no such"),
    ],
)
def test_rejects_examples_with_other_features(tmp_path, record, message):
    with StoreWriter(tmp_path / "s.sqlite") as writer:
        add_records(writer, [("train", image("a", "d", 3))])
        with pytest.raises(ValueError) as error:
            add_records(writer, [("train", record)])
    assert str(error.value).startswith(message)


def test_existing_file_is_not_overwritten(tmp_path):
    path = tmp_path / "s.sqlite"
    with (
        pytest.raises(UserError, match="another process made a file there meanwhile"),
        StoreWriter(path) as writer,
    ):
        add_records(writer, [("train", sentence("a", "d", "x"))])
        writer.finish("text")
        path.write_text("other")
    with pytest.raises(UserError, match="expected no file there yet"):
        StoreWriter(path)
    assert path.read_text() == "other"
    assert os.listdir(tmp_path) == ["s.sqlite"]


def test_empty_store_is_refused(tmp_path):
    refused = pytest.raises(UserError, match="expected at least one example")
    with StoreWriter(tmp_path / "s.sqlite") as writer, refused:
        writer.finish("text")
    assert os.listdir(tmp_path) == []


def test_missing_folder_raises_one_line(tmp_path):
    writer = StoreWriter(tmp_path / "no" / "s.sqlite")
    with pytest.raises(UserError, match="cannot write the store"):
        writer.__enter__()


def test_unfinished_store_leaves_nothing(tmp_path):
    with StoreWriter(tmp_path / "s.sqlite") as writer:
        add_records(writer, [("train", sentence("a", "d", "x"))])
    assert os.listdir(tmp_path) == []
    with pytest.raises(KeyboardInterrupt), StoreWriter(tmp_path / "s.sqlite") as writer:
        add_records(writer, [("train", sentence("a", "d", "x"))])
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


_WRITING = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    import numpy as np, pyarrow as pa
    from tff_agnostic.data.store_writer import StoreWriter
    os.umask(0)
    with StoreWriter(Path(sys.argv[1])) as writer:
        names = pa.array(map(str, range(2000)))
        features = {"domain": pa.array(["d"] * 2000), "label": np.arange(2000)}
        writer.add(pa.array(["train"] * 2000), names, features)
        if sys.argv[2] == "finish":
            writer.finish("features")
        print("ready", flush=True)
        time.sleep(60)
    """
)


@contextlib.contextmanager
def _writing(path: Path, step: str) -> Iterator[None]:
    """Another process has a store in the making while entered; it is killed at the end."""
    child = subprocess.Popen(
        [sys.executable, "-c", _WRITING, str(path), step], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        yield
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


@pytest.mark.parametrize("step", ["add", "finish"])
def test_killed_writer_leaves_an_owner_only_folder(tmp_path, step):
    path = tmp_path / "s.sqlite"
    with _writing(path, step):
        pass
    assert not path.exists()
    (left,) = tmp_path.iterdir()
    assert is_temporary(left)
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    with pytest.raises(UserError):
        load_store(left)
    # The next store in the same folder, under any name, removes the folder.
    text_store(tmp_path / "other.sqlite")
    assert os.listdir(tmp_path) == ["other.sqlite"]


def test_leftover_with_this_process_id_is_removed(tmp_path):
    with scratch_folder(tmp_path / "s.sqlite") as folder:
        pass
    folder.mkdir()
    (folder / "unsorted.sqlite").write_text("a killed process had the same id")
    text_store(tmp_path / "s.sqlite")
    assert os.listdir(tmp_path) == ["s.sqlite"]


def test_running_writer_keeps_its_folder(tmp_path):
    with _writing(tmp_path / "s.sqlite", "add"):
        before = sorted(tmp_path.rglob("*"))
        text_store(tmp_path / "other.sqlite")
        assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "other.sqlite"])


def test_store_mode_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        path = text_store(tmp_path / "s.sqlite")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


# --- Stores that fuzzing found


def _ours(path: Path, sql: str = "", *parameters: Any, **described: Any) -> Store:
    """An export after a statement or with another description."""
    text_store(path)
    with sqlite3.connect(path) as db:
        if described:
            ((text,),) = db.execute("SELECT description FROM tff_agnostic")
            sql = "UPDATE tff_agnostic SET description = ?"
            parameters = (json.dumps({**json.loads(text), **described}),)
        db.execute(sql, parameters)
    db.close()
    return load_store(path)


def _tff_file(path: Path, sql: str) -> Store:
    """A store of TFF's after a statement."""
    rows = [(split, "a", {"tokens": "the cat"}) for split in ("train", "test")]
    with sqlite3.connect(tff_store(path, rows)) as db:
        db.execute(sql)
    db.close()
    return load_store(path)


def _clients(store: Store) -> StoreClients:
    features = store.description.features
    return StoreClients(
        store, "train", features, lambda client, columns: {}, ("answer", "question")
    )


def _used(made: Callable[[], Store]) -> None:
    store = made()
    store.splits()
    clients = _clients(store)
    for client in clients.client_ids:
        store.columns("train", client, store.description.features)
    clients.client_domain_counts()
    if store.description.kind is not None:
        store.vocabulary()
        store.sentence_lengths("train")


@golden.values
def test_invalid_description_is_refused(tmp_path, case):
    return golden.refusal(_used, lambda: _ours(tmp_path / "s.sqlite", **case))


@golden.values
def test_export_after_a_statement_is_refused(tmp_path, case):
    return golden.refusal(_used, lambda: _ours(tmp_path / "s.sqlite", *case))


@golden.values
def test_tff_store_after_a_statement_is_refused(tmp_path, case):
    return golden.refusal(_used, lambda: _tff_file(tmp_path / "s.sqlite", case))


def test_numeric_domains_are_in_numerical_order(tmp_path):
    """So that domain k of an array is domain k of lambda."""
    for names in (["10", "0", "2"], ["b", "10", "2"]):
        path = write_store(
            tmp_path / f"{names[0]}.sqlite",
            [("train", sentence("ann", name, "the cat")) for name in names],
            "text",
            vocabulary={"the": 3, "cat": 3},
        )
        expected = ("0", "2", "10") if "0" in names else ("10", "2", "b")
        assert load_store(path).description.domains == expected
