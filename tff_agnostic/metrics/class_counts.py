"""Predictions by domain and class, from summed counts, and the majority class's accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import numpy as np

ACCURACY = "accuracy"
# Keys of result.json.
CLASS_COUNTS = "class_counts"
CONFUSION = "confusion"
BY_CLASS = "answers_by_class"
SCORES = "score_counts"
# Keys of `ClassReport.by_class`.
HAVE, GET, RIGHT = "examples", "answers", "right_answers"


@dataclasses.dataclass(frozen=True)
class ClassReport:
    """Predictions by domain and class; fields without counts are empty.

    Attributes:
        counts: Number of examples of each class, by domain.
        confusion: Number of examples by domain, class and predicted class.
        by_class: Set if `confusion` is empty. For each domain and class, three numbers of examples:
            with the class as label, as prediction, and as both.
        scores: Set if there are two classes. Number of examples by domain, class, and bin of the
            probability of class 1.
    """

    counts: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    confusion: Mapping[str, Sequence[Sequence[int]]] = dataclasses.field(default_factory=dict)
    by_class: Mapping[str, Mapping[str, Sequence[int]]] = dataclasses.field(default_factory=dict)
    scores: Mapping[str, Sequence[Sequence[int]]] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the entries of result.json."""
        entries = {
            CLASS_COUNTS: self.counts,
            CONFUSION: self.confusion,
            BY_CLASS: self.by_class,
            SCORES: self.scores,
        }
        return {key: dict(by_domain) for key, by_domain in entries.items() if by_domain}


def class_report(names: Sequence[str], summed: Any) -> ClassReport:
    """Returns the report of summed counts.

    Args:
        summed: A `ClassSums`, or () if nothing was counted. Noisy counts below 0 become 0.
    """
    if summed == ():
        return ClassReport()

    def by_domain(values: Any) -> dict[str, Any]:
        if isinstance(values, tuple):
            return {}
        return dict(zip(names, np.maximum(np.asarray(values), 0).tolist()))

    confusion, by_class = by_domain(summed.confusion), by_domain(summed.by_class)
    counts = {name: [sum(row) for row in examples] for name, examples in confusion.items()}
    return ClassReport(
        counts=counts or {name: have for name, (have, _, _) in by_class.items()},
        confusion=confusion,
        by_class={
            name: dict(zip((HAVE, GET, RIGHT), examples)) for name, examples in by_class.items()
        },
        scores=by_domain(summed.scores),
    )


def area_under_curve(scores: Sequence[Sequence[int]]) -> Optional[float]:
    """Returns the area under the ROC curve; None if a class has no examples.

    The area is the Mann-Whitney statistic; ties, which are examples in one bin, count half (Hanley
    and McNeil 1982).

    Args:
        scores: Number of examples by class and bin of the score, [2, bins].
    """
    first, second = np.asarray(scores, np.float64)
    pairs = first.sum() * second.sum()
    if not pairs:
        return None
    below = np.cumsum(first) - first / 2
    return float(np.sum(below * second) / pairs)


def constant_accuracies(counts: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Returns each domain's accuracy if its most frequent class is always predicted.

    Domains with a single class are omitted: if domains are classes, this accuracy would require a
    model that knows the domain.
    """
    return {
        name: max(examples) / sum(examples)
        for name, examples in counts.items()
        if sum(map(bool, examples)) > 1
    }


def no_better_than_majority(
    counts: Mapping[str, Sequence[int]], accuracies: Mapping[str, Optional[float]]
) -> dict[str, tuple[float, float]]:
    """Returns (model's, majority class's) accuracy of each domain where the model is no better."""
    worse = {}
    for name, constant in constant_accuracies(counts).items():
        accuracy: Any = accuracies.get(name)
        # Allow for rounding: the model's accuracy, a mean, may be rounded up.
        if accuracy is not None and accuracy == accuracy and accuracy <= constant + 1e-9:
            worse[name] = accuracy, constant
    return worse


def entropy(counts: np.ndarray) -> float:
    """Returns -sum_c q_c log q_c, in nats, where q are the counts divided by their sum."""
    shares = counts[counts > 0] / counts.sum()
    # Avoid -0 for a single value.
    return float(abs(np.sum(shares * np.log(shares))))
