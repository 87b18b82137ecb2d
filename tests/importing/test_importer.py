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
from tff_agnostic.importing.report import ImportReport, skewness
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
@pytest.mark.parametrize("split_by", ["client", "example"])
def test_row_order_does_not_change_splits(tmp_path, split_by, stratify):
    rows = _rows(120)
    clients = []
    options = {**_NUMBERS, "split_by": split_by, "stratify": stratify}
    for order in (rows, rows[::-1]):
        store = tmp_path / f"{len(clients)}.sqlite"
        job("csv", _csv(tmp_path, order), store, **options).run(ReadLog())
        clients.append(_clients(store))
    several = Counter(client for _, client in clients[0]).most_common(1)[0][1] > 1
    assert several == (split_by == "example")
    assert split_by == "example" or clients[0] == clients[1]


def test_vocabulary_has_most_frequent_training_words(tmp_path):
    rows = _rows(500)
    store = tmp_path / "s.sqlite"
    run = job("csv", _csv(tmp_path, rows), store, vocabulary_size=25, **_TEXT)
    report = run.run(ReadLog())
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
    assert report.vocabulary is not None
    assert report.vocabulary.size == 25
    assert report.vocabulary.different == len(words)
    assert report.vocabulary.rarest_count == expected[-1][1]
    share = sum(count for _, count in expected) / sum(words.values())
    assert report.vocabulary.coverage == pytest.approx(share)


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


def test_source_without_training_clients_raises(tmp_path):
    path = _csv(tmp_path, ["a,x,1,2,0,t"])
    options = {**_NUMBERS, "split": ("train:0.000001", "test:0.999999"), "stratify": False}
    message = "expected clients to train on, found none, and 1 example in other splits"
    with pytest.raises(UserError, match=message):
        job("csv", path, tmp_path / "s.sqlite", **options).run(ReadLog())
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]


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
    with pytest.raises(UserError, match=r"format: expected one of stackexchange, .*shows none"):
        job("", tmp_path, tmp_path / "s.store")
    with pytest.raises(UserError, match="unknown format 'cvs': did you mean csv"):
        job("cvs", tmp_path, tmp_path / "s.sqlite")


# --- The report


_ROWS = [
    *("a,x", "a,x", "a,y", "b,x", "b,y", "b,z", "c,z", "d,x"),
    *("d,", ",x", "e,"),
]


def _report(folder: Path, rows: list[str]) -> ImportReport:
    path = folder / "rows.csv"
    path.write_text("\n".join(["who,where,text", *(f"{row},one two one" for row in rows)]) + "\n")
    return job(
        "csv",
        path,
        folder / "s.sqlite",
        client_column="who",
        domain_column="where",
        text_column="text",
        split=("train:1",),
        min_domain_examples=4,
        vocabulary_size=1,
    ).run(ReadLog(skip_bad=True))


@golden.text
def test_report_matches_golden_text(tmp_path):
    report = _report(tmp_path, _ROWS)
    assert report.vocabulary is not None and report.vocabulary.coverage == 16 / 24
    return f"{report.text()}\n{json.dumps(report.to_json(), indent=1)}"


def test_single_domain_report_has_no_overlap(tmp_path):
    text = _report(tmp_path, ["a,x", "b,x"]).text()
    assert "more than one domain" not in text
    assert "\n\nThere is one domain, x: nothing to weigh against one another.\n" in text
    assert "Left out" not in text


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
    for _ in range(100):
        raw = [draw.expovariate(1) for _ in range(num_domains)]
        assert chi_squared([r / sum(raw) for r in raw]) + 1 <= result.value + 1e-9


def test_report_path_may_not_be_input_or_store(tmp_path):
    source = tmp_path / "r.csv"
    source.write_text("who,where,a,y\nann,x,1,0\n")
    given = {"client_column": "who", "domain_column": "where", "feature_columns": ("a",)}
    for report in (tmp_path / "s.sqlite", source):
        options = {**given, "label_column": "y", "report": report}
        message = golden.refusal(job, "csv", source, tmp_path / "s.sqlite", **options)
        assert message.startswith("report: expected a separate file, found ")
    assert source.read_text().startswith("who") and not (tmp_path / "s.sqlite").exists()
