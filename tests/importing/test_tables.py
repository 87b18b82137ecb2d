"""CSV, JSON Lines and Parquet: equal rows give equal examples; invalid files raise."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support import golden
from tests.support.imports import read, refused, write_csv
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.text import Normalizer

_ROWS = [
    {"who": "ann", "where": "x", "a": 1.0, "b": -2.5, "y": 0, "text": "Hi, Bob!", "film": "f"},
    {"who": "bob", "where": "y", "a": 3.0, "b": 1e-3, "y": 2, "text": "It's 'me'.", "film": "f"},
    {"who": "ann", "where": "y", "a": 0.0, "b": 4.0, "y": 1, "text": "So... now", "film": "g"},
]
_NUMBERS: dict[str, Any] = {
    "client_column": "who",
    "domain_column": "where",
    "feature_columns": ("a", "b"),
    "label_column": "y",
}
_TEXT: dict[str, Any] = {"client_column": "who", "domain_column": "where", "text_column": "text"}
_FORMATS = ("csv", "jsonl", "parquet")
# The second row's place in error messages.
_SECOND = {"csv": "rows.csv:3", "jsonl": "rows.jsonl:2", "parquet": "rows.parquet row 2"}


def _write(format_: str, folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"rows.{format_}"
    if format_ == "csv":
        write_csv(path, rows)
    elif format_ == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    return path


@pytest.mark.parametrize("format_", _FORMATS)
def test_rows_become_examples(tmp_path, format_):
    path = _write(format_, tmp_path, _ROWS)
    examples, log = read(format_, path, **_NUMBERS)
    clients = [(e.record.client, e.record.domain, e.record.features["label"]) for e in examples]
    assert clients == [("ann", "x", 0), ("bob", "y", 2), ("ann", "y", 1)]
    vectors = np.array([e.record.features["x"] for e in examples])
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, np.array([[1, -2.5], [3, 1e-3], [0, 4]], np.float32))
    assert (log.num_records, log.skipped) == (3, {})
    assert len({e.place for e in examples}) == 3


@pytest.mark.parametrize("format_", _FORMATS)
def test_texts_are_tokenised_with_groups_and_labels(tmp_path, format_):
    path = _write(format_, tmp_path, [*_ROWS, {**_ROWS[0], "text": "..."}])
    options = {"split_by": "group", "group_column": "film", "label_column": "y", **_TEXT}
    examples, log = read(format_, path, **options)
    assert [(e.record.features["tokens"], e.record.features["label"]) for e in examples] == [
        ("Hi , Bob !", 0),
        ("It's ' me ' .", 2),
        ("So ... now", 1),
    ]
    assert [e.group for e in examples] == ["f", "f", "g"]
    assert log.skipped == {"text without words": 1}
    examples, _ = read(format_, path, case="upper", punctuation="drop", **options)
    assert examples[1].record.features["tokens"] == "IT'S ME"


@pytest.mark.parametrize("format_", _FORMATS)
def test_class_names_become_label_numbers(tmp_path, format_):
    rows = [{**row, "y": ["no", "yes"][row["y"] % 2]} for row in _ROWS]
    path = _write(format_, tmp_path, rows)
    examples, _ = read(format_, path, class_names=("no", "yes"), **_NUMBERS)
    assert [e.record.features["label"] for e in examples] == [0, 0, 1]
    assert "found 'no' (class_names=NAME,... makes" in refused(format_, path, **_NUMBERS)
    message = refused(format_, path, class_names=("yes", "maybe"), **_NUMBERS)
    assert "expected one of yes, maybe as label, found 'no'" in message


@pytest.mark.parametrize("format_", _FORMATS)
def test_labels_may_be_real_numbers(tmp_path, format_):
    labels = [0.5, -2, 1e3]
    path = _write(format_, tmp_path, [{**row, "y": y} for row, y in zip(_ROWS, labels)])
    examples, _ = read(format_, path, label_kind="number", **_NUMBERS)
    read_labels = [e.record.features["label"] for e in examples]
    assert read_labels == labels and {*map(type, read_labels)} == {float}
    message = refused(format_, path, **_NUMBERS)
    assert message.endswith("(label_kind=number is for labels that are real numbers)")


@pytest.mark.parametrize("format_", _FORMATS)
@golden.values
def test_invalid_row_raises_or_is_skipped(tmp_path, format_, case):
    path = _write(format_, tmp_path, [_ROWS[0], {**_ROWS[1], **case}, _ROWS[2]])
    place, message = refused(format_, path, **_NUMBERS).split(": ", 1)
    assert place == _SECOND[format_]
    examples, log = read(format_, path, skip_bad=True, **_NUMBERS)
    assert len(examples) == 2 and sum(log.skipped.values()) == 1
    return message


@pytest.mark.parametrize("format_", _FORMATS)
def test_rows_beyond_max_records_are_not_checked(tmp_path, format_):
    path = _write(format_, tmp_path, [*_ROWS, {**_ROWS[0], "y": -1}])
    if format_ == "csv":
        path.write_text(f'{path.read_text()}too,few\n"open\n')
    examples, log = read(format_, path, **_NUMBERS, max_records=3)
    assert len(examples) == log.num_records == 3


@pytest.mark.parametrize("format_", _FORMATS)
def test_files_in_a_folder_are_read_once(tmp_path, format_):
    path = _write(format_, tmp_path, _ROWS)
    (tmp_path / "more").mkdir()
    other = _write(format_, tmp_path / "more", _ROWS[:1])
    examples, _ = read(format_, tmp_path, **_NUMBERS)
    # Places are relative to the input folder, so they stay valid if it is moved.
    assert len({example.place for example in examples}) == 4
    assert examples[0].place.startswith(f"more/rows.{format_}")
    assert refused(format_, [tmp_path, tmp_path / "more"], **_NUMBERS) == (
        f"input: expected each file once, found {other} in several inputs"
    )
    path.write_bytes(b"")
    assert refused(format_, path, **_NUMBERS) == f"{path}: expected data, found an empty file"


@golden.values
def test_wrong_table_options_raise(tmp_path, case):
    path = _write("csv", tmp_path, _ROWS)
    return refused("csv", path, **{**_NUMBERS, **case})


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_feature_shape_reshapes_number_lists(tmp_path, format_):
    rows = [{"who": 1, "where": "a", "y": 0, "v": [1, 2, 3], "w": [4]}]
    options = {**_NUMBERS, "feature_columns": ("v", "w")}
    path = _write(format_, tmp_path, rows)
    (example,), _ = read(format_, path, feature_shape=(2, 2), feature_name="m", **options)
    assert example.record.client == "1"
    assert example.record.features["m"].tolist() == [[1, 2], [3, 4]]
    message = refused(format_, path, feature_shape=(3,), **options)
    assert "expected 3 features (feature_shape), found 4" in message


# --- CSV


def test_csv_reads_quotes_and_line_breaks(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(
        'who,where,text\r\n"a,b",x,"one\ntwo ""three"""\r\n\r\nc,y,four\r\n',
        "utf-8-sig",
        newline="",
    )
    examples, _ = read("csv", path, **_TEXT)
    assert [(e.record.client, e.record.features["tokens"], e.place) for e in examples] == [
        ("a,b", 'one two " three "', "rows.csv:3"),
        ("c", "four", "rows.csv:5"),
    ]


