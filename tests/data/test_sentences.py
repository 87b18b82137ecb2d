"""Sentences as ids, worked out by hand."""

import numpy as np
import pytest

from tff_agnostic.data.texts import LONG_SENTENCES, SentenceEncoder

# the 1, cat 2, sat 3; out of the vocabulary 4, begin 5, end 6.
_WORDS = ("the", "cat", "sat")


def _encode(length, *sentences, long_sentences="cut"):
    stored = np.array([s.encode() for s in sentences], object)
    return LONG_SENTENCES[long_sentences](SentenceEncoder(_WORDS, length), stored)


def test_x_is_what_comes_before_and_y_what_follows():
    x, y, sentence = _encode(5, "the cat sat", "dog", "")
    assert sentence.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(x, [[5, 1, 2, 3, 6], [5, 4, 6, 0, 0], [5, 6, 0, 0, 0]])
    np.testing.assert_array_equal(y, [[1, 2, 3, 6, 0], [4, 6, 0, 0, 0], [6, 0, 0, 0, 0]])
    assert x.dtype == y.dtype == np.int32


@pytest.mark.parametrize(
    ("length", "x", "y"),
    [(4, [5, 1, 2, 3], [1, 2, 3, 6]), (3, [5, 1, 2], [1, 2, 3]), (1, [5], [1])],
)
def test_long_sentences_are_cut_off(length, x, y):
    found_x, found_y, _ = _encode(length, "the cat sat")
    np.testing.assert_array_equal(found_x, [x])
    np.testing.assert_array_equal(found_y, [y])


def test_it_agrees_with_the_baseline_of_tff():
    import tensorflow as tf
    from tensorflow_federated.python.simulation.baselines.stackoverflow import (
        word_prediction_preprocessing,
    )

    theirs = word_prediction_preprocessing.build_to_ids_fn(
        vocab=list(_WORDS), max_sequence_length=4
    )
    sentences = ["the cat", "a cat sat on the mat", "sat sat sat", "sat the cat the"]
    x, y, _ = _encode(4, *sentences)
    for k, text in enumerate(sentences):
        ids = theirs({"tokens": tf.constant(text)}).numpy()
        padded = np.zeros(5, np.int32)
        padded[: len(ids)] = ids
        np.testing.assert_array_equal(x[k], padded[:-1])
        np.testing.assert_array_equal(y[k], padded[1:])


def test_no_sentences_give_no_rows():
    for treatment in LONG_SENTENCES:
        x, y, sentence = _encode(4, long_sentences=treatment)
        assert x.shape == y.shape == (0, 4)
        assert sentence.shape == (0,)


def test_long_sentences_go_on_in_the_next_example():
    x, y, sentence = _encode(2, "the cat sat the", "dog", "", "the", long_sentences="chunk")
    np.testing.assert_array_equal(x, [[5, 1], [2, 3], [1, 6], [5, 4], [5, 6], [5, 1]])
    np.testing.assert_array_equal(y, [[1, 2], [3, 1], [6, 0], [4, 6], [6, 0], [1, 6]])
    assert sentence.tolist() == [0, 0, 0, 1, 2, 3]


@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_chunks_predict_every_word_once(length):
    texts = ["the cat sat dog the", "cat", "", "sat sat the", "a b c d e f g h the"]
    _, y, sentence = _encode(length, *texts, long_sentences="chunk")
    ids = {"the": 1, "cat": 2, "sat": 3}
    for k, text in enumerate(texts):
        expected = [*(ids.get(word, 4) for word in text.split()), 6]
        found = y[sentence == k].ravel()
        assert found[found != 0].tolist() == expected


def test_short_sentences_are_the_same_either_way():
    cut, chunked = (_encode(4, "the cat sat", "", "a", long_sentences=t) for t in LONG_SENTENCES)
    for a, b in zip(cut, chunked):
        np.testing.assert_array_equal(a, b)
