"""Users' files: spellings of names and numbers, byte order marks, and compressed files."""

import bz2
import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.imports import job, read, refused
from tff_agnostic.base.errors import UserError
from tff_agnostic.importing.frames import import_table
from tff_agnostic.importing.report import ImportReport
from tff_agnostic.importing.source import ReadLog

_COLUMNS: dict[str, Any] = {
    "client_column": "u",
    "domain_column": "d",
    "feature_columns": ("x",),
    "label_column": "y",
}


def _csv(folder: Path, *rows: str, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(["u,d,x,y", *rows]) + "\n", encoding="utf-8")
    return path


def _imported(path: Path, **options: Any) -> ImportReport:
    work = job("", path, path.parent / "s.store", **{**_COLUMNS, **options})
    return work.run(ReadLog(options.get("bad_records") == "skip"))


def _remarks(report: ImportReport) -> dict[str, str]:
    return {remark.kind: remark.text for remark in report.remarks}


def test_digits_of_other_scripts_raise(tmp_path):
    rows = [dict(zip("udxy", line.split(","))) for line in ("a,p,1,0", "b,p,\u0661,1")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    for path in (_csv(tmp_path, "a,p,1,0", "b,p,\u0661,1"), tmp_path / "rows.jsonl"):
        assert "expected numbers as features" in refused(path.suffix[1:], path, **_COLUMNS)


@pytest.mark.parametrize("mark", ["?", " NaN "])
def test_missing_marks_apply_to_all_columns(tmp_path, mark):
    rows = (f"{mark},p,1,0", f"a,{mark},1,0", f"a,p,{mark},0", f"a,p,1,{mark}", "a,p,2,1")
    path = _csv(tmp_path, *rows)
    marks = {"missing_marks": ("?",)} if mark == "?" else {}
    examples, log = read("csv", path, skip_bad=True, **_COLUMNS, missing_values="zero", **marks)
    assert log.skipped == {"empty u": 1, "empty d": 1, "missing label": 1}
    assert log.missing == {"x": 1}
    assert [example.place for example in examples] == ["rows.csv:4", "rows.csv:6"]
    message = refused("csv", path, **_COLUMNS, **marks)
    assert message.startswith("rows.csv:2: expected a name or number in u, found ")
    if not marks:
        assert "set missing_values" in refused("csv", _csv(tmp_path, rows[2]), **_COLUMNS)


@pytest.mark.parametrize(
    ("one", "other"),
    [("a", "\u00a0a"), ("a", "a\u200b"), ("caf\u00e9", "cafe\u0301"), ("17", "17.0")],
)
def test_spellings_of_a_name_are_one_client(tmp_path, one, other):
    path = _csv(tmp_path, f"{one},{one},1,0", f"{other},{other},2,1")
    report = _imported(path, split=("train:1",))
    assert report.splits["train"].clients == 1
    assert [*report.splits["train"].domains] == [one]
    assert f"such as {other!r} to {one!r}" in _remarks(report)["names"]


def test_integers_beyond_float32_are_reported(tmp_path):
    path = _csv(tmp_path, "a,p,1000000000000000001,0", "b,p,16777217,0", "c,p,16777216,0")
    assert "x (2)" in _remarks(_imported(path))["rounded"]


def test_columns_with_equal_names_are_numbered(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("u,d,x,x,y\na,p,1,9,0\nb,p,2,8,1\n")
    for columns, name, expected in (
        (("x:1", "x:2"), "x", [[1, 9], [2, 8]]),
        (("n:x:2;m:x:1",), "n", [[9], [8]]),
    ):
        examples, _ = read("csv", path, **{**_COLUMNS, "feature_columns": columns})
        vectors = [example.record.features[name] for example in examples]
        np.testing.assert_array_equal(vectors, expected)
    examples, _ = read(
        "csv", path, **{**_COLUMNS, "label_column": "x:2", "feature_columns": ("y",)}
    )
    assert [example.record.features["label"] for example in examples] == [9, 8]


def test_decimal_comma_is_read(tmp_path):
    path = _csv(tmp_path, 'a,p," -0,25",0', "a,p,3,0")
    examples, _ = read("csv", path, decimal="comma", **_COLUMNS)
    assert [example.record.features["x"].tolist() for example in examples] == [[-0.25], [3]]
    wrong = _csv(tmp_path, "a,p,1.5,0")
    assert "expected numbers as features" in refused("csv", wrong, decimal="comma", **_COLUMNS)


_PACK = {".tsv": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz", "a.csv.bz2", "a.csv.zip"])
def test_tab_separated_and_compressed_tables_are_read(tmp_path, name):
    content = "u,d,x,y\n" + "".join(f"{k},p,{k * 7919},0\n" for k in range(5000))
    content = content.replace(",", "\t") if "tsv" in name else content
    path = tmp_path / name
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inner.csv", content)
            archive.writestr("__MACOSX/._inner.csv", b"")
    else:
        path.write_bytes(_PACK[path.suffix](content.encode()))
    assert len(read("csv", path, **_COLUMNS)[0]) == 5000
    whole = path.read_bytes()
    damaged = (whole[: len(whole) // 2], b"nothing", whole[:500] + b"\0\0\0" + whole[503:])
    for content in damaged if path.suffix != ".tsv" else ():
        path.write_bytes(content)
        message = f"{path}: expected a whole {path.suffix} file, found a truncated or damaged one"
        assert refused("csv", path, **_COLUMNS).startswith(message)


def test_archive_with_two_files_raises(tmp_path):
    path = tmp_path / "two.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.csv", "")
        archive.writestr("b.csv", "")
    assert "expected an archive of one file, found a.csv, b.csv" in refused("csv", path, **_COLUMNS)


def test_invalid_bytes_are_replaced(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes(b"u,d,x,y\na,\x81p,1,0\n")
    (example,), _ = read("csv", path, encoding_errors="replace", **_COLUMNS)
    assert example.record.domain == "\ufffdp"


def test_each_row_may_be_a_client(tmp_path):
    path = _csv(tmp_path, *(f"a,p,{k},{k % 2}" for k in range(10)))
    report = _imported(path, client_column="row")
    assert sum(split.clients for split in report.splits.values()) == 10
    assert "Each row is a client" in _remarks(report)["rows_are_clients"]


def test_spreadsheet_or_unknown_file_name_raises(tmp_path):
    for name, expected in (
        ("rows.xlsx", "input: expected a text file such as CSV (save the sheet as CSV), found the"),
        ("rows.dat", "format: expected one of stackexchange, "),
    ):
        with pytest.raises(ValueError) as error:
            _imported(_csv(tmp_path, name=name))
        assert str(error.value).startswith(expected)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "npz"])
def test_missing_options_are_listed_with_the_columns(tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    row = {"u": "a", "d": "p", "x": 1, "y": 0}
    if ending == "csv":
        path.write_text("u, d ,x,x\na,p,1,0\n")
    elif ending == "jsonl":
        path.write_text(f"\n{json.dumps(row)}\n")
    else:
        np.savez(path, **{name: np.array([value]) for name, value in row.items()})
    columns = "u, d, x:1, x:2" if ending == "csv" else "u, d, x, y"
    with pytest.raises(UserError) as error:
        job("", path, tmp_path / "s.store")
    message = str(error.value)
    assert message.startswith("client_column: ") and f", of the columns {columns}" in message
    if ending != "npz":
        others = "domain_column or domain_name; feature_columns, categorical_columns or text_column"
        assert f"; other options that are needed: {others}; label_column " in message
    with pytest.raises(UserError, match=f"^domain_column: .* of the columns {columns}"):
        job("", path, tmp_path / "s.store", client_column="u", label_column="y")


def test_error_about_inapplicable_option_omits_columns(tmp_path):
    options = {"client_column": "u", "domain_column": "d", "text_column": "x", "feature_name": "f"}
    with pytest.raises(UserError, match=r"the only input of numbers or images, found none$"):
        job("csv", _csv(tmp_path, "a,p,one,0"), tmp_path / "s.store", **options)


@pytest.mark.parametrize(("feature", "label"), [("caf\u00e9", "y"), ("cafe\u0301", " y")])
def test_column_names_match_other_spellings(tmp_path, feature, label):
    path = tmp_path / "rows.csv"
    path.write_text("u,d,cafe\u0301, y\na,p,2,1\n")
    options = {**_COLUMNS, "feature_columns": (feature,), "label_column": label}
    (example,), _ = read("csv", path, **options)
    assert (*example.record.features["x"], example.record.features["label"]) == (2, 1)


def test_image_error_prints_a_working_call(tmp_path):
    files = [tmp_path / "photos" / ("no", "yes")[k % 2] / f"{k}.png" for k in range(4)]
    for path in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full([2, 3], 9, np.uint8)).save(path)
    with pytest.raises(
        UserError, match=r"found the image .*no/0.png: images are a column"
    ) as error:
        job("", tmp_path / "photos", tmp_path / "s.store")
    call = str(error.value).partition("frames.")[2].replace("images.store", f"{tmp_path}/s.store")
    report = eval(call, {"import_table": import_table, "files": files})
    assert report.records == 4 and report.classes["train"].keys() == {"no", "yes"}


def test_control_characters_in_dumps_become_spaces(tmp_path):
    path = tmp_path / "Posts.xml"
    body = "&lt;p&gt;One &#x0E;two&#14; three\x02.&lt;/p&gt;"
    # Titles of different lengths shift the control characters across ends of read blocks.
    rows = "".join(
        f'<row Id="{k}" PostTypeId="1" OwnerUserId="5" Body="{body}" Title="{"t" * k}"/>\n'
        for k in range(1, 400)
    )
    path.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n<posts>\n{rows}</posts>')
    examples, log = read("stackexchange", path)
    assert {example.record.features["tokens"] for example in examples} == {"one two three ."}
    assert log.controls == 3 * 399 and log.num_records == 399
