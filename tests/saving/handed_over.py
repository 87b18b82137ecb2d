"""The table, model and scripts of docs/how_to/use_elsewhere.md, ready to run."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.imports import job
from tff_agnostic.data.inputs import TABLE, inputs_json
from tff_agnostic.data.store import load_store
from tff_agnostic.importing.source import ReadLog
from tff_agnostic.models.model import ModelWeights
from tff_agnostic.saving.save import FORMATS
from tff_agnostic.saving.trained_model import TrainedModel
from tff_agnostic.tasks.own_data import CUSTOM, CustomOptions
from tff_agnostic.tasks.task import Task, TaskContext

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "how_to" / "use_elsewhere.md", DOCS / "reference" / "model_table.md")
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", "".join(p.read_text() for p in PAGES), re.DOTALL | re.MULTILINE
)
COLUMNS: dict[str, Any] = {
    "client_column": "shopper",
    "domain_column": "city",
    "feature_columns": ("visits a week", "age"),
    "categorical_columns": ("device", "city"),
    "missing_values": "mark",
    "missing_marks": ("?",),
    "standardize": True,
    "label_column": "bought",
    "class_names": ("no", "yes"),
}


def block(part: str) -> str:
    """Returns the only Python block of the pages that contains `part`."""
    (code,) = (block for block in BLOCKS if part in block)
    return str(code)


def shoppers(folder: Path) -> Task:
    """Writes the documentation's table and model file to a folder; returns their task."""
    table, store = folder / "shoppers.csv", folder / "shoppers.sqlite"
    exec(block('shoppers.csv", "w"').replace("shoppers.csv", str(table)), {})
    job("csv", table, store, **COLUMNS).run(ReadLog())
    model = folder / "model" / "my_shoppers.py"
    model.parent.mkdir()
    model.write_text(block("# my_shoppers.py"))
    return CUSTOM.load(CustomOptions(model=model), TaskContext(seed=0, data=store))


def hand_over(folder: Path) -> TrainedModel:
    """Writes the saved models and the page's scripts to a folder; returns the model."""
    task, rng = shoppers(folder), np.random.default_rng(1)
    weights = [rng.normal(size=w.shape).astype(w.dtype) for w in task.model.initial_weights[0]]
    model = TrainedModel(
        task.model, ModelWeights(weights, []), task.class_names, task.words, task.inputs
    )
    saved = folder / "handed_over"
    saved.mkdir()
    files = []
    for name in ("keras", "saved_model"):
        about = FORMATS[name].write(model, saved / f"model{FORMATS[name].file_name}")
        files.append({"format": name, "about": about})
    table = inputs_json(model.inputs, model.class_names, model.words)
    (saved / "model_card.json").write_text(json.dumps({TABLE: table, "files": files}))
    (folder / "with_tensorflow.py").write_text(
        block("by_column") + "probabilities = told['probabilities'].numpy()\n"
    )
    (folder / "with_keras.py").write_text(block("metadata.json"))
    return model


def as_x(folder: Path) -> NDArray[np.float32]:
    """Returns the array x of the rows to predict, computed as the documentation describes."""
    training = load_store(folder / "shoppers.sqlite").client_counts("train")
    with open(folder / "shoppers.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    training_rows = [row for row in rows if row["shopper"] in training]

    def standardized(row: dict[str, str], column: str) -> float:
        values = [float(one[column]) for one in training_rows if one[column] != "?"]
        if row[column] == "?":
            return 0.0
        return float((float(row[column]) - np.mean(values)) / np.std(values))

    def prediction_row(row: dict[str, str]) -> list[float]:
        device, city = row["device"] or "<missing>", row["city"]
        return [
            standardized(row, "visits a week"),
            standardized(row, "age"),
            0.0,
            float(row["age"] == "?"),
            *(float(device == value) for value in ("<missing>", "laptop", "phone")),
            *(float(city == value) for value in ("Cusco", "Lima")),
        ]

    return np.array([prediction_row(row) for row in rows[:5]], np.float32)
