"""Imports of the real data sets match independent parsers and the documented counts."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.importing import independent
from tests.importing.independent import Example
from tests.support.imports import REAL, job, needs, source_examples, stored_counts
from tff_agnostic.data.store import ArrowStore
from tff_agnostic.importing.importer import FORMATS
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.tasks.adult import read_adult

_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "data_sets.md"
_PLAYS: dict[str, Any] = {
    "domain_name": "plays",
    "sentences": "lines",
    "tokenizer": "words",
    "sentences_per_client": 50,
    "sentences_per_group": 1000,
    "split_by": "group",
}


def _documented(name: str) -> list[str]:
    """Returns the cells of a data set's row in the table of data_sets.md."""
    (row,) = re.findall(rf"^\| {name} \|(.*)\|$", _PAGE.read_text(), re.MULTILINE)
    return [cell.strip() for cell in row.split("|")]


def _cells(
    records: int, examples: Iterable[Example], splits: bool = True, clients: bool = True
) -> list[str]:
    """Returns the table cells that `_documented` should return for these examples."""
    examples = list(examples)
    words = sum(example.words for example in examples)
    domains = Counter(example.domain for example in examples)
    by_split = Counter(example.split for example in examples)
    return [
        f"{records:,}",
        f"{len(examples):,}",
        f"{words:,}" if words else "",
        f"{len({example.client for example in examples}):,}" if clients else "",
        ", ".join(f"{name} {count:,}" for name, count in sorted(domains.items()))
        if len(domains) < 4
        else f"{len(domains)}, {min(domains.values()):,} each",
        " / ".join(f"{by_split[name]:,}" for name in ("train", "heldout", "test"))
        if splits
        else "",
    ]


def _read(format_: str, path: Path, log: ReadLog, **options: Any) -> Iterator[Example]:
    reading = FORMATS[format_].read(ImportOptions(format=format_, **options), [path], log)
    for example in (example for rows in reading for example in source_examples(rows)):
        record = example.record
        tokens = str(record.features.get("tokens", ""))
        yield Example(
            record.client,
            record.domain,
            record.split or "",
            len(tokens.split()),
            str(record.features.get("label", "")),
        )


@pytest.mark.nightly
@needs("stackexchange")
def test_stackexchange_matches_independent_parser(tmp_path):
    folder = REAL / "stackexchange"
    posts, expected = independent.stackexchange(folder)
    log = ReadLog()
    report = job("stackexchange", folder, tmp_path / "s.sqlite").run(log)
    splits = independent.split_by_rank(expected, "client")
    expected = [e._replace(split=splits[e.client]) for e in expected]
    assert log.num_records == sum(posts.values())
    assert sum(log.skipped.values()) == posts["skipped"]
    assert log.skipped == {"neither question nor answer": 385, "post without owner": 19}
    assert stored_counts(tmp_path / "s.sqlite") == Counter(e[:3] for e in expected)
    lengths = ArrowStore(tmp_path / "s.sqlite").content.sentence_lengths
    assert {tuple(key): n for *key, n in lengths} == Counter(
        (e.split, e.domain, e.words) for e in expected
    )
    assert _documented("stackexchange") == _cells(sum(posts.values()), expected)
    assert [remark.kind for remark in report.remarks] == ["words_cut"]


@pytest.mark.nightly
@needs("tinyshakespeare")
def test_tinyshakespeare_matches_independent_parser(tmp_path):
    folder = REAL / "tinyshakespeare"
    expected = independent.play_lines(folder / "input.txt", 50)
    groups = {f"input#{k:04d}": f"input#{k // 20:04d}" for k in range(1000)}
    splits = independent.split_by_rank(expected, "group", groups)
    expected = [e._replace(split=splits[e.client]) for e in expected]
    log = ReadLog()
    job("text_folders", folder, tmp_path / "s.sqlite", **_PLAYS).run(log)
    assert not log.skipped
    assert stored_counts(tmp_path / "s.sqlite") == Counter(e[:3] for e in expected)
    assert _documented("tinyshakespeare") == _cells(log.num_records, expected)


@pytest.mark.nightly
@needs("activ_es")
def test_activ_es_matches_independent_parser():
    sentences, expected = independent.tokenised_texts(REAL / "activ_es")
    log = ReadLog()
    result = Counter(_read("text_folders", REAL / "activ_es", log))
    assert result == Counter(expected)
    assert log.num_records == sum(sentences.values())
    assert log.skipped == {"sentence without words": sentences["skipped"]}
    assert _documented("activ_es") == _cells(sum(sentences.values()), expected, splits=False)


@pytest.mark.nightly
@needs("mnist_by_writer")
def test_mnist_by_writer_matches_independent_parser():
    path = REAL / "mnist_by_writer" / "mnist_by_writer.npz"
    log = ReadLog()
    options = {"client_column": "writer", "domain_column": "hsf"}
    result = list(_read("npz", path, log, **options))
    expected = independent.mnist_by_writer(path)
    assert result == expected
    assert _documented("mnist_by_writer") == _cells(log.num_records, expected)


@pytest.mark.slow
@needs("fashion_mnist")
def test_fashion_mnist_matches_independent_parser():
    log = ReadLog()
    result = list(_read("idx", REAL / "fashion_mnist", log))
    expected = Counter(
        (str(label), split)
        for name, split in (("train", "train"), ("t10k", "test"))
        for label in independent.idx_labels(REAL / "fashion_mnist" / f"{name}-labels-idx1-ubyte.gz")
    )
    assert Counter((e.label, e.split) for e in result) == expected
    assert all(e.domain == e.label for e in result)
    assert _documented("fashion_mnist") == _cells(log.num_records, result)


@pytest.mark.nightly
@needs("adult")
def test_adult_matches_independent_parser():
    names = (("adult.data", "train"), ("adult.test", "test"))
    expected = []
    for name, split in names:
        rows = independent.adult(REAL / "adult" / name)
        _, labels, domains = read_adult(REAL / "adult" / name)
        assert [row.label == ">50K" for row in rows] == (labels == 1).tolist()
        assert [row.domain == "doctorate" for row in rows] == (domains == 0).tolist()
        expected += [row._replace(split=split) for row in rows]
    assert _documented("adult") == _cells(len(expected), expected, clients=False)
