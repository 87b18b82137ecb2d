"""The task text_classifier on any store, and LEAF's Sent140 from import to evaluation."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support import golden
from tests.support.imports import job
from tests.support.options import make_options
from tests.support.rounds import EagerTraining, run_rounds
from tests.support.stores import WORDS, reviews, write_store
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.data.store_format import Record
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext

_SEED = np.zeros(2, np.int32)


def _load(data: Path, seed: int = 0, **options: Any) -> Task:
    return load_task("text_classifier", options, TaskContext(seed, data=data))


def _tweets(folder: Path) -> Path:
    """Writes Sent140 in LEAF's format, and returns the file of its domains.

    In LEAF's format, x is [id, date, query, user, text, one more field].
    """
    words = {0: ("sad", "awful"), 1: ("happy", "great")}

    def tweet(user: str, k: int) -> tuple[list[str], int]:
        y = k % 2
        text = f"so {words[y][k % 3 % 2]} today, {user}!"
        return [str(k), "Mon Apr 06", "NO_QUERY", user, text, "training"], y

    data = {}
    for split, users in (("train", ("ann", "bob", "cid")), ("test", ("ann", "dan"))):
        tweets = {user: [tweet(user, k) for k in range(6)] for user in users}
        data[split] = {
            "users": list(users),
            "num_samples": [6] * len(users),
            "user_data": {
                user: {"x": [x for x, _ in rows], "y": [y for _, y in rows]}
                for user, rows in tweets.items()
            },
        }
        (folder / split).mkdir(parents=True)
        (folder / split / "all_data_niid.json").write_text(json.dumps(data[split]))
    domains = folder.parent / "domains.csv"
    domains.write_text("ann,phone\nbob,web\ncid,phone\ndan,web\n")
    return domains


def _losses(task: Task, weights: ModelWeights, client: str) -> np.ndarray:
    examples = task.test.read(client)
    losses, _ = task.model.example_losses(weights, examples, False, tf.zeros([2], tf.int32))
    return losses.numpy()


@pytest.mark.nightly
def test_sent140_is_imported_and_learned(tmp_path):
    domains = _tweets(tmp_path / "sent140")
    job(
        "leaf",
        tmp_path / "sent140",
        tmp_path / "s.sqlite",
        domains_file=str(domains),
        text_column="4",
        case="lower",
        class_names=("negative", "positive"),
    ).run(ReadLog())
    task = _load(tmp_path / "s.sqlite", sequence_length=7)
    assert task.domain_names == ("phone", "web")
    assert list(task.train.client_ids) == ["ann", "bob", "cid"]
    assert list(task.test.client_ids) == ["ann", "dan"]
    examples = task.train.read("bob")
    assert examples["y"].tolist() == [0, 1] * 3
    assert examples["domain_id"].tolist() == [1] * 6
    # "so sad today , bob !" has 6 words; the seventh id is padding.
    assert np.count_nonzero(examples["x"], axis=1).tolist() == [6] * 6
    assert [metric.name for metric in task.model.metrics] == ["accuracy"]
    assert task.fingerprint["classes"] == "negative, positive"

    spec = ALGORITHMS["agnostic_fed_avg"]
    options = make_options(
        spec.options, client_learning_rate=2.0, client_epochs=3, client_batch_size=3
    )
    training = EagerTraining(spec.build(Problem.numbered(task.model, 2), options))
    cohort = [task.train.read(client) for client in task.train.client_ids]
    state, _ = run_rounds(training, [cohort] * 6)
    before = _losses(task, task.model.initial_weights, "dan")
    after = _losses(task, state.algorithm.weights, "dan")
    assert after.mean() < 0.7 * before.mean()


def test_padding_is_excluded_from_the_mean(tmp_path):
    task = _load(reviews(tmp_path / "s.sqlite"), sequence_length=4)
    weights = [np.asarray(w) for w in task.model.initial_weights.trainable]
    x = task.train.read("a")["x"]
    np.testing.assert_array_equal(x, [[1, 2, 0, 0], [3, 0, 0, 0], [4, 1, 1, 2]])
    vectors, kernel, bias = weights
    expected = [vectors[row[row > 0]].mean(axis=0) @ kernel + bias for row in x]
    result = task.model.predict(ModelWeights(weights, []), tf.constant(x), False, _SEED)
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    # The mean over no words is zero, not NaN: the prediction is the bias.
    nothing = task.model.predict(ModelWeights(weights, []), tf.zeros([1, 4], tf.int32), True, _SEED)
    np.testing.assert_array_equal(nothing, [bias])


@pytest.mark.nightly
def test_lstm_ignores_padding(tmp_path):
    data = reviews(tmp_path / "s.sqlite")
    weights, scores = None, []
    for length in (2, 4):
        model = _load(data, network="lstm", sequence_length=length).model
        weights = weights or model.initial_weights
        x = tf.constant([[1, 2, 0, 0][:length]])
        scores.append(model.predict(weights, x, False, _SEED))
    np.testing.assert_allclose(*scores, rtol=1e-6)


@pytest.mark.slow
def test_seed_determines_initial_weights_only(tmp_path):
    data = reviews(tmp_path / "s.sqlite")
    first, second = (_load(data, seed).model for seed in (0, 1))
    assert first == second
    assert np.any(first.initial_weights.trainable[0] != second.initial_weights.trainable[0])


def test_texts_with_real_labels_raise(tmp_path):
    data = reviews(tmp_path / "n.sqlite", labels=(0.5, 4.0, 3.0))
    message = golden.refusal(_load, data)
    assert message.startswith(f"{data}: expected labels that are classes, found real numbers")


# --- Any feature of a store can give the domains or the classes


# Each row is (split, client, site, type, year, tokens).
_SENTENCES = [
    ("train", "a", "cooking", "question", 2009, "the cat"),
    ("train", "a", "cooking", "answer", 2010, "cat sat"),
    ("train", "b", "travel", "answer", 2009, "sat the"),
    ("test", "t", "travel", "question", 2011, "the the"),
    ("heldout", "h", "travel", "comment", 1999, "cat"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    records = [
        (split, Record(client, site, {"tokens": tokens, "type": kind, "year": year, "score": 0.5}))
        for split, client, site, kind, year, tokens in _SENTENCES
    ]
    path = tmp_path_factory.mktemp("store") / "posts.sqlite"
    return write_store(path, records, "text", vocabulary=WORDS, source="by hand")


# A feature's values, sorted, and the ids of the values in the texts of clients a and t.
_VALUES = {
    "domain": (("cooking", "travel"), [0, 0], [1]),
    "type": (("answer", "question"), [1, 0], [1]),
    "year": (("2009", "2010", "2011"), [0, 1], [2]),
}


@pytest.mark.parametrize(
    ("domain", "label"), [("domain", "year"), ("year", "type"), ("domain", "domain")]
)
def test_any_feature_gives_domains_or_classes(store, domain, label):
    task = _load(store, domain_feature=domain, label_feature=label)
    (domains, *domain_ids), (classes, *labels) = _VALUES[domain], _VALUES[label]
    assert task.domain_names == domains
    assert task.fingerprint["classes"] == ", ".join(classes)
    texts = [task.train.read("a"), task.test.read("t")]
    assert [examples["domain_id"].tolist() for examples in texts] == domain_ids
    assert [examples["y"].tolist() for examples in texts] == labels
    # The model has one score per class.
    assert task.model.initial_weights.trainable[-1].shape == (len(classes),)
    # The store knows counts of its own domains only.
    assert (task.train.client_domain_counts() is None) == (domain != "domain")


@pytest.mark.nightly
def test_domains_include_those_of_the_evaluated_split(store):
    task = _load(store, domain_feature="type", label_feature="year", test_split="heldout")
    assert task.domain_names == ("answer", "comment", "question")


def test_unsuitable_domain_feature_raises(store):
    message = golden.refusal(_load, store, domain_feature="score")
    assert message.startswith("domain_feature: expected ")
    assert message.endswith(" domain, tokens, type, year, found 'score'")


def test_domain_feature_with_many_values_raises(tmp_path):
    records = [
        ("train", Record("a", "all_of_it", {"tokens": "the cat", "number": number}))
        for number in range(1001)
    ]
    records.append(("test", Record("t", "all_of_it", {"tokens": "the", "number": 3})))
    path = write_store(tmp_path / "s.sqlite", records, "text", vocabulary=WORDS, source="by hand")
    message = golden.refusal(_load, path, domain_feature="number")
    assert message.startswith("domain_feature: expected at most 1000 domains, ")


def test_label_feature_with_one_value_raises(tmp_path):
    rows = [
        (split, Record("a", "x", {"tokens": "cat", "app": "web"})) for split in ("train", "test")
    ]
    path = write_store(tmp_path / "s.sqlite", rows, "text", vocabulary=WORDS)
    message = golden.refusal(_load, path, label_feature="app")
    assert message.startswith("label_feature: expected at least 2 classes, found app=web in all")
