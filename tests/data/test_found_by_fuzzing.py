"""Stores that were changed by chance until something other than one line came of them."""

import json
import sqlite3
from pathlib import Path
from typing import Any, Callable

import pytest

from tests.data.stores import text_store, tff_store
from tff_agnostic.data.store import Store, StoreClients, parse_examples
from tff_agnostic.errors import UserError


def _ours(path: Path, sql: str = "", *parameters: Any, **described: Any) -> Store:
    """A store of ours, after a statement or with another description."""
    text_store(path)
    with sqlite3.connect(path) as db:
        if described:
            ((text,),) = db.execute("SELECT description FROM tff_agnostic")
            sql = "UPDATE tff_agnostic SET description = ?"
            parameters = (json.dumps({**json.loads(text), **described}),)
        db.execute(sql, parameters)
    db.close()
    return Store(path)


def _of_tff(path: Path, sql: str) -> Store:
    """One that TFF wrote, whose columns take anything."""
    rows = [(split, "a", {"tokens": "the cat"}) for split in ("train", "test")]
    with sqlite3.connect(tff_store(path, rows)) as db:
        db.execute(sql)
    db.close()
    return Store(path)


def _clients(store: Store) -> StoreClients:
    features = store.description.features
    return StoreClients(
        store, "train", features, lambda client, columns: {}, ("answer", "question")
    )


def _used(store: Store) -> None:
    store.splits()
    clients = _clients(store)
    for client in clients.client_ids:
        parse_examples(store.read("train", client), store.description.features, f"client {client}")
    clients.client_domain_counts()
    if store.description.kind is not None:
        store.vocabulary()
        store.sentence_lengths("train")


_UPDATE = "UPDATE tff_agnostic SET description = ?"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: _ours(p, _UPDATE, "[" * 100_000), "expected the description of a store"),
        (lambda p: _ours(p, _UPDATE, b"{}"), "with str where it has b'{}' (bytes)"),
        (lambda p: _ours(p, domains=[{}]), "found another one (domains: ({},))"),
        (lambda p: _ours(p, domains=["\ud800"]), "surrogates not allowed"),
        (lambda p: _ours(p, kind=[3]), "found another one (kind: [3])"),
        (lambda p: _ours(p, source=None), "found another one (source: None)"),
        (lambda p: _ours(p, num_classes=-1), "found another one (num_classes: -1)"),
        (lambda p: _ours(p, class_names=[None]), "found another one (class_names: (None,))"),
        (lambda p: _ours(p, label_range=[0, 1e999]), "found another one (label_range: (0, inf))"),
        (lambda p: _ours(p, categories=[["a", [1]]]), "found another one (categories: "),
        (
            lambda p: _ours(p, features={"tokens": {"dtype": {}, "shape": []}}),
            "found another one (features: ",
        ),
        # TensorFlow took the process down where it could not reserve as much.
        (
            lambda p: _ours(p, features={"tokens": {"dtype": "string", "shape": [2**62]}}),
            "found one of 51 bytes, which cannot hold tokens",
        ),
        (
            lambda p: _ours(p, "UPDATE client_metadata SET client_id = x'00'"),
            r"with str where it has b'\x00' (bytes)",
        ),
        (
            lambda p: _ours(p, "UPDATE client_domains SET num_examples = 'many'"),
            "with int where it has 'many' (str)",
        ),
        (
            lambda p: _ours(p, "UPDATE sentence_lengths SET words = 'many'"),
            "with int where it has 'many' (str)",
        ),
        (
            lambda p: _ours(p, "UPDATE vocabulary SET word = x'ff'"),
            r"with str where it has b'\xff' (bytes)",
        ),
        (
            lambda p: _ours(p, "DELETE FROM client_domains WHERE client_id = 'b'"),
            "expected the domains of every client in split train, found none of client b",
        ),
        (
            lambda p: _of_tff(p, "UPDATE client_metadata SET split_name = NULL"),
            "with str where it has None (NoneType)",
        ),
        (
            lambda p: _of_tff(p, "UPDATE client_metadata SET client_id = NULL"),
            "with str where it has None (NoneType)",
        ),
        (
            lambda p: _of_tff(p, "UPDATE examples SET serialized_example_proto = NULL"),
            "with bytes where it has None (NoneType)",
        ),
    ],
)
def test_a_store_that_is_not_as_it_should_be_is_one_line(
    tmp_path: Path, make: Callable[[Path], Store], message: str
):
    with pytest.raises(UserError) as error:
        _used(make(tmp_path / "s.sqlite"))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
