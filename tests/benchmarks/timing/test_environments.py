"""Environments of peers: made once, and a failure is one line."""

import subprocess

import pytest

from benchmarks.timing import environments, sides
from benchmarks.timing.environments import BENCHMARKS, python_of
from benchmarks.timing.process import SideError


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder of benchmarks whose only peer needs nothing."""
    (tmp_path / "peers" / "requirements").mkdir(parents=True)
    (tmp_path / "peers" / "requirements" / "small.txt").write_text("# nothing\n")
    monkeypatch.setattr(environments, "BENCHMARKS", tmp_path)
    return tmp_path


def test_an_environment_is_made_once(checkout, capfd):
    python = python_of("small")
    assert python.is_relative_to(checkout / ".venvs" / "small")
    assert "(once; needs the package index)" in capfd.readouterr().err
    made = python.lstat().st_ctime_ns
    assert python_of("small") == python
    assert capfd.readouterr().err == ""
    assert python.lstat().st_ctime_ns == made
    prefix = [python, "-c", "import sys; print(sys.prefix != sys.base_prefix)"]
    assert subprocess.run(prefix, capture_output=True, check=True).stdout == b"True\n"


def test_an_environment_is_made_again_when_its_requirements_change(checkout, capfd):
    python_of("small")
    (checkout / "peers" / "requirements" / "small.txt").write_text("# something else\n")
    capfd.readouterr()
    python_of("small")
    assert "(once; needs the package index)" in capfd.readouterr().err


def test_what_cannot_be_installed_is_told_in_one_line(checkout):
    requirements = checkout / "peers" / "requirements" / "small.txt"
    requirements.write_text("./no_such_folder\n")
    for _ in range(2):
        with pytest.raises(SideError, match=r"^cannot be installed: \S") as caught:
            python_of("small")
        assert "\n" not in str(caught.value)


def test_every_peer_has_its_script_and_pinned_requirements():
    for peer in sides.PEERS.values():
        assert (BENCHMARKS / "peers" / peer.script).is_file()
        if peer.environment:
            path = BENCHMARKS / "peers" / "requirements" / f"{peer.environment}.txt"
            lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
            assert lines
            assert all("==" in line or "<" in line for line in lines), path
            assert "://" not in path.read_text()
