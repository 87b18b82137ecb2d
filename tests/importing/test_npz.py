"""NumPy files: columns, splits of their own, images, and what is refused."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import golden
from tests.importing.harness import REAL, needs, read, refused
from tff_agnostic.errors import UserError
from tff_agnostic.importing import npz
from tff_agnostic.importing.formats import FORMATS
from tff_agnostic.importing.npz import NpzColumns
from tff_agnostic.importing.options import ImportOptions
from tff_agnostic.importing.source import ReadLog

_COLUMNS = {"client_column": "who", "domain_column": "where"}


def _arrays(count: int = 5, suffix: str = "", **other: Any) -> dict[str, np.ndarray]:
    arrays = {
        "x": np.arange(2 * count, dtype=np.float64).reshape(count, 2),
        "y": np.arange(count, dtype=np.uint8) % 3,
        "who": np.arange(count, dtype=np.uint16) // 2,
        "where": np.array(["a", "b"])[np.arange(count) % 2],
        **other,
    }
    return {name + suffix: array for name, array in arrays.items()}


def _file(folder: Path, **arrays: np.ndarray) -> Path:
    path = folder / "data.npz"
    np.savez_compressed(path, **arrays)
    return path


def test_rows_become_examples(tmp_path):
    examples, log = read("npz", _file(tmp_path, **_arrays()), **_COLUMNS)
    assert log.num_records == len(examples) == 5
    third = examples[2]
    assert (third.record.client, third.record.domain, third.record.split) == ("1", "a", None)
    assert third.place == "data.npz row 2"
    assert third.record.features["label"] == 2
    np.testing.assert_array_equal(third.record.features["x"], np.array([4, 5], np.float32))
    assert third.record.features["x"].dtype == np.float32


def test_a_file_that_says_what_is_for_testing(tmp_path):
    path = _file(tmp_path, **_arrays(3, "_train"), **_arrays(2, "_test"), note=np.zeros(1))
    examples, _ = read("npz", path, **_COLUMNS)
    assert [e.record.split for e in examples] == ["train"] * 3 + ["test"] * 2
    assert examples[3].place == "data.npz_test row 0"


def test_bytes_of_images_become_pixels_with_ink_as_one(tmp_path):
    images = np.zeros([5, 4, 3], np.uint8)
    images[1, 2, 1], images[1, 3, 2] = 255, 51
    (_, second, *_), _ = read("npz", _file(tmp_path, **_arrays(x=images)), **_COLUMNS)
    pixels = second.record.features["pixels"]
    assert (pixels.dtype, pixels.shape) == (np.float32, (4, 3))
    assert pixels[2, 1] == 1
    assert pixels[3, 2] == np.float32(0.2)
    assert pixels.sum() == pytest.approx(1.2)


def test_blocks_make_no_difference(tmp_path, monkeypatch):
    path = _file(tmp_path, **_arrays(23))
    whole = [(e.place, e.record.client) for e in read("npz", path, **_COLUMNS)[0]]
    monkeypatch.setattr(npz, "_BLOCK_ROWS", 4)
    assert [(e.place, e.record.client) for e in read("npz", path, **_COLUMNS)[0]] == whole


def test_names_of_one_domain_and_of_features(tmp_path):
    options = {"client_column": "who", "domain_name": "all", "feature_name": "f"}
    examples, _ = read("npz", _file(tmp_path, **_arrays()), **options)
    assert {e.record.domain for e in examples} == {"all"}
    assert set(examples[0].record.features) == {"f", "label"}


@golden.values
def test_rows_that_cannot_be(tmp_path, case):
    return refused("npz", _file(tmp_path, **_arrays(**case)), **_COLUMNS)


def test_class_names_bound_the_labels(tmp_path):
    path = _file(tmp_path, **_arrays())
    message = refused("npz", path, class_names=("no", "yes"), **_COLUMNS)
    assert message == "data.npz row 2: expected a label from 0 to 1, found 2"


def test_labels_that_are_numbers(tmp_path):
    path = _file(tmp_path, **_arrays(y=np.float32([0.5, -1, 2, 0, 1e3])))
    examples, _ = read("npz", path, label_kind="number", **_COLUMNS)
    assert [e.record.features["label"] for e in examples] == [0.5, -1, 2, 0, 1e3]


def test_bad_rows_may_be_skipped(tmp_path):
    path = _file(tmp_path, **_arrays(y=np.array([0, -1, 0, -1, 1])))
    examples, log = read("npz", path, skip_bad=True, **_COLUMNS)
    assert len(examples) == 3
    assert log.skipped == {"label out of range": 2}


def test_a_missing_array_is_named(tmp_path):
    path = _file(tmp_path, **_arrays())
    assert refused("npz", path, client_column="user", domain_column="where") == (
        f"{path}: expected an array user (or with _train and _test), found x, y, who, where"
    )
    path = _file(tmp_path, **{**_arrays(3, "_train"), "x_test": np.zeros([1, 2])})
    assert f"{path}: expected an array y_test" in refused("npz", path, **_COLUMNS)


def test_damaged_files(tmp_path):
    path = _file(tmp_path, **_arrays(1000))
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"no zip at all", whole[:60] + b"\0\1" + whole[62:]):
        path.write_bytes(content)
        message = refused("npz", path, **_COLUMNS)
        assert message.startswith(f"{path}: expected an .npz file of plain arrays, found a damaged")


@golden.values
def test_options_that_are_missing_or_too_many(tmp_path, case):
    return refused("npz", tmp_path, **case)


def test_columns_may_be_read_in_any_order(tmp_path):
    path = _file(tmp_path, **_arrays(7))
    with NpzColumns(path, ImportOptions()) as columns:
        (_, first), *_ = columns.blocks(["who", "x"], 3)
        with pytest.raises(UserError, match="There is no item named"):
            list(columns.blocks(["nothing"], 3))
    assert first["who"].tolist() == [0, 0, 1]
    assert first["x"][2].tolist() == [4, 5]


@pytest.mark.parametrize("other", [{"y": np.zeros(4, int)}, {"x": np.array([{}] * 5)}])
def test_a_file_that_is_refused_is_closed(tmp_path, other):
    """While the error lives: its traceback keeps what was open when it was raised."""
    path = _file(tmp_path, **_arrays(**other))
    with pytest.raises(UserError) as error, NpzColumns(path, ImportOptions()) as columns:
        next(columns.blocks(["y", "x"], 3))
    assert not any(os.path.realpath(f) == str(path) for f in Path("/proc/self/fd").iterdir()), error


@needs("mnist_by_writer")
def test_the_real_writers():
    path = REAL / "mnist_by_writer" / "mnist_by_writer.npz"
    chosen = ImportOptions(format="npz", client_column="writer", domain_column="hsf")
    counts: Counter[tuple[str, str]] = Counter()
    writers: dict[tuple[str, str], set[str]] = {}
    for example in FORMATS["npz"].read(chosen, [path], ReadLog()):
        key = (str(example.record.split), example.record.domain)
        counts[key] += 1
        writers.setdefault(key, set()).add(example.record.client)
    assert sum(counts.values()) == 70_000
    assert {key: len(clients) for key, clients in writers.items()} == {
        ("train", "0"): 289,
        ("train", "4"): 250,
        ("test", "0"): 48,
        ("test", "4"): 249,
    }
