"""Runs on client stores: whose words they are, which clients take part and who is evaluated."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from binaries import compare, evaluate, train
from tests.binaries.harness import Caller
from tests.data.stores import image, sentence, write_store
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.program.options.process import StopRequest
from tff_agnostic.program.runs.folder import RunFolder
from tff_agnostic.program.runs.spec import resolve
from tff_agnostic.program.runs.training import TrainingRun

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
    """A run on a store of texts, in the folder `run` beside the store."""
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
def test_the_vocabulary_is_part_of_a_run(trained):
    fingerprint = json.loads((trained / "run" / "fingerprint.json").read_text())
    assert set(fingerprint) == {"model", "vocabulary", "data"}


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
    assert "found another one (" in message


def _run(runtime: Any, folder: Path, **settings: Any) -> dict[str, np.ndarray]:
    """Trains on the three garments of a store, and returns the columns of metrics.csv."""
    given = {"clients_per_round": 4, "rounds": 6, "server_optimizer": "sgd", **settings}
    spec = resolve("fashion_mnist", given, {}, data=folder / "s.sqlite")
    run = TrainingRun(spec, RunFolder(folder / "run"), runtime, resume=False)
    run.run(StopRequest(), show_progress=False)
    return read_history(folder / "run" / "metrics.csv")


@pytest.mark.nightly
def test_a_comparison_builds_a_users_model_once_a_seed_and_trains_as_one_run_does(
    call, trained, monkeypatch
):
    monkeypatch.chdir(trained)
    log = "    open('built', 'a').write('.')\n    x = tf.keras.Input"
    Path("logged.py").write_text(_MODEL.replace("    x = tf.keras.Input", log))
    flags = [flag for flag in _TEXTS if not flag.startswith("--model=")] + ["--model=logged.py"]
    arms = "--arms=fed_avg;agnostic_fed_avg;slow=agnostic_fed_avg:lambda_learning_rate=0.001"
    outcome = call(compare, *flags, arms, "--trials=2", "--output_dir=compared")
    assert outcome.status == 0, outcome
    assert Path("built").read_text() == ".."
    alone = ["--algorithm=agnostic_fed_avg", "--seed=1", "--output_dir=alone"]
    assert call(train, *flags, *alone).status == 0
    expected = Path("alone", "metrics.csv").read_bytes()
    assert Path("compared/runs/agnostic_fed_avg/trial_01/run/metrics.csv").read_bytes() == expected


@pytest.mark.slow
def test_another_model_file_is_refused(call, trained, monkeypatch):
    monkeypatch.chdir(trained)
    (trained / "model.py").write_text(_MODEL.replace("(x)\n", "(x) / 2\n"))
    try:
        message = call.refused(trained, train, *_TEXTS, "--output_dir=run", "--resume")
    finally:
        (trained / "model.py").write_text(_MODEL)
    assert message.startswith("run: expected the model that the run there was trained with (")


@pytest.mark.nightly
def test_a_run_goes_on_wherever_its_files_are(call, trained, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    config = Path("run", "config.json")
    config.write_text(config.read_text().replace(str(trained), "/gone"))
    message = call.refused(tmp_path, train, "--resume", "--output_dir=run")
    assert message == "--data: expected a client store, found none at /gone/s.sqlite"
    moved = ("--resume", "--output_dir=run", "--data=s.sqlite", "--model=model.py")
    outcome = call(train, *moved)
    assert outcome.status == 0, outcome
    assert "going on after round 1\n" in outcome.out
    found = json.loads(config.read_text())
    assert (found["data"], found["model"]) == tuple(
        str((tmp_path / "here" / name).resolve()) for name in ("s.sqlite", "model.py")
    )
    Path("model.py").write_text(_MODEL.replace("(x)\n", "(x) / 2\n"))
    message = call.refused(tmp_path, train, *moved)
    assert message.startswith("run: expected the model that the run there was trained with (")


@pytest.fixture
def garments(tmp_path) -> Path:
    """A store with eight clients, half of which have t-shirts only, and half shirts."""
    rows = [
        (split, image(f"{label}_{k}", str(label), label, ink=(label + k) / 10))
        for split in ("train", "test")
        for label in (0, 6)
        for k in range(4)
    ]
    write_store(tmp_path / "s.sqlite", rows, "features")
    return tmp_path


@pytest.mark.nightly
def test_stratified_rounds_have_every_domains_share(cohort_runtime, garments):
    columns = _run(cohort_runtime, garments, cohort_sampling="stratified", evaluate_every=6)
    assert columns["train/num_examples/t-shirt/top"].tolist() == [2] * 6
    assert columns["train/num_examples/shirt"].tolist() == [2] * 6


@pytest.mark.nightly
def test_evaluations_between_rounds_use_a_sample_and_the_last_one_all(cohort_runtime, garments):
    columns = _run(
        cohort_runtime, garments, rounds=3, evaluate_every=1, evaluation_clients=1, seed=2
    )
    # One client has one of the classes, all of them have both.
    names = ("test/loss/t-shirt/top", "test/loss/shirt")
    known = np.array([~np.isnan(columns[name]) for name in names])
    assert known.sum(axis=0).tolist() == [1, 1, 2]
    np.testing.assert_array_equal(known[:, 0], known[:, 1])
    result = json.loads((garments / "run" / "result.json").read_text())
    assert result["clients"]["evaluated"] == result["overall"]["num_examples"] == 8
