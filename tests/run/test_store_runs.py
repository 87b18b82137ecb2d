"""Runs on client stores whose vocabulary changes, and whose files move."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from binaries import evaluate, export, train
from tests.support.commands import WORD_MODEL, Caller, write_texts
from tff_agnostic.base.files import read_json

_WORDS = {"a": 3, "b": 2, "c": 1}
_TEXTS = (
    *("--task=custom", "--data=s.sqlite", "--model=model.py", "--sequence_length=3"),
    *("--clients_per_round=2", "--rounds=1"),
)


@pytest.fixture(scope="module")
def call(cohort_runtime) -> Caller:
    return Caller({"cohort": cohort_runtime})


@pytest.fixture(scope="module")
def trained(call, tmp_path_factory) -> Path:
    """A folder with a store of texts, and a run on it in `run`."""
    folder = tmp_path_factory.mktemp("texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_texts(folder / "s.sqlite", _WORDS)
        (folder / "model.py").write_text(WORD_MODEL)
        outcome = call(train, *_TEXTS, "--output_dir=run")
    assert outcome.status == 0, outcome
    return folder


@pytest.fixture
def other_words(trained, monkeypatch) -> Iterator[Path]:
    """The folder of `trained`, while its store has the words in another order."""
    monkeypatch.chdir(trained)
    write_texts(trained / "s.sqlite", {"b": 3, "a": 2, "c": 1})
    yield trained
    write_texts(trained / "s.sqlite", _WORDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("binary", "arguments"),
    [
        (train, [*_TEXTS[:-1], "--rounds=2", "--output_dir=run", "--resume"]),
        (evaluate, ["--checkpoint=run"]),
        (export, ["--checkpoint=run", "--output_dir=export"]),
    ],
)
def test_rejects_another_vocabulary(call, other_words, binary, arguments):
    message = call.refused(other_words, binary, *arguments)
    assert message.startswith("run: expected the vocabulary that the run there was trained with (")


@pytest.mark.nightly
def test_run_resumes_with_moved_files(call, trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    config = Path("run", "config.json")
    config.write_text(config.read_text().replace(str(trained), "/gone"))
    message = call.refused(tmp_path, train, "--resume", "--output_dir=run")
    assert message == "--data: expected a client store, found none at /gone/s.sqlite"
    moved = ("--resume", "--output_dir=run", "--data=s.sqlite", "--model=model.py")
    outcome = call.ok(train, *moved)
    assert "resuming after round 1\n" in outcome.out
    actual = read_json(config)
    assert (actual["data"], actual["model"]) == tuple(
        str((tmp_path / "here" / name).resolve()) for name in ("s.sqlite", "model.py")
    )
    Path("model.py").write_text(WORD_MODEL.replace("(x)\n", "(x) / 2\n"))
    message = call.refused(tmp_path, train, *moved)
    assert message.startswith("run: expected the model that the run there was trained with (")
