"""Answers to a newcomer's mistakes: invalid tables, flags and model files.

A newcomer made these mistakes on 24 November 2026, with larger tables. Imports that succeed report
problems in notes.
"""

import csv
import importlib
import random
import shutil
from pathlib import Path
from typing import Any

from tests.support import golden
from tests.support.commands import Caller

_NUMBERS = ("--feature_columns=delay,km", "--label_column=y")
_IMPORT = ("import_data", "--format=csv", "--output=new.sqlite")
_COLUMNS = ("--client_column=user", "--domain_column=group")
_TEXT = "spoken from the chair"


def _rows() -> list[dict[str, str]]:
    draw = random.Random(0)
    rows = []
    for k in range(160):
        numbers = {"delay": f"{draw.random():.4f}", "km": f"{draw.random():.4f}"}
        y = draw.randint(0, 1)
        words = {"day": "2013-01-01T10:00:00Z", "pay": "1,400", "said": f"{_TEXT} {k}"}
        labels = {"y": str(y), "word": ["ontime", "late"][y], "flag": str(bool(y))}
        who = {"user": f"u{k // 8}", "group": draw.choice("pq")}
        rows.append({"": str(k), **who, **numbers, **words, **labels})
    return rows


def _tables(rows: list[dict[str, str]]) -> dict[str, Any]:
    """Returns the rows of each CSV file, some with arguments of csv.DictWriter and of open."""

    def but(place: int, **cells: str) -> list[dict[str, str]]:
        return [{**row, **cells} if k == place else row for k, row in enumerate(rows)]

    def each(**cells: Any) -> list[dict[str, str]]:
        return [{**row, **{name: value(row) for name, value in cells.items()}} for row in rows]

    umlaut = each(group=lambda row: "straße" if row["group"] == "p" else "q")
    return {
        "good": rows,
        "missing": but(5, km=""),
        "no_label": but(5, word=""),
        "label_typo": but(5, flag="Flase"),
        "infinite": but(3, km="inf"),
        "one_two": each(y=lambda row: str(int(row["y"]) + 1)),
        "one_class": each(y=lambda row: "1"),
        "copies": [*rows, *rows[:40]],
        "no_text": but(5, said=""),
        "lone_domain": each(group=lambda row: "fr" if row["user"] == "u1" else row["group"]),
        "all": each(group=lambda row: "all"),
        "scales": each(km=lambda row: str(1e6 * float(row["km"]))),
        "semicolons": (rows, {"delimiter": ";"}, {}),
        "byte_order_mark": (rows, {}, {"encoding": "utf-8-sig"}),
        "latin1": (umlaut, {}, {"encoding": "latin-1"}),
        "utf16": (umlaut, {}, {"encoding": "utf-16"}),
    }


# The table's file and further flags of each import, keyed by description.
_IMPORTS = {
    "a column's typo": ("good", "--feature_columns=dealy,km", "--label_column=y"),
    "a flag's typo": ("good", "--feature_columns=delay,km", "--label_colum=y"),
    "a missing number": ("missing", *_NUMBERS),
    "a missing label": (
        *("no_label", "--feature_columns=delay,km", "--label_column=word"),
        "--class_names=ontime,late",
    ),
    "a label's typo": (
        *("label_typo", "--feature_columns=delay,km", "--label_column=flag"),
        "--class_names=False,True",
    ),
    "labels without names": ("good", "--feature_columns=delay,km", "--label_column=flag"),
    "names for 0 and 1": ("good", *_NUMBERS, "--class_names=no,yes"),
    "labels 1 and 2": ("one_two", *_NUMBERS),
    "one class": ("one_class", *_NUMBERS),
    "a date as a number": ("good", "--feature_columns=delay,day", "--label_column=y"),
    "thousands": ("good", "--feature_columns=delay,pay", "--label_column=y"),
    "infinity": ("infinite", *_NUMBERS),
    "semicolons": ("semicolons", *_NUMBERS),
    "semicolons, told": ("semicolons", *_NUMBERS, "--delimiter=semicolon"),
    "a byte order mark": ("byte_order_mark", *_NUMBERS),
    "latin-1": ("latin1", *_NUMBERS),
    "latin-1, told": ("latin1", *_NUMBERS, "--encoding=cp1252"),
    "UTF-16": ("utf16", *_NUMBERS),
    "an empty file": ("empty", *_NUMBERS),
    "a spreadsheet": ("sheet", *_NUMBERS),
    "no file": ("absent", *_NUMBERS),
    "copies": ("copies", *_NUMBERS, "--split_by=example"),
    "an empty text": ("no_text", "--text_column=said", "--label_column=y"),
    "a domain of one client": ("lone_domain", *_NUMBERS),
    "a domain called all": ("all", *_NUMBERS),
    "scales": ("scales", *_NUMBERS),
    "a shape of two inputs": (
        *("good", "--feature_columns=a:delay;b:km", "--label_column=y"),
        "--feature_shape=1",
    ),
    "a store that is there": ("good", *_NUMBERS, "--output=good.sqlite"),
}

