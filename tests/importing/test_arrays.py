"""Imports of NumPy, IDX and LEAF files: columns, splits, images, and invalid files."""

import gzip
import io
import json
import os
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import golden
from tests.support.comparing import assert_identical
from tests.support.imports import read, refused
from tff_agnostic.base.errors import UserError
from tff_agnostic.importing import npz

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


def test_npz_rows_become_examples(tmp_path):
    examples, log = read("npz", _file(tmp_path, **_arrays()), **_COLUMNS)
    assert log.num_records == len(examples) == 5
    third = examples[2]
    assert (third.record.client, third.record.domain, third.record.split) == ("1", "a", None)
    assert third.place == "data.npz row 2"
    assert third.record.features["label"] == 2
    np.testing.assert_array_equal(third.record.features["x"], np.array([4, 5], np.float32))
    assert third.record.features["x"].dtype == np.float32


def test_npz_array_suffixes_determine_splits(tmp_path):
    path = _file(tmp_path, **_arrays(3, "_train"), **_arrays(2, "_test"), note=np.zeros(1))
    examples, _ = read("npz", path, **_COLUMNS)
    assert [e.record.split for e in examples] == ["train"] * 3 + ["test"] * 2
    assert examples[3].place == "data.npz_test row 0"


def test_npz_images_become_pixels(tmp_path):
    images = np.zeros([5, 4, 3], np.uint8)
    images[1, 2, 1], images[1, 3, 2] = 255, 51
    (_, second, *_), _ = read("npz", _file(tmp_path, **_arrays(x=images)), **_COLUMNS)
    pixels = second.record.features["pixels"]
    assert (pixels.dtype, pixels.shape) == (np.float32, (4, 3))
    assert pixels[2, 1] == 1
    assert pixels[3, 2] == np.float32(0.2)
    assert pixels.sum() == pytest.approx(1.2)


def test_npz_block_size_does_not_change_examples(tmp_path, monkeypatch):
    path = _file(tmp_path, **_arrays(23))
    whole = [(e.place, e.record.client) for e in read("npz", path, **_COLUMNS)[0]]
    monkeypatch.setattr(npz, "BLOCK_ROWS", 4)
    assert [(e.place, e.record.client) for e in read("npz", path, **_COLUMNS)[0]] == whole


def test_npz_options_select_domain_features_and_classes(tmp_path):
    path = _file(tmp_path, **_arrays())
    options = {"client_column": "who", "domain_name": "all", "feature_name": "f"}
    examples, _ = read("npz", path, **options)
    assert {e.record.domain for e in examples} == {"all"}
    assert set(examples[0].record.features) == {"f", "label"}
    message = refused("npz", path, class_names=("no", "yes"), **_COLUMNS)
    assert message == "data.npz row 2: expected a label from 0 to 1, found 2"
    path = _file(tmp_path, **_arrays(y=np.float32([0.5, -1, 2, 0, 1e3])))
    examples, _ = read("npz", path, label_kind="number", **_COLUMNS)
    assert [e.record.features["label"] for e in examples] == [0.5, -1, 2, 0, 1e3]


@golden.values
def test_invalid_npz_rows_raise(tmp_path, case):
    return refused("npz", _file(tmp_path, **_arrays(**case)), **_COLUMNS)


def test_npz_skips_and_counts_invalid_rows(tmp_path):
    path = _file(tmp_path, **_arrays(y=np.array([0, -1, 0, -1, 1])))
    examples, log = read("npz", path, skip_bad=True, **_COLUMNS)
    assert (len(examples), log.skipped) == (3, {"label out of range": 2})


def test_missing_npz_array_is_reported(tmp_path):
    path = _file(tmp_path, **_arrays())
    message = refused("npz", path, client_column="user", domain_column="where")
    assert message == "data.npz: expected one column 'user', found x, y, who, where"
    assert "expected an array z " in refused("npz", path, feature_columns=("z",), **_COLUMNS)
    path = _file(tmp_path, **{**_arrays(3, "_train"), "x_test": np.zeros([1, 2])})
    assert refused("npz", path, **_COLUMNS).startswith("data.npz_test: expected one column ")


