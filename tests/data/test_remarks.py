"""What is said of data: figures worked out by hand."""

import numpy as np
import pytest

from tff_agnostic.data.data_warnings import (
    cut_words,
    domains_without,
    examples_beyond,
    small_domains,
)


def _cut(lengths, sequence_length):
    return cut_words(lengths, sequence_length, "t_sequence_length", "do so.", "train")


def test_words_beyond_the_sequence_length():
    # 3 sentences of 2 words, 2 of 5, 1 of 10: 26 words; beyond 4 are 1 + 1 + 6.
    (remark,) = _cut({2: 3, 5: 2, 10: 1}, 4)
    assert remark.to_json() == {
        "kind": "words_cut",
        "text": "30.8% of the words of train (8 of 26) are cut off: 50.0% of the sentences have "
        "more than --t_sequence_length=4 words; do so.",
        "words": 26,
        "words_cut": 8,
        "sentences": 6,
        "sentences_cut": 3,
        "sequence_length": 4,
    }
    assert _cut({2: 3, 5: 2, 10: 1}, 10) == _cut({}, 1) == []


def test_examples_beyond_max_examples():
    (remark,) = examples_beyond(np.array([3, 10, 7, 5]), 5, "train")
    assert remark.text == (
        "28.0% of the examples of train (7 of 25) are not trained on: 2 of 4 clients have more "
        "than --max_examples=5."
    )
    assert (remark.figures["examples_left_out"], remark.figures["clients_cut"]) == (7, 2)
    for max_examples in (None, 10):
        assert examples_beyond(np.array([3, 10]), max_examples, "train") == []


@pytest.mark.parametrize(
    ("split", "meaning"),
    [
        ("train", "nothing is learnt of them."),
        ("heldout", "tuning is blind to them."),
        ("test", "they cannot be evaluated."),
    ],
)
def test_domains_without_examples(split, meaning):
    examples = {"a": 0, "b": 3, **{f"d{k}": 0 for k in range(6)}}
    (remark,) = domains_without(examples, split)
    assert remark.text == (
        f"7 of 8 domains have no client in {split}: a, d0, d1, d2, d3 and 2 more; {meaning}"
    )
    assert remark.figures["domains"] == ["a", *(f"d{k}" for k in range(6))]
    assert domains_without({"b": 3}, split) == []


def test_domains_with_few_examples():
    (remark,) = small_domains({"a": 0, "b": 30, "c": 29, "d": 1}, "test", 30)
    assert remark.text == (
        "2 of 4 domains have fewer than 30 examples in test: d (1), c (29); "
        'the "worst" domain may be one of them by chance.'
    )
    assert remark.figures["domains"] == {"c": 29, "d": 1}
    assert small_domains({"a": 30}, "train", 30) == []
