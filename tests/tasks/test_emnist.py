"""The task emnist: its domains, splits, and sources of data."""

from typing import Any

import numpy as np
import pytest

from tests.support import golden
from tests.support.stores import image, text_store, tff_store, write_store
from tff_agnostic.base.later import tff
from tff_agnostic.data.clients import domain_counts
from tff_agnostic.models import emnist_cnn
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.tasks import emnist
from tff_agnostic.tasks.registry import load_task
from tff_agnostic.tasks.task import Task, TaskContext

# High-school writers have the numbers 2100 to 2599.
_WRITERS = {
    "f2099_81": emnist.CENSUS,
    "f2100_69": emnist.HIGH_SCHOOL,
    "f2103_04": emnist.HIGH_SCHOOL,
    "f2599_10": emnist.HIGH_SCHOOL,
    "f2600_42": emnist.CENSUS,
}


def _load(path: Any, seed: int = 0, **options: Any) -> Task:
    return load_task("emnist", {"num_classes": 10, **options}, TaskContext(seed, data=path))


def _from_tff(path, writers=tuple(_WRITERS), labels=(3, 9)):
    """Writes a file like TFF's EMNIST; only splits of all characters have label 61, a letter."""
    rows = []
    for part in ("train", "test"):
        for writer in writers:
            for label in labels:
                rows.append((f"digits_only_{part}", writer, label))
                rows.append((f"all_{part}", writer, label))
            rows.append((f"all_{part}", writer, 61))
    pixels = np.full([28 * 28], 0.5, np.float32)
    return tff_store(path, [(split, w, {"pixels": pixels, "label": y}) for split, w, y in rows])


def _from_import(path, high_school=4, census=6):
    def records(split, prefix):
        for k in range(high_school):
            yield split, image(f"{prefix}h{k}", emnist.HIGH_SCHOOL, k)
        for k in range(census):
            yield split, image(f"{prefix}c{k}", emnist.CENSUS, k)
            yield split, image(f"{prefix}c{k}", emnist.CENSUS, 9)

    rows = [*records("train", ""), *records("test", "t"), *records("heldout", "x")]
    return write_store(path, rows, "features")


def _error(path: Any, **options: Any) -> str:
    return golden.refusal(_load, path, **options)


def test_writer_numbers_determine_domains(tmp_path):
    task = _load(_from_tff(tmp_path / "s.sqlite"))
    assert task.model == emnist_cnn(10)
    assert task.domain_names == (emnist.HIGH_SCHOOL, emnist.CENSUS)
    assert list(task.train.client_ids) == sorted(_WRITERS)
    for writer, domain in _WRITERS.items():
        examples = task.train.read(writer)
        assert examples["domain_id"].dtype == np.int32
        assert {task.domain_names[i] for i in examples["domain_id"]} == {domain}, writer


@pytest.mark.slow
@pytest.mark.parametrize(("num_classes", "labels"), [(62, [3, 9, 61]), (10, [3, 9])])
def test_num_classes_selects_tff_splits(tmp_path, num_classes, labels):
    task = _load(_from_tff(tmp_path / "s.sqlite"), num_classes=num_classes)
    for clients in (task.train, task.test):
        examples = clients.read("f2103_04")
        assert examples["y"].tolist() == labels
        assert examples["y"].dtype == np.int32
        assert examples["x"].shape == (len(labels), 28, 28, 1)
    assert task.fingerprint["classes"] == str(num_classes)


def test_imported_store_determines_domains(tmp_path):
    task = _load(_from_import(tmp_path / "s.sqlite"))
    np.testing.assert_array_equal(domain_counts(task.train, 2), [4, 12])
    assert task.train.read("h2")["domain_id"].tolist() == [0]
    assert task.train.read("c3")["domain_id"].tolist() == [1, 1]
    assert task.train.read("c3")["y"].tolist() == [3, 9]
    np.testing.assert_array_equal(task.train.read("c3")["x"], np.full([2, 28, 28, 1], 0.5))


def test_test_split_option_selects_clients(tmp_path):
    path = _from_import(tmp_path / "s.sqlite")
    assert _load(path).test.client_ids[0] == "tc0"
    assert _load(path, test_split="heldout").test.client_ids[0] == "xc0"
    message = _error(path, test_split="validation")
    assert message.startswith(f"{path}: expected clients in split validation, ")


