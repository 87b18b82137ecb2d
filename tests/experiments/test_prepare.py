"""Where the data of an experiment come from."""

import dataclasses
import json

import pytest

from tests import golden
from tests.data.stores import text_store, tff_store
from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store import load_store
from tff_agnostic.program.experiments import EXPERIMENTS
from tff_agnostic.program.experiments.experiment import STORE_NAME, data_lines, prepare, store_path
from tff_agnostic.program.runs.folder import RunFolder

_RAW = EXPERIMENTS["two_domain_lm"]
_OWN = EXPERIMENTS["adult"]


@pytest.fixture
def raw(tmp_path):
    """Two folders of texts."""
    for domain in ("documents", "conversations"):
        folder = tmp_path / "raw" / domain
        folder.mkdir(parents=True)
        for k in range(12):
            (folder / f"{k:02d}.txt").write_text(f"The {domain} begin. Number {k}!\n")
    return tmp_path / "raw"


def test_a_folder_of_raw_files_becomes_a_store_once(raw, tmp_path, capsys):
    folder = tmp_path / "run"
    path = store_path(_RAW, raw, None, folder)
    assert path == folder / STORE_NAME
    prepare(_RAW, raw, path)
    printed = capsys.readouterr().out
    assert f"importing {raw} into {path}" in printed
    store = load_store(path)
    assert store.description.domains == ("conversations", "documents")
    assert {"train", "test"} <= set(store.splits())
    # In capitals, without punctuation.
    assert "THE" in store.vocabulary()
    assert not {"the", "The", "."} & set(store.vocabulary())
    before = path.stat().st_mtime_ns, store.digest()
    prepare(_RAW, raw, path)
    assert (path.stat().st_mtime_ns, load_store(path).digest()) == before
    assert capsys.readouterr().out == ""


def test_an_import_that_fails_leaves_no_store(tmp_path):
    (tmp_path / "raw").mkdir()
    path = store_path(_RAW, tmp_path / "raw", None, tmp_path / "run")
    with pytest.raises(UserError):
        prepare(_RAW, tmp_path / "raw", path)
    assert not path.exists()


def test_a_store_is_taken_as_it_is(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    assert store_path(_RAW, None, path, tmp_path / "run") == path
    prepare(_RAW, None, path)
    assert not (tmp_path / "run").exists()


def test_tasks_that_read_the_folder_themselves_have_no_store(tmp_path):
    assert store_path(_OWN, tmp_path, None, tmp_path / "run") is None
    prepare(_OWN, tmp_path, None)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("experiment", [_RAW, _OWN])
def test_both_are_one_too_many(experiment, tmp_path):
    assert (
        golden.refusal(store_path, experiment, tmp_path, tmp_path / "s.sqlite", tmp_path / "run")
        == "--data and --data_dir: expected one of them, found both"
    )


def test_neither_is_too_little(tmp_path):
    assert golden.refusal(store_path, _RAW, None, None, tmp_path / "run") == (
        "--data_dir: expected the folder of the raw files, or a client store in --data, found "
        "neither"
    )


def test_raw_files_that_are_not_there(tmp_path):
    path = store_path(_RAW, tmp_path / "missing", None, tmp_path / "run")
    with pytest.raises(UserError, match="missing"):
        prepare(_RAW, tmp_path / "missing", path)


def test_the_data_are_told_by_split(tmp_path):
    assert data_lines(None) == []
    assert data_lines(text_store(tmp_path / "s.sqlite")) == [
        "heldout: 1 client; examples: 0 of answer, 1 of question.",
        "test: 1 client; examples: 1 of answer, 0 of question.",
        "train: 2 clients; examples: 2 of answer, 2 of question.",
    ]
    path = tff_store(tmp_path / "tff.sqlite", [("train", k, {"tokens": "x"}) for k in "ab"])
    assert data_lines(path) == ["train: 2 clients."]


def test_what_a_trial_takes_of_a_split_is_told(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    trial = RunFolder(tmp_path / "trial")
    trial.path.mkdir()

    def data(train: int, evaluated: int) -> dict:
        domains = {
            "question": {"clients": 1, "examples": 1},
            "answer": {"clients": 0, "examples": 0},
        }
        return {
            "train": {"clients": train, "domains": domains},
            "evaluated": {"clients": evaluated, "domains": None},
        }

    def told(result: dict) -> list[str]:
        trial.result.write_text(json.dumps(result))
        of_store = data_lines(path)
        lines = data_lines(path, trial)
        assert lines[: len(of_store)] == of_store
        return lines[len(of_store) :]

    # Its splits have one, one and two clients.
    assert told({"about": {"data": data(2, 1)}}) == []
    assert told({"about": {"data": data(3, 4)}}) == [
        "of these the first trial trains on 3 clients; examples: 1 of question, 0 of answer.",
        "of these the first trial is tested on 4 clients.",
    ]
    # Of a release that did not say it.
    assert told({}) == []


def test_an_import_is_that_of_the_experiment(tmp_path):
    options = _RAW.import_options(tmp_path, tmp_path / "s.sqlite")
    assert dataclasses.replace(options, input=(), output="") == _RAW.raw_data
