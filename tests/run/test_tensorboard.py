"""TensorBoard's event files: one folder per domain, with common tags."""

import errno
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support.results import AWKWARD_NAMES
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.report_fields import ReportField
from tff_agnostic.computations.algorithm import Algorithm, RunState
from tff_agnostic.metrics.metrics_file import Column, History
from tff_agnostic.program.runs.observers import TensorBoard
from tff_agnostic.training.loop import FinishedRound

_ALGORITHM = Algorithm("none", None, dict, (), lambda state: state)


def _board(folder: Path, names: tuple[str, ...], rounds: int) -> TensorBoard:
    """Returns the observer of a run with metrics of `rounds` rounds; even rounds are evaluated."""
    train, test = (ReportField(f"{s}/loss", s, per_domain=True) for s in ("train", "test"))
    columns = [Column(quantity, name) for quantity in (train, test) for name in names]
    columns.append(Column(ReportField("update_norm", "norm")))
    history = History(folder.parent.with_suffix(".csv"), columns)
    for t in range(1, rounds + 1):
        row = {f"train/loss/{name}": float(i) for i, name in enumerate(names)}
        if t % 2 == 0:
            row |= {f"test/loss/{name}": float(t + i) for i, name in enumerate(names)}
        row["update_norm"] = 0.125
        history.append(t, {column.name: row.get(column.name) for column in columns})
    return TensorBoard(folder, history)


def _round(num: int) -> FinishedRound:
    return FinishedRound(_ALGORITHM, num, 9, RunState((), (), np.int32(num)), OrderedDict())


def _write(folder: Path, names: tuple[str, ...], rounds: int) -> None:
    board = _board(folder, names, rounds)
    board.begin(None, _round(0).state, rounds)
    for t in range(1, rounds + 1):
        board.after_round(_round(t))
    board.end(_round(rounds).state, None)


def _scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns the points (step, value) of each tag that TensorBoard reads as scalars."""
    reader = EventAccumulator(str(folder)).Reload()
    tags = reader.Tags()["tensors"]
    assert {reader.SummaryMetadata(t).plugin_data.plugin_name for t in tags} == {"scalars"}
    return {
        tag: [(point.step, float(tf.make_ndarray(point.tensor_proto))) for point in points]
        for tag, points in ((tag, reader.Tensors(tag)) for tag in tags)
    }


def test_every_domain_has_the_same_tags(tmp_path):
    # Replaces the event files of an earlier run.
    for rounds in (5, 4):
        _write(tmp_path, ("phone", "tablet"), rounds)
    assert len([*tmp_path.rglob("*tfevents*")]) == 3
    assert _scalars(tmp_path / "phone") == {
        "train/loss": [(1, 0.0), (2, 0.0), (3, 0.0), (4, 0.0)],
        "test/loss": [(2, 2.0), (4, 4.0)],
    }
    assert _scalars(tmp_path / "tablet")["test/loss"] == [(2, 3.0), (4, 5.0)]
    assert _scalars(tmp_path / "all") == {"update_norm": [(t, 0.125) for t in range(1, 5)]}


def test_resumed_run_writes_earlier_rounds(tmp_path):
    board = _board(tmp_path, ("phone",), 3)
    board.begin(None, _round(3).state, 4)
    board.end(_round(3).state, None)
    assert _scalars(tmp_path / "phone")["train/loss"] == [(1, 0.0), (2, 0.0), (3, 0.0)]


@pytest.mark.slow
def test_awkward_and_long_names_have_separate_folders(tmp_path):
    folder = tmp_path / "tensorboard"
    names = (*AWKWARD_NAMES, "d" * 260, "d" * 260 + "x", "京" * 300)
    _write(folder, names, rounds=1)
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard"]
    runs = {path.name: _scalars(path) for path in folder.iterdir()}
    assert max(len(name.encode()) for name in runs) < 255
    assert set(runs.pop("all")) == {"update_norm"}
    losses = sorted(tags["train/loss"][0][1] for tags in runs.values())
    assert losses == list(map(float, range(len(names))))


class _FullDisk:
    """A writer whose disk is full after the first record."""

    def __init__(self, path: str) -> None:
        self._is_empty = True

    def write(self, record: bytes) -> None:
        if not self._is_empty:
            self.close()
        self._is_empty = False

    def close(self) -> None:
        message = "{{function_node x}} run/events.v2; No space left on device\n\tFailed to flush"
        raise tf.errors.ResourceExhaustedError(None, None, message, errno.ENOSPC)


def test_full_disk_raises_user_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tf.io, "TFRecordWriter", _FullDisk)
    board = _board(tmp_path, ("phone",), 1)
    board.begin(None, _round(0).state, 1)
    with pytest.raises(UserError) as error:
        board.after_round(_round(1))
    assert str(error.value) == f"{tmp_path}: cannot write: No space left on device"
    # At the end, this error does not hide an earlier one.
    board.end(_round(1).state, KeyError())
    with pytest.raises(UserError):
        board.end(_round(1).state, None)
