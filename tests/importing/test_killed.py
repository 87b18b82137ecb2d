"""Killed imports and the peak memory of an import, in separate processes."""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

from tests.support.commands import ROOT
from tests.support.imports import job
from tff_agnostic.data.store import load_store
from tff_agnostic.importing.source import ReadLog

_MEASURED = textwrap.dedent(
    """
    import json, sys
    from pathlib import Path
    from tff_agnostic.importing.importer import checked_import
    from tff_agnostic.importing.options import ImportOptions
    from tff_agnostic.importing.source import ReadLog

    columns = {"client_column": "who", "domain_name": "d", "label_column": "y"}
    columns["feature_columns"] = tuple(f"x{k}" for k in range(40))
    options = ImportOptions(format="csv", input=("rows.csv",), output="s.sqlite", **columns)
    checked_import(options, ()).run(ReadLog())
    # getrusage would include the peak memory of the parent process.
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) * 1024
    print(json.dumps([peak, "tensorflow" in sys.modules]))
    """
)


def _rows(path: Path, count: int, features: int) -> Path:
    names = ",".join(f"x{k}" for k in range(features))
    with path.open("w") as file:
        file.write(f"who,y,{names}\n")
        for k in range(count):
            values = ",".join(f"{(k * 31 + i * 7) % 1000 / 8:g}" for i in range(features))
            file.write(f"u{k // 20},{k % 2},{values}\n")
    return path


def _import(folder: Path, when: str, number: int) -> None:
    """Imports, and kills its own process before or after the n-th renaming of a file."""
    seen = 0

    def naming(call: Callable[..., None]) -> Callable[..., None]:
        def named(*arguments: Any, **more: Any) -> None:
            nonlocal seen
            seen += 1
            if (seen, when) == (number, "before"):
                os.kill(os.getpid(), signal.SIGKILL)
            call(*arguments, **more)
            if (seen, when) == (number, "after"):
                os.kill(os.getpid(), signal.SIGKILL)

        return named

    os.replace, os.rename, os.link = map(naming, (os.replace, os.rename, os.link))
    columns = {"client_column": "who", "domain_name": "d", "label_column": "y"}
    options = {**columns, "feature_columns": ("x0", "x1"), "report": folder / "report.json"}
    job("csv", folder / "rows.csv", folder / "s.sqlite", **options).run(ReadLog())


def _exit_code(*arguments: Any) -> Optional[int]:
    child = multiprocessing.get_context("spawn").Process(target=_import, args=arguments)
    child.start()
    child.join()
    return child.exitcode


# Renamings: the report twice (in its scratch folder, then to its final path), then the store.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("when", "number", "written"),
    [
        ("before", 1, ()),
        ("before", 2, ()),
        ("after", 2, ("report.json",)),
        ("after", 3, ("report.json", "s.sqlite")),
    ],
)
def test_killed_import_leaves_no_store_without_report(tmp_path, when, number, written):
    rows = _rows(tmp_path / "rows.csv", 100, 2)
    assert _exit_code(tmp_path, when, number) == -signal.SIGKILL
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert names == {rows.name, *written}
    shutil.rmtree(tmp_path / "s.sqlite", ignore_errors=True)
    # The next import succeeds and removes all temporary files.
    assert _exit_code(tmp_path, "never", 0) == 0
    assert {path.name for path in tmp_path.iterdir()} == {rows.name, "report.json", "s.sqlite"}
    report = json.loads((tmp_path / "report.json").read_text())
    examples = sum(load_store(tmp_path / "s.sqlite").client_counts("train").values())
    assert report["splits"]["train"]["examples"] == examples


@pytest.mark.slow
def test_memory_is_flat_for_many_rows(tmp_path):
    _rows(tmp_path / "rows.csv", 100_000, 40)
    command, environment = [sys.executable, "-c", _MEASURED], {"PYTHONPATH": str(ROOT)}
    result = subprocess.check_output(command, cwd=tmp_path, env=environment)
    peak, has_tensorflow = json.loads(result)
    assert not has_tensorflow
    assert peak < 200e6
