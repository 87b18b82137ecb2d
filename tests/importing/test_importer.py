"""Complete imports: contents and permissions of stores, and failures without leftovers."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import golden
from tests.importing.harness import job, stored_splits
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.registry import Registry
from tff_agnostic.data.store import ArrowStore, load_store
from tff_agnostic.importing import importer
from tff_agnostic.importing import source as formats
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
def test_row_order_changes_no_split(tmp_path, split_by, stratify):
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


def test_vocabulary_uses_training_clients(tmp_path):
    rows = _rows(500)
    store = tmp_path / "s.sqlite"
    run = job("csv", _csv(tmp_path, rows), store, vocabulary_size=25, **_TEXT)
    report = run.run(ReadLog())
    training = {client for split, client in _clients(store) if split == "train"}
    words: Counter[str] = Counter()
    for row in rows:
        client, *_, text = row.split(",")
        if client in training:
            words.update(text.split())
    expected = sorted(words.items(), key=lambda item: (-item[1], item[0]))[:25]
    opened = ArrowStore(store)
    assert opened.description.kind == "text"
    assert list(opened.content.vocabulary) == expected
    assert report.vocabulary is not None
    assert report.vocabulary.size == 25
    assert report.vocabulary.different == len(words)
    assert report.vocabulary.rarest_count == expected[-1][1]
    share = sum(count for _, count in expected) / sum(words.values())
    assert report.vocabulary.coverage == pytest.approx(share)


def test_groups_are_in_one_split(tmp_path):
    folder = tmp_path / "texts"
    for k in range(40):
        path = folder / "es" / f"{k}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("a . " * 10)
    store = tmp_path / "s.sqlite"
    options = {"sentences_per_client": 3, "split_by": "group"}
    job("text_folders", folder, store, **options).run(ReadLog())
    splits = {(client.partition("#")[0], split) for split, client in _clients(store)}
    assert len(splits) == 40
    assert {split for _, split in splits} == {"train", "heldout", "test"}


def test_equal_imports_give_equal_stores(tmp_path):
    stores = [tmp_path / f"{k}.store" for k in range(2)]
    for store in stores:
        job("csv", _csv(tmp_path, _rows(50)), store, **_TEXT).run(ReadLog())
    for path in stores[0].iterdir():
        assert path.read_bytes() == (stores[1] / path.name).read_bytes()


def test_domains_and_classes_get_names(tmp_path):
    store = tmp_path / "s.sqlite"
    names = {"domain_names": ("x:north", "y:south", "z"), "class_names": ("a", "b", "c")}
    job("csv", _csv(tmp_path, _rows(50)), store, **_NUMBERS, **names).run(ReadLog())
    description = load_store(store).description
    assert description.domains == ("north", "south", "z")
    assert description.class_names == ("a", "b", "c")


@golden.values
def test_refused_import_leaves_nothing(tmp_path, case):
    rows, options = case
    path = _csv(tmp_path, rows)
    options = {**_NUMBERS, **options}
    skip = options.get("bad_records") == "skip"
    result = golden.refusal(
        lambda: job("csv", path, tmp_path / "a" / "b" / "s.sqlite", **options).run(ReadLog(skip))
    )
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]
    return result


def test_source_without_training_clients_is_refused(tmp_path):
    path = _csv(tmp_path, ["a,x,1,2,0,t"])
    options = {**_NUMBERS, "split": ("train:0.000001", "test:0.999999"), "stratify": False}
    message = "expected clients to train on, found none, and 1 example in other splits"
    with pytest.raises(UserError, match=message):
        job("csv", path, tmp_path / "s.sqlite", **options).run(ReadLog())
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]


def test_records_may_be_skipped_and_limited(tmp_path):
    path = _csv(tmp_path, ["a,x,1,2,0,t", "b,w,1,2,0,t", "c,w,1,2,0,t", "a,w,0,0,0,t"])
    options = {**_NUMBERS, "split": ("train:1",)}
    report = job("csv", path, tmp_path / "a", domain_names=("x",), **options).run(ReadLog(True))
    assert (report.skipped, report.clients_without_examples) == ({"unknown domain": 3}, 2)
    report = job("csv", path, tmp_path / "b", max_records=3, **options).run(ReadLog())
    assert (report.records, report.splits["train"].examples) == (3, 3)


def test_records_with_other_shapes_are_named(tmp_path):
    path = tmp_path / "data.json"
    path.write_text('{"user_data": {"u": {"x": [[1, 2], [3]], "y": [0, 1]}}}')
    assert golden.refusal(
        lambda: job("leaf", path, tmp_path / "s.sqlite", domain_name="d").run(ReadLog())
    ).startswith("data.json user u example 1: x: expected Feature(")
    assert not list(tmp_path.glob("*sqlite*"))


@pytest.mark.nightly
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
def test_interrupted_import_leaves_nothing(tmp_path, monkeypatch, error):
    def read(options, paths, log):
        yield from formats_csv(options, paths, log)
        raise error

    csv_format = importer.FORMATS["csv"]
    formats_csv = csv_format.read
    broken = formats.Format(read, csv_format.find_inputs)
    monkeypatch.setattr(importer, "FORMATS", Registry("format", {"csv": broken}))
    path = _csv(tmp_path, _rows(5000))
    with pytest.raises(error):
        job("csv", path, tmp_path / "s.sqlite", **_NUMBERS).run(ReadLog())
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]


def test_options_in_code_are_checked(tmp_path):
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
def test_report_in_full(tmp_path):
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
    # s = max over lambda of chi2(lambda || m/m) + 1; the maximum is at a corner of the simplex.
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


def test_report_replaces_no_input_or_store(tmp_path):
    source = tmp_path / "r.csv"
    source.write_text("who,where,a,y\nann,x,1,0\n")
    given = {"client_column": "who", "domain_column": "where", "feature_columns": ("a",)}
    for report in (tmp_path / "s.sqlite", source):
        options = {**given, "label_column": "y", "report": report}
        message = golden.refusal(job, "csv", source, tmp_path / "s.sqlite", **options)
        assert message.startswith("report: expected a separate file, found ")
    assert source.read_text().startswith("who") and not (tmp_path / "s.sqlite").exists()
