"""`StoreWriter`: the content of stores, and failures that leave no files."""

import multiprocessing
import os
import stat
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.comparing import assert_identical
from tests.support.stores import (
    add_records,
    image,
    mixed_records,
    sentence,
    text_store,
    write_store,
)
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import is_temporary, scratch_folder
from tff_agnostic.data.store import load_store
from tff_agnostic.data.store_format import Record
from tff_agnostic.data.store_writer import StoreWriter
from tff_agnostic.data.tff_store import to_tff

_ONE = [("train", sentence("a", "d", "x"))]


def test_buckets_and_record_order_do_not_change_clients(tmp_path):
    records = mixed_records(1500)
    one = load_store(write_store(tmp_path / "one", records, "features"))
    # The sort is stable, so each client's examples keep their order.
    mixed = sorted(records, key=lambda record: record[1].client[::-1])
    with StoreWriter(tmp_path / "same") as writer:
        for record in mixed:
            add_records(writer, [record])
        writer.finish("features")
    assert load_store(tmp_path / "same").digest() == one.digest()
    with StoreWriter(tmp_path / "buckets", memory=10_000) as writer:
        for start in range(0, 1500, 100):
            add_records(writer, mixed[start : start + 100])
        writer.finish("features")
    parts = load_store(tmp_path / "buckets")
    assert one.digest() != parts.digest(), "the writer used no buckets on disk"
    for split in one.splits():
        assert parts.client_counts(split) == one.client_counts(split)
        np.testing.assert_array_equal(parts.domain_table(split), one.domain_table(split))
        for client in one.client_ids(split):
            features = one.description.features
            assert_identical(*(s.columns(split, client, features) for s in (one, parts)))


@pytest.mark.parametrize("memory", [10_000, 2**20])
def test_writer_counts_units_and_moves_them_between_splits(tmp_path, memory):
    draw = np.random.default_rng(0)
    expected: Counter[tuple[int, str]] = Counter()
    with StoreWriter(tmp_path / "s", memory) as writer:
        for k in range(20):
            units = [None, *draw.integers(-50, 50, size=99).tolist()]
            records = [
                ("train", sentence(f"c{draw.integers(30)}", f"d{draw.integers(3)}", f"{k} {i}"))
                for i in range(100)
            ]
            add_records(writer, records, units)
            pairs = [(unit, r.domain) for unit, (_, r) in zip(units, records) if unit is not None]
            expected.update(pairs)
        assert [*writer.units()] == [(*key, n) for key, n in sorted(expected.items())]
        assert len(writer.sort({-50: "test", 3: "test"}).table) == 2000
        writer.finish("text")
    store = load_store(tmp_path / "s")
    assert store.splits() == ("test", "train")
    moved = [sum(expected[unit, f"d{k}"] for unit in (-50, 3)) for k in range(3)]
    assert store.domain_table("test").sum(axis=0).tolist() == moved


def test_features_may_be_called_client_split_and_unit(tmp_path):
    values = {"client": "n0", "split": 3, "unit": np.float32([1, 2])}
    store = load_store(
        write_store(tmp_path / "s", [("train", Record("a", "d", values))], "features")
    )
    columns = store.columns("train", "a", store.description.features)
    assert [columns[name].tolist() for name in values] == [[b"n0"], [3], [[1, 2]]]


def test_digest_changes_with_examples_and_description(tmp_path):
    records = mixed_records(20)
    other = [*records[:-1], ("train", Record("new", "d0", records[-1][1].features))]
    variants = [(records, ""), (records, ""), (other, ""), (records, "x")]
    first, again, *others = (
        load_store(write_store(tmp_path / str(k), some, "features", source=source)).digest()
        for k, (some, source) in enumerate(variants)
    )
    assert first == again
    assert len({first, *others}) == 3


