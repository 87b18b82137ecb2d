"""metrics.csv: exact values, resuming, and repair of an end that a crash damaged."""

import csv
import math
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import golden
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.report_fields import ReportField
from tff_agnostic.metrics.metrics_file import Column, History, read_history

_AWKWARD = ('comma, "quoted"', "line\nbreak", "a/b", "b", " spaces ", "ünï", "", "'", ";\t")
_NAMES = [f"loss/{name}" for name in _AWKWARD]


def _columns(*names: str) -> list[Column]:
    return [Column(ReportField(name, name)) for name in names]


def _values(round_num: int, names: Sequence[str]) -> dict[str, float]:
    return {name: round_num + i / 10 for i, name in enumerate(names)}


def _write(path: Path, rounds: int, names: Sequence[str] = ("loss",)) -> History:
    history = History(path, _columns(*names))
    history.load(0)
    for t in range(1, rounds + 1):
        history.append(t, _values(t, names))
    return history


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "metrics.csv"


def test_values_read_back_exactly(path):
    values: dict[str, Any] = {
        "float32": np.float32(0.1),
        "float64": 0.1 + 0.2,
        "tiny": np.float32(1e-45),
        "huge": np.float32(3.4e38),
        "integer": np.int64(2**53),
        "nan": float("nan"),
        "infinite": -math.inf,
        "nothing": None,
    }
    history = History(path, _columns(*values))
    assert history.values() == {}
    history.append(1, values)
    columns = read_history(path)
    assert list(columns) == ["round", *values]
    for name in ("float32", "tiny", "huge"):
        assert np.float32(columns[name][0]) == values[name]
    assert columns["float64"][0] == 0.1 + 0.2 and columns["integer"][0] == 2**53
    assert columns["infinite"][0] == -math.inf
    assert math.isnan(columns["nan"][0]) and math.isnan(columns["nothing"][0])
    np.testing.assert_equal(history.values(), columns)


def test_awkward_names_read_back(path):
    _write(path, 3, _NAMES)
    columns = read_history(path)
    assert list(columns) == ["round", *_NAMES]
    np.testing.assert_allclose(columns["loss/b"], [1.3, 2.3, 3.3])
    with open(path, newline="", encoding="utf-8") as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["1", "2", "3"]


@pytest.mark.parametrize("completed", [0, 1, 3])
def test_resumed_file_equals_whole_file(tmp_path, path, completed):
    _write(tmp_path / "whole.csv", 5, _NAMES)
    _write(path, 4, _NAMES)
    before = path.read_bytes()
    history = History(path, _columns(*_NAMES))
    history.load(completed)
    assert len(history) == completed and path.read_bytes() == before
    history.write()
    for t in range(completed + 1, 6):
        history.append(t, _values(t, _NAMES))
    assert path.read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.parametrize(
    "tail", [b"4,", b"4,1.5", b"4,1.5\n5,", b"4,\xff\xfe\n", b"\0" * 50, b"4\n", b"4,1,2,3\n", b'"']
)
def test_bytes_after_completed_rounds_are_dropped(path, tail):
    _write(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    history = History(path, _columns("loss"))
    history.load(3)
    history.write()
    assert path.read_bytes() == whole


def test_first_row_replaces_an_earlier_file(path):
    path.write_text('round,"loss/line\nbre')
    history = History(path, _columns("loss"))
    history.load(0)
    history.append(1, {"loss": 1.5})
    assert path.read_text() == "round,loss\n1,1.5\n"


def test_rows_need_little_memory(path):
    tracemalloc.start()
    try:
        history = _write(path, 300, [f"loss/{k}" for k in range(100)])
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(history) == 300 and used < 2 * path.stat().st_size


def test_rows_are_read_and_changed(path):
    history = _write(path, 2, ("a", "b"))
    assert history.numbers(2) == {"a": 2.0, "b": 2.1}
    assert history.append(3, {"a": None, "b": 0.5}) == history.numbers(3) == {"b": 0.5}
    history.change(1, {"b": None})
    history.write()
    assert path.read_text() == "round,a,b\n1,1.0,\n2,2.0,2.1\n3,,0.5\n"


@pytest.mark.parametrize(
    ("content", "end"),
    [
        ("round,loss\n1,1.0\n2,2.0\n3,3", "2 whole rows, 1 to 2"),
        # A row is missing or damaged.
        *((f"round,loss\n1,1.0\n{row}3,3.0\n", "") for row in ("", "2,x\n", "2,2.0,2.0\n")),
        ("garbage\n" * 5, ""),
        (None, "none"),
    ],
)
def test_missing_rows_raise_user_error(path, content, end):
    if content is not None:
        path.write_text(content)
    message = golden.refusal(lambda: History(path, _columns("loss")).load(3))
    assert message.startswith(f"{path}: expected rows of rounds 1 to 3, as the checkpoint says, ")
    assert message.endswith(end)


def test_damaged_file_raises_user_error(path, tmp_path):
    _write(path, 2)
    path.write_text(path.read_text() + "3,x\n")
    with pytest.raises(UserError, match="expected a number or nothing in every column, row 3"):
        read_history(path)
    with pytest.raises(UserError, match="expected the CSV file of a run, found none"):
        read_history(tmp_path / "missing.csv")
    # Writing to this device fails as on a full disk.
    history = History(Path("/dev/full"), _columns("loss"))
    message = golden.refusal(history.append, 1, {"loss": 1.0})
    assert message == "/dev/full: cannot write: No space left on device"
    assert len(history) == 0


def test_resumed_file_keeps_and_gains_columns(path):
    _write(path, 2, ("gone", "today/a", "same", "empty"))
    path.write_text(path.read_text().replace("1.3\n", "\n").replace("2.3\n", "\n"))
    columns = [*_columns("new", "same"), Column(ReportField("today", "today"), "a")]
    history = History(path, columns)
    history.load(2)
    history.write()
    history.append(3, {column.name: 0.5 for column in columns})
    values = read_history(path)
    assert list(values) == ["round", "new", "same", "today/a", "gone"]
    assert list(values) == ["round", *(column.name for column in history.columns)]
    np.testing.assert_array_equal(values["new"], [np.nan, np.nan, 0.5])
    np.testing.assert_array_equal(values["same"], [1.2, 2.2, 0.5])
    np.testing.assert_array_equal(values["today/a"], [1.1, 2.1, 0.5])
    np.testing.assert_array_equal(values["gone"], [1.0, 2.0, np.nan])
