"""Runs on client stores: vocabulary, participating and evaluated clients."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from binaries import evaluate, train
from tests.binaries.harness import Caller
from tests.data.stores import sentence, write_store
from tff_agnostic.base.files import read_json

_WORDS = {"a": 3, "b": 2, "c": 1}
_TEXTS = (
    *("--task=custom", "--data=s.sqlite", "--model=model.py", "--sequence_length=3"),
    *("--clients_per_round=2", "--rounds=1"),
)
_MODEL = """
import tensorflow as tf
from tff_agnostic.models import SentenceLoss

def build_model(data):
    x = tf.keras.Input(data.x_shape, dtype=data.x_dtype)
    scores = tf.keras.layers.Embedding(data.num_ids, data.num_ids)(x)
    return tf.keras.Model(x, scores), SentenceLoss()
"""


@pytest.fixture(scope="module")
def call(cohort_runtime) -> Caller:
    return Caller({"cohort": cohort_runtime})


def _texts(path: Path, words: Any) -> None:
    rows = [
        (split, sentence(client, domain, "a b c"))
        for split in ("train", "test")
        for client in ("x", "y")
        for domain in ("answer", "question")
    ]
    path.unlink(missing_ok=True)
    write_store(path, rows, "text", vocabulary=words)


@pytest.fixture(scope="module")
def trained(call, tmp_path_factory) -> Path:
    """A run on a store of texts, in the folder `run` next to the store."""
    folder = tmp_path_factory.mktemp("texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        _texts(folder / "s.sqlite", _WORDS)
        (folder / "model.py").write_text(_MODEL)
        outcome = call(train, *_TEXTS, "--output_dir=run")
    assert outcome.status == 0, outcome
    return folder


@pytest.fixture
def other_words(trained, monkeypatch) -> Iterator[Path]:
    """The folder of the run, with the same words in another order in its store."""
    monkeypatch.chdir(trained)
    _texts(trained / "s.sqlite", {"b": 3, "a": 2, "c": 1})
    yield trained
    _texts(trained / "s.sqlite", _WORDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("binary", "arguments"),
    [
        (train, [*_TEXTS, "--output_dir=run", "--resume"]),
        (train, [*_TEXTS[:-1], "--rounds=2", "--output_dir=run", "--resume"]),
        (evaluate, ["--checkpoint=run"]),
    ],
)
def test_another_vocabulary_is_refused(call, other_words, binary, arguments):
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
    Path("model.py").write_text(_MODEL.replace("(x)\n", "(x) / 2\n"))
    message = call.refused(tmp_path, train, *moved)
    assert message.startswith("run: expected the model that the run there was trained with (")
