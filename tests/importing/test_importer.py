"""Complete imports: stores, reports, and failed imports that leave no files."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import golden
from tests.support.imports import job, stored_splits
from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store import ArrowStore, load_store
from tff_agnostic.importing import importer
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.report import skewness
from tff_agnostic.importing.source import ReadLog

_COLUMNS: dict[str, Any] = {"client_column": "who", "domain_column": "where"}
_NUMBERS = {**_COLUMNS, "feature_columns": ("a", "b"), "label_column": "y"}
_TEXT = {**_COLUMNS, "text_column": "text"}


def _rows(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    words = [f"w{i}" for i in range(40)]
    return [
        f"u{draw.randrange(60)},{draw.choice('xyz')},{i},{i / 2},{i % 3},"
        + " ".join(draw.choices(words, range(40, 0, -1), k=8))
        for i in range(count)
    ]


def _csv(folder: Path, rows: list[str]) -> Path:
    path = folder / "rows.csv"
    path.write_text("\n".join(["who,where,a,b,y,text", *rows]) + "\n")
    return path


def _clients(store: Path) -> set[tuple[str, str]]:
    return {(split, client) for client, splits in stored_splits(store).items() for split in splits}


def test_store_has_every_row_once(tmp_path):
    rows = _rows(300)
    store = tmp_path / "s.sqlite"
    report = job("csv", _csv(tmp_path, rows), store, **_NUMBERS).run(ReadLog())
    opened = load_store(store)
    assert opened.description.kind == "features"
    assert opened.description.domains == ("x", "y", "z")
    result = []
    for split, client in _clients(store):
        columns = opened.columns(split, client, opened.description.features)
        for x, domain, label in zip(columns["x"], columns["domain"], columns["label"]):
            result.append((client, domain.decode(), *x, label))
    fields = (row.split(",") for row in rows)
    expected = [(c, d, float(a), float(b), int(y)) for c, d, a, b, y, _ in fields]
    assert sorted(result) == sorted(expected)
    assert sum(split.examples for split in report.splits.values()) == 300


@pytest.mark.parametrize("stratify", [True, False])
def test_row_order_does_not_change_splits(tmp_path, stratify):
    rows, clients = _rows(120), []
    for order in (rows, rows[::-1]):
        store = tmp_path / f"{len(clients)}.sqlite"
        options = {**_NUMBERS, "stratify": stratify}
        job("csv", _csv(tmp_path, order), store, **options).run(ReadLog())
        clients.append(_clients(store))
    assert clients[0] == clients[1]


def test_vocabulary_has_most_frequent_training_words(tmp_path):
    rows = _rows(500)
    store = tmp_path / "s.sqlite"
    job("csv", _csv(tmp_path, rows), store, vocabulary_size=25, **_TEXT).run(ReadLog())
    training = {client for split, client in _clients(store) if split == "train"}
    words: Counter[str] = Counter()
    sentences: Counter[str] = Counter()
    for row in rows:
        client, domain, *_, text = row.split(",")
        if client in training:
            words.update(text.split())
            sentences[domain] += 1
    expected = sorted(words.items(), key=lambda item: (-item[1], item[0]))[:25]
    opened = ArrowStore(store)
    assert opened.description.kind == "text"
    content = opened.content
    assert list(content.vocabulary) == expected
    lengths = {domain: n for split, domain, _, n in content.sentence_lengths if split == "train"}
    assert lengths == sentences


def test_equal_imports_write_equal_bytes(tmp_path):
    stores = [tmp_path / f"{k}.store" for k in range(2)]
    for store in stores:
        job("csv", _csv(tmp_path, _rows(50)), store, **_TEXT).run(ReadLog())
    for path in stores[0].iterdir():
        assert path.read_bytes() == (stores[1] / path.name).read_bytes()


def test_domains_and_classes_are_renamed(tmp_path):
    store = tmp_path / "s.sqlite"
    names = {"domain_names": ("x:north", "y:south", "z"), "class_names": ("a", "b", "c")}
    job("csv", _csv(tmp_path, _rows(50)), store, **_NUMBERS, **names).run(ReadLog())
    description = load_store(store).description
    assert description.domains == ("north", "south", "z")
    assert description.class_names == ("a", "b", "c")


@golden.values
def test_failed_import_leaves_no_files(tmp_path, case):
    rows, options = case
    path = _csv(tmp_path, rows)
    options = {**_NUMBERS, **options}
    skip = options.get("bad_records") == "skip"
    result = golden.refusal(
        lambda: job("csv", path, tmp_path / "a" / "b" / "s.sqlite", **options).run(ReadLog(skip))
    )
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]
    return result


def test_import_skips_and_limits_records(tmp_path):
    path = _csv(tmp_path, ["a,x,1,2,0,t", "b,w,1,2,0,t", "c,w,1,2,0,t", "a,w,0,0,0,t"])
    options = {**_NUMBERS, "split": ("train:1",)}
    report = job("csv", path, tmp_path / "a", domain_names=("x",), **options).run(ReadLog(True))
    assert (report.skipped, report.clients_without_examples) == ({"unknown domain": 3}, 2)
    report = job("csv", path, tmp_path / "b", max_records=3, **options).run(ReadLog())
    assert (report.records, report.splits["train"].examples) == (3, 3)


def test_checked_import_rejects_invalid_options(tmp_path):
    with pytest.raises(UserError, match="input: expected files or folders, found none"):
        importer.checked_import(ImportOptions(), [])
    with pytest.raises(UserError, match="unknown format 'cvs': did you mean csv"):
        job("cvs", tmp_path, tmp_path / "s.sqlite")


# --- The report


@golden.text
def test_report_matches_golden_text(tmp_path):
    names = ("a,x", "a,x", "a,y", "b,x", "b,y", "b,z", "c,z", "d,x", "d,", ",x", "e,")
    path = _csv(tmp_path, [f"{name},,,,one two one" for name in names])
    options = {"split": ("train:1",), "min_domain_examples": 4, "vocabulary_size": 1, **_TEXT}
    report = job("csv", path, tmp_path / "s.sqlite", **options).run(ReadLog(skip_bad=True))
    content = json.loads(json.dumps(report.to_json()))
    assert (content["format"], content["records"]) == ("csv", 11)
    assert content["splits"]["train"]["domains"]["x"] == {"clients": 3, "examples": 4}
    assert content["vocabulary"]["coverage"] == 16 / 24
    assert content["remarks"][0]["domains"] == {"y": 2, "z": 2}
    return report.text()


@pytest.mark.parametrize("num_domains", [1, 2, 7])
def test_skewness_equals_equation_4(num_domains):
    # s = max over lambda of chi2(lambda || n/N) + 1; the maximum is at a corner of the simplex.
    draw = random.Random(num_domains)
    examples = {f"d{k}": draw.randint(1, 50) for k in range(num_domains)}
    total = sum(examples.values())
    shares = [n / total for n in examples.values()]

    def chi_squared(weights: list[float]) -> float:
        return sum((w - q) ** 2 / q for w, q in zip(weights, shares))

    corners = [[float(i == k) for i in range(num_domains)] for k in range(num_domains)]
    best = max(chi_squared(corner) for corner in corners) + 1
    result = skewness(examples)
    assert result.value == pytest.approx(best)
    assert examples[result.rarest] == result.num_examples == min(examples.values())
    assert ("nothing to weigh" in result.meaning()) == (num_domains == 1)
    for _ in range(100):
        raw = [draw.expovariate(1) for _ in range(num_domains)]
        assert chi_squared([r / sum(raw) for r in raw]) + 1 <= result.value + 1e-9


def test_report_path_may_not_be_input_or_store(tmp_path):
    source, store = _csv(tmp_path, ["ann,x,1,0,0,t"]), tmp_path / "s.sqlite"
    for report in (store, source):
        message = golden.refusal(job, "csv", source, store, report=report, **_NUMBERS)
        assert message.startswith("report: expected a separate file, found ")
