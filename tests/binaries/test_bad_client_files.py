"""Client files that are wrong: the file is named, and nothing is written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from binaries import compare, train
from tests.binaries.harness import tree
from tests.run.harness import AWKWARD_NAMES, is_png

_FLAGS = (
    "--task=client_files",
    "--data_dir=data",
    "--clients_per_round=2",
    "--rounds=2",
    "--evaluate_every=2",
    "--output_dir=run",
)


def _columns(**changed: Any) -> dict[str, np.ndarray]:
    columns = {
        "x": np.arange(24, dtype=np.float32).reshape(8, 3) / 24,
        "y": np.arange(8, dtype=np.int32) % 2,
        "domain_id": np.arange(8, dtype=np.int32) % 2,
    }
    return {name: value for name, value in {**columns, **changed}.items() if value is not None}


def _write(folder: Path, domains: Any = ("phone", "tablet"), clients: int = 3) -> Path:
    data = folder / "data"
    data.mkdir()
    description = {"domains": list(domains), "num_features": 3, "num_classes": 2}
    (data / "dataset.json").write_text(json.dumps(description))
    for side in ("train", "test"):
        (data / side).mkdir()
        for k in range(clients):
            domain_id = np.arange(8 * k, 8 * k + 8, dtype=np.int32) % len(domains)
            np.savez(data / side / f"client_{k}.npz", **_columns(domain_id=domain_id))
    return data


@pytest.mark.parametrize("side", ["train", "test"])
def test_malformed_columns(call, folder, side):
    """One of what tests of clients go through."""
    path = _write(folder) / side / "client_1.npz"
    x = np.zeros([8, 3], np.float32)
    x[5, 1] = np.nan
    np.savez(path, **_columns(x=x))
    found = call.refused(folder, train, *_FLAGS)
    assert found == f"{path}: x: expected finite numbers, found NaN or infinity in row 5"


def test_a_damaged_file(call, folder):
    path = _write(folder) / "test" / "client_1.npz"
    content = path.read_bytes()
    # In the values of an array, where only its checksum tells.
    position = content.index(np.float32(2 / 24).tobytes())
    path.write_bytes(content[:position] + b"\xff" + content[position + 1 :])
    found = call.refused(folder, train, *_FLAGS)
    assert found.startswith(f"{path}: expected an .npz file of plain arrays, found a damaged or ")


def test_a_comparison_is_refused_alike(call, folder):
    path = _write(folder) / "train" / "client_1.npz"
    path.write_bytes(b"")
    message = call.refused(folder, compare, *_FLAGS)
    assert message.startswith(f"{path}: expected an .npz file of plain arrays, found a damaged or ")


def test_more_clients_a_round_than_there_are(call, folder):
    _write(folder)
    message = call.refused(folder, train, *_FLAGS, "--clients_per_round=4")
    assert message == (
        "--clients_per_round: expected 1 to 3, the number of training clients, found 4"
    )


@pytest.mark.nightly
def test_awkward_domain_names_come_through(call_that_draws, folder):
    _write(folder, AWKWARD_NAMES)
    outcome = call_that_draws(train, *_FLAGS)
    assert outcome.status == 0, outcome
    result = json.loads((folder / "run" / "result.json").read_text())
    assert list(result["domains"]) == list(result["domain_weights"]) == list(AWKWARD_NAMES)
    assert is_png((folder / "run" / "plots" / "test_loss.png").read_bytes())
    # The figures are made from metrics.csv: going on reads it again.
    before = tree(folder / "run")
    outcome = call_that_draws(train, *_FLAGS, "--resume")
    assert outcome.status == 0, outcome
    for name in ("metrics.csv", "result.json", "plots/test_loss.png"):
        assert tree(folder / "run")[name] == before[name]


@pytest.mark.nightly
def test_a_domain_that_nobody_has(call, folder):
    data = _write(folder, ("phone", "tablet"))
    description = json.loads((data / "dataset.json").read_text())
    description["domains"] = ["phone", "tablet", "watch"]
    (data / "dataset.json").write_text(json.dumps(description))
    outcome = call(train, *_FLAGS)
    assert outcome.status == 0, outcome
    watch = json.loads((folder / "run" / "result.json").read_text())["domains"]["watch"]
    assert (watch["num_examples"], watch["loss"], watch["accuracy"]) == (0, None, None)
    outcome = call(compare, *_FLAGS[:-1], "--trials=1", "--output_dir=compared")
    assert outcome.status == 0, outcome
    compared = json.loads((folder / "compared" / "compare.json").read_text())
    assert compared["fed_avg"]["watch"]["loss"] == {"mean": None, "std": None, "trials": [None]}


@pytest.mark.nightly
def test_an_empty_client_is_counted(call, folder):
    data = _write(folder)
    empty = {name: column[:0] for name, column in _columns().items()}
    for side in ("train", "test"):
        np.savez(data / side / "client_1.npz", **empty)
    outcome = call(train, *_FLAGS, "--clients_per_round=3")
    assert outcome.status == 0, outcome
    result = json.loads((folder / "run" / "result.json").read_text())
    assert result["clients"] == {"evaluated": 2, "empty": 1, "non_finite": 0}
