"""Next-word tasks: ids worked out by hand, domains, vocabularies."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from tests import golden
from tests.data.stores import image, sentence, text_store, tff_store, write_store
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tff
from tff_agnostic.data.clients import client_domain_counts
from tff_agnostic.models.next_word import NextWordNetwork
from tff_agnostic.tasks import text_tasks
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext
from tff_agnostic.tasks.text_tasks import CifgNetwork, LstmNetwork, TextOptions, known_words

_SMALL: dict[str, dict[str, Any]] = {
    "next_word": {"network": CifgNetwork(2, 3, layers=2)},
    "stackoverflow": {"network": LstmNetwork(2, 3)},
}
_NETWORKS = {
    "next_word": NextWordNetwork("cifg", 2, 3, layers=2, tied=True),
    "stackoverflow": NextWordNetwork("lstm", 2, 3, layers=1),
}
_LANGUAGE_TASKS = list(_SMALL)


@pytest.fixture
def sizes(monkeypatch):
    """Replaces models, which take a second to build; returns the vocabularies' sizes."""
    seen = []

    def build(network, vocabulary_size, sequence_length, seed):
        seen.append((vocabulary_size, (network, sequence_length, seed)))

    monkeypatch.setattr(text_tasks, "next_word_model", build)
    return seen


def _load(task: str, path: Any, seed: int = 0, **options: Any) -> Task:
    return load_task(task, options, TaskContext(seed, data=path))


def _error(task: str, path: Any, client: str = "", **options: Any) -> str:
    with pytest.raises(UserError) as error:
        loaded = _load(task, path, **options)
        loaded.train.read(client)
    assert "\n" not in str(error.value)
    return str(error.value)


def _questions(path, type_="question", **more):
    """Writes data like TFF's own file: users with posts of a type."""
    rows = [
        ("train", "7", {"tokens": "how ?", "type": type_, "title": "t", **more}),
        ("train", "7", {"tokens": "so", "type": "answer", "title": "t", **more}),
        ("heldout", "8", {"tokens": "? how", "type": "question", "title": "t", **more}),
        ("test", "9", {"tokens": "so how", "type": "answer", "title": "t", **more}),
    ]
    return tff_store(path, rows)


def _locales(path):
    rows = [
        (split, sentence(f"{split}_{domain}", domain, "hola che"))
        for split in ("train", "test")
        for domain in ("es-MX", "es-AR", "es-419")
    ]
    return write_store(path, rows, "text", vocabulary={"hola": 2, "che": 1})


@pytest.mark.parametrize("task", _LANGUAGE_TASKS)
def test_sentences_are_ids(tmp_path, sizes, task):
    loaded = _load(task, text_store(tmp_path / "s.sqlite"), sequence_length=4)
    assert loaded.domain_names == ("answer", "question")
    examples = loaded.train.read("b")
    # the, cat, sat are 1 to 3, every other word 4, begin 5, end 6; a padding 0 after it.
    np.testing.assert_array_equal(examples["x"], [[5, 1, 2, 6], [5, 3, 6, 0], [5, 1, 1, 4]])
    np.testing.assert_array_equal(examples["y"], [[1, 2, 6, 0], [3, 6, 0, 0], [1, 1, 4, 6]])
    assert examples["domain_id"].tolist() == [1, 0, 1]
    assert {column.dtype for column in examples.values()} == {np.dtype(np.int32)}
    assert [size for size, _ in sizes] == [3]


@pytest.mark.parametrize("task", _LANGUAGE_TASKS)
def test_the_vocabulary_and_the_sentences_are_cut(tmp_path, sizes, task):
    path = text_store(tmp_path / "s.sqlite")
    loaded = _load(task, path, sequence_length=2, vocabulary=2)
    # sat is unknown now: 3; begin is 4, end 5.
    np.testing.assert_array_equal(loaded.train.read("b")["x"], [[4, 1], [4, 3], [4, 1]])
    np.testing.assert_array_equal(loaded.train.read("b")["y"], [[1, 2], [3, 5], [1, 1]])
    ((size, arguments),) = sizes
    assert (size, arguments[1]) == (2, 2)


