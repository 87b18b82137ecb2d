"""A user's own client files: the description and the folders."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import golden
from tff_agnostic.tasks.own_data import ClientFilesOptions
from tff_agnostic.tasks.own_data import load_client_files as load
from tff_agnostic.tasks.task import Task, TaskContext

_DESCRIPTION = {"domains": ["phone", "tablet"], "num_features": 3, "num_classes": 2}


def _write(folder: Path, description: Any = _DESCRIPTION) -> Path:
    (folder / "dataset.json").write_text(json.dumps(description))
    for side in ("train", "test"):
        (folder / side).mkdir(parents=True)
        for k in range(2):
            np.savez(
                folder / side / f"client_{k}.npz",
                x=np.full([4, 3], k, np.float32),
                y=np.array([0, 1, 1, 0], np.int32),
                domain_id=np.full([4], k, np.int32),
            )
    return folder


def _load(folder: Path) -> Task:
    return load(ClientFilesOptions(), TaskContext(0, folder))


def _error(folder: Path) -> str:
    message = golden.refusal(_load, folder)
    assert "\n" not in message
    return message.replace(str(folder), "DIR")


def test_the_files_are_the_task(tmp_path):
    task = _load(_write(tmp_path))
    assert task.domain_names == ("phone", "tablet")
    assert list(task.train.client_ids) == list(task.test.client_ids) == ["client_0", "client_1"]
    assert task.train.read("client_1")["domain_id"].tolist() == [1, 1, 1, 1]
    assert [w.shape for w in task.model.initial_weights.trainable] == [(3, 2), (2,)]


def test_awkward_domain_names_are_fine(tmp_path):
    names = ["a/b", 'x, "y"', "line\nbreak", "$"]
    task = _load(_write(tmp_path, {**_DESCRIPTION, "domains": names}))
    assert task.domain_names == tuple(names)


@pytest.mark.slow
@golden.values
def test_a_malformed_description(tmp_path, case):
    return _error(_write(tmp_path, {**_DESCRIPTION, **case}))


@pytest.mark.parametrize("key", list(_DESCRIPTION))
def test_a_description_without_a_key(tmp_path, key):
    description = {k: v for k, v in _DESCRIPTION.items() if k != key}
    message = _error(_write(tmp_path, description))
    assert key in message
    assert message.endswith("found None")


def test_a_description_that_is_no_object(tmp_path):
    message = _error(_write(tmp_path, [1, 2]))
    assert message == "DIR/dataset.json: expected a JSON object, found list"


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\xfe", b"domains: a"])
def test_a_description_that_is_no_json(tmp_path, content):
    _write(tmp_path)
    (tmp_path / "dataset.json").write_bytes(content)
    message = _error(tmp_path)
    assert message.startswith("DIR/dataset.json: expected a JSON description of the clients (")


def test_a_missing_description(tmp_path):
    assert "dataset.json: expected a JSON description of the clients" in _error(tmp_path)


@pytest.mark.parametrize("side", ["train", "test"])
def test_a_folder_without_clients(tmp_path, side):
    _write(tmp_path)
    for path in (tmp_path / side).iterdir():
        path.unlink()
    expected = f"DIR/{side}: expected one .npz file for each client, found none"
    assert _error(tmp_path) == expected