@pytest.mark.parametrize(
    ("features", "name"),
    [
        ({"label": 1}, "pixels"),
        ({"pixels": np.zeros([28, 28], np.float32), "label": 0.5}, "label"),
        ({"pixels": np.zeros([4, 4], np.float32), "label": 1}, "pixels"),
        ({**image("a", "d", 1).features, "more": 1}, "more"),
    ],
)
def test_writer_rejects_examples_with_other_features(tmp_path, features, name):
    with StoreWriter(tmp_path / "s") as writer:
        add_records(writer, [("train", image("a", "d", 3))])
        with pytest.raises(
            ValueError, match=rf"^{name}: expected .+, as in the first example, fou"
        ):
            add_records(writer, [("train", Record("a", "d", features))])


def test_numeric_domains_are_in_numerical_order(tmp_path):
    """Domain k of an array is then entry k of lambda."""
    for names, expected in (
        (["10", "0", "2"], ("0", "2", "10")),
        (["b", "10", "2"], ("10", "2", "b")),
    ):
        records = [("train", sentence("ann", name, "the cat")) for name in names]
        store = load_store(write_store(tmp_path / names[0], records, "text"))
        assert store.description.domains == expected


def test_writer_does_not_overwrite_existing_file(tmp_path):
    path = tmp_path / "s.sqlite"
    with (
        pytest.raises(UserError, match="another process made a file there meanwhile"),
        StoreWriter(path) as writer,
    ):
        add_records(writer, _ONE)
        writer.finish("text")
        path.write_text("other")
    store = load_store(write_store(tmp_path / "store", _ONE, "text"))
    for write in (StoreWriter, lambda path: to_tff(store, path)):
        with pytest.raises(UserError, match="expected no file there yet"):
            write(path)
    assert path.read_text() == "other"
    assert sorted(os.listdir(tmp_path)) == ["s.sqlite", "store"]


def test_unfinished_store_leaves_no_files(tmp_path):
    with StoreWriter(tmp_path / "s") as writer:
        add_records(writer, _ONE)
    with pytest.raises(KeyboardInterrupt), StoreWriter(tmp_path / "s") as writer:
        add_records(writer, _ONE)
        raise KeyboardInterrupt
    refused = pytest.raises(UserError, match="expected at least one example")
    with refused, StoreWriter(tmp_path / "s") as writer:
        writer.finish("text")
    assert os.listdir(tmp_path) == []
    with pytest.raises(UserError, match="cannot write the store"):
        StoreWriter(tmp_path / "no" / "s").__enter__()


def _write(path: Path, step: str, is_ready: Any) -> None:
    os.umask(0)
    with StoreWriter(path) as writer:
        add_records(writer, _ONE)
        if step == "finish":
            writer.finish("text")
        is_ready.set()
        time.sleep(60)


@pytest.mark.parametrize("step", ["add", "finish"])
def test_killed_writer_leaves_an_owner_only_folder(tmp_path, step):
    path = tmp_path / "s.sqlite"
    spawn = multiprocessing.get_context("spawn")
    is_ready = spawn.Event()
    child = spawn.Process(target=_write, args=(path, step, is_ready))
    child.start()
    try:
        assert is_ready.wait(60)
        # Another writer does not remove a running writer's folder.
        before = sorted(tmp_path.rglob("*"))
        text_store(tmp_path / "other")
        assert {*before} <= {*tmp_path.rglob("*")}
    finally:
        child.kill()
        child.join()
    assert not path.exists()
    (left,) = (file for file in tmp_path.iterdir() if file.name != "other")
    assert is_temporary(left)
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    with pytest.raises(UserError):
        load_store(left)
    # The next writer of any store in `tmp_path` removes the dead writer's folder.
    text_store(tmp_path / "third.sqlite")
    assert sorted(os.listdir(tmp_path)) == ["other", "third.sqlite"]


def test_leftover_folder_with_own_process_id_is_removed(tmp_path):
    with scratch_folder(tmp_path / "s.sqlite") as folder:
        pass
    folder.mkdir()
    (folder / "bucket_0.arrows").write_text("a killed process had the same id")
    text_store(tmp_path / "s.sqlite")
    assert os.listdir(tmp_path) == ["s.sqlite"]


def test_store_mode_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        path = text_store(tmp_path / "s.sqlite")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
