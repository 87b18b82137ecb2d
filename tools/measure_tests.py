"""A pytest plugin that measures tests: which lines each reaches, and its processor seconds.

    python -m pytest -p tools.measure_tests --measured=FOLDER TESTS
    python -m pytest -p tools.measure_tests --collect-only --in-both-rings TESTS

It adds to FOLDER/lines.sqlite.all (a coverage.py file whose contexts are tests' names) and
FOLDER/seconds.json (by test; with processes that it started and that have ended). coverage.py has
to be importable; it is not among the project's packages.

The seconds of a fixture are those of the first test that uses it. A shared one that tests of both
rings use is made twice; the second command prints each with its tests.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import pytest

from tests.selection import EXHAUSTIVE, is_left_out, rest

_ROOT = Path(__file__).resolve().parent.parent
# What faults are planted in, and so measured.
MEASURED = ("tff_agnostic", "plan_runner")
_LINES, _SECONDS = "lines.sqlite", "seconds.json"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--measured`."""
    parser.addoption("--measured", help="the folder to add to", type=Path)
    parser.addoption("--in-both-rings", help="print fixtures of both", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    """Starts to measure, if there is a folder to write to."""
    folder: Optional[Path] = config.getoption("--measured")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        config.pluginmanager.register(_Measuring(folder), "measuring")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Prints the shared fixtures that tests of both rings use."""
    if not session.config.getoption("--in-both-rings"):
        return
    entries = rest() | rest(EXHAUSTIVE)
    users: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
    for item in session.items:
        assert isinstance(item, pytest.Function)
        for name, definitions in item._fixtureinfo.name2fixturedefs.items():
            if definitions[-1].scope in ("module", "package", "session"):
                of_rings = users.setdefault((definitions[-1].baseid, name), (set(), set()))
                of_rings[is_left_out(item.nodeid, entries)].add(item.name.partition("[")[0])
    for (where, name), (quick, left_out) in sorted(users.items()):
        if quick and left_out:
            print(f"{where}, {name}: quick: {sorted(quick)}; the rest: {sorted(left_out)}")


class _Measuring:
    """Measures from its making to the end of the session."""

    def __init__(self, folder: Path):
        import coverage

        self._folder = folder
        self._coverage = coverage.Coverage(
            data_file=str(folder / _LINES),
            source=[str(_ROOT / name) for name in MEASURED],
            data_suffix=False,
        )
        self._coverage.start()
        self._seconds: dict[str, float] = {}

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Takes the time of a test, with what it sets up, and its lines under its name."""
        self._coverage.switch_context(item.nodeid)
        before = _processor_seconds()
        yield
        self._seconds[item.nodeid] = round(_processor_seconds() - before, 4)
        self._coverage.switch_context("")

    def pytest_sessionfinish(self) -> None:
        """Writes both files, with what they had."""
        import coverage

        self._coverage.stop()
        data = self._coverage.get_data()
        earlier = coverage.CoverageData(str(lines_file(self._folder)))
        earlier.read()
        earlier.update(data)
        earlier.write()
        (self._folder / _LINES).unlink(missing_ok=True)
        path = self._folder / _SECONDS
        seconds: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**seconds, **self._seconds}, indent=0, sort_keys=True))


def _processor_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def lines_file(folder: Path) -> Path:
    """Returns the file of the lines that tests reach."""
    return folder / f"{_LINES}.all"


def seconds(folder: Path) -> dict[str, float]:
    """Returns the processor seconds of each measured test."""
    found: dict[str, float] = json.loads((folder / _SECONDS).read_text())
    return found


def reached(folder: Path, lines: Mapping[str, set[int]]) -> dict[str, set[str]]:
    """Returns which tests reach any of the lines of each file; "" is the import of the file.

    Args:
        folder: What was measured.
        lines: Line numbers of each file, whose names begin at the checkout's root.
    """
    import coverage.numbits

    found: dict[str, set[str]] = {name: set() for name in lines}
    with sqlite3.connect(lines_file(folder)) as data:
        for name, wanted in lines.items():
            rows = data.execute(
                "select context.context, line_bits.numbits from line_bits"
                " join context on context.id = line_bits.context_id"
                " join file on file.id = line_bits.file_id where file.path like ?",
                (f"%/{name}",),
            )
            for context, bits in rows:
                if wanted.intersection(coverage.numbits.numbits_to_nums(bits)):
                    found[name].add(context)
    return found
