"""Folders that the user did not name."""

import threading
from pathlib import Path

import pytest

from tff_agnostic.errors import UserError
from tff_agnostic.folders import claimed_folder, output_folder


def _used(runs: Path, *names: str) -> None:
    for name in names:
        (runs / name).mkdir(parents=True)
        (runs / name / "config.json").write_text("{}")


def _folder_of(runs: Path, name: str = "digits", resume: bool = False) -> str:
    with output_folder(None, runs, name, resume) as path:
        assert path.parent == runs
        return path.name


def test_folders_are_numbered_by_name(tmp_path):
    runs = tmp_path / "runs"
    assert _folder_of(runs) == "digits-001"
    _used(runs, "digits-001", "digits-009", "digits-x", "other-050")
    (runs / "digits-011").write_text("a file")
    assert _folder_of(runs) == "digits-012"
    assert _folder_of(runs, "other") == "other-051"
    assert _folder_of(runs, "digit") == "digit-001"
    _used(runs, "digits-1000")
    assert _folder_of(runs) == "digits-1001"


def test_a_command_that_goes_on_takes_the_newest_folder_in_which_something_is(tmp_path):
    runs = tmp_path / "runs"
    assert _folder_of(runs, resume=True) == "digits-001"
    _used(runs, "digits-001", "digits-009")
    # Somebody has just started there.
    (runs / "digits-010").mkdir()
    assert _folder_of(runs, resume=True) == "digits-009"
    assert _folder_of(runs, "other", resume=True) == "other-001"


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_was_named_is_left_to_the_run(tmp_path, resume):
    with output_folder(tmp_path / "mine", tmp_path / "runs", "digits", resume) as path:
        assert path == tmp_path / "mine"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_anything_in_it_is_taken_away(tmp_path):
    runs = tmp_path / "runs"
    with pytest.raises(UserError), output_folder(None, runs, "digits", resume=False) as path:
        assert path.is_dir()
        raise UserError("refused")
    assert not runs.exists()
    with pytest.raises(UserError), output_folder(None, runs, "digits", resume=False) as path:
        (path / "metrics.csv").write_text("")
        raise UserError("diverged")
    assert [p.name for p in runs.iterdir()] == ["digits-001"]
    assert _folder_of(runs) == "digits-002"
    assert [p.name for p in runs.iterdir()] == ["digits-001"]


def test_those_that_start_at_once_have_folders_of_their_own(tmp_path):
    runs, together = tmp_path / "runs", threading.Barrier(20)
    found = []

    def start():
        together.wait()
        found.append(claimed_folder(runs, "digits"))

    threads = [threading.Thread(target=start) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [runs / f"digits-{k:03d}" for k in range(1, 21)]
