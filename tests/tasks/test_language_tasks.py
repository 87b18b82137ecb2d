"""Next-word tasks: word ids computed by hand, domains, vocabularies, and invalid stores."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from tests.support import golden
from tests.support.stores import image, text_store, tff_store, write_store
from tff_agnostic.base.later import tff
from tff_agnostic.data.clients import client_domain_counts
from tff_agnostic.models.next_word import NextWordNetwork
from tff_agnostic.tasks import text_tasks
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext
from tff_agnostic.tasks.text_tasks import CifgNetwork, LstmNetwork

_NETWORKS = {
    "next_word": (CifgNetwork(2, 3, layers=2), NextWordNetwork("cifg", 2, 3, layers=2, tied=True)),
    "stackoverflow": (LstmNetwork(2, 3), NextWordNetwork("lstm", 2, 3, layers=1)),
}


@pytest.fixture
def sizes(monkeypatch):
    """Replaces the slow model builder; returns a list of its (vocabulary size, other arguments)."""
    seen = []

    def build(network, vocabulary_size, sequence_length, seed):
        seen.append((vocabulary_size, (network, sequence_length, seed)))

    monkeypatch.setattr(text_tasks, "next_word_model", build)
    return seen


def _load(task: str, path: Any, seed: int = 0, **options: Any) -> Task:
    return load_task(task, options, TaskContext(seed, data=path))


def _error(task: str, path: Any, client: str = "", **options: Any) -> str:
    return golden.refusal(lambda: _load(task, path, **options).train.read(client))


def _questions(path, type_="question"):
    """Writes a file like TFF's Stack Overflow data, with posts of questions and answers."""
    rows = [
        ("train", "7", {"tokens": "how ?", "type": type_}),
        ("train", "7", {"tokens": "so", "type": "answer"}),
        ("heldout", "8", {"tokens": "? how", "type": "question"}),
        ("test", "9", {"tokens": "so how", "type": "answer"}),
    ]
    return tff_store(path, rows)


@pytest.mark.parametrize("task", _NETWORKS)
def test_sentences_become_word_ids(tmp_path, sizes, task):
    path, (network, expected) = text_store(tmp_path / "s.sqlite"), _NETWORKS[task]
    loaded = _load(task, path, seed=6, sequence_length=4, network=network)
    assert loaded.domain_names == ("answer", "question")
    examples = loaded.train.read("b")
    # Ids: the = 1, cat = 2, sat = 3, other words = 4, begin = 5, end = 6, padding = 0.
    np.testing.assert_array_equal(examples["x"], [[5, 1, 2, 6], [5, 3, 6, 0], [5, 1, 1, 4]])
    np.testing.assert_array_equal(examples["y"], [[1, 2, 6, 0], [3, 6, 0, 0], [1, 1, 4, 6]])
    assert examples["domain_id"].tolist() == [1, 0, 1]
    assert {column.dtype for column in examples.values()} == {np.dtype(np.int32)}
    small = _load(task, path, sequence_length=2, vocabulary=2)
    # Ids: the = 1, cat = 2, other words = 3, begin = 4, end = 5.
    np.testing.assert_array_equal(small.train.read("b")["x"], [[4, 1], [4, 3], [4, 1]])
    np.testing.assert_array_equal(small.train.read("b")["y"], [[1, 2], [3, 5], [1, 1]])
    assert sizes[0] == (3, (expected, 4, 6))
    assert (sizes[1][0], sizes[1][1][1]) == (2, 2)


def test_long_sentences_are_reported_or_continued(tmp_path, sizes):
    path = text_store(tmp_path / "s.sqlite")
    # The training sentences: the cat | cat sat the | sat | the the dog.
    (remark,) = _load("next_word", path, sequence_length=2).remarks()
    assert remark.text.startswith("22.2% of the words of train (2 of 9) are cut off: 50.0% of the ")
    assert "long_sentences=chunk" in remark.text
    assert not _load("next_word", path, sequence_length=3).remarks()
    chunked = _load("next_word", path, sequence_length=2, long_sentences="chunk")
    assert not chunked.remarks()
    examples = chunked.train.read("b")
    np.testing.assert_array_equal(examples["y"], [[1, 2], [6, 0], [3, 6], [1, 1], [4, 6]])
    assert examples["domain_id"].tolist() == [1, 1, 0, 1, 1]
    # The counts are of chunks, which are more than the sentences that the store counts.
    np.testing.assert_array_equal(client_domain_counts(chunked.train, 2), [[2, 0], [1, 4]])


@pytest.mark.parametrize("task", _NETWORKS)
def test_model_has_an_embedding_per_word_id(tmp_path, task):
    path, (network, _) = text_store(tmp_path / "s.sqlite"), _NETWORKS[task]
    loaded = _load(task, path, sequence_length=4, network=network)
    # Embeddings of three words and four special ids.
    assert (3 + 4, 2) in [w.shape for w in loaded.model.initial_weights.trainable]
    names = [metric.name for metric in loaded.model.metrics]
    assert {"perplexity", "in_vocab_accuracy"} <= set(names)


