"""Warnings about data and encodings of sentences, computed by hand."""

import numpy as np

from tff_agnostic.base.text_ids import LONG_SENTENCES, SentenceEncoder
from tff_agnostic.data.data_warnings import cut_words, domains_without, small_domains
from tff_agnostic.program.runs.data_notes import examples_beyond


def _cut(lengths, sequence_length):
    return cut_words(lengths, sequence_length, "do so.")


def test_words_beyond_sequence_length_are_reported():
    # 3 sentences of 2 words, 2 of 5, 1 of 10: 26 words; beyond 4 are 1 + 1 + 6.
    (remark,) = _cut({2: 3, 5: 2, 10: 1}, 4)
    assert remark.text.startswith("30.8% of the words of train (8 of 26) are cut off: 50.0% of")
    names = ("words", "words_cut", "sentences", "sentences_cut", "sequence_length")
    assert remark.figures == dict(zip(names, (26, 8, 6, 3, 4)))
    assert _cut({2: 3, 5: 2, 10: 1}, 10) == _cut({}, 1) == []


def test_examples_beyond_max_examples_are_reported():
    (remark,) = examples_beyond(np.array([3, 10, 7, 5]), 5, "train")
    assert remark.text.startswith("28.0% of the examples of train (7 of 25) are not trained on")
    assert (remark.figures["examples_left_out"], remark.figures["clients_cut"]) == (7, 2)
    for max_examples in (None, 10):
        assert examples_beyond(np.array([3, 10]), max_examples, "train") == []


def test_domains_without_examples_are_reported():
    examples = {"a": 0, "b": 3, **{f"d{k}": 0 for k in range(6)}}
    (remark,) = domains_without(examples, "train")
    start = "7 of 8 domains have no client in train: a, d0, d1, d2, d3 and 2 more; "
    assert remark.text.startswith(start)
    assert remark.figures["domains"] == ["a", *(f"d{k}" for k in range(6))]
    assert domains_without({"b": 3}, "train") == []


def test_domains_with_few_examples_are_reported():
    (remark,) = small_domains({"a": 0, "b": 30, "c": 29, "d": 1}, "test", 30)
    start = "2 of 4 domains have fewer than 30 examples in test: d (1), c (29); "
    assert remark.text.startswith(start)
    assert remark.figures["domains"] == {"c": 29, "d": 1}
    assert small_domains({"a": 30}, "train", 30) == []


# --- Sentences are encoded as ids


# Ids: the = 1, cat = 2, sat = 3, unknown words = 4, begin = 5, end = 6.
_WORDS = ("the", "cat", "sat")


def _encode(length, *sentences, long_sentences="cut"):
    stored = np.array([s.encode() for s in sentences], object)
    return LONG_SENTENCES[long_sentences](SentenceEncoder(_WORDS, length), stored)


def test_sentence_labels_are_the_next_words():
    x, y, sentence = _encode(5, "the cat sat", "dog", "")
    assert sentence.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(x, [[5, 1, 2, 3, 6], [5, 4, 6, 0, 0], [5, 6, 0, 0, 0]])
    np.testing.assert_array_equal(y, [[1, 2, 3, 6, 0], [4, 6, 0, 0, 0], [6, 0, 0, 0, 0]])
    assert x.dtype == y.dtype == np.int32


def test_sentence_ids_equal_tffs_stackoverflow_baseline():
    import tensorflow as tf
    from tensorflow_federated.python.simulation.baselines.stackoverflow import (
        word_prediction_preprocessing,
    )

    tff_ids = word_prediction_preprocessing.build_to_ids_fn(
        vocab=list(_WORDS), max_sequence_length=4
    )
    sentences = ["the cat", "a cat sat on the mat", "sat sat sat", "sat the cat the"]
    x, y, _ = _encode(4, *sentences)
    for k, text in enumerate(sentences):
        ids = tff_ids({"tokens": tf.constant(text)}).numpy()
        padded = np.zeros(5, np.int32)
        padded[: len(ids)] = ids
        np.testing.assert_array_equal(x[k], padded[:-1])
        np.testing.assert_array_equal(y[k], padded[1:])


def test_no_sentences_encode_to_empty_arrays():
    for treatment in LONG_SENTENCES:
        x, y, sentence = _encode(4, long_sentences=treatment)
        assert x.shape == y.shape == (0, 4)
        assert sentence.shape == (0,)


def test_chunks_continue_in_the_next_example():
    x, y, sentence = _encode(2, "the cat sat the", "dog", "", "the", long_sentences="chunk")
    np.testing.assert_array_equal(x, [[5, 1], [2, 3], [1, 6], [5, 4], [5, 6], [5, 1]])
    np.testing.assert_array_equal(y, [[1, 2], [3, 1], [6, 0], [4, 6], [6, 0], [1, 6]])
    assert sentence.tolist() == [0, 0, 0, 1, 2, 3]


def test_truncated_and_chunked_short_sentences_are_equal():
    cut, chunked = (_encode(4, "the cat sat", "", "a", long_sentences=t) for t in LONG_SENTENCES)
    for a, b in zip(cut, chunked):
        np.testing.assert_array_equal(a, b)
