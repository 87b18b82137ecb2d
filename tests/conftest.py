"""What tests share: one running runtime of each kind a session."""

import contextlib
import functools
import gc
import os
import typing
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import pytest

from tests import golden
from tests.selection import (
    COSTLY,
    COSTLY_SHARES,
    EACH_COMMIT,
    EXHAUSTIVE,
    REST,
    has_tff,
    is_in_share,
    is_left_out,
    is_of_commit,
    lost_cases,
    rest,
    skip_if_tff_is_missing,
)
from tff_agnostic.errors import UserError

if TYPE_CHECKING:
    from tff_agnostic.runtimes.cohort import CohortRuntime
    from tff_agnostic.runtimes.tff import TffRuntime

# TensorFlow reads it when it is first imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


_RINGS = ("quick", "rest", "all")
# What Python 3.11 calls anew in each `isinstance` with a protocol.
_MEMBERS_OF_PROTOCOL = "_get_protocol_attrs"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--golden`, and what chooses tests (`tests/selection.py`)."""
    parser.addoption(
        "--exhaustive",
        action="store_true",
        help="run every combination, also those of which the usual tests take a part",
    )
    parser.addoption(
        "--exhaustive-share",
        metavar="COMMIT",
        help="run what only --exhaustive runs, and of it the share that a commit has",
    )
    parser.addoption(
        "--costly-share",
        metavar="COMMIT",
        help="of the tests that tests/costly.txt names run only the share that a commit has",
    )
    parser.addoption(
        "--file-share",
        metavar="COMMIT",
        help="run only the share of the files that a commit has, and tests/each_commit.txt",
    )
    parser.addoption(
        "--ring",
        choices=_RINGS,
        help="of the usual tests the quick ring, what it leaves out, or all; by itself pytest also "
        "runs what tests/exhaustive.txt names",
    )
    parser.addoption("--golden", action="store_true", help="write tables of messages anew")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> Optional[bool]:
    """Passes over files of other shares: they are not imported."""
    commit = config.getoption("--file-share")
    if commit is None or not collection_path.match("test_*.py"):
        return None
    name = collection_path.relative_to(config.rootpath).as_posix()
    return None if is_of_commit(name, commit, rest(EACH_COMMIT)) else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is exhaustive unless it is asked for, and what is in no ring."""
    ring = config.getoption("--ring")
    commit = config.getoption("--exhaustive-share")
    commit_of_files = config.getoption("--file-share")
    commit_of_costly = config.getoption("--costly-share")
    is_by_hand = ring is None and commit is None
    entries = rest() if ring in ("quick", "rest") else frozenset()
    each_commit = rest(EACH_COMMIT) if commit_of_files else frozenset()
    unusual = frozenset() if is_by_hand else rest(EXHAUSTIVE)
    costly = rest(COSTLY) if commit_of_costly else frozenset()
    # A case of another name would be in another ring. Where tests are named, others are not there.
    is_whole = not config.option.keyword and not any("::" in name for name in config.args)
    if not is_by_hand and is_whole and has_tff():
        for path in (REST, COSTLY, EXHAUSTIVE):
            if lost := lost_cases(rest(path), {item.nodeid for item in items}):
                raise pytest.UsageError(f"{path}: expected cases that are there, found {lost[0]}")

    def is_chosen(item: pytest.Item) -> bool:
        is_marked = item.get_closest_marker("exhaustive") is not None
        if is_left_out(item.nodeid, each_commit):
            return not is_marked
        if commit_of_files and not is_of_commit(item.nodeid, commit_of_files, each_commit):
            return False
        is_exhaustive = is_marked or is_left_out(item.nodeid, unusual)
        if commit is not None:
            return is_exhaustive and is_in_share(item.nodeid, commit)
        if is_exhaustive and not config.getoption("--exhaustive"):
            return False
        if is_left_out(item.nodeid, costly):
            return is_in_share(item.nodeid, commit_of_costly, COSTLY_SHARES)
        return is_left_out(item.nodeid, entries) == (ring == "rest")

    chosen = {item.nodeid: is_chosen(item) for item in items}
    config.hook.pytest_deselected(items=[item for item in items if not chosen[item.nodeid]])
    items[:] = [item for item in items if chosen[item.nodeid]]


def pytest_configure(config: pytest.Config) -> None:
    """Makes Python quicker at what tests do most, which is to trace functions of TensorFlow."""
    golden.writes = config.getoption("--golden")
    # Graphs are many small objects, which nearly all stay.
    gc.set_threshold(50_000, 20, 50)
    # TensorFlow asks so of every value that it traces: a tenth of the time.
    members = getattr(typing, _MEMBERS_OF_PROTOCOL)
    setattr(typing, _MEMBERS_OF_PROTOCOL, functools.cache(members))


@contextlib.contextmanager
def _skips_without_tff() -> Iterator[None]:
    try:
        yield
    except (UserError, ModuleNotFoundError, AssertionError) as e:
        skip_if_tff_is_missing(str(e))
        raise


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Skips files that import TensorFlow Federated where it is not installed."""
    report = yield
    if report.failed:
        try:
            skip_if_tff_is_missing(str(report.longrepr))
        except pytest.skip.Exception as e:
            report.outcome, report.longrepr = "skipped", (report.nodeid, 0, str(e))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    """Skips tests whose fixtures need it."""
    with _skips_without_tff():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, Any, Any]:
    """Skips tests that need it."""
    with _skips_without_tff():
        return (yield)


def pytest_sessionfinish() -> None:
    """Lets what is left be: pytest and Python look through all of it again before they end."""
    gc.freeze()


@pytest.fixture(scope="session")
def tff_runtime() -> "Iterator[TffRuntime]":
    """A `TffRuntime` whose worker all tests of the session share, as TFF's current context."""
    # Imported here: tests of the set-up need no TensorFlow, which takes seconds to import.
    import tensorflow_federated as tff

    from tff_agnostic.runtimes.tff import TffRuntime

    with TffRuntime() as runtime:
        # TFF's own default context starts a worker that nobody ends: no test may reach it.
        tff.framework.set_default_context(tff.framework.get_context_stack().current)
        yield runtime


@pytest.fixture(scope="session")
def cohort_runtime() -> "Iterator[CohortRuntime]":
    """A `CohortRuntime` with its default options, the default runtime, for all tests."""
    from tff_agnostic.runtimes.cohort import CohortRuntime

    with CohortRuntime() as runtime:
        yield runtime


@pytest.fixture(scope="session")
def streaming_runtime() -> "Iterator[CohortRuntime]":
    """One that runs clients one by one: to put them in step takes longer than most rounds."""
    from tff_agnostic.runtimes.cohort import CohortRuntime
    from tff_agnostic.runtimes.options import RuntimeOptions

    with CohortRuntime(RuntimeOptions(client_mode="streamed")) as runtime:
        yield runtime
