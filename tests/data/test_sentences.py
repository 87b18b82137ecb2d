"""Sentences as ids, worked out by hand."""

import numpy as np
import pytest

from tff_agnostic.data.sentences import SentenceEncoder

# the 1, cat 2, sat 3; out of the vocabulary 4, begin 5, end 6.
_WORDS = ("the", "cat", "sat")


def _encode(length, *sentences):
    return SentenceEncoder(_WORDS, length).encode(np.array([s.encode() for s in sentences], object))


def test_x_is_what_comes_before_and_y_what_follows():
    x, y = _encode(5, "the cat sat", "dog", "")
    np.testing.assert_array_equal(x, [[5, 1, 2, 3, 6], [5, 4, 6, 0, 0], [5, 6, 0, 0, 0]])
    np.testing.assert_array_equal(y, [[1, 2, 3, 6, 0], [4, 6, 0, 0, 0], [6, 0, 0, 0, 0]])
    assert x.dtype == y.dtype == np.int32


@pytest.mark.parametrize(
    ("length", "x", "y"),
    [(4, [5, 1, 2, 3], [1, 2, 3, 6]), (3, [5, 1, 2], [1, 2, 3]), (1, [5], [1])],
)
def test_long_sentences_are_cut_off(length, x, y):
    found_x, found_y = _encode(length, "the cat sat")
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
    x, y = _encode(4, *sentences)
    for k, text in enumerate(sentences):
        ids = theirs({"tokens": tf.constant(text)}).numpy()
        padded = np.zeros(5, np.int32)
        padded[: len(ids)] = ids
        np.testing.assert_array_equal(x[k], padded[:-1])
        np.testing.assert_array_equal(y[k], padded[1:])


def test_no_sentences_give_no_rows():
    x, y = _encode(4)
    assert x.shape == y.shape == (0, 4)
