"""Killed imports and the peak memory of an import, in separate processes."""

import json
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.commands import ROOT
from tff_agnostic.data.store import load_store

_ARGUMENTS = (
    "--format=csv",
    "--output=s.sqlite",
    "--client_column=who",
    "--domain_name=d",
    "--label_column=y",
    "--report=report.json",
)
# Import that kills its own process before or after the n-th renaming of a file.
_KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from binaries import import_data

    when, number = sys.argv.pop(1), int(sys.argv.pop(1))
    seen = 0

    def naming(call):
        def named(*arguments, **more):
            global seen
            seen += 1
            if (seen, when) == (number, "before"):
                os.kill(os.getpid(), signal.SIGKILL)
            call(*arguments, **more)
            if (seen, when) == (number, "after"):
                os.kill(os.getpid(), signal.SIGKILL)

        return named

    os.replace, os.rename, os.link = map(naming, (os.replace, os.rename, os.link))
    import_data.IMPORT_DATA.main("")
    """
)
_MEASURED = textwrap.dedent(
    """
    import json, sys
    from pathlib import Path
    from tff_agnostic.importing.importer import checked_import
    from tff_agnostic.importing.options import ImportOptions
    from tff_agnostic.importing.source import ReadLog
    from tff_agnostic.program.options.flags import build

    checked_import(build(ImportOptions, json.loads(sys.argv[1])), ()).run(ReadLog())
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


def _import_killed(folder: Path, when: str, number: int) -> int:
    command = [sys.executable, "-c", _KILLED, when, str(number), *_ARGUMENTS]
    more = ["--input=rows.csv", "--feature_columns=x0,x1"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.run(
        [*command, *more], cwd=folder, env=environment, capture_output=True
    ).returncode


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
    assert _import_killed(tmp_path, when, number) == -signal.SIGKILL
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert names == {rows.name, *written}
    shutil.rmtree(tmp_path / "s.sqlite", ignore_errors=True)
    # The next import succeeds and removes all temporary files.
    assert _import_killed(tmp_path, "never", 0) == 0
    assert {path.name for path in tmp_path.iterdir()} == {rows.name, "report.json", "s.sqlite"}
    report = json.loads((tmp_path / "report.json").read_text())
    examples = sum(load_store(tmp_path / "s.sqlite").client_counts("train").values())
    assert report["store"] == "s.sqlite"
    assert report["splits"]["train"]["examples"] == examples


@pytest.mark.slow
def test_memory_is_flat_for_many_rows(tmp_path):
    path = _rows(tmp_path / "rows.csv", 100_000, 40)
    options = {
        "format": "csv",
        "input": [str(path)],
        "output": str(tmp_path / "s.sqlite"),
        "client_column": "who",
        "domain_name": "d",
        "label_column": "y",
        "feature_columns": [f"x{k}" for k in range(40)],
    }
    result = subprocess.run(
        [sys.executable, "-c", _MEASURED, json.dumps(options)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    peak, has_tensorflow = json.loads(result.stdout)
    assert not has_tensorflow
    # One protobuf message reused for all rows would need five times as much.
    assert peak < 200e6
