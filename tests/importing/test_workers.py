"""Worker processes of imports: equal stores, ordered results, and killed processes."""

import contextlib
import functools
import itertools
import math
import multiprocessing
import shutil
import signal
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import pytest

from tests.support.imports import job
from tff_agnostic.base.errors import ExecutionError, UserError
from tff_agnostic.base.files import read_text
from tff_agnostic.data.store import CLIENTS, EXAMPLES, STORE
from tff_agnostic.importing import stackexchange
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.importing.workers import in_order

_RAISE_SIGNAL = functools.partial(functools.partial, signal.raise_signal)
_SQRT = functools.partial(functools.partial, math.sqrt)
_READ = functools.partial(functools.partial, read_text, what="a file")


@pytest.mark.slow
def test_process_count_does_not_change_the_store(tmp_path, monkeypatch):
    bodies = (
        "",
        "<pre>only code</pre>",
        "<p>Yes! \u2014 \u201cna\u00efve\u201d\u2026</p>",
        "Long " * 40,
    )
    rows = (
        f'<row Id="{k}" PostTypeId="1" OwnerUserId="{k % 5}" Body="{escape(bodies[k % 4])}" />'
        for k in range(60)
    )
    path = tmp_path / "Posts.xml"
    path.write_text(f"<posts>{''.join(rows)}</posts>")
    monkeypatch.setattr(stackexchange, "_CHARACTERS", 700)
    stores, reports = [], []
    for processes in (1, 3):
        store = tmp_path / "store"
        options = {"split_by": "example", "stratify": False, "bad_records": "skip"}
        report = job("stackexchange", path, store, processes=processes, **options).run(
            ReadLog(skip_bad=True)
        )
        stores.append([(store / name).read_bytes() for name in (EXAMPLES, CLIENTS, STORE)])
        reports.append(report.to_json())
        shutil.rmtree(store)
    assert stores[0] == stores[1] and reports[0] == reports[1]


def test_results_and_errors_keep_block_order(tmp_path):
    paths = [tmp_path / str(k) for k in range(2)]
    for path in paths:
        path.write_text(path.name)

    def blocks() -> Any:
        yield from paths
        yield tmp_path / "none"
        raise UserError("of the reader")

    for processes in (1, 3):
        results = in_order(_READ, blocks(), processes)
        assert [next(results), next(results)] == [(paths[0], "0"), (paths[1], "1")]
        with pytest.raises(UserError, match="none: expected a file"):
            next(results)


def test_killed_worker_raises_execution_error():
    with pytest.raises(ExecutionError, match=r"found one that exited: .* \(processes=1"):
        list(in_order(_RAISE_SIGNAL, [signal.SIGKILL] * 3, 2))


def _until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so() and time.monotonic() < end:
        time.sleep(0.05)
    assert is_so()


def _workers(pid: int) -> list[int]:
    """Returns the ids of a process's children, except Python's resource tracker."""
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [
            int(k) for k in children if b"spawn_main" in Path(f"/proc/{k}/cmdline").read_bytes()
        ]
    return []


def _import_for_ever() -> None:
    for _ in in_order(_SQRT, itertools.repeat(4.0), 2):
        pass


def test_workers_end_when_their_import_is_killed():
    importing = multiprocessing.get_context("spawn").Process(target=_import_for_ever)
    importing.start()
    try:
        _until(lambda: len(_workers(importing.pid)) == 2)
        workers = _workers(importing.pid)
    finally:
        importing.kill()
        importing.join()
    _until(lambda: not any(_is_running(pid) for pid in workers))


def _is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
