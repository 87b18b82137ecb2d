"""IDX files: images, labels, dealing to clients, and what is refused."""

import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests import golden
from tests.importing.harness import read, refused


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
def test_images_and_labels(tmp_path, suffix):
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


def test_files_for_testing(tmp_path):
    _pair(tmp_path, [0] * 4)
    _pair(tmp_path, [1] * 2, "t10k")
    examples, _ = read("idx", tmp_path, num_clients=2)
    assert Counter(e.record.split for e in examples) == {"train": 4, "test": 2}
    assert {e.record.client for e in examples} == {"train_0", "train_1", "test_0", "test_1"}


def test_every_client_gets_as_many(tmp_path):
    _pair(tmp_path, list(range(10)) * 5)
    dealt = [e.record.client for e in read("idx", tmp_path, num_clients=12, seed=1)[0]]
    assert set(Counter(dealt).values()) == {4, 5}
    assert dealt == [e.record.client for e in read("idx", tmp_path, num_clients=12, seed=1)[0]]
    assert dealt != [e.record.client for e in read("idx", tmp_path, num_clients=12, seed=2)[0]]


def test_some_classes_with_names(tmp_path):
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
    assert log.skipped == {"class that is not in --classes": 2}
    examples, _ = read("idx", tmp_path, classes=(6,), domain_name="all", num_clients=1)
    assert {e.record.domain for e in examples} == {"all"}


def test_labels_beyond_the_names(tmp_path):
    _pair(tmp_path, [0, 2])
    message = refused("idx", tmp_path, class_names=("a", "b"))
    assert message == "train-images-idx3-ubyte image 1: expected a label from 0 to 1, found 2"


def test_what_is_refused(tmp_path):
    assert "expected files -ubyte or -ubyte.gz or" in refused("idx", tmp_path)
    images = _pair(tmp_path, [0, 1, 2])
    labels = tmp_path / "train-labels-idx1-ubyte"
    assert "expected files such as train-images-idx3-ubyte" in refused("idx", labels)

    whole = images.read_bytes()
    images.write_bytes(whole[:-1])
    assert refused("idx", tmp_path) == (
        f"{images}: expected 18 more bytes, found 17: it is truncated"
    )
    images.write_bytes(whole[:10])
    assert refused("idx", tmp_path) == f"{images}: expected 12 more bytes, found 6: it is truncated"
    images.write_bytes(b"GIF89a" + whole)
    assert refused("idx", tmp_path) == (
        f"{images}: expected an IDX file of bytes with 3 dimensions, found one that starts with "
        "47 49 46 38"
    )
    images.write_bytes(whole)
    _write(labels, np.array([0, 1]))
    assert refused("idx", tmp_path) == (
        f"{labels}: expected 3 labels, as there are images, found 2"
    )
    labels.unlink()
    assert refused("idx", tmp_path) == (
        f"{images}: expected labels in train-labels-idx1-ubyte next to it, found none"
    )


def test_a_packed_file_that_is_cut_off(tmp_path):
    path = _pair(tmp_path, [0] * 300, suffix=".gz")
    path.write_bytes(path.read_bytes()[:-20])
    assert refused("idx", tmp_path).startswith(f"{path}: expected a whole .gz file, found a trunc")


@golden.values
def test_options_that_contradict(tmp_path, case):
    return refused("idx", tmp_path, **case)
