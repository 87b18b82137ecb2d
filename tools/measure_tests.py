"""A pytest plugin that measures tests: which lines each reaches, and its processor seconds.

    python -m pytest -p tools.measure_tests --measured=FOLDER [--without-lines] TESTS

It adds to FOLDER/lines.sqlite.all (a coverage.py file whose contexts are tests' names) and
FOLDER/seconds.json: the seconds of each test, of each shared fixture, and which of these a test
uses, with the processes that they started. coverage.py has to be importable, unless lines are left
out; it is not among the project's packages.

The lines of a shared fixture are those of the first test that uses it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import pytest

_ROOT = Path(__file__).resolve().parent.parent
# What faults are planted in, and so measured.
MEASURED = ("tff_agnostic", "plan_runner")
_LINES, _SECONDS = "lines.sqlite", "seconds.json"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--measured`."""
    parser.addoption("--measured", help="the folder to add to", type=Path)
    parser.addoption("--without-lines", help="measure seconds only", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    """Starts to measure, if there is a folder to write to."""
    folder: Optional[Path] = config.getoption("--measured")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        config.pluginmanager.register(_Seconds(folder), "measuring seconds")
        if not config.getoption("--without-lines"):
            config.pluginmanager.register(_Lines(folder), "measuring lines")


class Costs(NamedTuple):
    """Processor seconds of tests.

    Attributes:
        tests: Of each test, by pytest's name for it, without its shared fixtures.
        fixtures: Of each shared fixture.
        uses: The shared fixtures of each test.
    """

    tests: Mapping[str, float]
    fixtures: Mapping[str, float]
    uses: Mapping[str, Sequence[str]]


class _Seconds:
    """Measures the seconds of tests and of shared fixtures."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._tests: dict[str, float] = {}
        self._fixtures: dict[str, float] = {}
        self._uses: dict[str, Sequence[str]] = {}
        # Of the fixtures that were made since the test, or the fixture around them, began.
        self._inside = 0.0

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Takes the time of a test, with what it sets up for itself."""
        assert isinstance(item, pytest.Function)
        self._inside, before = 0.0, processor_seconds()
        yield
        # A process that this one did not start itself takes its seconds along when it ends.
        took = max(0.0, processor_seconds() - before - self._inside)
        definitions = item._fixtureinfo.name2fixturedefs
        shared = [d[-1] for d in definitions.values() if d[-1].scope != "function"]
        indices = item.callspec.indices if hasattr(item, "callspec") else {}
        names = [_name(d, indices.get(d.argname, 0)) for d in shared]
        self._tests[item.nodeid] = round(took, 4)
        self._uses[item.nodeid] = sorted(names)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        """Takes the time of a shared fixture, without those that it asks for."""
        if fixturedef.scope == "function":
            yield
            return
        around, self._inside, before = self._inside, 0.0, processor_seconds()
        yield
        took = processor_seconds() - before
        name = _name(fixturedef, getattr(request, "param_index", 0))
        self._fixtures[name] = round(took - self._inside, 4)
        self._inside = around + took

    def pytest_sessionfinish(self) -> None:
        """Writes the file, with what it had."""
        path = self._folder / _SECONDS
        earlier = costs(self._folder) if path.exists() else Costs({}, {}, {})
        both = Costs(
            {**earlier.tests, **self._tests},
            {**earlier.fixtures, **self._fixtures},
            {**earlier.uses, **self._uses},
        )
        path.write_text(json.dumps(both._asdict(), indent=0, sort_keys=True))


def _name(definition: pytest.FixtureDef[Any], index: int) -> str:
    return f"{definition.baseid}::{definition.argname}[{index}]"


class _Lines:
    """Measures which lines tests reach, from its making to the end of the session."""

    def __init__(self, folder: Path):
        import coverage

        self._folder = folder
        self._coverage = coverage.Coverage(
            data_file=str(folder / _LINES),
            source=[str(_ROOT / name) for name in MEASURED],
            data_suffix=False,
        )
        self._coverage.start()

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Has the lines of a test under its name."""
        self._coverage.switch_context(item.nodeid)
        yield
        self._coverage.switch_context("")

    def pytest_sessionfinish(self) -> None:
        """Writes the file, with what it had."""
        import coverage

        self._coverage.stop()
        data = self._coverage.get_data()
        earlier = coverage.CoverageData(str(lines_file(self._folder)))
        earlier.read()
        earlier.update(data)
        earlier.write()
        (self._folder / _LINES).unlink(missing_ok=True)


def processor_seconds() -> float:
    """Returns those of this process and of what it has started, whether that has ended or not."""
    times = os.times()
    ended = times.children_user + times.children_system
    return times.user + times.system + ended + sum(map(_of_living, _children(os.getpid())))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, file.read_text().split())
    return found


def _of_living(pid: int) -> float:
    try:
        # The name, in parentheses, may have spaces; utime, stime, cutime and cstime come 12 later.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        # It has ended since.
        return 0.0
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(_of_living, _children(pid)))


def lines_file(folder: Path) -> Path:
    """Returns the file of the lines that tests reach."""
    return folder / f"{_LINES}.all"


def name_of(path: str) -> str:
    """Returns a measured file's name from the root of its checkout, whichever that was."""
    return path[max(path.rfind(f"/{name}/") for name in MEASURED) + 1 :]


def costs(folder: Path) -> Costs:
    """Returns the processor seconds that were measured."""
    return Costs(**json.loads((folder / _SECONDS).read_text()))


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
