"""Tables of a run's predictions by class, from counts in result.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.class_counts import ACCURACY, BY_CLASS, CONFUSION, GET, HAVE, RIGHT
from tff_agnostic.program.reports.claims import split_name
from tff_agnostic.program.reports.document import Block, Cell, Number, Table, text
from tff_agnostic.program.reports.run_record import RunRecord, number

# Number of classes to tabulate per domain: the classes with most wrong predictions.
_DOMAIN_CLASSES = 5


def class_blocks(run: RunRecord) -> list[Block]:
    """Returns the tables of predictions by class, the worst domain first; empty without counts."""
    confusion: Mapping[str, Any] = run.result.get(CONFUSION) or {}
    by_class: Mapping[str, Any] = run.result.get(BY_CLASS) or {}
    if not (confusion or by_class):
        return []
    evaluated = [name for name in run.domains if run.get("domains", name, "num_examples")]
    accuracies = {name: run.get("domains", name, ACCURACY) for name in evaluated}
    # Sort undefined accuracies last.
    ordered = sorted(evaluated, key=lambda n: math.inf if accuracies[n] is None else accuracies[n])
    make = _confusion_table if confusion else _class_table
    blocks: list[Block] = [make(run, confusion or by_class, ordered)]
    if run.has_noisy_numbers:
        blocks += text("All counts have the noise of the evaluation; none is below 0.")
    return blocks


def _class_names(run: RunRecord, count: int) -> list[str]:
    classes = run.about("model", "classes")
    is_known = isinstance(classes, list) and len(classes) == count
    return list(map(str, classes if is_known else range(count)))


def _ratio(part: float, whole: float) -> Number:
    return Number(part / whole if whole else None, Unit.SHARE)


def _confusion_table(run: RunRecord, tables: Mapping[str, Any], ordered: Sequence[str]) -> Table:
    classes = _class_names(run, len(next(iter(tables.values()))))
    rows: list[Sequence[Cell]] = [
        [f"{name}, {classes[i]}", *map(number, counts), _ratio(counts[i], sum(counts))]
        for name in ordered
        for i, counts in enumerate(tables[name])
        if sum(counts)
    ]
    return Table(
        "Confusion matrix of each domain, the worst domain first",
        ["domain, class", *classes, "right, %"],
        rows,
        [
            f"Rows are classes of a domain's {split_name(run.split)} examples, columns the model's "
            "answers; right: the share of the row whose answer is its class."
        ],
    )


def _class_table(run: RunRecord, by_class: Mapping[str, Any], ordered: Sequence[str]) -> Table:
    classes = _class_names(run, len(next(iter(by_class.values()))[HAVE]))
    rows: list[Sequence[Cell]] = []
    for name in ordered:
        counts = by_class[name]
        wrong = np.subtract(counts[HAVE], counts[RIGHT])
        order = [i for i in np.argsort(-wrong, kind="stable").tolist() if wrong[i] > 0]
        for i in order[:_DOMAIN_CLASSES]:
            have, get, right = (counts[key][i] for key in (HAVE, GET, RIGHT))
            shares = (_ratio(right, have), _ratio(right, get))
            rows.append([f"{name}, {classes[i]}", *map(number, (have, get, right)), *shares])
    return Table(
        "Classes with most wrong answers, the worst domain first",
        ["domain, class", "examples", "answers", "right", "recall, %", "precision, %"],
        rows,
        [
            f"Of each domain the {_DOMAIN_CLASSES} classes with most wrong answers. Recall: the "
            "share of the class with the right answer; precision: the share of these answers that "
            f"are right. All classes are in result.json under {BY_CLASS}."
        ],
    )