@pytest.mark.parametrize("task", _LANGUAGE_TASKS)
def test_truncated_texts_are_reported_or_continued(tmp_path, sizes, task):
    path = text_store(tmp_path / "s.sqlite")
    # The words of clients a and b: the cat | cat sat the | sat | the the dog.
    (remark,) = _load(task, path, sequence_length=2).remarks()
    assert remark.text == (
        "22.2% of the words of train (2 of 9) are cut off: 50.0% of the sentences have more than "
        "sequence_length=2 words; long_sentences=chunk continues them in the next example."
    )
    assert not _load(task, path, sequence_length=3).remarks()
    chunked = _load(task, path, sequence_length=2, long_sentences="chunk")
    assert not chunked.remarks()
    examples = chunked.train.read("b")
    np.testing.assert_array_equal(examples["y"], [[1, 2], [6, 0], [3, 6], [1, 1], [4, 6]])
    assert examples["domain_id"].tolist() == [1, 1, 0, 1, 1]
    # Examples differ from the store's sentences here, so that the store's number does not apply.
    np.testing.assert_array_equal(client_domain_counts(chunked.train, 2), [[2, 0], [1, 4]])
    message = _error(task, path, long_sentences="cutt")
    assert message.startswith("long_sentences: unknown treatment of long sentences 'cu")


@pytest.mark.parametrize("task", _LANGUAGE_TASKS)
def test_options_reach_the_model(tmp_path, sizes, task):
    _load(task, text_store(tmp_path / "s.sqlite"), seed=6, **_SMALL[task])
    ((_, arguments),) = sizes
    assert arguments == (_NETWORKS[task], 20, 6)


@pytest.mark.parametrize("task", _LANGUAGE_TASKS)
def test_model_fits_the_vocabulary(tmp_path, task):
    loaded = _load(task, text_store(tmp_path / "s.sqlite"), sequence_length=4, **_SMALL[task])
    # Word vectors of three words and four more ids.
    assert (3 + 4, 2) in [w.shape for w in loaded.model.initial_weights.trainable]
    names = [metric.name for metric in loaded.model.metrics]
    assert {"perplexity", "in_vocab_accuracy"} <= set(names)


@pytest.mark.slow
@pytest.mark.parametrize("task", _LANGUAGE_TASKS)
def test_the_fingerprint_is_the_vocabularys(tmp_path, sizes, task):
    def fingerprint(words, **options):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.sqlite"
        return _load(task, text_store(path, words), **options).fingerprint["vocabulary"]

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


@pytest.mark.parametrize("task", _LANGUAGE_TASKS)
def test_evaluation_uses_the_given_split(tmp_path, sizes, task):
    path = text_store(tmp_path / "s.sqlite")
    for split, client in (("test", "t"), ("heldout", "h")):
        loaded = _load(task, path, test_split=split)
        assert (list(loaded.test.client_ids), loaded.test_split) == ([client], split)


@pytest.mark.parametrize(
    ("task", "option"),
    [(task, option) for task in _LANGUAGE_TASKS for option in ("vocabulary", "sequence_length")],
)
@pytest.mark.parametrize("value", [0, -3])
def test_invalid_size_names_its_flag(tmp_path, task, option, value):
    message = _error(task, text_store(tmp_path / "s.sqlite"), **{option: value})
    expected = "at least 1" + " or a path" * (option == "vocabulary")
    assert message == f"{option}: expected {expected}, found {value}"


@pytest.mark.parametrize("task", _LANGUAGE_TASKS)
def test_image_store_is_refused(tmp_path, task):
    path = write_store(tmp_path / "s.sqlite", [("train", image("a", "b", 1))], "features")
    needed = "tokens (string)" if task == "stackoverflow" else "tokens (string), domain (string)"
    assert _error(task, path) == (
        f"{path}: expected examples with {needed} for this task, found domain (string), "
        "label (int64), pixels (float32[28, 28])"
    )


@pytest.mark.parametrize("task", _LANGUAGE_TASKS)
def test_store_without_words_raises_user_error(tmp_path, task):
    path = text_store(tmp_path / "s.sqlite", words={})
    assert _error(task, path) == f"{path}: expected a vocabulary, found a store without one"


def test_domains_come_from_the_store(tmp_path, sizes):
    loaded = _load("next_word", _locales(tmp_path / "s.sqlite"))
    assert loaded.domain_names == ("es-419", "es-AR", "es-MX")
    ids = [loaded.train.read(f"train_{name}")["domain_id"] for name in loaded.domain_names]
    assert np.concatenate(ids).tolist() == [0, 1, 2]


def test_tff_store_has_no_vocabulary(tmp_path):
    path = tff_store(tmp_path / "s.sqlite", [("train", "a", {"tokens": "x", "domain": "y"})])
    assert _error("next_word", path) == f"{path}: expected a vocabulary, found a store without one"


@pytest.fixture
def word_counts(monkeypatch):
    """Replaces the word counts that TFF would download."""

    def load_word_counts(cache_dir, vocab_size):
        words = OrderedDict([("how", 30), ("so", 20), ("?", 10)])
        return OrderedDict(list(words.items())[:vocab_size])

    monkeypatch.setattr(tff.simulation.datasets.stackoverflow, "load_word_counts", load_word_counts)


