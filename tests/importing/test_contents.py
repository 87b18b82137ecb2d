"""Warnings of imports about classes, copied examples and large clients."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.imports import job
from tff_agnostic.data.store import load_store
from tff_agnostic.importing.report import ImportReport
from tff_agnostic.importing.source import ReadLog

_OPTIONS: dict[str, Any] = {
    "client_column": "who",
    "domain_column": "where",
    "feature_columns": ("a",),
    "label_column": "y",
    "split_column": "split",
    "min_domain_examples": 1,
}


def _rows(**numbers: tuple[int, int]) -> list[str]:
    """Returns rows for domains; each value is (clients, distinct examples per client)."""
    return [
        f"{domain}{client},{domain},{client}.{example}1,{example % 2},train"
        for domain, (clients, examples) in numbers.items()
        for client in range(clients)
        for example in range(examples)
    ]


def _report(folder: Path, rows: list[str], **options: Any) -> ImportReport:
    path = folder / "rows.csv"
    path.write_text("\n".join(["who,where,a,y,split", *rows]) + "\n")
    return job("csv", path, folder / "s.sqlite", **{**_OPTIONS, **options}).run(ReadLog())


def _kinds(report: ImportReport) -> dict[str, str]:
    result = {remark.kind: remark.text for remark in report.remarks}
    return {kind: text for kind, text in result.items() if not kind.startswith("domains_without")}


def test_balanced_data_raise_no_warning(tmp_path):
    rows = _rows(x=(10, 20), y=(3, 4))
    report = _report(tmp_path, [*rows, rows[0]])
    assert report.classes == {"train": {"x": {"0": 101, "1": 100}, "y": {"0": 6, "1": 6}}}
    assert report.copies == {"train": {"examples": 213, "of_client": 1}}
    assert not _kinds(report)


def test_class_in_test_only_is_reported(tmp_path):
    rows = [
        *_rows(x=(3, 4)),
        *("en1,en,1,0,train", "en2,en,2,0,train", "en3,en,3,1,test", "en4,en,4,1,test"),
        *("x8,x,5,1,test", "new,z,6,1,test"),
    ]
    report = _report(tmp_path, rows, class_names=("floor", "chair"))
    text = _kinds(report)["classes_not_in_train"]
    # Domain z has no training example, which another warning reports.
    assert text.startswith("In 1 domain a class is in test and not in train: en (chair: 2). ")


def test_single_and_unused_classes_are_reported(tmp_path):
    """A list of all classes of this label would fill the memory."""
    rows = [f"x{k},x,{k},2000000000,train" for k in range(6)]
    kinds = _kinds(_report(tmp_path, rows))
    assert kinds["one_class"].startswith("All examples of train are of class 2000000000:")
    start = "2000000000 of 2000000001 classes have no example: 0, 1, 2, 3, 4 and 1999999995 more;"
    assert kinds["unused_classes"].startswith(start)


def test_copied_examples_are_counted(tmp_path):
    healthy = [*_rows(x=(5, 10)), *(f"t{k},x,9{k},0,test" for k in range(10))]
    copied = [*healthy, *healthy[:3], "t0,x,0.01,0,test", "x1,x,0.01,0,train"]
    report = _report(tmp_path, copied)
    kinds = _kinds(report)
    # An equal example of another client is not a copy of the client's example.
    assert report.copies is not None
    assert {name: split["of_client"] for name, split in report.copies.items()} == {
        "test": 0,
        "train": 3,
    }
    assert kinds["copies"].startswith("4.6% of the examples (3 of 65) are copies")
    expected = "9.1% of the examples of test (1 of 11) equal an example of train in all columns"
    assert kinds["copies_in_train"].startswith(expected)


def test_different_class_shares_are_reported(tmp_path):
    rows = [*_rows(x=(5, 10)), *(f"t{k},x,9{k},{int(k < 1)},test" for k in range(10))]
    assert "class_shares" not in _kinds(_report(tmp_path, rows)), "ten examples may differ"
    (tmp_path / "s.sqlite").rename(tmp_path / "few")
    rows += [f"t{k},x,9{k},{int(k < 12)},test" for k in range(10, 30)]
    text = _kinds(_report(tmp_path, rows))["class_shares"]
    assert text == "Classes have other shares of train than of test: 0 (50%, 90%), 1 (50%, 10%)."
    notes = load_store(tmp_path / "s.sqlite").content.notes
    assert notes["class_shares"] == {"train": {"0": 0.5, "1": 0.5}, "test": {"0": 0.9, "1": 0.1}}
    assert text in [remark["text"] for remark in notes["remarks"]]


@pytest.mark.parametrize(("largest", "is_reported"), [(9, False), (11, True)])
def test_large_clients_are_reported(tmp_path, largest, is_reported):
    # Ten clients have 4 examples each; n further examples exceed (40 + n) / 5 if n > 10.
    rows = [*_rows(x=(10, 4), y=(2, 4)), *(f"big,x,{k}.7,{k % 2},train" for k in range(largest))]
    result = _kinds(_report(tmp_path, rows)).get("large_clients", "")
    start = "In 1 of 2 domains one client has more than a fifth of the training examples: x"
    assert result.startswith(start) if is_reported else not result


def test_text_report_omits_classes_and_copies(tmp_path):
    options = {"text_column": "a", "feature_columns": (), "label_column": None}
    report = _report(tmp_path, [f"x{k},x,one two,0,train" for k in range(5)], **options)
    assert report.classes is report.copies is report.class_shares is None
