"""`export_data` writes a store as a TFF file; client ids are parameters of its SQL."""

import pytest

from binaries import export_data
from tests.support.commands import Caller, Process, python_module
from tests.support.comparing import assert_identical
from tests.support.stores import sentence, text_store, write_store
from tff_agnostic.data.store import load_store

_IDS = ("O'Brien", "' OR '1'='1", 'x"y', "a;b", "é ü")


def test_exported_file_has_clients_of_store(tmp_path):
    records = [("train", sentence(name, "d", f"text {k}")) for k, name in enumerate(_IDS)]
    store = load_store(write_store(tmp_path / "s.store", records, "text", vocabulary={"text": 5}))
    command = python_module("export_data", "--data=s.store", "--output=s.sqlite")
    with Process(command, tmp_path) as process:
        # TensorFlow 2.21 writes to stderr at its import.
        assert process.outcome()[:2] == (0, "file: s.sqlite\n")
    other = load_store(tmp_path / "s.sqlite")
    assert other.client_ids("train") == sorted(_IDS)
    for client in _IDS:
        features = store.description.features
        assert_identical(*(one.columns("train", client, features) for one in (store, other)))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", "--data: expected the client store, as import_data makes it, found none"),
        ("--data=none --output=o", "--data: none: expected a client store, found nothing"),
        ("--data=s.sqlite --output=o", "expected a folder, found a file in TFF's format"),
        ("--data=s.store --output=s.sqlite", "stores are not overwritten"),
    ],
)
def test_rejects_invalid_exports(folder, flags, expected):
    text_store(folder / "s.store")
    text_store(folder / "s.sqlite")
    assert expected in Caller(None).refused(folder, export_data, *flags.split())
