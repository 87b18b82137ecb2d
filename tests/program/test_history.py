"""metrics.csv: exact, restartable, and tolerant of what a crash leaves at its end."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tff_agnostic.errors import UserError
from tff_agnostic.program.history import History, read_history

_AWKWARD = ('comma, "quoted"', "line\nbreak", "a/b", "b", " spaces ", "ünï", "", "'", ";\t")


def _write(path: Path, rounds: int, names: Sequence[str] = ("loss",)) -> History:
    history = History(path)
    history.load(0)
    history.write()
    for t in range(1, rounds + 1):
        history.append(t, {name: t + i / 10 for i, name in enumerate(names)})
    return history


def _load_error(path: Path, completed_rounds: int) -> str:
    with pytest.raises(UserError) as error:
        History(path).load(completed_rounds)
    assert "\n" not in str(error.value)
    return str(error.value)


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
    history = History(tmp_path / "metrics.csv")
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
    np.testing.assert_equal(history.columns(), columns)


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


def test_a_row_with_other_columns_is_refused(tmp_path):
    history = _write(tmp_path / "metrics.csv", 1)
    with pytest.raises(UserError, match="its columns are those of another run"):
        history.append(2, {"accuracy": 1.0})
    assert len(read_history(tmp_path / "metrics.csv")["round"]) == 1


@pytest.mark.parametrize("completed", [0, 1, 3])
def test_going_on_gives_the_same_file(tmp_path, completed):
    names = [f"loss/{name}" for name in _AWKWARD]
    _write(tmp_path / "whole.csv", 5, names)
    path = tmp_path / "metrics.csv"
    _write(path, 4, names)
    history = History(path)
    history.load(completed)
    assert [row["round"] for row in history.rows] == [str(t + 1) for t in range(completed)]
    history.write()
    for t in range(completed + 1, 6):
        history.append(t, {name: t + i / 10 for i, name in enumerate(names)})
    assert path.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_loading_writes_nothing(tmp_path):
    path = tmp_path / "metrics.csv"
    _write(path, 4)
    before = path.read_bytes()
    History(path).load(2)
    assert path.read_bytes() == before
    History(tmp_path / "new.csv").load(0)
    assert not (tmp_path / "new.csv").exists()


@pytest.mark.parametrize(
    "tail", [b"4,", b"4,1.5", b"4,1.5\n5,", b"4,\xff\xfe\n", b"\0" * 50, b"4\n", b"4,1,2,3\n", b'"']
)
def test_what_a_crash_left_after_the_completed_rounds_is_dropped(tmp_path, tail):
    path = tmp_path / "metrics.csv"
    _write(path, 3)
    whole = path.read_bytes()
    path.write_bytes(whole + tail)
    history = History(path)
    history.load(3)
    history.write()
    assert path.read_bytes() == whole


def test_a_cut_off_header_is_no_matter_before_the_first_checkpoint(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text('round,"loss/line\nbre')
    history = History(path)
    history.load(0)
    history.write()
    assert path.read_text() == ""


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
    with pytest.raises(UserError, match="cannot read: No such file"):
        read_history(tmp_path / "missing.csv")


def test_a_full_disk_is_told():
    # Writing to this device fails as on a full disk.
    history = History(Path("/dev/full"))
    with pytest.raises(UserError) as error:
        history.append(1, {"loss": 1.0})
    assert str(error.value) == "/dev/full: cannot write: No space left on device"
    assert history.rows == []


def test_an_empty_history_has_no_columns(tmp_path):
    assert History(tmp_path / "metrics.csv").columns() == {}
