"""Every flag file under configs/ describes runs that could start."""

from pathlib import Path

import pytest
from absl.testing import flagsaver

from binaries import compare, train
from tests.binaries.harness import ROOT
from tff_agnostic.run.command_line import run_spec_from_flags
from tff_agnostic.run.process import parse_flags
from tff_agnostic.run.spec import from_flags

_FILES = sorted((ROOT / "configs").glob("*.flags"))


def test_there_are_flag_files():
    assert len(_FILES) >= 3


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_a_flag_file_is_accepted(path: Path):
    is_comparison = "--algorithms=" in path.read_text()
    with flagsaver.flagsaver():
        (compare if is_comparison else train).define_flags()
        assert parse_flags(["binary", f"--flagfile={path}"]) == ["binary"]
        if is_comparison:
            arms = compare.arms_from_flags()
            specs = [spec for trials in compare.trial_specs(arms).values() for spec in trials]
        else:
            specs = [run_spec_from_flags()]
    for spec in specs:
        assert from_flags(spec.flags()) == spec


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_a_flag_file_says_what_it_is_for(path: Path):
    assert path.read_text().startswith("# ")
