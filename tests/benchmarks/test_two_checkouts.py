"""Rounds of two checkouts in turn: here this one twice."""

import sys
from pathlib import Path

import pytest

from benchmarks.two_checkouts import main

_ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.nightly
@pytest.mark.skipif(
    not (_ROOT / ".venv/bin/python").exists(), reason=f"no .venv; tests run in {sys.prefix}"
)
def test_both_sides_play_and_are_compared(capsys):
    main([str(_ROOT), str(_ROOT), "--rounds=1", "--starts=1"])
    title, _, _, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("logistic: medians of 1 start and of 1 x ")
    names = [f"{of}, {s}" for of in ("first round", "round") for s in ("processor s", "clock s")]
    assert len(rows) == len(names)
    for row, name in zip(rows, names):
        of, before, now, ratio = (cell.strip() for cell in row.split("|")[1:-1])
        assert of == name
        assert min(float(before), float(now)) > 0
        assert float(ratio) == pytest.approx(float(now) / float(before), rel=0.05)
