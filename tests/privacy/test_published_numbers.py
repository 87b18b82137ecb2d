"""Outputs of private runs contain no exact numbers about clients' data."""

import csv
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import tensorflow as tf

from binaries import compare, evaluate, export, import_data, report, save_model, train
from tests.privacy.exact_numbers import matches
from tests.support.commands import Caller
from tff_agnostic.base.files import read_json
from tff_agnostic.data.data_warnings import TRAINING_WARNINGS
from tff_agnostic.metrics.class_counts import entropy
from tff_agnostic.runtimes.cohort import CohortRuntime

_MODEL = """
import tensorflow as tf

def build_model(data):
    model = tf.keras.Sequential(
        [tf.keras.Input(data.x_shape), tf.keras.layers.Dense(data.num_classes)]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    return model, loss
"""
_COLUMNS = ("price", "age")
_DOMAINS = ("north", "south")
# Number of each domain's examples. All counts by domain, class and split are different.
_SIZES = {"train": (3307, 2411), "test": (1103, 859)}
_NUM_CLIENTS = 6
_PRIVATE = (
    *("--task=custom", "--model=model.py", "--data=shop.sqlite"),
    *("--algorithm=agnostic_fed_avg", "--clients_per_round=3", "--cohort_sampling=poisson"),
    *("--privacy=central", "--noise_multiplier=0.1", "--noise_seed=5"),
    *("--limit_examples=1000", "--limit_loss=9"),
    *("--private_evaluation=noise:multiplier=0.1", "--rounds=2"),
)


