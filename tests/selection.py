"""Which tests run: of many combinations a part, and of the usual tests the quick ring.

`./run test` runs the quick ring, `./run test --all` all usual tests, and `--exhaustive` every
combination too. `--exhaustive-share` runs an eightieth of what only `--exhaustive` runs,
`--rest-share` what the quick ring leaves out but for three quarters of the costly tests, and
`--file-share` of any of these the files that are a commit's.
"""

import functools
import hashlib
import importlib.util
from collections.abc import Collection, Hashable, Iterable
from pathlib import Path
from typing import Any

import pytest

exhaustive = pytest.mark.exhaustive
# What the quick ring leaves out; `tools/choose_ring.py` chose it.
REST = Path(__file__).parent / "rest.txt"
# What is not usual, beside the combinations that are marked so; it chose these, too.
EXHAUSTIVE = REST.with_name("exhaustive.txt")
# Of the rest what takes long; CI runs a part of it with each commit.
COSTLY = REST.with_name("costly.txt")
# What every commit runs with `--file-share`; `tools/try_today` uses it.
EACH_COMMIT = REST.with_name("each_commit.txt")
# A commit runs one of so many shares of the exhaustive tests, each of which is in one.
SHARES = 80
# One of so many shares of the costly tests.
COSTLY_SHARES = 4
# And one of so many shares of test files: only these are imported.
FILE_SHARES = 40


@functools.cache
def has_tff() -> bool:
    """Returns whether TensorFlow Federated is here: it is on the reference platform only."""
    return importlib.util.find_spec("tensorflow_federated") is not None


def skip_if_tff_is_missing(message: str) -> None:
    """Skips a test if a message is that of `require_tff`, or Python's of it or what it brings."""
    said = ("expected TensorFlow Federated", "'tensorflow_federated'", "'tensorflow_privacy'")
    if any(text in message for text in said) and not has_tff():
        pytest.skip("TensorFlow Federated 0.87 is not installed: the reference platform has it")


def rest(path: Path = REST) -> frozenset[str]:
    """Returns what the quick ring leaves out: files, functions as FILE::FUNCTION, and cases."""
    lines = path.read_text().splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def is_left_out(test: str, entries: Collection[str]) -> bool:
    """Returns whether entries, as of `rest`, have a test, by pytest's name for it."""
    return any(part in entries for part in (test.partition("::")[0], test.partition("[")[0], test))


def lost_cases(entries: Collection[str], tests: Collection[str]) -> list[str]:
    """Returns entries that name a case which is not there, of functions that have others."""
    functions = {test.partition("[")[0] for test in tests}
    cases = (entry for entry in entries if "[" in entry and entry not in tests)
    return sorted(entry for entry in cases if entry.partition("[")[0] in functions)


def share_of(text: str, shares: int = SHARES) -> int:
    """Returns a number below `shares`, the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % shares


def is_in_share(test: str, commit: str, shares: int = SHARES) -> bool:
    """Returns whether a test, or a file of tests, is in the share that a commit runs."""
    return share_of(test, shares) == share_of(commit, shares)


def is_of_commit(test: str, commit: str, entries: Collection[str]) -> bool:
    """Returns whether a commit runs a test with `--file-share`, or any test of a file.

    Args:
        test: pytest's name for it, or that of the file.
        commit: Any text.
        entries: What every commit runs; see `EACH_COMMIT`.
    """
    file, _, function = test.partition("::")
    if is_in_share(file, commit, FILE_SHARES) or is_left_out(test, entries):
        return True
    return not function and any(entry.partition("::")[0] == file for entry in entries)


def usually(chosen: Collection[Any], every: Iterable[Hashable]) -> list[Any]:
    """Returns parameters of a test: `every` one, of which the usual tests run those in `chosen`.

    A parameter of several values is a tuple, in `chosen` as in `every`.

    Raises:
      ValueError: something is chosen that is not there.
    """
    values = list(every)
    if strangers := [value for value in chosen if value not in values]:
        raise ValueError(f"chosen, but not there: {strangers}")
    return [_parameter(value, value in chosen) for value in values]


def _parameter(value: Any, is_usual: bool) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=() if is_usual else exhaustive)


def asked_for(request: pytest.FixtureRequest, parameter: str) -> list[Any]:
    """Returns what a parameter is in tests of the fixture's module that run, each value once."""
    calls = (
        getattr(item, "callspec", None)
        for item in request.session.items
        if item.path == request.path
    )
    return list(dict.fromkeys(c.params[parameter] for c in calls if c and parameter in c.params))
