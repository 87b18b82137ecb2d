"""Checkpoints are restored exactly, are written atomically, and may be damaged."""

import errno
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support import golden
from tff_agnostic.base.errors import UserError
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.saving import checkpoints as checkpoints_module
from tff_agnostic.saving.checkpoints import CheckpointFolder, newest_checkpoint, read_checkpoint


def _state(value: float = 1.0, features: int = 3) -> Any:
    """Returns a nested state of several dtypes, with scalars and empty arrays."""
    return OrderedDict(
        weights=ModelWeights([np.full([features, 2], value, np.float32), np.float32(0.1)], []),
        optimizer=OrderedDict(learning_rate=np.float32(0.5), moment=[np.zeros([0], np.float64)]),
        domains=(),
        round_num=np.int32(value),
    )


def _assert_same(actual: Any, expected: Any) -> None:
    tf.nest.assert_same_structure(actual, expected)
    for a, e in zip(tf.nest.flatten(actual), tf.nest.flatten(expected)):
        assert np.asarray(a).dtype == np.asarray(e).dtype
        assert np.asarray(a).tobytes() == np.asarray(e).tobytes()


def _save_state(checkpoints: CheckpointFolder, round_num: int, state: Any) -> None:
    checkpoints.save(round_num, state, {"model": state["weights"]})


def _save(folder: Path, *rounds: int, keep: int = 10) -> CheckpointFolder:
    checkpoints = CheckpointFolder(folder, keep)
    for t in rounds:
        _save_state(checkpoints, t, _state(t))
    return checkpoints


def _path(folder: Path, round_num: int) -> Path:
    return folder / f"round_{round_num:08d}.npz"