class _Shop:
    """A store with known exact numbers, and a runner of commands on it.

    Attributes:
        streams: Printed text of each command.
    """

    def __init__(self, call: Caller, folder: Path) -> None:
        self._call, self._folder = call, folder
        self.streams: dict[str, str] = {}
        self._x, self._y, self._domain = self._write()
        (folder / "model.py").write_text(_MODEL)
        self.run(
            import_data,
            *("--format=csv", "--input=shop.csv", "--output=shop.sqlite"),
            *("--client_column=user", "--domain_column=place", "--label_column=bought"),
            *("--feature_columns=price,age", "--split_column=use", "--class_names=no,yes"),
        )
        # Ignore the import's report, which is not an output of a private run.
        self.streams.clear()

    def run(self, binary: ModuleType, *arguments: str) -> None:
        """Runs a command, which must succeed, and keeps its printed text."""
        outcome = self._call(binary, *arguments)
        assert outcome.status == 0, outcome
        name = binary.__name__.rpartition(".")[2]
        self.streams[f"{name} {len(self.streams)}"] = outcome.out + outcome.err

    def exact_numbers(self) -> dict[str, float]:
        """Returns the data's counts, fractions, means, losses and accuracies by description."""
        result: dict[str, float] = {}
        for split, sizes in _SIZES.items():
            result[f"{split}: examples"] = sum(sizes)
            for k, name in enumerate(_DOMAINS):
                where = f"{split}, {name}"
                chosen = self._domain[split] == k
                x, y = self._x[split][chosen], self._y[split][chosen]
                counts = np.bincount(y)
                result[f"{where}: examples"] = len(y)
                result |= {f"{where}: class {c}": int(n) for c, n in enumerate(counts)}
                result |= {f"{where}: share of class {c}": n / len(y) for c, n in enumerate(counts)}
                result[f"{where}: loss of the constant"] = entropy(counts)
                result |= {f"{where}: mean {c}": v for c, v in zip(_COLUMNS, x.mean(axis=0))}
                result |= {f"{where}: {c} deviates": v for c, v in zip(_COLUMNS, x.std(axis=0))}
                result |= self._model_numbers(where, x, y)
            result |= self._model_numbers(f"{split}, all", self._x[split], self._y[split])
        return {what: float(value) for what, value in result.items()}

    def _model_numbers(self, where: str, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
        model = tf.keras.models.load_model(self._folder / "run" / "model" / "model.keras")
        kernel, bias = (np.float64(w) for w in model.get_weights())
        scores = x @ kernel + bias
        scores -= scores.max(axis=1, keepdims=True)
        log_shares = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        accuracy = np.mean(np.argmax(scores, axis=1) == y)
        loss = -np.mean(log_shares[np.arange(len(y)), y])
        return {f"{where}: accuracy": accuracy, f"{where}: loss": loss}

    def _write(self) -> tuple[dict, dict, dict]:
        rng = np.random.default_rng(0)
        rows, xs, ys, domains = [], {}, {}, {}
        for split, sizes in _SIZES.items():
            domain = np.repeat(np.arange(len(sizes)), sizes)
            y = (rng.random(len(domain)) < np.array([0.37, 0.58])[domain]).astype(int)
            x = rng.normal(size=[len(domain), len(_COLUMNS)]) + np.outer(y, [1.0, -0.3])
            x = (x * [2.0, 1.3] + domain[:, np.newaxis]).round(4)
            xs[split], ys[split], domains[split] = x, y, domain
            for k, (numbers, label, where) in enumerate(zip(x, y, domain)):
                user = f"{split}_{k % _NUM_CLIENTS}"
                rows.append([user, _DOMAINS[where], split, *numbers, ["no", "yes"][label]])
        with open(self._folder / "shop.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["user", "place", "use", *_COLUMNS, "bought"])
            table.writerows(rows)
        return xs, ys, domains


@pytest.fixture
def shop(cohort_runtime: CohortRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Shop:
    monkeypatch.chdir(tmp_path)
    return _Shop(Caller({"cohort": cohort_runtime}), tmp_path)


def _published(folder: Path) -> Path:
    """Removes the data from a folder, and returns the folder, which then has only outputs."""
    for path in folder.glob("shop.*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder


@pytest.mark.slow
def test_outputs_contain_no_exact_numbers(shop: _Shop, tmp_path: Path) -> None:
    shop.run(train, *_PRIVATE, "--output_dir=run")
    about = read_json(tmp_path / "run" / "result.json")["about"]
    assert {remark["kind"] for remark in about["remarks"]} <= {*TRAINING_WARNINGS}
    assert [about["data"][split]["domains"] for split in ("train", "evaluated")] == [None, None]
    shop.run(report, "--run=run")
    saved = ("--format=keras,saved_model,tflite", "--quantize=int8")
    shop.run(save_model, "--checkpoint=run", *saved, "--output_dir=saved")
    shop.run(evaluate, "--checkpoint=run", "--output=evaluated.json")
    shop.run(evaluate, "--checkpoint=run", "--training_clients", "--output=in_training.json")
    for kind in ("training", "evaluation"):
        shop.run(
            export,
            *("--checkpoint=run", f"--kind={kind}", "--profile=daf", f"--output_dir={kind}_plan"),
        )
    rows = ("--arms=fed_avg;agnostic_fed_avg", "--trials=1", "--output_dir=compared")
    shop.run(compare, *(f for f in _PRIVATE if not f.startswith("--algorithm")), *rows)
    exact = shop.exact_numbers()
    folder = _published(tmp_path)
    assert matches(exact, folder, shop.streams) == []
    # `save_model` prints accuracies with four digits.
    saving = {name: text for name, text in shop.streams.items() if name.startswith("save_model")}
    assert matches(exact, tmp_path / "none", saving, min_digits=4) == []


def test_search_finds_numbers_in_files_and_text(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text('{"run": 0.50574, "examples": 4519}')
    np.savez(tmp_path / "sums.npz", np.array([0.3, 1013 / 2003], np.float32))
    streams = {"stdout": "4,519 examples, accuracy 50.574%", "stderr": "4518 of 0.50575"}
    result = matches({"share": 1013 / 2003, "examples": 4519.0}, tmp_path, streams)
    assert result == [
        "card.json: share (0.5057413879181228) as 0.50574",
        "card.json: examples (4519.0) as 4519",
        "sums.npz: share (0.5057413879181228) as 0.5057414",
        "sums.npz: share (0.5057413879181228) as float32",
        "stdout: share (0.5057413879181228) as 50.574",
        "stdout: examples (4519.0) as 4519",
    ]
