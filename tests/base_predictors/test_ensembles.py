"""Base predictors from files and runs: loading, word counts by group, and reports of alpha."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import golden
from tests.support.comparing import assert_all_close
from tests.support.options import make_options
from tests.support.stores import sentence, write_store
from tff_agnostic.base.errors import UserError
from tff_agnostic.boosting.alpha import EnsembleOptions
from tff_agnostic.boosting.ensemble import EnsembleModel, ensemble
from tff_agnostic.boosting.unigrams import smoothed_scores
from tff_agnostic.computations import PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.models.next_word import unigram_model
from tff_agnostic.program.base_predictors.counting import by_client, by_domain
from tff_agnostic.program.base_predictors.files import (
    MixingTask,
    PredictorFile,
    single_predictors,
    with_base_predictors,
    write_predictors,
)
from tff_agnostic.program.runs.results import alpha_table, write_alphas
from tff_agnostic.saving.checkpoints import CheckpointFolder
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext

_WORDS = {"the": 9, "cat": 5, "sat": 3}
_RECORDS = [
    ("train", sentence("a", "answer", "cat sat the")),
    ("train", sentence("b", "question", "the cat")),
    ("train", sentence("b", "answer", "sat unheard")),
    ("train", sentence("c", "question", "the the the")),
    ("test", sentence("t", "answer", "the dog sat")),
]


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Task:
    """A unigram task of three clients, with the outcomes "the", "cat", "sat" and unknown."""
    path = tmp_path_factory.mktemp("store") / "texts.sqlite"
    store = write_store(path, _RECORDS, "text", vocabulary=_WORDS)
    return load_task("unigram", {}, TaskContext(0, data=store))


def _file(task: Task, path: Path, names: tuple[str, ...] = ("a", "b"), **changes: Any) -> Path:
    scores = np.log(np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4]], np.float32))
    fingerprint = {"vocabulary": task.fingerprint["vocabulary"]}
    values = {"names": names, "arrays": (scores,), "fingerprint": fingerprint, "about": {}}
    write_predictors(path, PredictorFile(**{**values, **changes}))
    return path


def _mixed(task: Task, *paths: Path) -> Task:
    mixing = MixingTask(task, "unigram", {}, TaskContext(0))
    return with_base_predictors(mixing, EnsembleOptions(paths or None))


def _error(task: Task, *paths: Path) -> str:
    return golden.refusal(_mixed, task, *paths)


def test_predictors_from_files_and_runs_are_mixed(task, tmp_path):
    run = tmp_path / "run"
    weights = ModelWeights([np.array([1, 2, 3, 4], np.float32)], [])
    CheckpointFolder(run / "checkpoints", 1).save(3, weights, {"model": weights})
    fingerprint = {"data": "another", "vocabulary": task.fingerprint["vocabulary"]}
    (run / "fingerprint.json").write_text(json.dumps(fingerprint))
    mixed = _mixed(task, _file(task, tmp_path / "p.npz"), run)
    assert isinstance(mixed.model, EnsembleModel)
    assert mixed.model.names == ("a", "b", "run")
    rows = mixed.model.initial_weights.non_trainable[0].T
    np.testing.assert_allclose(rows[:2], [[0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4]], rtol=1e-6)
    raised = np.exp([1.0, 2, 3, 4])
    np.testing.assert_allclose(rows[2], raised / raised.sum(), rtol=1e-6)
    # The path of a single checkpoint may stand for its run.
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert_all_close(
        _mixed(task, checkpoint).model.initial_weights.non_trainable[0].T, rows[2:], rtol=0, atol=0
    )


def test_fingerprint_covers_predictor_content(task, tmp_path):
    first = _mixed(task, _file(task, tmp_path / "p.npz"))
    again = _mixed(task, _file(task, tmp_path / "q.npz"))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint.items() > task.fingerprint.items()
    other = _file(task, tmp_path / "r.npz", arrays=(np.zeros([2, 4], np.float32),))
    assert _mixed(task, other).fingerprint != first.fingerprint
    assert _mixed(task) is task


def test_rejects_missing_and_damaged_files(task, tmp_path):
    path = _file(task, tmp_path / "p.npz")
    assert "found nothing at" in _error(task, tmp_path / "none")
    assert "found 'a' twice" in _error(task, path, path)
    (tmp_path / "empty").mkdir()
    assert "expected checkpoints, found none" in _error(task, tmp_path / "empty")
    with np.load(path) as archive:
        arrays = dict(archive)
    header = json.loads(str(arrays["header"]))
    arrays["header"] = np.array(json.dumps({**header, "format": 2}))
    np.savez(tmp_path / "new.npz", **arrays)
    assert "expected format 1 of this version, found 2" in _error(task, tmp_path / "new.npz")
    np.savez(tmp_path / "arrays.npz", x=np.zeros(3))
    assert "found arrays of another file" in _error(task, tmp_path / "arrays.npz")
    path.write_bytes(path.read_bytes()[:-30])
    assert "found a damaged or another file" in _error(task, path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fingerprint": {"vocabulary": "0123"}}, "expected the vocabulary of this task"),
        (
            {"arrays": (np.zeros([2, 5], np.float32),)},
            "expected weights of the task's model (float32[4]), found float32[5]",
        ),
        ({"arrays": (np.zeros([3, 4], np.float32),)}, "expected arrays of 2 base predictors"),
        ({"names": ("a", "a")}, "expected different names, found 'a' twice"),
        (
            {"arrays": (np.array([[0, 0, -np.inf, 0], [0, 0, 0, 0]], np.float32),)},
            "a: expected positive probabilities, found 0 of outcome 2",
        ),
    ],
)
def test_rejects_unsuitable_files(task, tmp_path, changes, message):
    assert message in _error(task, _file(task, tmp_path / "p.npz", **changes))


def test_domain_counts_are_sums_over_clients(task, streaming_runtime):
    actual, _ = by_domain(task, streaming_runtime, PlainSum())
    expected = {"answer": [1, 1, 2, 1], "question": [4, 1, 0, 0]}
    assert {name: counts.tolist() for name, counts in actual.counts.items()} == expected
    assert actual.skipped == {}


@pytest.mark.nightly
def test_secure_word_counts_skip_small_groups_of_clients(task, streaming_runtime):
    options = make_options(SecureSumOptions, limit_examples=10, secure_min_clients=2)
    actual, _ = by_domain(task, streaming_runtime, SecureSum(options))
    assert actual.counts["question"].tolist() == [4, 1, 0, 0]
    with pytest.raises(UserError, match="expected at least 4 clients in a sum, found 3"):
        by_domain(
            task, streaming_runtime, SecureSum(make_options(SecureSumOptions, secure_min_clients=4))
        )
    only = SecureSum(make_options(SecureSumOptions, limit_examples=10, secure_min_clients=3))
    groups, _ = by_domain(task, streaming_runtime, only)
    assert groups.skipped == {"answer": 2, "question": 2}
    with pytest.raises(UserError, match="expected plain with --group_by=client"):
        by_client(task, streaming_runtime, only)


def test_client_counts_are_the_clients_word_counts(task, streaming_runtime):
    actual, _ = by_client(task, streaming_runtime, PlainSum())
    assert list(actual.counts) == ["a", "b", "c"]
    assert actual.counts["b"].tolist() == [1, 1, 1, 1]


def test_smoothing_adds_a_uniform_share():
    scores = smoothed_scores(np.array([3, 0, 1, 0]), 0.2)
    np.testing.assert_allclose(np.exp(scores), [0.65, 0.05, 0.25, 0.05], rtol=1e-6)
    assert smoothed_scores(np.array([3, 0]), 0.0)[1] == -np.inf


def test_alpha_file_is_complete_and_table_shows_largest(tmp_path):
    scores = [ModelWeights([np.zeros(3, np.float32)], [])] * 40
    names = [f"n{k}" for k in range(39)] + ['odd, "$x"']
    model = ensemble(unigram_model(3), scores, names)
    last = np.arange(40, dtype=np.float32) / 780
    by_model = {"model": last, "mean": np.full(40, 1 / 40, np.float32)}
    write_alphas(tmp_path, model, by_model)
    rows = list(csv.DictReader((tmp_path / "alpha.csv").open()))
    assert [row["predictor"] for row in rows] == names
    np.testing.assert_allclose([float(row["alpha (model)"]) for row in rows], last, rtol=1e-6)
    lines = alpha_table(model, by_model).splitlines()
    assert lines[2].split()[-2:] == ["0.0500", "0.0250"]
    assert lines[-1].split() == ["30", "others", f"{last[:30].sum():.4f}", "0.7500"]


def test_single_predictors_have_one_hot_weights():
    scores = [ModelWeights([np.array(s, np.float32)], []) for s in ([0, 1], [1, 0])]
    model = ensemble(unigram_model(2), scores, ["left", "right"])
    alone = single_predictors(model, {"model": model.initial_weights})
    assert alone["right"].trainable[0].tolist() == [0, 1]
    assert single_predictors(unigram_model(2), {"model": model.initial_weights}) == {}
