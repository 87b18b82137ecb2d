"""Model inputs from tables: categories, missing values, several inputs, and images."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from tests.support import golden
from tests.support.imports import job, read, refused, write_csv
from tff_agnostic.data.store import Store, load_store
from tff_agnostic.importing.source import ReadLog

_COLUMNS: dict[str, Any] = {
    "client_column": "who",
    "domain_name": "web",
    "label_column": "y",
}
_ROWS = [
    {"who": "a", "age": "3", "pay": "0.5", "job": " cook ", "town": "7", "y": "0", "for": "train"},
    {"who": "b", "age": "", "pay": "1", "job": "?", "town": "8", "y": "1", "for": "train"},
    {"who": "c", "age": "5", "pay": "2", "job": "baker", "town": "7", "y": "1", "for": "test"},
    {"who": "d", "age": "?", "pay": " ", "job": "cook", "town": "9", "y": "0", "for": "heldout"},
]
_MARKS = {"missing_marks": ("?",)}
# The value that a missing number has until the store replaces it.
_GAP = float("nan")


def _csv(folder: Path, rows: list[dict[str, str]] = _ROWS) -> Path:
    write_csv(folder / "rows.csv", rows)
    return folder / "rows.csv"


def _features(path: Path, **options: Any) -> list[dict[str, Any]]:
    examples, _ = read(path.suffix[1:], path, **{**_COLUMNS, **options})
    return [dict(example.record.features) for example in examples]


def test_feature_columns_may_name_several_inputs(tmp_path):
    rows = [row for row in _ROWS if row["who"] in "ac"]
    inputs = _features(_csv(tmp_path, rows), feature_columns=("body:age", "pay;place:town"))
    assert [list(features) for features in inputs] == [["body", "place", "label"]] * 2
    np.testing.assert_array_equal([f["body"] for f in inputs], [[3, 0.5], [5, 2]])
    np.testing.assert_array_equal([f["place"] for f in inputs], [[7], [7]])
    (one,) = _features(_csv(tmp_path, _ROWS[:1]), feature_columns=("body:age", "pay"))
    np.testing.assert_array_equal(one["body"], [3, 0.5])


@pytest.mark.parametrize(("rule", "job_"), [("zero", ""), ("mark", "<missing>")])
def test_missing_values_option_replaces_missing_cells(tmp_path, rule, job_):
    options = {"feature_columns": ("age", "pay"), "categorical_columns": ("job", "town"), **_MARKS}
    path = _csv(tmp_path)
    examples, log = read("csv", path, missing_values=rule, **_COLUMNS, **options)
    result = [example.record.features for example in examples]
    marked = np.float32([[3, 0.5, 0, 0], [_GAP, 1, 1, 0], [5, 2, 0, 0], [_GAP, _GAP, 1, 1]])
    np.testing.assert_array_equal(
        [f["x"] for f in result], marked if rule == "mark" else marked[:, :2]
    )
    assert [f["job"] for f in result] == ["cook", job_, "baker", "cook"]
    assert [f["town"] for f in result] == ["7", "8", "7", "9"]
    assert log.missing == {"age": 2, "pay": 1, "job": 1}


def test_missing_parquet_values_are_nulls_and_nan(tmp_path):
    path = tmp_path / "rows.parquet"
    rows = [
        {"who": "a", "age": 1.5, "town": 7.0, "y": 0},
        {"who": "a", "age": float("nan"), "town": None, "y": 0},
        {"who": "a", "age": None, "town": float("nan"), "y": 0},
    ]
    parquet.write_table(pa.Table.from_pylist(rows), path)
    options = {"feature_columns": ("age",), "categorical_columns": ("town",)}
    result = _features(path, missing_values="zero", **options)
    assert [f["town"] for f in result] == ["7", "", ""]
    np.testing.assert_array_equal([f["x"] for f in result], [[1.5], [_GAP], [_GAP]])


def _imported(folder: Path, rows: list[dict[str, str]], **options: Any) -> tuple[Any, Store]:
    options = {**_COLUMNS, "split_column": "for", **options}
    report = job("csv", _csv(folder, rows), folder / "s.sqlite", **options).run(ReadLog())
    return report, load_store(folder / "s.sqlite")


def test_categories_come_from_training_clients(tmp_path):
    report, store = _imported(
        tmp_path, _ROWS, categorical_columns=("job", "town"), missing_values="zero", **_MARKS
    )
    assert store.description.categories == {"job": ("cook",), "town": ("7", "8")}
    assert store.splits() == ("heldout", "test", "train")
    summary = report.to_json()["categories"]
    assert summary["job"] == {"size": 1, "different": 1, "coverage": 1.0, "unknown": {"test": 1}}
    assert summary["town"]["unknown"] == {"heldout": 1}
    assert report.missing == {"job": 1}
    assert "job: 1 known values; examples with another value: 1 of test.\n" in report.text()


def test_category_count_is_bounded(tmp_path):
    ids = (*range(50), 7, 7, 8, 8, 8)
    rows = [{"who": "a", "id": str(k), "y": "0", "for": "train"} for k in ids]
    report, store = _imported(tmp_path, rows, categorical_columns=("id",), max_categories=2)
    assert store.description.categories == {"id": ("7", "8")}
    assert (
        "id: 2 known values of 50 (max_categories), in 12.7% of the training examples; examples "
        "with another value: 48 of train.\n"
    ) in report.text()


def test_label_range_comes_from_training_clients(tmp_path):
    rows = [{**row, "y": y} for row, y in zip(_ROWS, ("-1.5", "2", "9", "-9"))]
    _, store = _imported(tmp_path, rows, feature_columns=("town",), label_kind="number")
    assert store.description.label_range == (-1.5, 2.0)


def test_text_column_with_numbers_raises(tmp_path):
    options = {"client_column": "who", "domain_name": "a", "text_column": "town"}
    for rows in (_ROWS[:1], _ROWS[:1] * 200 + [{**_ROWS[0], "town": "Rome"}]):
        message = refused("csv", _csv(tmp_path, rows), **options)
        assert message.startswith("text_column: ") and "feature_columns" in message


@golden.values
def test_invalid_inputs_raise(tmp_path, case):
    path = _csv(tmp_path)
    result = refused("csv", path, **{**_COLUMNS, **case})
    return result.replace(f"{tmp_path}/", "")


# --- Images


def _image(pixels: np.ndarray, format_: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format_)
    return content.getvalue()


def _parquet(folder: Path, photos: list[Any]) -> Path:
    rows = [{"who": "a", "age": 1.0, "y": 0, "photo": photo} for photo in photos]
    path = folder / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


_PIXELS = np.arange(24, dtype=np.uint8).reshape(4, 2, 3) * 10


@pytest.mark.parametrize(
    "as_cell",
    [
        _image,
        lambda pixels: {"bytes": _image(pixels), "path": "a.png"},
        lambda pixels: pixels.tolist(),
    ],
    ids=["file", "file in a structure", "pixels"],
)
def test_images_in_parquet_become_pixels(tmp_path, as_cell):
    path = _parquet(tmp_path, [as_cell(_PIXELS), as_cell(255 - _PIXELS)])
    result = _features(path, image_columns=("photo",))
    assert [list(features) for features in result] == [["pixels", "label"]] * 2
    for features, expected in zip(result, (_PIXELS, 255 - _PIXELS)):
        assert features["pixels"].dtype == np.float32
        np.testing.assert_array_equal(features["pixels"], expected.astype(np.float32) / 255)
    result = _features(path, image_columns=("photo",), feature_columns=("age",))
    assert [list(features) for features in result] == [["x", "photo", "label"]] * 2


@pytest.mark.parametrize("format_", ["JPEG", "GIF", "BMP"])
def test_images_of_other_formats_are_read(tmp_path, format_):
    path = _parquet(tmp_path, [_image(0 * _PIXELS, format_)])
    (features,) = _features(path, image_columns=("photo",))
    assert (features["pixels"].shape, features["pixels"].max()) == ((4, 2, 3), 0)


@golden.values
def test_invalid_images_raise(tmp_path, case):
    return refused("parquet", _parquet(tmp_path, [case]), image_columns=("photo",), **_COLUMNS)


def test_images_with_two_sizes_raise(tmp_path):
    path = _parquet(tmp_path, [_image(_PIXELS), _image(_PIXELS[:2])])
    log = ReadLog()
    with pytest.raises(ValueError, match=r"rows.parquet row 2: pixels: expected .*\(4, 2, 3\)"):
        job("parquet", path, tmp_path / "s.sqlite", image_columns=("photo",), **_COLUMNS).run(log)
    assert not (tmp_path / "s.sqlite").exists()
