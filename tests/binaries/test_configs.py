"""Every flag file under configs/ describes runs that could start."""

from pathlib import Path

import pytest

from binaries import train
from tests.binaries.harness import ROOT, compared_specs, given
from tff_agnostic.run.spec import from_flags

_FILES = sorted((ROOT / "configs").glob("*.flags"))


def test_there_are_flag_files():
    assert len(_FILES) >= 3


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_a_flag_file_is_accepted(path: Path):
    is_comparison = "--algorithms=" in path.read_text()
    file = f"--flagfile={path}"
    if is_comparison:
        specs = [spec for trials in compared_specs(file).values() for spec in trials]
    else:
        specs = [given(train, file).spec()]
    for spec in specs:
        assert from_flags(spec.flags()) == spec


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_a_flag_file_says_what_it_is_for(path: Path):
    assert path.read_text().startswith("# ")
