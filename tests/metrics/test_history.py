"""metrics.csv: exact, restartable, and tolerant of what a crash leaves at its end."""

import csv
import math
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import golden
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.report_fields import ReportField
from tff_agnostic.metrics.metrics_file import Column, History, read_history

_AWKWARD = ('comma, "quoted"', "line\nbreak", "a/b", "b", " spaces ", "ünï", "", "'", ";\t")


def _columns(*names: str) -> list[Column]:
    return [Column(ReportField(name, name)) for name in names]


def _write(path: Path, rounds: int, names: Sequence[str] = ("loss",)) -> History:
    history = History(path, _columns(*names))
    history.load(0)
    for t in range(1, rounds + 1):
        history.append(t, {name: t + i / 10 for i, name in enumerate(names)})
    return history


def _load_error(path: Path, completed_rounds: int) -> str:
    return golden.refusal(lambda: History(path, _columns("loss")).load(completed_rounds))


def test_values_read_back_exactly(tmp_path):
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
    history = History(tmp_path / "metrics.csv", _columns(*values))
    history.append(1, values)
    columns = read_history(tmp_path / "metrics.csv")
    assert list(columns) == ["round", *values]
    assert np.float32(columns["float32"][0]) == np.float32(0.1)
    assert columns["float64"][0] == 0.1 + 0.2
    assert np.float32(columns["tiny"][0]) == np.float32(1e-45)
    assert np.float32(columns["huge"][0]) == np.float32(3.4e38)
    assert columns["integer"][0] == 2**53
    assert columns["infinite"][0] == -math.inf
    assert math.isnan(columns["nan"][0]) and math.isnan(columns["nothing"][0])
    np.testing.assert_equal(history.values(), columns)


def test_awkward_names_of_columns_come_back(tmp_path):
    names = [f"loss/{name}" for name in _AWKWARD]
    _write(tmp_path / "metrics.csv", 3, names)
    columns = read_history(tmp_path / "metrics.csv")
    assert list(columns) == ["round", *names]
    np.testing.assert_allclose(columns["loss/b"], [1.3, 2.3, 3.3])


def test_other_programs_can_read_it(tmp_path):
    _write(tmp_path / "metrics.csv", 2, [f"loss/{name}" for name in _AWKWARD])
    with open(tmp_path / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == ["1", "2"]


@pytest.mark.parametrize("completed", [0, 1, 3])
def test_going_on_gives_the_same_file(tmp_path, completed):
    names = [f"loss/{name}" for name in _AWKWARD]
    _write(tmp_path / "whole.csv", 5, names)
    path = tmp_path / "metrics.csv"
    _write(path, 4, names)
    history = History(path, _columns(*names))
    history.load(completed)
    assert len(history) == completed
    history.write()
    for t in range(completed + 1, 6):
        history.append(t, {name: t + i / 10 for i, name in enumerate(names)})
    assert path.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_loading_writes_nothing(tmp_path):
    path = tmp_path / "metrics.csv"
    _write(path, 4)
    before = path.read_bytes()
    History(path, _columns("loss")).load(2)
    assert path.read_bytes() == before
    History(tmp_path / "new.csv", _columns("loss")).load(0)
    assert not (tmp_path / "new.csv").exists()


@pytest.mark.parametrize(
    "tail", [b"4,", b"4,1.5", b"4,1.5\n5,", b"4,\xff\xfe\n", b"\0" * 50, b"4\n", b"4,1,2,3\n", b'"']
)
def test_what_a_crash_left_after_the_completed_rounds_is_dropped(tmp_path, tail):
    path = tmp_path / "metrics.csv"
    _write(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    history = History(path, _columns("loss"))
    history.load(3)
    history.write()
    assert path.read_bytes() == whole


@pytest.mark.parametrize("left", ['round,"loss/line\nbre', "round,loss\n1,0.5\n2,0."])
def test_what_was_left_before_the_first_checkpoint_makes_way(tmp_path, left):
    path = tmp_path / "metrics.csv"
    path.write_text(left)
    history = History(path, _columns("loss"))
    history.load(0)
    history.append(1, {"loss": 1.5})
    assert path.read_text() == "round,loss\n1,1.5\n"


def test_a_round_takes_hardly_more_memory_than_its_line(tmp_path):
    names = [f"loss/{k}" for k in range(100)]
    path, rounds = tmp_path / "metrics.csv", 300
    tracemalloc.start()
    try:
        history = _write(path, rounds, names)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(history) == rounds
    # As mappings, rows took many times their lines.
    assert used < 2 * path.stat().st_size


def test_rows_are_read_by_their_place(tmp_path):
    history = _write(tmp_path / "metrics.csv", 3, ("a", "b"))
    assert history.numbers(3) == {"a": 3.0, "b": 3.1}
    assert history.append(4, {"a": None, "b": 0.5}) == history.numbers(4) == {"b": 0.5}


def test_a_row_can_be_changed(tmp_path):
    path = tmp_path / "metrics.csv"
    history = _write(path, 2, ("a", "b"))
    history.change(1, {"b": None})
    history.write()
    assert path.read_text() == "round,a,b\n1,1.0,\n2,2.0,2.1\n"


def test_missing_rows_are_told(tmp_path):
    path = tmp_path / "metrics.csv"
    _write(path, 3)
    assert _load_error(path, 5) == (
        f"{path}: expected rows of rounds 1 to 5, as the checkpoint says, "
        "found 3 whole rows, 1 to 3"
    )
    path.unlink()
    assert _load_error(path, 5).endswith("found none")


@pytest.mark.parametrize(
    ("old", "new"),
    [("2,2.0\n", ""), ("2,2.0\n", "2\n"), ("2,2.0\n", "2,x\n"), ("2,2.0\n", "2,2.0,2.0\n")],
)
def test_a_damaged_row_in_the_middle_is_told(tmp_path, old, new):
    path = tmp_path / "metrics.csv"
    _write(path, 4)
    path.write_text(path.read_text().replace(old, new))
    assert "expected rows of rounds 1 to 3, as the checkpoint says" in _load_error(path, 3)


def test_a_line_without_its_end_does_not_count(tmp_path):
    path = tmp_path / "metrics.csv"
    _write(path, 3)
    # Still a number, but perhaps not the one that was meant.
    path.write_text(path.read_text().removesuffix(".0\n"))
    assert _load_error(path, 3).endswith("found 2 whole rows, 1 to 2")
    assert read_history(path)["round"].tolist() == [1, 2]


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "\n\n", "round\n", "garbage\n" * 5])
def test_another_file_is_told(tmp_path, content):
    path = tmp_path / "metrics.csv"
    path.write_text(content)
    assert "expected rows of rounds 1 to 1" in _load_error(path, 1)


