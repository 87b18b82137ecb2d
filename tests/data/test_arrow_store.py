"""Stores of Arrow files, and their exports as TFF's SQLite files."""

import json
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from tests import golden
from tests.computations.harness import assert_identical
from tests.data.stores import add_records, sentence, text_store, write_store
from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store import CLIENTS, EXAMPLES, STORE, ArrowStore, load_store
from tff_agnostic.data.store_format import Feature, Record
from tff_agnostic.data.store_writer import StoreWriter
from tff_agnostic.data.tff_store import TffStore, to_tff


def _records(count: int) -> list[tuple[str, Record]]:
    draw = np.random.default_rng(0)
    return [
        (
            ("train", "test")[int(client) % 3 == 0],
            Record(
                f"c{client}é",
                f"d{draw.integers(3)}",
                {"x": draw.normal(size=[2, 3]), "label": int(draw.integers(4)), "city": f"t{k}"},
            ),
        )
        for k, client in enumerate(draw.integers(20, size=count))
    ]


def test_export_equals_the_store(tmp_path):
    store = load_store(write_store(tmp_path / "s.store", _records(500), "features"))
    to_tff(store, tmp_path / "s.sqlite")
    other = load_store(tmp_path / "s.sqlite")
    assert isinstance(store, ArrowStore) and isinstance(other, TffStore)
    assert store.description == other.description
    assert store.splits() == other.splits()
    for split in store.splits():
        assert list(store.client_counts(split).items()) == list(other.client_counts(split).items())
        np.testing.assert_array_equal(store.domain_table(split), other.domain_table(split))
        for client in store.client_ids(split):
            features = store.description.features
            assert_identical(
                *(one.columns(split, client, features) for one in (store, other)),
            )


def test_exported_texts_have_words_and_lengths(tmp_path):
    stores = [load_store(text_store(tmp_path / name)) for name in ("s.store", "s.sqlite")]
    for store in stores:
        assert store.vocabulary(2) == ("the", "cat")
        assert store.sentence_lengths("train") == {1: 1, 2: 1, 3: 2}


def test_buckets_on_the_disk_change_no_client(tmp_path):
    records = _records(3000)
    whole = load_store(write_store(tmp_path / "whole", records, "features"))
    with StoreWriter(tmp_path / "buckets", memory=10_000) as writer:
        for start in range(0, 3000, 100):
            add_records(writer, records[start : start + 100])
        writer.finish("features")
    parts = load_store(tmp_path / "buckets")
    assert parts.description.features == whole.description.features
    for split in whole.splits():
        assert parts.client_counts(split) == whole.client_counts(split)
        np.testing.assert_array_equal(parts.domain_table(split), whole.domain_table(split))
        for client in whole.client_ids(split):
            features = whole.description.features
            assert_identical(*(one.columns(split, client, features) for one in (parts, whole)))


def test_units_move_with_all_examples(tmp_path):
    with StoreWriter(tmp_path / "s") as writer:
        records = [("train", sentence(f"c{k % 3}", "d", f"t{k}")) for k in range(6)]
        add_records(writer, records, units=[0, 1, 2, 0, 1, 2])
        assert list(writer.units()) == [(0, "d", 2), (1, "d", 2), (2, "d", 2)]
        writer.sort({1: "test"})
        writer.finish("text")
    store = load_store(tmp_path / "s")
    assert store.client_counts("test") == {"c1": 2}
    assert store.client_counts("train") == {"c0": 2, "c2": 2}


@pytest.mark.parametrize("memory", [10_000, 2**20])
def test_units_are_counted_over_all_clients(tmp_path, memory):
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
        assert len(writer.sort({-50: "test"}).table) == 2000


def test_digest_changes_with_examples_and_description(tmp_path):
    records = _records(20)
    other = [*records[:-1], ("train", Record("new", "d0", records[-1][1].features))]
    digests = [
        load_store(write_store(tmp_path / str(k), some, "features", source=source)).digest()
        for k, (some, source) in enumerate(
            [(records, ""), (records, ""), (other, ""), (records, "x")]
        )
    ]
    assert digests[0] == digests[1]
    assert len({*digests}) == 3


def test_absent_columns_and_clients_raise_one_line(tmp_path):
    store = load_store(text_store(tmp_path / "s"))
    with pytest.raises(UserError, match="client a: expected examples with tokens"):
        store.columns("train", "a", {"tokens": Feature("int64")})
    with pytest.raises(UserError, match="client aa: expected examples in split train, found none"):
        store.columns("train", "aa", {"tokens": Feature("string")})
    with pytest.raises(UserError, match="split dev, found the splits heldout, test, train"):
        store.client_ids("dev")


def test_changed_store_is_reported(tmp_path):
    path = text_store(tmp_path / "s")
    store = load_store(path)
    (path / EXAMPLES).touch()
    with pytest.raises(UserError, match="the store was changed while it was read"):
        store.columns("train", "a", {"tokens": Feature("string")})


@pytest.mark.parametrize("name", [EXAMPLES, CLIENTS, STORE])
@pytest.mark.parametrize("content", [None, b"", b"\xff" * 100])
def test_damaged_files_raise_one_line(tmp_path, name, content):
    path = text_store(tmp_path / "s")
    (path / name).unlink()
    if content is not None:
        (path / name).write_bytes(content)
    assert golden.refusal(load_store, path).startswith(f"{path}: expected a client store")


def test_newer_store_raises_one_line(tmp_path):
    path = text_store(tmp_path / "s")
    content = json.loads((path / STORE).read_text())
    (path / STORE).write_text(json.dumps({**content, "version": 2}))
    assert "a newer store needs a newer program" in golden.refusal(load_store, path)


def test_exported_examples_parse_to_their_values(tmp_path):
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
