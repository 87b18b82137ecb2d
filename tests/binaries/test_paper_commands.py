"""Commands of docs/results/delta_fl_thresholds.md on small files; flag files in configs/."""

import importlib
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from binaries import train
from tests.support.commands import ROOT, Caller, compared_specs, given
from tests.support.stores import tff_store
from tff_agnostic.base.files import read_json
from tff_agnostic.program.runs.spec import from_flags

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "delta_fl_thresholds.md"
_HEADING = "## The paper's own data"
_SHORT = ("--rounds=2", "--trials=1", "--clients_per_round=3", "--client_mode=streamed")
_ARMS = ("fed_avg", "delta_fl", "half", "tenth")


def _commands(task: str) -> list[list[str]]:
    """Returns the commands of the page for a task, in order."""
    text = _PAGE.read_text().partition(_HEADING)[2]
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ./run ")]
    commands = [shlex.split(line)[1:] for line in lines]
    last = next(k for k, command in enumerate(commands) if f"--task={task}" in command)
    first = last - 1 if last and commands[last - 1][0] == "import_data" else last
    return commands[first : last + 1]


def _assert_compared(call: Caller, folder: Path, command: list[str], *more: str) -> None:
    name, *arguments = command
    binary = importlib.import_module(f"binaries.{name}")
    call.ok(binary, *arguments, *_SHORT, "--output_dir=compared", *more)
    actual = read_json(folder / "compared" / "compare.json")
    assert tuple(actual) == _ARMS
    for arm in _ARMS:
        assert actual[arm]["(over clients)"]["p10"]["accuracy"]["mean"] is not None


@pytest.mark.nightly
def test_emnist_command_compares(call: Caller, folder: Path):
    rng = np.random.default_rng(0)
    rows = [
        (f"all_{split}", f"f{number}_01", {"pixels": rng.random(784, np.float32), "label": label})
        for number in (*range(2100, 2104), *range(4))
        for split in ("train", "test")
        for label in (3, 61)
    ]
    tff_store(folder / "emnist.sqlite", rows)
    [command] = _commands("emnist")
    # TensorFlow takes a minute to trace the CNN, which has separate tests.
    _assert_compared(call, folder, command, "--data=emnist.sqlite", "--network=linear")


@pytest.mark.nightly
def test_sent140_commands_compare(call: Caller, folder: Path):
    users = {
        f"user{k}": [(f"so {'happy' if j % 2 else 'sad'} {k}", j % 2) for j in range(4)]
        for k in range(8)
    }
    for split in ("train", "test"):
        (folder / "sent140" / split).mkdir(parents=True)
        data = {
            "users": list(users),
            "num_samples": [len(rows) for rows in users.values()],
            "user_data": {
                user: {
                    "x": [["1", "today", "NO_QUERY", user, text, "training"] for text, _ in rows],
                    "y": [label for _, label in rows],
                }
                for user, rows in users.items()
            },
        }
        (folder / "sent140" / split / "all_data.json").write_text(json.dumps(data))
    import_data, compare = _commands("text_classifier")
    call.ok(importlib.import_module("binaries.import_data"), *import_data[1:])
    _assert_compared(call, folder, compare)


# --- Commands accept the flag files in configs/


_FILES = sorted((ROOT / "configs").glob("*.flags"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_flag_file_is_accepted(path: Path):
    is_comparison = "--algorithms=" in path.read_text()
    file = f"--flagfile={path}"
    if is_comparison:
        specs = [spec for trials in compared_specs(file).values() for spec in trials]
    else:
        specs = [given(train, file).spec()]
    assert path.read_text().startswith("# ") and len(_FILES) >= 3
    for spec in specs:
        assert from_flags(spec.flags()) == spec
