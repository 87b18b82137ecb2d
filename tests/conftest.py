"""Markers, options and fixtures that all tests share."""

from __future__ import annotations

import functools
import gc
import os
import typing
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support import golden
from tests.support.platform import MISSING_TFF, lacks_tff, names_tff

if TYPE_CHECKING:
    from tff_agnostic.runtimes.cohort import CohortRuntime
    from tff_agnostic.runtimes.tff import TffRuntime

# TensorFlow reads these variables at its import. One thread each, as every core has a test process.
for _name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Fix the width of help pages, since terminals and pytest-xdist set different widths.
os.environ["COLUMNS"] = "100"

# Python 3.11 calls this function in each `isinstance` with a protocol.
_PROTOCOL_MEMBERS = "_get_protocol_attrs"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden", action="store_true", help="write the texts in tests/golden again")


def pytest_configure(config: pytest.Config) -> None:
    """Speeds up tracing of TensorFlow functions, on which tests spend most of their time."""
    golden.writes = config.getoption("--golden")
    # Collect garbage rarely, as graphs are many small objects that mostly stay.
    gc.set_threshold(50_000, 20, 50)
    # Cache the members of protocols: TensorFlow's checks take a tenth of the time of tracing.
    setattr(typing, _PROTOCOL_MEMBERS, functools.cache(getattr(typing, _PROTOCOL_MEMBERS)))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Applies the marks `slow_cases` and `nightly_cases` to their cases, before `-m` selects."""
    missing: dict[tuple[str, str], set[str]] = {}
    for item in items:
        for mark in item.iter_markers():
            if mark.name not in ("slow_cases", "nightly_cases"):
                continue
            test, _, case = item.nodeid.removesuffix("]").partition("[")
            others = mark.kwargs.get("but", ())
            missing.setdefault((test, mark.name), {*mark.args, *others}).discard(case)
            if case in mark.args or (others and case not in others):
                item.add_marker(mark.name.removesuffix("_cases"))
    lost = [f"{test}: {cases}" for (test, _), cases in missing.items() if cases]
    if lost and not any("::" in name for name in config.args):
        raise pytest.UsageError(f"expected the cases that these tests mark, found none of {lost}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skips tests that need TensorFlow Federated if it is not installed."""
    report = yield
    if report.failed and call.excinfo and lacks_tff(call.excinfo.value):
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, str(call.excinfo.value))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skips files that import TensorFlow Federated if it is not installed."""
    report = yield
    if report.failed and names_tff(str(report.longrepr)):
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, MISSING_TFF)
    return report


def pytest_sessionfinish() -> None:
    """Avoids a last garbage collection of all objects."""
    gc.freeze()


@pytest.fixture(scope="session")
def tff_runtime() -> Iterator[TffRuntime]:
    """A running `TffRuntime`, whose worker is TFF's current context."""
    tff = pytest.importorskip("tensorflow_federated")
    from tff_agnostic.runtimes.tff import TffRuntime

    with TffRuntime() as runtime:
        # TFF's own default context would start a worker that never exits.
        tff.framework.set_default_context(tff.framework.get_context_stack().current)
        yield runtime


@pytest.fixture(scope="session")
def cohort_runtime() -> Iterator[CohortRuntime]:
    """A running `CohortRuntime` with default options."""
    from tff_agnostic.runtimes.cohort import CohortRuntime

    with CohortRuntime() as runtime:
        yield runtime


@pytest.fixture(scope="session")
def streaming_runtime() -> Iterator[CohortRuntime]:
    """A running `CohortRuntime` with streamed clients, whose tracing is faster."""
    from tff_agnostic.runtimes.cohort import CohortRuntime
    from tff_agnostic.runtimes.options import CohortOptions

    with CohortRuntime(CohortOptions(client_mode="streamed")) as runtime:
        yield runtime
