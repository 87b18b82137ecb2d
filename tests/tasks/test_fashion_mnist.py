"""The task fashion_mnist: three classes, from stores of ten classes or of these three."""

from typing import Any

import numpy as np

from tests.support import golden
from tests.support.stores import image, tff_store, write_store
from tff_agnostic.data.clients import client_domain_counts
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext


def _load(path: Any, **options: Any) -> Task:
    return load_task("fashion_mnist", options, TaskContext(0, data=path))


def _store(path, labels, domain=str):
    """Writes a store of one client with the given labels; ink is a tenth of an image's label."""
    rows = [
        (split, image("a", domain(label), label, ink=label / 10))
        for split in ("train", "test", "heldout")
        for label in labels
    ]
    return write_store(path, rows, "features")


def test_three_classes_are_selected_and_renumbered(tmp_path):
    task = _load(_store(tmp_path / "s.sqlite", [6, 1, 0, 9, 2, 0]))
    np.testing.assert_array_equal(client_domain_counts(task.train, 3), [[2, 1, 1]])
    assert task.domain_names == ("t-shirt/top", "pullover", "shirt")
    for clients in (task.train, task.test):
        examples = clients.read("a")
        assert examples["y"].tolist() == examples["domain_id"].tolist() == [2, 0, 1, 0]
        assert examples["x"].shape == (4, 784)
        np.testing.assert_allclose(examples["x"][:, 0], [0.6, 0, 0.2, 0], rtol=1e-6)


def test_three_class_store_keeps_its_labels(tmp_path):
    # Such a store is written by import_data --format=idx --classes=0,2,6.
    domain = ["0", "2", "6"].__getitem__
    task = _load(_store(tmp_path / "s.sqlite", [2, 0, 1, 1], domain))
    examples = task.train.read("a")
    assert examples["y"].tolist() == examples["domain_id"].tolist() == [2, 0, 1, 1]
    np.testing.assert_allclose(examples["x"][:, 0], [0.2, 0, 0.1, 0.1], rtol=1e-6)


def test_tff_store_gives_pixels_and_labels(tmp_path):
    pixels = np.arange(784, dtype=np.float32) / 784
    rows = [(s, "a", {"pixels": pixels, "label": y}) for s in ("train", "test") for y in (6, 3)]
    examples = _load(tff_store(tmp_path / "s.sqlite", rows)).train.read("a")
    assert examples["y"].tolist() == [2]
    np.testing.assert_allclose(examples["x"], pixels[np.newaxis], rtol=1e-6)


def test_test_split_option_selects_clients(tmp_path):
    rows = [("train", image("a", "0", 0)), ("heldout", image("h", "9", 9))]
    path = write_store(tmp_path / "s.sqlite", rows, "features")
    task = _load(path, test_split="heldout")
    assert (list(task.test.client_ids), task.test_split) == (["h"], "heldout")
    message = golden.refusal(_load, path)
    assert "expected clients in split test, found the splits heldout" in message


def test_client_without_the_three_classes_raises(tmp_path):
    path = _store(tmp_path / "s.sqlite", [1, 9])
    message = golden.refusal(lambda: _load(path).train.read("a"))
    assert message.startswith(f"{path}: client a: expected images of t-shirt/top, ")