@golden.values
def test_invalid_csv_raises(tmp_path, case):
    path = tmp_path / "rows.csv"
    path.write_text(case)
    return refused("csv", path, **_TEXT)


# --- JSON Lines


@golden.values
def test_invalid_json_line_raises_or_is_skipped(tmp_path, case):
    path = tmp_path / "rows.jsonl"
    good = json.dumps(_ROWS[0])
    path.write_text(f"{good}\n{case}\n\n{good}\n")
    message = refused("jsonl", path, **_TEXT)
    examples, log = read("jsonl", path, skip_bad=True, **_TEXT)
    assert (len(examples), sum(log.skipped.values()), log.num_records) == (2, 1, 3)
    return message


def test_json_escapes_are_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"who": "a", "where": "x", "text": "ok \\ud83d\\ude00"}\n')
    assert read("jsonl", path, **_TEXT)[0][0].record.features == {"tokens": "ok \U0001f600"}


# --- Parquet


@pytest.mark.nightly
def test_damaged_parquet_raises(tmp_path):
    path = _write("parquet", tmp_path, _ROWS * 1000)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"hello", b"PAR1" + bytes(100) + whole[104:]):
        path.write_bytes(content)
        message = refused("parquet", path, **_TEXT)
        assert message.startswith(f"{path}: expected a Parquet file, found a damaged or another")


_HEADER = "who,where,a,b,y\n"


@pytest.mark.parametrize(
    ("encoding", "name"),
    [("cp1252", "José"), ("utf-16", "Zoë 李"), ("utf-8", "Zoë 李")],
)
def test_encodings_are_read(tmp_path, encoding, name):
    path = tmp_path / "rows.csv"
    # The low byte of Ċ is a line break: lines must not be split by bytes.
    odd = "Ċ" if encoding in ("utf-8", "utf-16") else "Z"
    path.write_bytes(f"{_HEADER}{name},{odd},1,2,0\r\nann,x,3,4,1\r\n".encode(encoding))
    examples, _ = read("csv", path, encoding=encoding, **_NUMBERS)
    assert [(e.record.client, e.record.domain) for e in examples] == [(name, odd), ("ann", "x")]


