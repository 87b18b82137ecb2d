"""Files in the memory that a player shares with the process that runs its plan."""

import os

import pytest

from fleet.worker import _put, _taken


@pytest.fixture
def shared():
    memory = os.memfd_create("test")
    yield memory
    os.close(memory)


def test_files_are_taken_once(shared):
    files = {"a": b"123", "empty": b"", "b": b"4"}
    sizes = _put(shared, files)
    assert _taken(shared, sizes) == files
    assert os.fstat(shared).st_size == 0


@pytest.mark.parametrize(
    "sizes", [5, "ab", [1], None, {"a": -1}, {"a": 4}, {"a": "1"}, {"a": 1.0}, {"a": 2, "b": 2}]
)
def test_invalid_sizes_raise_caught_errors(shared, sizes):
    """Another process reports the sizes; `Player` turns these errors into one line."""
    _put(shared, {"a": b"123"})
    with pytest.raises((TypeError, ValueError)):
        _taken(shared, sizes)
