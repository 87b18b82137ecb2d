"""Worker processes of imports: equal stores, ordered results, and killed processes."""

import contextlib
import functools
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import pytest

from tests.support.imports import job, read, stored_counts
from tff_agnostic.base.errors import ExecutionError, UserError
from tff_agnostic.base.files import read_text
from tff_agnostic.data.store import CLIENTS, EXAMPLES, STORE
from tff_agnostic.importing import stackexchange
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.importing.workers import in_order

_RAISE_SIGNAL = functools.partial(functools.partial, signal.raise_signal)
_READ = functools.partial(functools.partial, read_text, what="a file")


def _row(number: int, body: str, owner: object = 7, more: str = "") -> str:
    owned = "" if owner is None else f' OwnerUserId="{owner}"'
    return (
        f'<row Id="{number}" PostTypeId="{1 + number % 2}"{owned} Score="{number}" {more} '
        f'Body="{escape(body)}" />\r\n'
    )


def _awkward_dump(folder: Path) -> Path:
    rows = [
        _row(
            1,
            "<p>Caf\u00e9 \u2014 \u201cna\u00efve\u201d\u2026 Yes.</p>",
            more='Tags="&lt;\u00e9&gt;"',
        ),
        "<!-- <row Id='0' Body='no row' /> -->\r\n",
        _row(2, ""),
        _row(3, "<pre>only code</pre>"),
        _row(4, "<p>A post of nobody.</p>", owner=None),
        "<![CDATA[ <row /> ]]>\n",
        _row(5, "<p>The only post of a user.</p>", owner="one"),
        *(_row(k, f"<p>Sentence {k}. {'Long ' * k}\U0001f600!</p>", k % 5) for k in range(6, 60)),
        '<row Id="99" PostTypeId="2" OwnerUserId="3"></row>\n',
        _row(60, "<p>a > b &amp; c, i.e. <a href='x'>d</a> http://e.f/g?h</p><!-- -->", "two"),
    ]
    path = folder / "Posts.xml"
    path.write_bytes(("\ufeff<posts>\r\n" + "".join(rows) + "</posts>").encode())
    return path


@pytest.mark.slow
def test_process_count_does_not_change_the_store(tmp_path, monkeypatch):
    path = _awkward_dump(tmp_path)
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
        counts = Counter[str]()
        for (client, _, _), n in stored_counts(store).items():
            counts[client] += n
        shutil.rmtree(store)
    assert stores[0] == stores[1] and reports[0] == reports[1]
    examples, _ = read("stackexchange", path, skip_bad=True)
    clients = [example.record.client for example in examples]
    assert counts == Counter(clients) and counts["one"] == 1


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


def test_workers_end_when_their_import_is_killed(tmp_path):
    script = (
        "import functools, itertools, math\n"
        "from tff_agnostic.importing.workers import in_order\n"
        "make = functools.partial(functools.partial, math.sqrt)\n"
        "for result in in_order(make, itertools.repeat(4.0), 2):\n"
        "    pass\n"
    )
    importing = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    try:
        _until(lambda: len(_workers(importing.pid)) == 2)
        workers = _workers(importing.pid)
    finally:
        importing.kill()
        importing.wait()
    _until(lambda: not any(_is_running(pid) for pid in workers))


def _is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