def _damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    damaged = {
        "truncated": content[:middle],
        "bit flipped": flipped,
        "empty": b"",
        "garbage": b"garbage" * (len(content) // 7),
        "zeros": bytes(len(content)),
    }
    path.write_bytes(damaged[how])


_DAMAGES = ["truncated", "bit flipped", "empty", "garbage", "zeros"]


@pytest.fixture
def warnings(monkeypatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(
        checkpoints_module.logging, "warning", lambda text, *args: seen.append(text % args)
    )
    return seen


def test_checkpoint_restores_identical_state(tmp_path):
    state = _state()
    state["weights"].trainable[0][0] = [np.nan, np.float32(1e-45)]
    _save_state(CheckpointFolder(tmp_path, keep=1), 7, state)
    checkpoint = newest_checkpoint(tmp_path)
    assert checkpoint.round_num == 7
    _assert_same(checkpoint.restore(_state(), "here"), state)


def test_folder_keeps_newest_checkpoints(tmp_path):
    _save(tmp_path, 2, 4, 10, 100, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "round_00000010.npz",
        "round_00000100.npz",
    ]
    assert newest_checkpoint(tmp_path).round_num == 100


def test_folder_without_checkpoints_has_none(tmp_path):
    assert CheckpointFolder(tmp_path / "missing", keep=1).load_latest() is None
    with pytest.raises(UserError, match="expected checkpoints, found none"):
        newest_checkpoint(tmp_path)


@pytest.mark.parametrize("how", _DAMAGES)
def test_damaged_checkpoints_are_skipped_with_warnings(tmp_path, warnings, how):
    checkpoints = _save(tmp_path, 2, 4, 6)
    _damage(_path(tmp_path, 6), how)
    _damage(_path(tmp_path, 4), how)
    checkpoint = checkpoints.load_latest()
    assert checkpoint is not None
    _assert_same(checkpoint.restore(_state(), "here"), _state(2))
    assert len(warnings) == 2
    for text, round_num in zip(warnings, (6, 4)):
        assert text.startswith(f"{_path(tmp_path, round_num)}: expected a checkpoint, found a dam")
        assert "\n" not in text
    _damage(_path(tmp_path, 2), how)
    message = golden.refusal(checkpoints.load_latest)
    assert message.startswith("every checkpoint is damaged; the oldest is ")
    assert str(_path(tmp_path, 2)) in message


def test_load_ignores_files_that_are_no_checkpoints(tmp_path, warnings):
    checkpoints = _save(tmp_path, 2)
    _path(tmp_path, 9).mkdir()
    (tmp_path / ".round_00000004.npz.77.tmp").write_bytes(b"half")
    (tmp_path / "round_00000006.npz.tmp").write_bytes(b"half")
    latest = checkpoints.load_latest()
    assert latest is not None and latest.round_num == 2
    (warning,) = warnings
    assert warning.startswith(f"{_path(tmp_path, 9)}: expected a checkpoint, found a folder")
    _save_state(checkpoints, 4, _state(4))
    assert _path(tmp_path, 9).is_dir()


def test_save_removes_damaged_checkpoints_of_later_rounds(tmp_path, warnings):
    _save(tmp_path, 2, 9)
    _damage(_path(tmp_path, 9), "garbage")
    checkpoints = CheckpointFolder(tmp_path, keep=1)
    latest = checkpoints.load_latest()
    assert latest is not None and latest.round_num == 2
    assert len(warnings) == 1
    _save_state(checkpoints, 4, _state(4))
    assert [p.name for p in tmp_path.iterdir()] == ["round_00000004.npz"]


@pytest.mark.parametrize("other", [_state(features=4), {"w": np.zeros([2])}, [_state(), _state()]])
def test_checkpoint_of_another_state_raises(tmp_path, other):
    _save(tmp_path, 1)
    message = golden.refusal(lambda: newest_checkpoint(tmp_path).restore(other, "my run"))
    assert message.startswith("my run: expected the state of this model and algorithm (")
    assert message.endswith("), found float32[], float64[0], int32[], float32[3, 2], float32[]")


def test_models_can_be_restored_without_the_state(tmp_path):
    template = ModelWeights([np.zeros([3, 2], np.float32)], [np.float32(0)])
    weights = ModelWeights([np.full([3, 2], 5, np.float32)], [np.array(1, np.float32)])
    # One array of the average is its own; the other is an array of the state.
    average = ModelWeights([weights.trainable[0] / 2], weights.non_trainable)
    # Other arrays precede the model in the state.
    state = ({"more": np.zeros([4])}, weights)
    CheckpointFolder(tmp_path, 1).save(1, state, {"model": weights, "average": average})
    models = newest_checkpoint(tmp_path).models(template, "here")
    assert list(models) == ["model", "average"]
    _assert_same(models["model"], weights)
    _assert_same(models["average"], average)
    _assert_same(newest_checkpoint(tmp_path).restore(state, "here"), state)
    with np.load(_path(tmp_path, 1)) as archive:
        # Arrays that models share with the state are stored once.
        assert sorted(archive) == [
            "header",
            "leaf_00000",
            "leaf_00001",
            "leaf_00002",
            "model_average_00000",
        ]
    other = ModelWeights([np.zeros([9, 2], np.float32)], [np.float32(0)])
    message = golden.refusal(lambda: newest_checkpoint(tmp_path).models(other, "my run"))
    assert message.startswith("my run: expected the weights of this model (float32[9, 2], ")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros([3])}, "expected a checkpoint, found arrays of another"),
        (
            {"header": '{"format": 99, "round": 1, "leaves": 0}'},
            "expected checkpoint format 1, found 99",
        ),
        (
            {"header": '{"format": 1, "round": 1, "leaves": 0, "models": {"m": ["leaf_00000"]}}'},
            "expected a checkpoint, found arrays of another",
        ),
    ],
)
def test_read_checkpoint_rejects_archives_without_a_checkpoint(tmp_path, arrays, message):
    path = tmp_path / "a.npz"
    assert golden.refusal(read_checkpoint, path) == f"{path}: expected a checkpoint, found none"
    np.savez(path, **arrays)
    assert message in golden.refusal(read_checkpoint, path)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk_keeps_earlier_checkpoints(tmp_path, monkeypatch, call):
    checkpoints = _save(tmp_path, 2, 4)

    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(UserError) as error:
            _save_state(checkpoints, 6, _state(6))
    assert str(error.value) == f"{_path(tmp_path, 6)}: cannot write: No space left on device"
    assert sorted(tmp_path.iterdir()) == [_path(tmp_path, 2), _path(tmp_path, 4)]
    _assert_same(newest_checkpoint(tmp_path).restore(_state(), "here"), _state(4))
