"""Classes of the clients that are evaluated, and what the most frequent one alone attains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np

from tff_agnostic.models.model import Examples, Model

# What a constant answer is compared with.
ACCURACY = "accuracy"
# With more classes nothing is counted.
_MOST_CLASSES = 1000


class ClassCounter:
    """Counts the classes of clients as they pass by.

    Args:
        model: Whose labels they are; without one whole number a label nothing is counted.
        num_domains: p.
    """

    def __init__(self, model: Model, num_domains: int) -> None:
        spec = model.example_spec["y"]
        self._is_counting = (
            not isinstance(spec, Mapping) and spec.dtype.is_integer and len(spec.shape) == 1
        ) and any(metric.name == ACCURACY for metric in model.metrics)
        self._counts = np.zeros((num_domains, 0), np.int64)

    def counting(self, clients: Iterable[Examples]) -> Iterator[Examples]:
        """Yields the clients."""
        for client in clients:
            if self._is_counting and len(client["y"]):
                self._add(np.asarray(client["domain_id"]), np.asarray(client["y"]))
            yield client

    def counts(self, names: Sequence[str]) -> dict[str, list[int]]:
        """Returns how many examples of each class each domain has; empty if none was counted."""
        if not self._is_counting or not self._counts.size:
            return {}
        return {name: row.tolist() for name, row in zip(names, self._counts)}

    def _add(self, domains: np.ndarray, labels: np.ndarray) -> None:
        most = int(labels.max()) + 1
        if int(labels.min()) < 0 or most > _MOST_CLASSES:
            self._is_counting = False
            return
        more = most - self._counts.shape[1]
        if more > 0:
            self._counts = np.pad(self._counts, ((0, 0), (0, more)))
        np.add.at(self._counts, (domains, labels), 1)


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
    """Returns the domains in which a model is no better than a constant: its accuracy, and that.

    Args:
        counts: Of each domain, the examples of each class.
        accuracies: Of the model in each domain.
    """
    found = {}
    for name, constant in constant_accuracies(counts).items():
        accuracy: Any = accuracies.get(name)
        if accuracy is not None and accuracy == accuracy and accuracy <= constant:
            found[name] = accuracy, constant
    return found


def constant_line(found: Mapping[str, tuple[float, float]], count: int) -> str:
    """Returns what is said of domains that `not_above_constant` found, of so many."""
    listed = [f"{name} {100 * own:.1f}%, {100 * of:.1f}%" for name, (own, of) in found.items()]
    more = f"; {len(listed) - 3} more" if len(listed) > 3 else ""
    return (
        f"no better than always answering the most frequent class in {len(found)} of {count} "
        f"domains ({'; '.join(listed[:3])}{more})"
    )
