"""Answers by domain and class, from summed counts; what the most frequent class alone attains.

Curves and calibration are those of counts on a grid of probabilities. Within a bin the curve is a
straight line, as where examples have equal scores: the area below it is that of the Mann-Whitney
statistic with ties counted half (Hanley and McNeil 1982).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

# What a constant answer is compared with.
ACCURACY = "accuracy"
# In result.json.
CLASS_COUNTS = "class_counts"
CONFUSION = "confusion"
BY_CLASS = "answers_by_class"
SCORES = "score_counts"
# Of the counts of a class, where there is no table.
HAVE, GET, RIGHT = "examples", "answers", "right_answers"


@dataclasses.dataclass(frozen=True)
class ClassReport:
    """Answers by domain and class; what was not counted is empty.

    Attributes:
        counts: Examples of each class, by domain.
        confusion: Examples by class and answer, by domain.
        by_class: Where there is no `confusion`: of each class how many examples have it, get it,
            and get it rightly, by domain.
        scores: Of two classes, examples by class and by the bin of their probability of class 1, by
            domain.
    """

    counts: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    confusion: Mapping[str, Sequence[Sequence[int]]] = dataclasses.field(default_factory=dict)
    by_class: Mapping[str, Mapping[str, Sequence[int]]] = dataclasses.field(default_factory=dict)
    scores: Mapping[str, Sequence[Sequence[int]]] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the parts of result.json that it gives."""
        found = {
            CLASS_COUNTS: self.counts,
            CONFUSION: self.confusion,
            BY_CLASS: self.by_class,
            SCORES: self.scores,
        }
        return {key: dict(of_domains) for key, of_domains in found.items() if of_domains}


def class_report(names: Sequence[str], summed: Any) -> ClassReport:
    """Returns the report.

    Args:
        names: Of the domains.
        summed: A `ClassSums`, or () where nothing was counted. Noisy counts below 0 are 0.
    """
    if summed == ():
        return ClassReport()

    def of_domains(values: Any) -> dict[str, Any]:
        if isinstance(values, tuple):
            return {}
        return dict(zip(names, np.maximum(np.asarray(values), 0).tolist()))

    confusion, by_class = of_domains(summed.confusion), of_domains(summed.by_class)
    counts = {name: [sum(row) for row in of] for name, of in confusion.items()}
    return ClassReport(
        counts=counts or {name: have for name, (have, _, _) in by_class.items()},
        confusion=confusion,
        by_class={name: dict(zip((HAVE, GET, RIGHT), of)) for name, of in by_class.items()},
        scores=of_domains(summed.scores),
    )


class Curve(NamedTuple):
    """A ROC curve from (0, 0) to (1, 1).

    Attributes:
        false_positives: Share of class 0 that is taken for class 1, ascending, [bins + 1].
        true_positives: Share of class 1 that is.
    """

    false_positives: np.ndarray
    true_positives: np.ndarray

    @property
    def area(self) -> float:
        """The area below it."""
        x, y = self
        return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2))


def roc_curve(scores: Sequence[Sequence[int]]) -> Optional[Curve]:
    """Returns the curve of thresholds between bins; None if a class has no examples.

    Args:
        scores: Examples by class and bin of their score, [2, bins].
    """
    # From the highest threshold down: none, then all from the last bin on.
    counts = np.asarray(scores, np.float64)[:, ::-1]
    totals = counts.sum(axis=1, keepdims=True)
    if not np.all(totals > 0):
        return None
    reached = np.concatenate([np.zeros((2, 1)), np.cumsum(counts, axis=1) / totals], axis=1)
    return Curve(*reached)


class Calibration(NamedTuple):
    """Bins that hold examples.

    Attributes:
        probability: The middle of each bin.
        share: The share of its examples that are of class 1.
        examples: How many these are.
    """

    probability: np.ndarray
    share: np.ndarray
    examples: np.ndarray

    @property
    def error(self) -> float:
        """The expected calibration error (Naeini et al. 2015), of the middles of the bins."""
        weights = self.examples / self.examples.sum()
        return float(np.sum(weights * np.abs(self.share - self.probability)))


def calibration(scores: Sequence[Sequence[int]], num_bins: int = 10) -> Optional[Calibration]:
    """Returns how often class 1 is right, by its probability; None without examples.

    Args:
        scores: Examples by class and bin of their score, [2, bins].
        num_bins: Bins of equal width, a divisor of those of the scores.
    """
    fine = np.asarray(scores, np.float64)
    counts = fine.reshape(2, num_bins, -1).sum(axis=2)
    total = counts.sum(axis=0)
    held = total > 0
    if not held.any():
        return None
    middles = (np.arange(num_bins) + 0.5) / num_bins
    return Calibration(middles[held], (counts[1] / np.where(held, total, 1))[held], total[held])


def constant_accuracies(counts: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Returns the accuracy in each domain of always answering its most frequent class.

    Domains of a single class have none: where domains are classes, a model that does not know the
    domain cannot answer so.

    Args:
        counts: Of each domain, the examples of each class.
    """
    return {name: max(of) / sum(of) for name, of in counts.items() if sum(map(bool, of)) > 1}


def not_above_constant(
    counts: Mapping[str, Sequence[int]], accuracies: Mapping[str, Optional[float]]
) -> dict[str, tuple[float, float]]:
    """Returns domains in which a model is right no more often than a constant, with both shares.

    Args:
        counts: Of each domain, the examples of each class.
        accuracies: Of the model in each domain.
    """
    found = {}
    for name, constant in constant_accuracies(counts).items():
        accuracy: Any = accuracies.get(name)
        # The mean of several .8 may be rounded to a bit more.
        if accuracy is not None and accuracy == accuracy and accuracy <= constant + 1e-9:
            found[name] = accuracy, constant
    return found


def constant_line(found: Mapping[str, tuple[float, float]], count: int) -> str:
    """Returns what is said of domains that `not_above_constant` found, of so many."""
    listed = [f"{name} {100 * own:.1f}%, {100 * of:.1f}%" for name, (own, of) in found.items()]
    more = f"; {len(listed) - 3} more" if len(listed) > 3 else ""
    return (
        f"accuracy is not above that of always answering the most frequent class in {len(found)} "
        f"of {count} domains ({'; '.join(listed[:3])}{more})"
    )