@pytest.mark.parametrize("kind", ["half", "text", "changed", "objects"])
def test_damaged_npz_raises_and_closes_file(tmp_path, kind):
    """The error's traceback keeps frames alive that opened the file."""
    path = _file(
        tmp_path, **_arrays(5, x=np.array([{}] * 5)) if kind == "objects" else _arrays(1000)
    )
    whole = path.read_bytes()
    changed = whole[:60] + b"\0\1" + whole[62:]
    contents = {"half": whole[: len(whole) // 2], "text": b"no zip", "changed": changed}
    path.write_bytes(contents.get(kind, whole))
    with pytest.raises(UserError) as error:
        read("npz", path, **_COLUMNS)
    start = f"{path}: expected an .npz file of plain arrays, found a damaged or another file ("
    assert str(error.value).startswith(start) and "\n" not in str(error.value)
    assert not any(os.path.realpath(f) == str(path) for f in Path("/proc/self/fd").iterdir())


def test_npz_data_beyond_the_header_raises(tmp_path):
    arrays = {name: io.BytesIO() for name in _arrays()}
    for name, array in _arrays().items():
        np.save(arrays[name], array[:4] if name == "x" else array)
    arrays["x"].write(_arrays()["x"][4:].tobytes())
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        for name, content in arrays.items():
            archive.writestr(f"{name}.npy", content.getvalue())
    message = refused("npz", tmp_path / "data.npz", **_COLUMNS)
    assert message.endswith("(x continues after its last row)")


def test_unused_npz_arrays_are_not_read(tmp_path):
    examples, _ = read("npz", _file(tmp_path, **_arrays(), meta=np.array([{}])), **_COLUMNS)
    assert len(examples) == 5


@golden.values
def test_wrong_npz_options_raise(tmp_path, case):
    return refused("npz", tmp_path, **case)


def test_npz_array_layout_does_not_change_examples(tmp_path):
    arrays = _arrays()
    plain, _ = read("npz", _file(tmp_path, **arrays), **_COLUMNS)
    arrays["x"] = np.asfortranarray(arrays["x"])
    arrays["y"] = arrays["y"][:, np.newaxis]
    other, _ = read("npz", _file(tmp_path, **arrays), **_COLUMNS)
    for one, same in zip(plain, other, strict=True):
        assert_identical(dict(one.record.features), dict(same.record.features))


# --- IDX files


def _write(path: Path, array: np.ndarray) -> Path:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def _pair(folder: Path, labels: list[int], name: str = "train", suffix: str = "") -> Path:
    images = np.arange(len(labels) * 6).reshape(len(labels), 2, 3)
    _write(folder / f"{name}-labels-idx1-ubyte{suffix}", np.array(labels))
    return _write(folder / f"{name}-images-idx3-ubyte{suffix}", images)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_images_have_labels(tmp_path, suffix):
    path = _pair(tmp_path, [3, 1, 3], suffix=suffix)
    for given in (tmp_path, path):
        examples, _ = read("idx", given, num_clients=3)
        assert [e.record.domain for e in examples] == ["3", "1", "3"]
        assert [e.record.features["label"] for e in examples] == [3, 1, 3]
        assert {e.record.split for e in examples} == {"train"}
        pixels = examples[1].record.features["pixels"]
        assert pixels.dtype == np.float32
        np.testing.assert_allclose(pixels, np.arange(6, 12).reshape(2, 3) / 255)
    assert {e.record.client for e in examples} == {"train_0", "train_1", "train_2"}


def test_idx_clients_have_equal_sizes(tmp_path):
    _pair(tmp_path, list(range(10)) * 5)
    _pair(tmp_path, [1] * 2, "t10k")
    examples, _ = read("idx", tmp_path, num_clients=12, seed=1)
    assert Counter(e.record.split for e in examples) == {"train": 50, "test": 2}
    clients = [e.record.client for e in examples]
    assert {*Counter(c for c in clients if c.startswith("train")).values()} == {4, 5}
    assert clients == [e.record.client for e in read("idx", tmp_path, num_clients=12, seed=1)[0]]
    assert clients != [e.record.client for e in read("idx", tmp_path, num_clients=12, seed=2)[0]]


def test_idx_options_select_and_rename_classes(tmp_path):
    _pair(tmp_path, [0, 1, 2, 6, 2, 9])
    examples, log = read(
        "idx", tmp_path, classes=(6, 0, 2), class_names=("shirt", "top", "pullover"), num_clients=1
    )
    assert [(e.record.features["label"], e.record.domain) for e in examples] == [
        (1, "top"),
        (2, "pullover"),
        (0, "shirt"),
        (2, "pullover"),
    ]
    assert log.skipped == {"class that is not in classes": 2}
    examples, _ = read("idx", tmp_path, classes=(6,), domain_name="all", num_clients=1)
    assert {e.record.domain for e in examples} == {"all"}


def test_invalid_idx_files_raise(tmp_path):
    assert "expected files -ubyte or -ubyte.gz or" in refused("idx", tmp_path)
    images = _pair(tmp_path, [0, 1, 2])
    labels = tmp_path / "train-labels-idx1-ubyte"
    assert "expected files such as train-images-idx3-ubyte" in refused("idx", labels)
    message = refused("idx", tmp_path, class_names=("a", "b"))
    assert message == "train-images-idx3-ubyte image 2: expected a label from 0 to 1, found 2"
    whole = images.read_bytes()
    for content, result in (
        (whole[:-1], "expected 18 more bytes, found 17: it is truncated"),
        (whole[:10], "expected 12 more bytes, found 6: it is truncated"),
        (b"GIF89a" + whole, "with 3 dimensions, found one that starts with 47 49 46 38"),
    ):
        images.write_bytes(content)
        message = refused("idx", tmp_path)
        assert message.startswith(f"{images}: expected ") and message.endswith(result)
    images.write_bytes(whole)
    _write(labels, np.array([0, 1]))
    assert refused("idx", tmp_path) == f"{labels}: expected 3 labels, as there are images, found 2"
    labels.unlink()
    message = refused("idx", tmp_path)
    assert message == f"{images}: expected labels in {labels.name} next to it, found none"


def test_duplicate_idx_gzip_raises(tmp_path):
    # torchvision keeps both the .gz files and the unpacked files.
    path = _pair(tmp_path, [0, 1], suffix=".gz")
    _pair(tmp_path, [3, 1])
    assert refused("idx", tmp_path).startswith(f"{path}: expected these images once, found train-")


@golden.values
def test_contradictory_idx_options_raise(tmp_path, case):
    return refused("idx", tmp_path, **case)


# --- LEAF's JSON


_VECTORS = {
    "users": ["u1", "u2"],
    "num_samples": [2, 1],
    "user_data": {
        "u1": {"x": [[0.5, 1], [2, 3]], "y": [0, 1]},
        "u2": {"x": [[4, 5]], "y": [2]},
    },
}
_ALL = {"domain_name": "all"}


def _leaf_file(folder: Path, content: Any, name: str = "data.json") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def _user(x: Any, y: Any) -> dict[str, Any]:
    return {"users": ["u"], "user_data": {"u": {"x": x, "y": y}}}


def test_leaf_users_are_clients(tmp_path):
    examples, log = read("leaf", _leaf_file(tmp_path, _VECTORS), **_ALL)
    assert [(e.record.client, e.record.domain, e.record.split) for e in examples] == [
        ("u1", "all", None),
        ("u1", "all", None),
        ("u2", "all", None),
    ]
    assert [e.record.features["x"].tolist() for e in examples] == [[0.5, 1], [2, 3], [4, 5]]
    assert [e.record.features["label"] for e in examples] == [0, 1, 2]
    assert examples[1].place == "data.json user u1 example 1"
    assert log.num_records == 3


@pytest.mark.parametrize(
    ("x", "y", "options", "expected"),
    [
        (
            [[1, 2, 3, 4]],
            [7],
            {"feature_name": "pixels", "feature_shape": (2, 2)},
            [{"pixels": [[1, 2], [3, 4]], "label": 7}],
        ),
        (["To be, or", "..."], ["n", "x"], {"case": "upper"}, [{"tokens": "TO BE , OR"}]),
        (
            [["1", "Mon", "so sad"], ["2", "Tue", "yay!"]],
            [0, 1],
            {"text_column": "2"},
            [{"tokens": "so sad", "label": 0}, {"tokens": "yay !", "label": 1}],
        ),
        (
            [[1], [2]],
            [-0.5, 3],
            {"label_kind": "number"},
            [{"x": [1], "label": -0.5}, {"x": [2], "label": 3.0}],
        ),
    ],
)
def test_leaf_reads_vectors_images_and_texts(tmp_path, x, y, options, expected):
    examples, _ = read("leaf", _leaf_file(tmp_path, _user(x, y)), **_ALL, **options)
    features = [
        {name: getattr(v, "tolist", lambda v=v: v)() for name, v in e.record.features.items()}
        for e in examples
    ]
    assert features == expected


def test_leaf_folders_are_splits(tmp_path):
    for name in ("data/train/a.json", "data/test/a.json"):
        _leaf_file(tmp_path, _VECTORS, name)
    examples, _ = read("leaf", tmp_path, **_ALL)
    assert [e.record.split for e in examples] == ["test"] * 3 + ["train"] * 3
    # LEAF's scripts also write a file of all users: it would add test users to training.
    other = _leaf_file(tmp_path, _VECTORS, "data/all_data/b.json")
    assert refused("leaf", tmp_path, **_ALL).startswith(
        f"{other}: expected a folder train or test, as for other files"
    )


def test_leaf_domains_come_from_a_file(tmp_path):
    domains = _leaf_file(tmp_path, "u2,north\n\nu1,south\n", "domains.csv")
    path = _leaf_file(tmp_path, _VECTORS)
    examples, _ = read("leaf", path, domains_file=str(domains))
    assert [e.record.domain for e in examples] == ["south", "south", "north"]
    domains.write_text("u1,south\n")
    message = f"data.json user u2: expected a line in {domains}, found none"
    assert refused("leaf", path, domains_file=str(domains)) == message
    examples, log = read("leaf", path, skip_bad=True, domains_file=str(domains))
    assert (len(examples), log.skipped) == (2, {"unknown domain": 1})


@pytest.mark.parametrize("content", ["u1\n", "u1,a,b\n", "u1,\n", "u1,a\nu1,b\n"])
def test_invalid_leaf_domains_file_raises(tmp_path, content):
    domains = _leaf_file(tmp_path, content, "domains.csv")
    message = refused("leaf", _leaf_file(tmp_path, _VECTORS), domains_file=str(domains))
    assert message.startswith(f"{domains}:")
    assert "expected CLIENT,DOMAIN, each client once, found" in message


def test_leaf_skips_and_counts_users_without_examples(tmp_path):
    data = {"user_data": {"u": {"x": [], "y": []}, **_VECTORS["user_data"]}}
    examples, log = read("leaf", _leaf_file(tmp_path, data), **_ALL)
    assert log.skipped == {"user without examples": 1}
    kept = {example.record.client for example in examples}
    assert log.skipped_clients - kept == {"u"}


@golden.values
def test_invalid_leaf_file_raises(tmp_path, case):
    return refused("leaf", _leaf_file(tmp_path, case), **_ALL)


@golden.values
def test_wrong_leaf_options_raise(tmp_path, case):
    return refused("leaf", tmp_path, **case)
