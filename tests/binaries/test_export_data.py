"""`export_data` writes a store as TFF's file; ids of clients are parameters."""

import sys
from pathlib import Path

from tests.binaries.harness import Process
from tests.computations.harness import assert_identical
from tests.data.stores import sentence, text_store, write_store
from tff_agnostic.data.store import load_store

_IDS = ("O'Brien", "' OR '1'='1", 'x"y', "a;b", "é ü")


def _export(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "binaries", "export_data", *arguments]
    with Process(command, folder) as process:
        outcome = process.outcome()
    return outcome.status, outcome.out + outcome.err


def test_export_has_the_clients_of_the_store(tmp_path):
    records = [("train", sentence(name, "d", f"text {k}")) for k, name in enumerate(_IDS)]
    store = load_store(write_store(tmp_path / "s.store", records, "text", vocabulary={"text": 5}))
    status, output = _export(tmp_path, "--data=s.store", "--output=s.sqlite")
    assert (status, output) == (0, "file: s.sqlite\n")
    other = load_store(tmp_path / "s.sqlite")
    assert other.client_ids("train") == sorted(_IDS)
    for client in _IDS:
        features = store.description.features
        assert_identical(*(one.columns("train", client, features) for one in (store, other)))


def test_invalid_exports_raise_one_line(tmp_path):
    text_store(tmp_path / "s.store")
    text_store(tmp_path / "s.sqlite")
    for arguments, expected in (
        ((), "error: --data: expected the client store, as import_data makes it, found none"),
        (("--data=s.store",), "error: --output: expected the file to write, found none"),
        (
            ("--data=none", "--output=o"),
            "error: --data: none: expected a client store, found nothing",
        ),
        (("--data=s.sqlite", "--output=o"), "expected a folder, found a file of TFF's already"),
        (("--data=s.store", "--output=s.sqlite"), "stores are not overwritten"),
    ):
        status, output = _export(tmp_path, *arguments)
        assert status == 2 and expected in output and output.count("\n") <= 2
