"""Files and results of the process that executes a player's plan."""

import os
from pathlib import Path

import pytest

from fleet.player import Examples, Player
from fleet.worker import REPORT, SHARED, STATE, VALUES, _put, _taken, serve
from plan_runner.errors import PlanError
from tests.support.processes import is_running


@pytest.fixture
def shared():
    memory = os.memfd_create("test")
    yield memory
    os.close(memory)


def test_shared_files_are_read_once(shared):
    files = {"a": b"123", "empty": b"", "b": b"4"}
    sizes = _put(shared, files)
    assert _taken(shared, sizes) == files
    assert os.fstat(shared).st_size == 0


@pytest.mark.parametrize(
    "sizes", [5, "ab", [1], None, {"a": -1}, {"a": 4}, {"a": "1"}, {"a": 1.0}, {"a": 2, "b": 2}]
)
def test_invalid_file_sizes_raise(shared, sizes):
    """The worker reports the sizes; `Player` turns these errors into one line."""
    _put(shared, {"a": b"123"})
    with pytest.raises((TypeError, ValueError)):
        _taken(shared, sizes)


def serve_malformed_results(payload, listener, folder):
    """Serves results like a compromised process."""
    report = (Path(payload["export"]) / "report").read_bytes()
    files = {REPORT: report, STATE: b"", VALUES: b"no archive"}
    return serve(lambda request, received: files, listener, payload[SHARED])


@pytest.mark.parametrize(
    "report",
    [b"3", b'["training", [], "many", 1]', b'["training", [["a", [1e400], 2, 2]], 5, 1]'],
)
def test_malformed_results_raise_and_end_the_process(monkeypatch, tmp_path, report):
    (tmp_path / "report").write_bytes(report)
    function = f"{__name__}:{serve_malformed_results.__name__}"
    monkeypatch.setattr("fleet.player._FUNCTION", function)
    player = Player(tmp_path, "0" * 64, trust=True)
    try:
        for ask in (
            lambda: player.about,
            lambda: player.values("ann", b"", Examples()),
            lambda: player.update("ann", b"", Examples()),
            lambda: player.end(b"", b"", 1, 3, 0, 0.0),
        ):
            player.evaluated(b"", b"")
            process = player.process_id
            with pytest.raises(PlanError, match=r"results|values of ann: expected an \.npz file"):
                ask()
            assert player.process_id is None and not is_running(process)
    finally:
        player.close()