@pytest.mark.slow
def test_fingerprint_depends_on_words_and_order(tmp_path, sizes):
    def fingerprint(words, **options):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite"
        return _load("next_word", text_store(path, words), **options).fingerprint["vocabulary"]

    first = fingerprint({"the": 9, "cat": 5, "sat": 3})
    assert fingerprint({"the": 4, "cat": 3, "sat": 2}) == first
    assert fingerprint({"the": 9, "cat": 5, "sat": 3, "a": 1}, vocabulary=3) == first
    others = [
        fingerprint({"the": 9, "cat": 5, "dog": 3}),
        fingerprint({"cat": 9, "the": 5, "sat": 3}),
        fingerprint({"the": 9, "cat": 5, "sat": 3}, vocabulary=2),
        fingerprint({"the": 9, "cat sat": 5}),
    ]
    assert len({first, *others}) == 5


def test_test_split_option_selects_clients(tmp_path, sizes):
    path = text_store(tmp_path / "s.sqlite")
    for split, client in (("test", "t"), ("heldout", "h")):
        loaded = _load("next_word", path, test_split=split)
        assert (list(loaded.test.client_ids), loaded.test_split) == ([client], split)


@pytest.mark.parametrize("task", _NETWORKS)
def test_unsuitable_store_raises(tmp_path, task):
    path = write_store(tmp_path / "i.sqlite", [("train", image("a", "b", 1))], "features")
    needed = "tokens (string)" if task == "stackoverflow" else "tokens (string), domain (string)"
    assert _error(task, path).startswith(f"{path}: expected examples with {needed} for this task, ")
    path = text_store(tmp_path / "s.sqlite", words={})
    assert _error(task, path) == f"{path}: expected a vocabulary, found a store without one"


@pytest.fixture
def word_counts(monkeypatch):
    """Replaces the word counts that TFF would download."""

    def load_word_counts(cache_dir, vocab_size):
        words = OrderedDict([("how", 30), ("so", 20), ("?", 10)])
        return OrderedDict(list(words.items())[:vocab_size])

    monkeypatch.setattr(tff.simulation.datasets.stackoverflow, "load_word_counts", load_word_counts)


def test_stackoverflow_domains_are_post_types(tmp_path, sizes, word_counts):
    path = _questions(tmp_path / "s.sqlite")
    loaded = _load("stackoverflow", path, sequence_length=3, vocabulary=2)
    examples = loaded.train.read("7")
    # Ids: how = 1, so = 2, other words = 3, begin = 4, end = 5.
    np.testing.assert_array_equal(examples["x"], [[4, 1, 3], [4, 2, 5]])
    np.testing.assert_array_equal(examples["y"], [[1, 3, 5], [2, 5, 0]])
    assert examples["domain_id"].tolist() == [1, 0]
    assert list(loaded.test.client_ids) == ["9"]
    assert [size for size, _ in sizes] == [2]
    # TFF's file contains no sentence counts, so no warning is possible.
    assert loaded.remarks() == []


def test_stackoverflow_rejects_other_domains(tmp_path, sizes, word_counts):
    path = _questions(tmp_path / "q.sqlite", type_="comment")
    message = f"{path}: client 7: expected domains answer, question, found 'comment'"
    assert _error("stackoverflow", path, "7") == message


def test_failed_download_of_word_counts_raises(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(tff.simulation.datasets.stackoverflow, "load_word_counts", fail)
    _questions(tmp_path / "stackoverflow.sqlite")
    message = golden.refusal(load_task, "stackoverflow", {}, TaskContext(0, data_dir=tmp_path))
    assert message.startswith("vocabulary: expected a file of words, ")
    assert "(no network)" in message


def test_vocabulary_option_reads_store_or_word_list(tmp_path, sizes):
    path = text_store(tmp_path / "s.sqlite")
    other = text_store(tmp_path / "o.sqlite", words={"dog": 3, "the": 2, "cat": 1})
    words = tmp_path / "words.txt"
    words.write_bytes(b"\xef\xbb\xbfdog 3\r\nthe 2\r\n\r\ncat 1\r\n")
    store_words = _load("next_word", path, vocabulary=str(other), sequence_length=3)
    list_words = _load("next_word", path, vocabulary=str(words), sequence_length=3)
    # Ids: dog = 1, the = 2, cat = 3, other words = 4, begin = 5, end = 6. Client a has the words
    # "cat sat the".
    np.testing.assert_array_equal(store_words.train.read("a")["x"], [[5, 3, 4]])
    np.testing.assert_array_equal(list_words.train.read("a")["y"], [[3, 4, 2]])
    assert store_words.fingerprint == list_words.fingerprint
    assert list_words.fingerprint != _load("next_word", path).fingerprint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "expected a number or a list of words, found an unreadable file {words} "),
        (b"\n\n", "expected a word in each line of {words}, found none"),
        (b"a 2\nb 1\na 1\n", "expected different words in {words}, found 'a' twice"),
    ],
)
def test_invalid_word_list_raises(tmp_path, content, message):
    words = tmp_path / "words.txt"
    words.write_bytes(content)
    result = _error("next_word", text_store(tmp_path / "s.sqlite"), vocabulary=str(words))
    assert result.startswith(f"vocabulary: {message.format(words=words)}")