_LOSS = "tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True{})"
_PER_EXAMPLE = _LOSS.format(", reduction='none'")
_MODELS = {
    "moving averages": ("BatchNormalization(), tf.keras.layers.Dense(2)", _PER_EXAMPLE),
    "a loss of the batch": ("Dense(2)", _LOSS.format("")),
    "one output for two classes": ("Dense(1)", _PER_EXAMPLE),
    "an un-adapted layer": ("Normalization(), tf.keras.layers.Dense(2)", _PER_EXAMPLE),
}
_TRAIN = ("train", "--task=custom", "--rounds=1", "--data=good.sqlite", "--output_dir=run")
_OTHERS = {
    "a table as --data": (*_TRAIN[:3], "--model=model0.py", "--data=good.csv"),
    "no client column": (*_IMPORT, "--input=good.csv", "--domain_column=group", *_NUMBERS),
    "no domain column": (*_IMPORT, "--input=good.csv", "--client_column=user", *_NUMBERS),
    "no checkpoint": ("save_model", "--checkpoint=absent", "--output_dir=saved"),
    "an unknown format": (
        "save_model",
        "--checkpoint=absent",
        "--format=onnx",
        "--output_dir=saved",
    ),
    "an arm's typo": ("compare", "--task=digits", "--algorithms=fed_avg,agnostic_fed_av"),
}


def _write(folder: Path) -> None:
    for name, table in _tables(_rows()).items():
        rows, how, opened = table if isinstance(table, tuple) else (table, {}, {})
        opening = {"encoding": "utf-8", **opened}
        with open(folder / f"{name}.csv", "w", newline="", **opening) as file:
            writer = csv.DictWriter(file, list(rows[0]), **how)
            writer.writeheader()
            writer.writerows(rows)
    (folder / "empty.csv").touch()
    (folder / "sheet.csv").write_bytes(b"PK\x03\x04 a workbook")
    for k, (layers, loss) in enumerate(_MODELS.values()):
        model = f"[tf.keras.Input(data.x_shape), tf.keras.layers.{layers}]"
        body = f"return tf.keras.Sequential({model}), {loss}"
        (folder / f"model{k}.py").write_text(
            f"import tensorflow as tf\n\n\ndef build_model(data):\n    {body}\n"
        )


def _answer(call: Caller, folder: Path, command: str, *arguments: str) -> str:
    """Returns the exit status, and the error or the notes, except those on small domains."""
    outcome = call(importlib.import_module(f"binaries.{command}"), *arguments)
    shutil.rmtree(folder / "new.sqlite", ignore_errors=True)
    lines = f"{outcome.out}\n{outcome.err}".splitlines()
    lines = [line for line in lines if line.startswith(("error: ", "Note: "))]
    lines = [line for line in lines if "have fewer than 100 examples" not in line]
    # Omit the list of all valid names at the end.
    return "\n".join(
        [f"status {outcome.status}", *(line.split(" valid names")[0] for line in lines)]
    )


@golden.text
def test_mistakes_are_answered_in_one_line(tmp_path, monkeypatch, cohort_runtime):
    monkeypatch.chdir(tmp_path)
    call = Caller({"cohort": cohort_runtime})
    _write(tmp_path)
    good = (*_IMPORT[:2], "--output=good.sqlite", *_COLUMNS, "--input=good.csv", *_NUMBERS)
    call.ok(importlib.import_module("binaries.import_data"), *good[1:])
    cases = {
        name: (*_IMPORT, *_COLUMNS, f"--input={table}.csv", *more)
        for name, (table, *more) in _IMPORTS.items()
    }
    cases |= {name: (*_TRAIN, f"--model=model{k}.py") for k, name in enumerate(_MODELS)}
    answers = {
        name: _answer(call, tmp_path, *arguments) for name, arguments in (cases | _OTHERS).items()
    }
    # Rejected inputs leave no files.
    assert not (tmp_path / "run").exists()
    return "\n\n".join(f"{name}\n{answer}" for name, answer in answers.items())
