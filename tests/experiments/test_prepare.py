"""Client stores that experiments import from raw files."""

import pytest

from tests.support import golden
from tests.support.stores import text_store
from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store import load_store
from tff_agnostic.program.experiments import EXPERIMENTS
from tff_agnostic.program.experiments.experiment import STORE_NAME, prepare, store_path

_RAW = EXPERIMENTS["two_domain_lm"]
_READS_FOLDER = EXPERIMENTS["adult"]


def test_raw_files_become_a_store_once(tmp_path, capsys):
    raw, folder = tmp_path / "raw", tmp_path / "run"
    for domain in ("documents", "conversations"):
        (raw / domain).mkdir(parents=True)
        for k in range(12):
            (raw / domain / f"{k:02d}.txt").write_text(f"The {domain} begin. Number {k}!\n")
    path = store_path(_RAW, raw, None, folder)
    assert path == folder / STORE_NAME
    prepare(_RAW, raw, path)
    assert f"importing {raw} into {path}" in capsys.readouterr().out
    store = load_store(path)
    assert store.description.domains == ("conversations", "documents")
    assert {"train", "test"} <= set(store.splits())
    # The store's words are in capitals, and include no punctuation.
    assert "THE" in store.vocabulary() and not {"the", "The", "."} & {*store.vocabulary()}
    before = path.stat().st_mtime_ns, store.digest()
    prepare(_RAW, raw, path)
    assert (path.stat().st_mtime_ns, load_store(path).digest()) == before
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("raw", ["empty", "missing"])
def test_failed_import_leaves_no_store(tmp_path, raw):
    (tmp_path / "empty").mkdir()
    path = store_path(_RAW, tmp_path / raw, None, tmp_path / "run")
    with pytest.raises(UserError, match=raw):
        prepare(_RAW, tmp_path / raw, path)
    assert not path.exists()


def test_given_store_or_folder_is_unchanged(tmp_path):
    store = text_store(tmp_path / "s.sqlite")
    assert store_path(_RAW, None, store, tmp_path / "run") == store
    prepare(_RAW, None, store)
    assert store_path(_READS_FOLDER, tmp_path, None, tmp_path / "run") is None
    prepare(_READS_FOLDER, tmp_path, None)
    assert not (tmp_path / "run").exists()


def test_rejects_store_and_raw_folder_together(tmp_path):
    for experiment in (_RAW, _READS_FOLDER):
        message = golden.refusal(store_path, experiment, tmp_path, tmp_path / "s.sqlite", tmp_path)
        assert message == "--data and --data_dir: expected one of them, found both"
    message = golden.refusal(store_path, _RAW, None, None, tmp_path)
    assert message.startswith("--data_dir: expected the folder of the raw files, or a client store")
