"""Domains, and classes of texts, chosen at training from any feature of a store."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import golden
from tests.data.stores import WORDS, write_store
from tff_agnostic.data.store_format import Record
from tff_agnostic.errors import UserError
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext

# (split, client, site, type, year, tokens)
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


def _task(store: Path, task: str = "next_word", **options: Any) -> Task:
    return load_task(task, options, TaskContext(seed=0, data=store))


@pytest.mark.parametrize(
    ("feature", "names", "of_a", "of_t"),
    [
        ("domain", ("cooking", "travel"), [0, 0], [1]),
        ("type", ("answer", "question"), [1, 0], [1]),
        # Numbers in their order, those of the test clients too, and no others.
        ("year", ("2009", "2010", "2011"), [0, 1], [2]),
    ],
)
def test_the_domains_are_the_values_of_the_feature(store, feature, names, of_a, of_t):
    task = _task(store, domain_feature=feature, units=2, embedding=2)
    assert task.domain_names == names
    np.testing.assert_array_equal(task.train.read("a")["domain_id"], of_a)
    np.testing.assert_array_equal(task.test.read("t")["domain_id"], of_t)
    counts = task.train.client_domain_counts()
    # What the store counted is of its own domains.
    assert (counts is None) == (feature != "domain")


def test_the_split_that_is_evaluated_has_its_domains(store):
    task = _task(store, domain_feature="type", test_split="heldout", units=2, embedding=2)
    assert task.domain_names == ("answer", "comment", "question")


@pytest.mark.parametrize("feature", ["country", "score", ""])
def test_a_feature_that_the_store_lacks_or_that_is_no_domain(store, feature):
    assert golden.refusal(_task, store, domain_feature=feature) == (
        "--next_word_domain_feature: expected a text or a whole number of every example of "
        f"{store}, which has domain, tokens, type, year, found {feature!r}"
    )


def test_a_feature_of_more_values_than_domains_can_have(tmp_path):
    records = [
        ("train", Record("a", "all_of_it", {"tokens": "the cat", "number": number}))
        for number in range(1001)
    ]
    records.append(("test", Record("t", "all_of_it", {"tokens": "the", "number": 3})))
    path = write_store(tmp_path / "s.sqlite", records, "text", vocabulary=WORDS, source="by hand")
    assert golden.refusal(_task, path, domain_feature="number") == (
        "--next_word_domain_feature: expected at most 1000 domains, found more values of number "
        f"in {path}"
    )


@pytest.mark.parametrize(
    ("feature", "of_a", "of_t", "classes"),
    [
        ("type", [1, 0], [1], "answer, question"),
        ("year", [0, 1], [2], "2009, 2010, 2011"),
        # What names the domains may be learned, too.
        ("domain", [0, 0], [1], "cooking, travel"),
    ],
)
def test_the_classes_are_the_values_of_the_feature(store, feature, of_a, of_t, classes):
    task = _task(store, "text_classifier", label_feature=feature, embedding=2)
    assert task.domain_names == ("cooking", "travel")
    assert task.fingerprint["classes"] == classes
    np.testing.assert_array_equal(task.train.read("a")["y"], of_a)
    np.testing.assert_array_equal(task.test.read("t")["y"], of_t)
    # A score for each class.
    assert task.model.initial_weights.trainable[-1].shape == (len(classes.split(", ")),)


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ("score", "--text_classifier_label_feature: expected a text or a whole number of every "),
        ("tags", "found 'tags'"),
        ("label", "expected examples with a label, found "),
    ],
)
def test_a_feature_that_holds_no_classes_is_refused(store, feature, message):
    assert message in golden.refusal(
        _task, store, "text_classifier", label_feature=feature, embedding=2
    )


def test_a_feature_of_one_value_is_no_class(tmp_path):
    rows = [
        (split, Record("a", "x", {"tokens": "cat", "app": "web"})) for split in ("train", "test")
    ]
    path = write_store(tmp_path / "s.sqlite", rows, "text", vocabulary=WORDS)
    with pytest.raises(
        UserError, match="expected at least 2 classes, found that app is web in all"
    ):
        _task(path, "text_classifier", label_feature="app")
