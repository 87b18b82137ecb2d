"""TensorBoard's event files: one folder per domain, with common tags."""

import errno
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorflow.core.util import event_pb2

from tests.support.results import AWKWARD_NAMES
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.report_fields import ReportField
from tff_agnostic.computations.algorithm import Algorithm, RunState
from tff_agnostic.metrics.metrics_file import Column, History
from tff_agnostic.program.runs.observers import TensorBoard
from tff_agnostic.training.loop import FinishedRound

_ALGORITHM = Algorithm("none", None, dict, (), lambda state: state)


def _read(folder: Path) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Returns {run: {tag: [(step, value)]}}."""
    runs: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for path in sorted(folder.rglob("*tfevents*")):
        tags = runs.setdefault(str(path.parent.relative_to(folder)), {})
        for record in tf.data.TFRecordDataset(str(path)):
            event = event_pb2.Event.FromString(record.numpy())
            for value in event.summary.value:
                point = (event.step, float(tf.make_ndarray(value.tensor)))
                tags.setdefault(value.tag, []).append(point)
    return runs


def _columns(names: tuple[str, ...]) -> list[Column]:
    quantities = [
        ReportField(q, q, per_domain=True) for q in ("train/loss", "test/loss", "weight, of all")
    ]
    scalars = [ReportField(name, name) for name in ("test/worst loss", "update_norm")]
    return [*(Column(q, name) for q in quantities for name in names), *map(Column, scalars)]


def _row(round_num: int, names: tuple[str, ...]) -> dict[str, float]:
    row = {}
    for i, name in enumerate(names):
        row[f"train/loss/{name}"] = float(i)
        if round_num % 2 == 0:
            row[f"test/loss/{name}"] = float(round_num + i)
        row[f"weight, of all/{name}"] = 0.25
    return {**row, "test/worst loss": 9.5, "update_norm": 0.125}


def _history(folder: Path, names: tuple[str, ...], rounds: int) -> History:
    """Returns a history of `rounds` rounds; its file is outside of the log folder."""
    columns = _columns(names)
    history = History(folder.parent.with_suffix(".csv"), columns)
    for t in range(1, rounds + 1):
        row = _row(t, names)
        history.append(t, {column.name: row.get(column.name) for column in columns})
    return history


def _round(num: int) -> FinishedRound:
    return FinishedRound(_ALGORITHM, num, 9, RunState((), (), np.int32(num)), OrderedDict())


def _write(folder: Path, names: tuple[str, ...], rounds: int) -> None:
    board = TensorBoard(folder, _history(folder, names, rounds))
    state = RunState((), (), np.int32(0))
    board.begin(None, state, rounds)
    for t in range(1, rounds + 1):
        board.after_round(_round(t))
    board.end(state, None)


def test_every_domain_has_the_same_tags(tmp_path):
    _write(tmp_path, ("phone", "tablet"), rounds=4)
    runs = _read(tmp_path)
    assert set(runs) == {"all", "phone", "tablet"}
    assert (
        set(runs["phone"]) == set(runs["tablet"]) == {"train/loss", "test/loss", "weight, of all"}
    )
    assert runs["tablet"]["train/loss"] == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0)]
    assert runs["phone"]["test/loss"] == [(2, 2.0), (4, 4.0)]
    assert set(runs["all"]) == {"test/worst loss", "update_norm"}
    assert runs["all"]["update_norm"] == [(t, 0.125) for t in range(1, 5)]


def test_tensorboard_reads_event_files_as_scalars(tmp_path):
    _write(tmp_path, ("phone",), rounds=2)
    reader = EventAccumulator(str(tmp_path / "phone")).Reload()
    tensors = reader.Tensors("train/loss")
    assert [(t.step, float(tf.make_ndarray(t.tensor_proto))) for t in tensors] == [
        (1, 0.0),
        (2, 0.0),
    ]
    assert reader.SummaryMetadata("train/loss").plugin_data.plugin_name == "scalars"


@pytest.mark.slow
def test_awkward_and_long_names_have_separate_folders(tmp_path):
    folder = tmp_path / "tensorboard"
    names = (*AWKWARD_NAMES, "d" * 260, "d" * 260 + "x", "京" * 300)
    _write(folder, names, rounds=1)
    runs = _read(folder)
    assert len(runs) == 1 + len(names)
    assert max(len(name.encode()) for name in runs) < 255
    losses = sorted(tags["train/loss"][0][1] for run, tags in runs.items() if run != "all")
    assert losses == list(map(float, range(len(names))))
    assert set(runs["all"]) == {"test/worst loss", "update_norm"}
    assert [path.name for path in tmp_path.iterdir()] == ["tensorboard"]


def test_earlier_event_files_are_replaced(tmp_path):
    _write(tmp_path, ("phone",), rounds=3)
    _write(tmp_path, ("phone",), rounds=2)
    assert _read(tmp_path)["phone"]["train/loss"] == [(1, 0.0), (2, 0.0)]


def test_resumed_run_writes_earlier_rounds(tmp_path):
    board = TensorBoard(tmp_path / "logs", _history(tmp_path / "logs", ("phone",), 3))
    board.begin(None, RunState((), (), np.int32(3)), 4)
    board.end(_round(3).state, None)
    assert _read(tmp_path / "logs")["phone"]["train/loss"] == [(1, 0.0), (2, 0.0), (3, 0.0)]


class _FullDisk:
    """A writer whose disk is full after the first record."""

    def __init__(self, path: str) -> None:
        self._is_empty = True

    def write(self, record: bytes) -> None:
        if not self._is_empty:
            self._fail()
        self._is_empty = False

    def close(self) -> None:
        self._fail()

    def _fail(self) -> None:
        message = "{{function_node x}} run/events.v2; No space left on device\n\tFailed to flush"
        raise tf.errors.ResourceExhaustedError(None, None, message, errno.ENOSPC)


def test_full_disk_raises_user_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tf.io, "TFRecordWriter", _FullDisk)
    with pytest.raises(UserError) as error:
        _write(tmp_path / "logs", ("phone",), rounds=1)
    assert str(error.value) == f"{tmp_path / 'logs'}: cannot write: No space left on device"


def test_closing_does_not_hide_an_earlier_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tf.io, "TFRecordWriter", _FullDisk)
    board = TensorBoard(tmp_path / "logs", _history(tmp_path / "logs", ("phone",), 1))
    board.begin(None, RunState((), (), np.int32(0)), 1)
    with pytest.raises(UserError):
        board.after_round(_round(1))
    board.end(_round(1).state, KeyError())
    with pytest.raises(UserError):
        board.end(_round(1).state, None)
