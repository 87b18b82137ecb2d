"""Imports of NumPy, IDX and LEAF files: columns, splits, images, invalid files and options."""

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
from tests.support.imports import job, read, refused
from tff_agnostic.base.errors import UserError
from tff_agnostic.data.store import load_store
from tff_agnostic.importing import npz
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


@pytest.mark.parametrize("block_rows", [2, 1000])
def test_npz_rows_become_examples(tmp_path, monkeypatch, block_rows):
    """Neither the size of blocks nor the layout of arrays matters; other arrays are not read."""
    monkeypatch.setattr(npz, "BLOCK_ROWS", block_rows)
    arrays = _arrays(meta=np.array([{}]))
    if block_rows == 2:
        arrays["x"] = np.asfortranarray(arrays["x"])
        arrays["y"] = arrays["y"][:, np.newaxis]
    examples, log = read("npz", _file(tmp_path, **arrays), **_COLUMNS)
    assert log.num_records == len(examples) == 5
    assert [e.record.client for e in examples] == ["0", "0", "1", "1", "2"]
    third = examples[2]
    assert (third.record.domain, third.record.split, third.place) == ("a", None, "data.npz row 2")
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


def test_npz_options_name_domain_and_features(tmp_path):
    path = _file(tmp_path, **_arrays())
    options = {"client_column": "who", "domain_name": "all", "feature_name": "f"}
    examples, _ = read("npz", path, **options)
    assert {e.record.domain for e in examples} == {"all"}
    assert set(examples[0].record.features) == {"f", "label"}


@golden.values
def test_invalid_npz_rows_raise(tmp_path, case):
    return refused("npz", _file(tmp_path, **_arrays(**case)), **_COLUMNS)


def test_missing_npz_array_is_reported(tmp_path):
    path = _file(tmp_path, **_arrays(3, "_train"), x_test=np.zeros([1, 2]))
    assert "expected an array z " in refused("npz", path, feature_columns=("z",), **_COLUMNS)
    message = refused("npz", path, **_COLUMNS)
    assert message == "data.npz_test: expected one column 'who', found x"


@pytest.mark.parametrize(
    ("shape", "reason"),
    [((4, 2), "x continues after its last row"), ((2, 2**50), "Unable to allocate")],
)
def test_npz_header_with_another_size_raises(tmp_path, shape, reason):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        content, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    arrays = _arrays()
    x = arrays.pop("x")
    path = _file(tmp_path, **arrays)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x.npy", content.getvalue() + x.tobytes())
    message = f"{path}: expected an .npz file of plain arrays, found a damaged or another file ("
    assert refused("npz", path, **_COLUMNS).startswith(message + reason)


@pytest.mark.parametrize("is_pickled", [False, True])
def test_damaged_npz_raises_and_closes_file(tmp_path, is_pickled):
    """The error's traceback keeps frames alive that opened the file."""
    path = _file(tmp_path, **_arrays(**({"x": np.array([{}] * 5)} if is_pickled else {})))
    if not is_pickled:
        whole = path.read_bytes()
        path.write_bytes(whole[:60] + b"\0\1" + whole[62:])
    with pytest.raises(UserError) as error:
        read("npz", path, **_COLUMNS)
    start = f"{path}: expected an .npz file of plain arrays, found a damaged or another file ("
    assert str(error.value).startswith(start) and "\n" not in str(error.value)
    assert not any(os.path.realpath(f) == str(path) for f in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("client", [b"d\0\0\xff", b"\0\xd8\0\0"])
def test_invalid_unicode_in_npz_raises(tmp_path, client):
    path = _file(tmp_path, **_arrays(4, who=np.frombuffer(b"a\0\0\0" * 3 + client, "<U1")))
    assert refused("npz", path, **_COLUMNS).startswith("expected ")


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
    assert [e.record.features["label"] for e in examples] == [1, 2, 0, 2]
    assert [e.record.domain for e in examples] == ["top", "pullover", "shirt", "pullover"]
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
    images.write_bytes(b"GIF89a" + whole)
    start = f"{images}: expected an IDX file of bytes with 3 dimensions, found one that starts with"
    assert refused("idx", tmp_path) == f"{start} 47 49 46 38"
    images.write_bytes(whole)
    _write(labels, np.array([0, 1]))
    assert refused("idx", tmp_path) == f"{labels}: expected 3 labels, as there are images, found 2"
    labels.unlink()
    message = refused("idx", tmp_path)
    assert message == f"{images}: expected labels in {labels.name} next to it, found none"
    # torchvision keeps both the .gz files and the unpacked files.
    path = _pair(tmp_path, [0, 1, 2], suffix=".gz")
    assert refused("idx", tmp_path).startswith(f"{path}: expected these images once, found train-")


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
    assert [e.record.client for e in examples] == ["u1", "u1", "u2"]
    assert {(e.record.domain, e.record.split) for e in examples} == {("all", None)}
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
        ([["1", "so sad"]], [1], {"text_column": "1"}, [{"tokens": "so sad", "label": 1}]),
        ([[1]], [-0.5], {"label_kind": "number"}, [{"x": [1], "label": -0.5}]),
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


@pytest.mark.parametrize("content", ["u1\n", "u1,\n", "u1,a\nu1,b\n"])
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


_SOURCES: dict[str, Any] = {
    "npz": (lambda folder: _file(folder, **_arrays()), _COLUMNS),
    "idx": (lambda folder: _pair(folder, [0, 1, 2, 1]), {"num_clients": 2}),
    "leaf": (lambda folder: _leaf_file(folder, _VECTORS), {"domain_name": "d"}),
}


@pytest.mark.parametrize("format_", _SOURCES)
def test_stores_have_the_examples_of_arrays(tmp_path, format_):
    make, options = _SOURCES[format_]
    path = make(tmp_path)
    job(format_, path, tmp_path / "s", split=("train:1",), **options).run(ReadLog())
    records = [example.record for example in read(format_, path, **options)[0]]
    store = load_store(tmp_path / "s")
    assert [*store.client_counts("train")] == sorted({record.client for record in records})
    for client in store.client_ids("train"):
        selected = [record for record in records if record.client == client]
        columns = store.columns("train", client, store.description.features)
        assert columns.pop("domain").tolist() == [record.domain.encode() for record in selected]
        assert columns.keys() == selected[0].features.keys()
        for name, column in columns.items():
            np.testing.assert_array_equal(column, [record.features[name] for record in selected])


@golden.values
def test_contradictory_options_raise(tmp_path, case):
    format_, options = case
    return refused(format_, tmp_path, **options)
