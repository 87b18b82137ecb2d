"""Stores that were changed by chance until something other than one line came of them."""

import json
import sqlite3
from pathlib import Path
from typing import Any, Callable

from tests import golden
from tests.data.stores import text_store, tff_store
from tff_agnostic.data.store import Store, StoreClients, parse_examples


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


def _used(made: Callable[[], Store]) -> None:
    store = made()
    store.splits()
    clients = _clients(store)
    for client in clients.client_ids:
        parse_examples(store.read("train", client), store.description.features, f"client {client}")
    clients.client_domain_counts()
    if store.description.kind is not None:
        store.vocabulary()
        store.sentence_lengths("train")


@golden.values
def test_a_description_that_is_not_as_it_should_be(tmp_path, case):
    return golden.refusal(_used, lambda: _ours(tmp_path / "s.sqlite", **case))


@golden.values
def test_a_store_after_a_statement(tmp_path, case):
    return golden.refusal(_used, lambda: _ours(tmp_path / "s.sqlite", *case))


@golden.values
def test_a_store_of_tff_after_a_statement(tmp_path, case):
    return golden.refusal(_used, lambda: _of_tff(tmp_path / "s.sqlite", case))
