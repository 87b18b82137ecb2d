"""Golden texts: expected messages and pages, which `./run test --golden TESTS` writes again.

The tests in `tests/F/test_T.py` have the table `tests/golden/F/T.txt`. It has a section per test
and a row per case, `CASE => MESSAGE`. A test returns a case's message. A message in the table can
end with `...`, which matches any rest, such as all names of a registry. To add a case, add a row
without a message, run with `--golden` and check the written message.
"""

from __future__ import annotations

import functools
import inspect
import math
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from tff_agnostic.base.errors import UserError

_TESTS = Path(__file__).parents[1]
_ARROW = " => "
# Whether to write golden texts; `--golden` sets it.
writes = False

Test = Callable[..., str]
Compared = Callable[..., None]


def values(test: Test) -> Test:
    """Calls a test with each `case` of its section, a Python expression with np, inf and nan."""

    def value(text: str) -> Any:
        return eval(text, {"inf": math.inf, "nan": math.nan, "np": np})

    return _with_cases(test, "case", _section(test), value)


def arguments(test: Test) -> Test:
    """Calls a test with the `arguments` of each case of its section, split like a shell's."""
    return _with_cases(test, "arguments", _section(test), shlex.split)


def cases(named: Mapping[str, Any] | Iterable[str]) -> Callable[[Test], Test]:
    """Calls a test with each value as `case`; the section's rows have the values' names."""
    cases = named if isinstance(named, Mapping) else {name: name for name in named}

    def decorated(test: Test) -> Test:
        return _with_cases(test, "case", cases, cases.__getitem__)

    return decorated


def text(test: Test) -> Compared:
    """Compares a test's returned text with the file `tests/golden/F/T/TEST.txt`."""
    name = f"{test.__name__.removeprefix('test_')}.txt"
    path = _path(test).with_suffix("") / name

    @functools.wraps(test)
    def compared(**given: Any) -> None:
        actual = f"{_without_folders(test(**given), given)}\n"
        if writes:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(actual, encoding="utf-8")
        assert actual == path.read_text(encoding="utf-8")

    return compared


def refusal(function: Callable[..., Any], *arguments: Any, **settings: Any) -> str:
    """Returns the one-line message of a call that raises `UserError`."""
    with pytest.raises(UserError) as error:
        function(*arguments, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def _with_cases(test: Test, name: str, texts: Iterable[str], value: Callable[[str], Any]) -> Test:
    @functools.wraps(test)
    def compared(**given: Any) -> None:
        case = given[name]
        actual = _without_folders(test(**{**given, name: value(case)}), given)
        if writes:
            _write(test, list(texts), case, actual)
        expected = _section(test)
        assert expected.keys() == set(texts), "rows without a case"
        assert actual == expected[case] or _begins(expected[case], actual)

    assert texts, f"{test.__name__} has no cases in {_path(test)}"
    return pytest.mark.parametrize(name, list(texts))(compared)


def _without_folders(actual: str, given: Mapping[str, Any]) -> str:
    for fixture in given.values():
        if isinstance(fixture, Path):
            actual = actual.replace(str(fixture), "DIR")
    return actual


def _begins(row: str, actual: str) -> bool:
    return row.endswith("...") and actual.startswith(row[:-3])


def _path(test: Test) -> Path:
    path = Path(inspect.getfile(test)).relative_to(_TESTS)
    return _TESTS / "golden" / path.parent / f"{path.stem.removeprefix('test_')}.txt"


@functools.cache
def _sections(path: Path) -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        if line.startswith("[test_"):
            rows = sections.setdefault(line[1:-1], {})
        elif line:
            case, _, message = line.partition(_ARROW)
            assert case not in rows, f"{path}: {case} occurs twice"
            rows[case] = message
    return sections


def _section(test: Test) -> dict[str, str]:
    return _sections(_path(test)).get(test.__name__, {})


def _write(test: Test, texts: list[str], case: str, actual: str) -> None:
    path, sections = _path(test), _sections(_path(test))
    before = sections.get(test.__name__, {})
    row = before.get(case, "")
    sections[test.__name__] = {
        **{text: before.get(text, "") for text in texts},
        case: row if _begins(row, actual) else actual,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = [
        "\n".join([f"[{name}]", *(f"{case}{_ARROW}{rows[case]}" for case in rows)])
        for name, rows in sections.items()
    ]
    path.write_text("\n\n".join(tables) + "\n", encoding="utf-8")
