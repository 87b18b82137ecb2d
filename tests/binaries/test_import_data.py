"""`import_data` writes a store from every format; the installed program runs commands."""

import gzip
import json
import signal
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from binaries import import_data
from tests.support import golden
from tests.support.commands import ROOT, Caller, Process, python_module
from tests.support.imports import stored_counts
from tests.support.marks import usually
from tests.support.processes import wait_until
from tff_agnostic.base.files import read_json
from tff_agnostic.importing.importer import FORMATS

_ROW = '<row Id="{0}" PostTypeId="{1}" OwnerUserId="{2}" Body="&lt;p&gt;Hello {0}.&lt;/p&gt;" />\n'
_COLUMNS = ("--client_column=who", "--domain_column=where")
_NUMBERS = (*_COLUMNS, "--feature_columns=a,b", "--label_column=y")
_ROWS = [{"who": f"u{i // 2}", "where": "xy"[i % 2], "a": i, "b": 0.5, "y": 0} for i in range(40)]


@pytest.fixture(scope="session")
def call() -> Caller:
    """A caller that fails the test if a command starts a runtime."""
    return Caller(None)


def _csv(folder: Path) -> Path:
    path = folder / "rows.csv"
    lines = [",".join(_ROWS[0]), *(",".join(map(str, row.values())) for row in _ROWS)]
    path.write_text("\n".join(lines) + "\n")
    return path


def _posts(path: Path, count: int) -> Path:
    rows = (_ROW.format(i, 1 + i % 2, i // 3) for i in range(count))
    path.write_text("<posts>\n" + "".join(rows) + "</posts>\n")
    return path


def _stackexchange(folder: Path) -> list[str]:
    return [str(_posts(folder / "Posts.xml", 60))]


def _text_folders(folder: Path) -> list[str]:
    for k in range(40):
        path = folder / "texts" / "xy"[k % 2] / f"{k}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("uno dos . tres . ")
    return [str(folder / "texts"), "--sentences_per_client=1", "--split_by=group", "--case=upper"]


def _leaf(folder: Path) -> list[str]:
    users = {f"u{k}": {"x": [[k, 1.5]], "y": [k % 3]} for k in range(40)}
    path = folder / "data.json"
    path.write_text(json.dumps({"users": list(users), "user_data": users}))
    domains = folder / "domains.csv"
    domains.write_text("".join(f"{user},{'xy'[k % 2]}\n" for k, user in enumerate(users)))
    return [str(path), f"--domains_file={domains}"]


def _jsonl(folder: Path) -> list[str]:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in _ROWS))
    return [str(path), *_NUMBERS]


def _parquet(folder: Path) -> list[str]:
    path = folder / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist(_ROWS), path)
    return [str(path), *_NUMBERS]


def _npz(folder: Path) -> list[str]:
    path = folder / "data.npz"
    where = np.arange(40) % 2
    images = np.zeros([40, 2, 2], np.uint8)
    np.savez(path, x=images, y=where, who=np.arange(40) // 2, where=where)
    return [str(path), *_COLUMNS, "--domain_names=0:x,1:y"]


def _idx(folder: Path) -> list[str]:
    labels = np.arange(40, dtype=np.uint8) % 3
    for name, array in (("images-idx3", np.zeros([40, 2, 2], np.uint8)), ("labels-idx1", labels)):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        path = folder / f"train-{name}-ubyte.gz"
        path.write_bytes(gzip.compress(header + array.tobytes()))
    return [str(folder), "--classes=0,2", "--class_names=x,y", "--num_clients=9"]


def _plays(folder: Path) -> list[str]:
    for play in ("x", "y"):
        speeches = [f"SPEAKER {k % 9}:\nWords of {k}.\n\n" for k in range(20)]
        (folder / f"{play}.txt").write_text("".join(speeches))
    return [str(folder)]


_INPUTS = {
    "stackexchange": _stackexchange,
    "text_folders": _text_folders,
    "plays": _plays,
    "leaf": _leaf,
    "csv": lambda folder: [str(_csv(folder)), *_NUMBERS],
    "jsonl": _jsonl,
    "parquet": _parquet,
    "npz": _npz,
    "idx": _idx,
}


@pytest.mark.parametrize("format_", FORMATS)
def test_each_format_is_written_as_store(call, folder, format_):
    path, *flags = _INPUTS[format_](folder)
    result = call(
        import_data,
        f"--format={format_}",
        f"--input={path}",
        *flags,
        "--output=a/s.sqlite",
        "--report=b/c/r.json",
    )
    assert (result.status, result.err) == (0, "")
    assert result.out.endswith("\nstore: a/s.sqlite\n")
    report = read_json(Path("b/c/r.json"))
    assert report["format"] == format_
    domains = {"question", "answer"} if format_ == "stackexchange" else {"x", "y"}
    assert set(report["splits"]["train"]["domains"]) == domains
    stored = stored_counts(Path("a/s.sqlite")).total()
    assert stored == sum(split["examples"] for split in report["splits"].values()) > 20
    assert [path.name for path in (folder / "a").iterdir()] == ["s.sqlite"]


_CSV = ("--format=csv", "--input=rows.csv", "--output=s.sqlite")


@golden.arguments
def test_rejects_invalid_flags(call, folder, arguments):
    _csv(folder)
    return call.refused(folder, import_data, *arguments)


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
