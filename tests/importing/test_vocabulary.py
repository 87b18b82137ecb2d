"""Word counts, hashes, domain names and labels of imports."""

import math
import random
from collections import Counter

import pytest

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store_format import Record
from tff_agnostic.importing import source
from tff_agnostic.importing.cells import CellError, Labels, MissingValues
from tff_agnostic.importing.importer import DomainNames
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import ReadLog, SourceExample, rows_of
from tff_agnostic.importing.vocabulary import WordCounts


def _words(count: int, seed: int = 0) -> list[str]:
    """Returns words with Pareto-distributed frequencies, like those of a language."""
    draw = random.Random(seed)
    return [f"w{int(draw.paretovariate(1))}" for _ in range(count)]


def test_counts_equal_pythons_counter():
    counts, words = WordCounts(), _words(5000)
    for start in range(0, len(words), 7):
        counts.add(words[start : start + 7])
    expected = Counter(words)
    assert counts.top(10**6) == dict(expected)
    assert (counts.max_undercount, counts.total(), len(counts)) == (0, 5000, len(expected))


def test_vocabulary_omits_the_unknown_word():
    counts = WordCounts()
    counts.add(["<unk>", "a", "<unk>", "a", "a", "b", "c"])
    assert counts.vocabulary(2) == {"a": 3, "b": 1}
    assert counts.vocabulary(9) == {"a": 3, "b": 1, "c": 1}


def test_equally_frequent_words_are_in_alphabetical_order():
    for words in (["b", "a", "c", "c", "d"], ["d", "c", "c", "a", "b"]):
        counts = WordCounts()
        counts.add(words)
        assert list(counts.top(3).items()) == [("c", 2), ("a", 1), ("b", 1)]


@pytest.mark.parametrize("seed", range(2))
def test_counts_in_bounded_memory_have_bounded_errors(seed):
    counts, words = WordCounts(max_words=50), _words(5000, seed)
    for word in words:
        counts.add([word])
        assert len(counts) <= 50
    expected = Counter(words)
    assert len(expected) > 100
    result = counts.top(50)
    assert counts.max_undercount > 0
    for word, count in expected.items():
        assert count - counts.max_undercount <= result.get(word, 0) <= count
    # The most frequent words' counts far exceed the error, so their order is exact.
    assert list(counts.top(3)) == [word for word, _ in expected.most_common(3)]


def test_hash_equals_b2sum():
    # The splits of a source depend on this hash, which equals `b2sum -l 64`.
    assert source.hash64("0 client 7") == 7571577324757370577


def _named(names: DomainNames, domain: str) -> str:
    rows = rows_of([SourceExample(Record("c", domain, {}), "row 3")])
    return names.named(rows, ReadLog()).domain[0].as_py()


def test_domain_names_replace_values():
    assert _named(DomainNames([]), "x") == "x"
    names = DomainNames(["4:high school", "0"])
    assert (_named(names, "4"), _named(names, "0")) == ("high school", "0")
    with pytest.raises(UserError, match="row 3: expected one of 4, 0 as domain, found '1'"):
        _named(names, "1")
    with pytest.raises(UserError, match="row 3: expected a name as domain, found ''"):
        _named(DomainNames([]), "")


@pytest.mark.parametrize("texts", [["a:b", "a:c"], [":b"], ["a:"], [""]])
def test_invalid_domain_names_raise(texts):
    with pytest.raises(UserError, match="domain_names: expected different VALUE:NAME, found"):
        DomainNames(texts)


def test_domain_count_is_bounded():
    names = DomainNames([])
    for k in range(1000):
        _named(names, str(k))
    _named(names, "999")
    with pytest.raises(UserError, match="expected at most 1000 domains, found more, such as 0, 1"):
        _named(names, "1000")


@pytest.mark.parametrize(
    ("value", "number"), [(3.0, 3), ("3.0", 3), (True, 1), ("+2", 2), (" 1 ", 1)]
)
def test_integers_in_any_spelling_are_labels(value, number):
    assert Labels(ImportOptions()).parse_number(value) == number


@pytest.mark.parametrize("value", [None, " ", "a", 0.5, "nan", math.inf, [1], "1_0", "\u0661", -1])
def test_invalid_labels_raise(value):
    with pytest.raises(CellError, match="expected a "):
        Labels(ImportOptions()).parse_number(value)


@pytest.mark.parametrize("value", ["much", "nan", "-inf", "1e39"])
def test_invalid_real_labels_raise(value):
    with pytest.raises(CellError, match="expected a "):
        Labels(ImportOptions(label_kind="number")).parse_number(value)


def test_real_ids_are_named_like_integers():
    """pandas writes ids as real numbers if a column has missing ids."""
    names = MissingValues(ImportOptions())
    assert {names.name(value, "who") for value in (17, 17.0, "17.0")} == {"17"}


def test_missing_marks_do_not_apply_to_numeric_labels():
    assert Labels(ImportOptions(missing_marks=("0",))).parse_number(0) == 0


def test_class_names_precede_label_numbers():
    labels = Labels(ImportOptions(class_names=("1", "0")))
    assert [labels.parse_number(value) for value in (" 1", "0 ", 1, 0)] == [0, 1, 1, 0]