@pytest.mark.nightly
def test_seed_selects_high_school_writers(tmp_path):
    path = _from_import(tmp_path / "s.sqlite")

    def kept(seed):
        ids = list(_load(path, seed, high_school_writers=2).train.client_ids)
        assert ids == sorted(ids)
        assert [i for i in ids if i.startswith("c")] == [f"c{k}" for k in range(6)]
        return tuple(i for i in ids if i.startswith("h"))

    assert len(kept(0)) == 2
    assert kept(0) == kept(0)
    assert len({kept(seed) for seed in range(8)}) > 1
    # The option does not change the test clients.
    assert len(_load(path, high_school_writers=2).test.client_ids) == 10


def test_tff_file_keeps_given_number_of_writers(tmp_path):
    task = _load(_from_tff(tmp_path / "s.sqlite"), high_school_writers=1)
    domains = [_WRITERS[writer] for writer in task.train.client_ids]
    assert domains.count(emnist.HIGH_SCHOOL) == 1
    assert domains.count(emnist.CENSUS) == 2


def test_impossible_writer_count_raises(tmp_path):
    path = _from_import(tmp_path / "s.sqlite")
    for count in (0, 5):
        message = _error(path, high_school_writers=count)
        assert message.startswith("high_school_writers: expected 1 to 4, ")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda path: _from_tff(path, labels=(0, 10)),
            "client f2099_81: expected labels from 0 to 9, found 10 in row 1",
        ),
        (
            lambda path: _from_tff(path, writers=["f_01"]),
            "expected ids of TFF's EMNIST such as f2103_04 in a store that does not name the "
            "domains, found the client 'f_01'",
        ),
        (
            text_store,
            "expected examples with pixels (float32[28, 28]), label (int64) for ",
        ),
    ],
)
def test_unsuitable_store_raises(tmp_path, write, message):
    path = write(tmp_path / "s.sqlite")

    def read() -> None:
        clients = _load(path).train
        clients.read(clients.client_ids[0])

    assert golden.refusal(read).startswith(f"{path}: {message}")


def test_missing_tff_file_is_downloaded_once(tmp_path, monkeypatch):
    calls = []

    def load_data(cache_dir):
        calls.append(cache_dir)
        _from_tff(tmp_path / "emnist_all.sqlite")

    monkeypatch.setattr(tff.simulation.datasets.emnist, "load_data", load_data)
    for _ in range(2):
        task = load_task("emnist", {"num_classes": 10}, TaskContext(0, data_dir=tmp_path))
        assert list(task.test.client_ids) == sorted(_WRITERS)
    assert calls == [str(tmp_path)]


def test_failed_download_raises(tmp_path, monkeypatch):
    def load_data(**kwargs):
        raise ValueError

    monkeypatch.setattr(tff.simulation.datasets.emnist, "load_data", load_data)
    message = golden.refusal(load_task, "emnist", {}, TaskContext(0, data_dir=tmp_path))
    assert message.startswith("data: expected a client store, as TensorFlow Federated could not ")
    assert "emnist_all.sqlite (ValueError)" in message


def test_linear_network_is_logistic_regression_on_pixels(tmp_path):
    model = _load(_from_tff(tmp_path / "s.sqlite"), network="linear").model
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=w.shape).astype(np.float32) for w in model.initial_weights[0]]
    x = rng.uniform(size=[5, 28, 28, 1]).astype(np.float32)
    expected = x.reshape([5, 784]) @ weights[0] + weights[1]
    result = model.predict(ModelWeights(weights, []), x, False, 0)
    np.testing.assert_allclose(result, expected, rtol=1e-4)


# --- The option `train_share` divides training clients into training and test clients


@pytest.mark.nightly
def test_train_share_divides_training_clients(tmp_path):
    path = _from_import(tmp_path / "s.sqlite", high_school=20, census=20)
    everyone = set(_load(path).train.client_ids)
    splits = set()
    for seed in range(5):
        task = _load(path, seed, train_share=0.25)
        train, test = set(task.train.client_ids), set(task.test.client_ids)
        assert len(train) == 10 and not train & test and train | test == everyone
        np.testing.assert_array_equal(task.test.read(min(test))["domain_id"][:1], [1])
        # No option but the seed changes the division.
        assert train == set(_load(path, seed, train_share=0.25, network="linear").train.client_ids)
        splits.add(frozenset(train))
    assert len(splits) == 5


def test_invalid_train_share_raises(tmp_path):
    path = _from_import(tmp_path / "s.sqlite")
    assert "0 of 10 training clients" in _error(path, train_share=0.01)
    message = _error(path, train_share=0.5, test_split="heldout")
    assert message.startswith("test_split: expected test with train_share, ")