@pytest.mark.parametrize(("delimiter", "sign"), [("tab", "\t"), ("~", "~")])
def test_delimiters_separate_columns(tmp_path, delimiter, sign):
    path = tmp_path / "rows.csv"
    path.write_text(f"{_HEADER}ann,x,1.5,2,0\n".replace(",", sign))
    (example,), _ = read("csv", path, delimiter=delimiter, **_NUMBERS)
    assert example.record.features["x"].tolist() == [1.5, 2]


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (_HEADER.replace(",", ";"), {}, "(delimiter=semicolon separates them)"),
        (_HEADER, {"feature_columns": ("a", "bb")}, "(did you mean b?)"),
        (f"{_HEADER}ann,x,1,,0\n", {}, "found '' in b (set missing_values"),
        (f'{_HEADER}ann,x,"1,400",2,0\n', {}, "found '1,400' in a (write numbers without signs"),
        (
            f"{_HEADER}ann,x,1_000,2,0\n",
            {},
            "found '1_000' in a (write numbers without underscores",
        ),
        (f"{_HEADER}ann,x,45%,2,0\n", {}, "found '45%' in a (write no units)"),
        (f'{_HEADER}ann,x,"1,5",2,0\n', {}, "found '1,5' in a (decimal=comma reads"),
        (f"{_HEADER}ann,x,5A,2,0\n", {}, "found '5A' in a (categorical_columns is for names)"),
        ("PK\x03\x04", {}, "expected text, found an archive, as spreadsheets are (save the sheet"),
        ("SQLite format 3\0", {}, "found an SQLite database"),
        (f"{_HEADER}ann,x,1,2,NA\n", {}, "number as label, found 'NA' (bad_records=skip leaves"),
        (f"{_HEADER}a,x,1,2,0\nJosé,x,1,2,0\n", {}, "rows.csv:3: expected UTF-8, found byte 0xe9"),
        (f"{_HEADER}José,x,1,2,0\n", {}, "column 4 (encoding=cp1252 is for what Excel"),
        (f"{_HEADER}a,\x81,1,2,0\n", {}, "column 3 (encoding_errors=replace replaces it"),
        ("\xff\xfew\0", {}, "in column 1 (it begins as UTF-16 does: encoding=utf-16 reads it)"),
        ("\xff\xfe\0\0w", {}, "in column 1 (it begins as UTF-32 does: save it as UTF-8)"),
        (_HEADER, {"encoding": "utf-16"}, "expected text in utf-16 (encoding), found invalid"),
        (_HEADER, {"delimiter": ";;"}, "delimiter: expected one character, or tab, semicolon"),
    ],
)
def test_errors_in_tables_suggest_a_fix(tmp_path, content, options, expected):
    path = tmp_path / "rows.csv"
    path.write_bytes(content.encode("latin-1"))
    assert expected in refused("csv", path, **{**_NUMBERS, **options})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("हिन्दी भाषा, दो", "हिन्दी भाषा , दो"),
        ("العَرَبِيَّة لغة", "العَرَبِيَّة لغة"),
        ("cafe\u0301 la\u0300", "cafe\u0301 la\u0300"),
        # Persian: a zero-width non-joiner does not separate words.
        ("\u0645\u06cc\u200c\u062e\u0648", "\u0645\u06cc\u200c\u062e\u0648"),
    ],
)
def test_combining_marks_stay_within_tokens(text, words):
    for options, expected in (
        ({}, words),
        ({"punctuation": "drop"}, words.replace(" ,", "")),
        ({"tokenizer": "letters"}, words.replace(" ,", "").replace("\u200c", "")),
    ):
        normalizer = Normalizer(ImportOptions(**options), "words")
        assert normalizer.sentence(normalizer.tokenize(text)) == expected


@pytest.mark.parametrize("format_", ["jsonl", "csv"])
def test_missing_marks_match_numbers(tmp_path, format_):
    rows = [{**_ROWS[0], "a": -999}, {**_ROWS[1], "a": -999.0}, _ROWS[2]]
    path = _write(format_, tmp_path, rows)
    options = {"missing_values": "mark", "missing_marks": ("NA", "-999")}
    examples, _ = read(format_, path, **_NUMBERS, **options)
    # The store later replaces NaN by 0 and sets an indicator.
    assert [math.isnan(e.record.features["x"][0]) for e in examples] == [True, True, False]