def test_tffs_file_names_the_domain_as_the_type(tmp_path, sizes, word_counts):
    path = _questions(tmp_path / "s.sqlite")
    loaded = _load("stackoverflow", path, sequence_length=3, vocabulary=2)
    examples = loaded.train.read("7")
    # how, so are 1 and 2; ? is unknown, 3; begin 4, end 5.
    np.testing.assert_array_equal(examples["x"], [[4, 1, 3], [4, 2, 5]])
    np.testing.assert_array_equal(examples["y"], [[1, 3, 5], [2, 5, 0]])
    assert examples["domain_id"].tolist() == [1, 0]
    assert list(loaded.test.client_ids) == ["9"]
    assert [size for size, _ in sizes] == [2]


def test_cached_tff_file_is_not_downloaded(tmp_path, sizes, word_counts, monkeypatch):
    def load_data(**kwargs):
        raise AssertionError("downloaded")

    monkeypatch.setattr(tff.simulation.datasets.stackoverflow, "load_data", load_data)
    _questions(tmp_path / "stackoverflow.sqlite")
    loaded = load_task("stackoverflow", {}, TaskContext(0, data_dir=tmp_path))
    assert list(loaded.train.client_ids) == ["7"]
    # The file does not count its sentences.
    assert loaded.remarks() == []


def test_only_questions_and_answers_are_accepted(tmp_path, sizes, word_counts):
    for path, client, name in (
        (_questions(tmp_path / "q.sqlite", type_="comment"), "7", "comment"),
        (_locales(tmp_path / "l.sqlite"), "train_es-AR", "es-AR"),
    ):
        assert _error("stackoverflow", path, client) == (
            f"{path}: client {client}: expected domains answer, question, found '{name}'"
        )


def test_tff_store_without_types(tmp_path, sizes, word_counts):
    rows = [(split, "7", {"tokens": "how"}) for split in ("train", "test")]
    path = tff_store(tmp_path / "s.sqlite", rows)
    message = _error("stackoverflow", path, "7")
    assert message.startswith(f"{path}: ")
    assert "type (string" in message


@pytest.mark.parametrize(
    ("missing", "instead"),
    [
        ("load_data", "data: expected a client store"),
        ("load_word_counts", "vocabulary: expected a file of words"),
    ],
)
def test_where_there_is_no_network(tmp_path, monkeypatch, missing, instead):
    def fail(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(tff.simulation.datasets.stackoverflow, missing, fail)
    if missing == "load_word_counts":
        _questions(tmp_path / "stackoverflow.sqlite")
    result = golden.refusal(
        lambda: load_task("stackoverflow", {}, TaskContext(0, data_dir=tmp_path))
    )
    file = {"load_data": "stackoverflow.sqlite", "load_word_counts": "stackoverflow.word_count"}
    assert result == (
        f"{instead}, as TensorFlow Federated could not download {file[missing]} (no network), "
        "found none"
    )


def _loaded(path, **options):
    return load_task("next_word", options, TaskContext(seed=0, data=path))


def test_words_come_from_store_or_list(tmp_path):
    path = text_store(tmp_path / "s.sqlite")
    other = text_store(tmp_path / "o.sqlite", words={"dog": 3, "the": 2, "cat": 1})
    words = tmp_path / "words.txt"
    words.write_text("dog 3\nthe 2\n\ncat 1\n")
    small = {"sequence_length": 3, "network": LstmNetwork(2, 2)}
    store_words = _loaded(path, vocabulary=str(other), **small)
    list_words = _loaded(path, vocabulary=str(words), **small)
    # dog 1, the 2, cat 3, others 4, begin 5, end 6: "cat sat the".
    np.testing.assert_array_equal(store_words.train.read("a")["x"], [[5, 3, 4]])
    np.testing.assert_array_equal(list_words.train.read("a")["y"], [[3, 4, 2]])
    assert store_words.fingerprint == list_words.fingerprint != _loaded(path, **small).fingerprint


@golden.values
def test_invalid_word_lists_are_refused(tmp_path, case):
    words = tmp_path / "words.txt"
    if case is not None:
        words.write_bytes(case)
    return golden.refusal(_loaded, text_store(tmp_path / "s.sqlite"), vocabulary=str(words))


def test_a_cell_that_is_none(tmp_path):
    message = _error("next_word", text_store(tmp_path / "s.sqlite"), network="gru")
    assert message == "network: expected LstmNetwork or CifgNetwork, found 'gru'"


def test_word_list_skips_byte_order_mark(tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes(b"\xef\xbb\xbfthe 5\r\ncat 2\r\n")
    options = TextOptions(vocabulary=path)
    assert known_words(options, lambda size: []) == ["the", "cat"]