def test_a_damaged_file_cannot_be_compared(tmp_path):
    path = tmp_path / "metrics.csv"
    _write(path, 2)
    path.write_text(path.read_text() + "3,x\n")
    with pytest.raises(UserError, match="expected a number or nothing in every column, row 3"):
        read_history(path)
    with pytest.raises(UserError, match="expected the CSV file of a run, found none"):
        read_history(tmp_path / "missing.csv")


def test_a_full_disk_is_told():
    # Writing to this device fails as on a full disk.
    history = History(Path("/dev/full"), _columns("loss"))
    assert (
        golden.refusal(history.append, 1, {"loss": 1.0})
        == "/dev/full: cannot write: No space left on device"
    )
    assert len(history) == 0


def test_a_history_without_rows_has_no_values(tmp_path):
    assert History(tmp_path / "metrics.csv", _columns("loss")).values() == {}


def _go_on(path: Path, columns: Sequence[Column], rounds: int) -> dict[str, np.ndarray]:
    """Adds a row to a file that has other columns; returns the columns that the file has then."""
    history = History(path, columns)
    history.load(rounds)
    history.write()
    history.append(rounds + 1, {column.name: 0.5 for column in columns})
    found = read_history(path)
    assert list(found) == ["round", *(column.name for column in history.columns)]
    return found


def test_a_resumed_file_keeps_columns_and_gains_columns(tmp_path):
    path = tmp_path / "metrics.csv"
    _write(path, 2, ("gone", "today/a", "same", "empty"))
    rows = path.read_text().replace("1.3\n", "\n").replace("2.3\n", "\n")
    path.write_text(rows)
    columns = [
        Column(ReportField("new", "new")),
        Column(ReportField("same", "same")),
        Column(ReportField("today", "today"), "a"),
    ]
    found = _go_on(path, columns, 2)
    assert list(found) == ["round", "new", "same", "today/a", "gone"]
    np.testing.assert_array_equal(found["new"], [np.nan, np.nan, 0.5])
    np.testing.assert_array_equal(found["same"], [1.2, 2.2, 0.5])
    np.testing.assert_array_equal(found["today/a"], [1.1, 2.1, 0.5])
    np.testing.assert_array_equal(found["gone"], [1.0, 2.0, np.nan])
