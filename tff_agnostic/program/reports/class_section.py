"""Answers by class and domain on a page of a run, and the figure of two classes' probabilities."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_agnostic.base.later import matplotlib
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.class_counts import (
    ACCURACY,
    BY_CLASS,
    CONFUSION,
    GET,
    HAVE,
    RIGHT,
    SCORES,
    calibration,
    roc_curve,
)
from tff_agnostic.metrics.formatting import cell, short_names
from tff_agnostic.program.reports.figures import (
    draw_grid,
    legend_above,
    look,
    new_figure,
    plain_text,
)
from tff_agnostic.program.reports.page import (
    DECIMALS,
    Block,
    Line,
    Name,
    Number,
    Paragraph,
    Picture,
    Section,
    Table,
)
from tff_agnostic.program.reports.run_record import RunRecord

# More rows or curves than these are not shown: those of the worst domains are.
_MOST_ROWS = 60
_MOST_CURVES = 4
# Of many classes, those that a domain gets wrong most often.
_CLASSES_OF_DOMAIN = 5
_NAME_WIDTH = 24
_ALL = "all"


def classes_section(run: RunRecord) -> Section:
    """Returns how each class is answered, the worst domain first; nothing if that is not known."""
    names = _worst_first(run)
    blocks: list[Block] = []
    if run.source.get("privacy", "evaluation") and {CONFUSION, BY_CLASS} & {*run.result}:
        blocks.append(Paragraph("All counts have the noise of the evaluation; none is below 0."))
    if run.result.get(CONFUSION):
        blocks.append(_confusion_table(run, names))
    elif run.result.get(BY_CLASS):
        blocks.append(_class_table(run, names))
    scores: Mapping[str, Any] = run.result.get(SCORES) or {}
    if scores:
        second = _class_names(run, 2)[1]
        blocks += [_score_table(scores, names, second), _picture(run, scores, names)]
    return Section("classes", "Answers by class", blocks)


def _worst_first(run: RunRecord) -> list[str]:
    """Returns the domains with examples, the least accurate first."""
    domains = run.result["domains"]
    of = {n: d.get(ACCURACY) for n, d in domains.items() if d.get("num_examples")}
    return sorted(of, key=lambda n: 2.0 if of[n] is None else of[n])


def _class_names(run: RunRecord, count: int) -> list[str]:
    names = run.about.get("model", "classes")
    if isinstance(names, list) and len(names) == count:
        return list(map(str, names))
    return list(map(str, range(count)))


def _share(part: float, of: float) -> Number:
    if not of:
        return Number("-", None)
    return Number(cell(part / of, Unit.SHARE, DECIMALS), part / of)


def _confusion_table(run: RunRecord, names: Sequence[str]) -> Table:
    tables = run.result[CONFUSION]
    classes = _class_names(run, len(next(iter(tables.values()))))
    all_rows = [(n, i) for n in names for i, row in enumerate(tables[n]) if sum(row)]
    rows: list[Sequence[Line]] = []
    for name, i in all_rows[:_MOST_ROWS]:
        own = run.source.below(CONFUSION, name, i)
        rows.append(
            [
                [Name(name), ", ", Name(classes[i])],
                *(own.number(j) for j in range(len(classes))),
                _share(tables[name][i][i], sum(tables[name][i])),
            ]
        )
    notes: list[Line] = [
        f"Rows are classes of the {run.split} examples of a domain, columns the model's answers; "
        "right: the share of the row whose answer is its class."
    ]
    return Table(
        "Answers by domain and class, the worst domain first",
        ["domain, class", *(Name(name) for name in classes), "right, %"],
        rows,
        [*notes, *_left_out(len(all_rows), CONFUSION)],
    )


def _class_table(run: RunRecord, names: Sequence[str]) -> Table:
    by_domain = run.result[BY_CLASS]
    classes = _class_names(run, len(next(iter(by_domain.values()))[HAVE]))
    all_rows = []
    for name in names:
        wrong = np.subtract(by_domain[name][HAVE], by_domain[name][RIGHT])
        order = [i for i in np.argsort(-wrong, kind="stable").tolist() if wrong[i] > 0]
        all_rows += [(name, i) for i in order[:_CLASSES_OF_DOMAIN]]
    rows: list[Sequence[Line]] = []
    for name, i in all_rows[:_MOST_ROWS]:
        own = run.source.below(BY_CLASS, name)
        have, get, right = (by_domain[name][key][i] for key in (HAVE, GET, RIGHT))
        numbers = [own.number(key, i) for key in (HAVE, GET, RIGHT)]
        label: Line = [Name(name), ", ", Name(classes[i])]
        rows.append([label, *numbers, _share(right, have), _share(right, get)])
    notes: list[Line] = [
        f"Of each domain the {_CLASSES_OF_DOMAIN} classes with most wrong answers. Recall: the "
        "share of the class that is answered rightly; precision: the share of these answers that "
        f"are right. All classes stand in result.json under {BY_CLASS}."
    ]
    return Table(
        "Classes with most wrong answers, the worst domain first",
        ["domain, class", "examples", "answers", "right", "recall, %", "precision, %"],
        rows,
        [*notes, *_left_out(len(all_rows), BY_CLASS)],
    )


def _left_out(count: int, key: str) -> list[Line]:
    if count <= _MOST_ROWS:
        return []
    return [f"{count - _MOST_ROWS} more rows, of better domains, stand in result.json: {key}."]


def _of_all(scores: Mapping[str, Any]) -> np.ndarray:
    return np.sum([np.asarray(of) for of in scores.values()], axis=0)


def _score_table(scores: Mapping[str, Any], names: Sequence[str], second: str) -> Table:
    rows: list[Sequence[Line]] = []
    for name in [*names[:_MOST_ROWS], _ALL]:
        of = _of_all(scores) if name == _ALL else scores[name]
        curve, calibrated = roc_curve(of), calibration(of)
        numbers = [
            None if curve is None else curve.area,
            None if calibrated is None else calibrated.error,
        ]
        rows.append(
            [
                name if name == _ALL else Name(name),
                *(Number("-" if v is None else f"{v:.4f}", v) for v in numbers),
            ]
        )
    notes: list[Line] = [
        "From counts of the probability of the second class in 50 bins (result.json: "
        f"{SCORES}). AUC: the area below the ROC curve, the probability that an example of the "
        "second class has a larger probability than one of the first, those in one bin counted "
        "half; - where a domain has one class only. Calibration error: by how much probability and "
        "frequency differ in ten bins, on average over the examples."
    ]
    return Table(
        ["Probabilities of the second class, ", Name(second)],
        ["domain", "AUC", "calibration error"],
        rows,
        notes,
    )


def _picture(run: RunRecord, scores: Mapping[str, Any], names: Sequence[str]) -> Picture:
    drawn = {name: scores[name] for name in names[:_MOST_CURVES]}
    return Picture(
        functools.partial(class_figure, {**drawn, _ALL: _of_all(scores).tolist()}),
        "On the left the ROC curve: the share of the second class that is found, by the share of "
        "the first that is taken for it. On the right the frequency of the second class by its "
        "probability; on the dashed line both are equal. "
        + (f"The {_MOST_CURVES} worst domains" if len(names) > _MOST_CURVES else "Each domain")
        + f" and all {run.split} examples",
    )


def class_figure(scores: Mapping[str, Sequence[Sequence[int]]]) -> matplotlib.figure.Figure:
    """Returns ROC curves on the left and calibration on the right.

    Args:
        scores: Examples by class and bin of their probability of class 1, of each set by its name.
    """
    figure = new_figure(9, 4.2)
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
    labels = map(plain_text, short_names(list(scores), _NAME_WIDTH))
    for i, (label, of) in enumerate(zip(labels, scores.values())):
        own, curve, calibrated = look(i), roc_curve(of), calibration(of)
        style = {"color": own.color, "linestyle": own.line, "label": label}
        # With a label even where there is nothing to draw: legends name all sets.
        left.plot(*(([], []) if curve is None else curve), **style)
        if calibrated is not None:
            x, y = calibrated.probability, calibrated.share
            right.plot(x, y, marker=own.marker, markersize=4, **style)
    left.set(xlabel="share of the first class taken for the second")
    left.set(ylabel="share of the second class found")
    right.set(xlabel="probability of the second class", ylabel="its frequency")
    for axes in (left, right):
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        draw_grid(axes)
    legend_above(figure, left, ncols=3)
    return figure
