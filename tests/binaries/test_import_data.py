"""`import_data` writes a store; the installed program runs commands."""

import signal
import sys
from pathlib import Path

import pytest

from binaries import import_data
from tests.support import golden
from tests.support.commands import ROOT, Caller, Process, python_module
from tests.support.imports import stored_counts
from tests.support.marks import usually
from tests.support.processes import wait_until
from tff_agnostic.base.files import read_json

_ROW = '<row Id="{0}" PostTypeId="{1}" OwnerUserId="{2}" Body="&lt;p&gt;Hello {0}.&lt;/p&gt;" />\n'
_CSV = ("--format=csv", "--input=rows.csv", "--output=s.sqlite")
_NUMBERS = (
    *("--client_column=who", "--domain_column=where", "--feature_columns=a,b"),
    "--label_column=y",
)


@pytest.fixture(scope="session")
def call() -> Caller:
    """A caller that fails the test if a command starts a runtime."""
    return Caller(None)


def _csv(folder: Path) -> Path:
    path = folder / "rows.csv"
    lines = ["who,where,a,b,y", *(f"u{i // 2},{'xy'[i % 2]},{100 * i},0.5,0" for i in range(40))]
    path.write_text("\n".join(lines) + "\n")
    return path


def _posts(path: Path, count: int) -> Path:
    rows = (_ROW.format(i, 1 + i % 2, i // 3) for i in range(count))
    path.write_text("<posts>\n" + "".join(rows) + "</posts>\n")
    return path


def test_store_and_report_have_the_examples(call, folder):
    posts = _posts(folder / "Posts.xml", 60)
    result = call(
        *(import_data, "--format=stackexchange", f"--input={posts}"),
        *("--output=a/s.sqlite", "--report=b/c/r.json"),
    )
    assert (result.status, result.err) == (0, "")
    assert result.out.endswith("\nstore: a/s.sqlite\n")
    report = read_json(Path("b/c/r.json"))
    assert report["format"] == "stackexchange"
    assert set(report["splits"]["train"]["domains"]) == {"question", "answer"}
    stored = stored_counts(Path("a/s.sqlite")).total()
    assert stored == sum(split["examples"] for split in report["splits"].values()) > 20
    assert [path.name for path in (folder / "a").iterdir()] == ["s.sqlite"]


@golden.arguments
def test_rejects_invalid_flags(call, folder, arguments):
    _csv(folder)
    return call.refused(folder, import_data, *_CSV, *arguments)


def test_skipped_records_are_printed(call, folder):
    _csv(folder)
    flags = ("--domain_names=x", "--bad_records=skip", "--split=train:1")
    result = call(import_data, *_CSV, *_NUMBERS, *flags)
    assert "unknown domain  20" in result.out


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("number", "status"),
    usually(
        [(signal.SIGINT, 130), (signal.SIGKILL, -9)],
        [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)],
    ),
)
def test_signal_leaves_no_store(folder, number, status):
    # With this many rows the import is still running when the signal arrives.
    posts = _posts(folder / "Posts.xml", 200_000)
    command = python_module(
        "import_data", "--format=stackexchange", f"--input={posts}", "--output=s.sqlite"
    )
    with Process(command, folder) as process:
        wait_until(lambda: any(p.stat().st_size for p in folder.glob(".s.sqlite*/*")))
        process.send(number)
        result = process.outcome()
    assert result.status == status
    assert "Traceback" not in result.err
    left = {path.name for path in folder.iterdir()} - {"Posts.xml", "out", "err"}
    if number == signal.SIGKILL:
        assert left
        assert all(name.startswith(".s.sqlite.") and name.endswith(".tmp") for name in left)
    else:
        assert left == set()


@pytest.mark.slow
def test_import_loads_no_tensorflow(folder):
    # TensorFlow takes many seconds to load.
    code = (
        "import sys; from tff_agnostic.program.commands.import_data import IMPORT_DATA;"
        "IMPORT_DATA.define_flags();"
        "print([m for m in ('tensorflow', 'tensorflow_federated', 'pandas') if m in sys.modules])"
    )
    with Process([sys.executable, "-c", code], folder) as process:
        assert process.outcome().out == "[]\n"


def _installed(folder, name, *arguments):
    """Runs the installed program's entry point as a script with this name."""
    (folder / name).write_text("from binaries.__main__ import console_script\nconsole_script()\n")
    with Process([sys.executable, name, *arguments], folder) as process:
        return process.outcome()


def test_installed_program_runs_named_command(folder):
    outcome = _installed(folder, "tff-agnostic", "import-data", "--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("Makes a client store from files in a public format.\n")


@pytest.mark.slow
def test_installed_program_lists_its_commands(folder):
    outcome = _installed(folder, "tff-agnostic")
    assert outcome.status == 0
    lines = [line.split(maxsplit=1) for line in outcome.out.splitlines() if line[:2] == "  "]
    present = {path.stem for path in (ROOT / "binaries").glob("[!_]*.py")}
    assert {name for name, _ in lines} == present
    assert ["train", "Trains one model with one algorithm on one task"] in lines
    outcome = _installed(folder, "tff-agnostic", "trane")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith("error: expected a command, found trane: did you mean train ")
