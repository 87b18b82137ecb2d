"""Descriptions of the reported quantities; files, tables and curves derive from them.

A report is a nested mapping of tensors. A mapping of the same structure, with `ReportField` leaves,
describes it. Consumers never parse the name of a quantity.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional


class Unit(enum.Enum):
    """Unit of a quantity's values, if it matters for their display."""

    NONE = enum.auto()
    SHARE = enum.auto()  # In [0, 1]; displayed in percent.
    EXAMPLES = enum.auto()
    CLIENTS = enum.auto()
    VALUES = enum.auto()
    FACTOR = enum.auto()  # Compared by ratios, such as perplexity: displayed on logarithmic axes.


class Role(enum.Enum):
    """How one-line summaries of rounds, and tables of domains, display a quantity."""

    NONE = enum.auto()
    DOMAIN_LOSS = enum.auto()  # The progress line names the domain with the largest value.
    DOMAIN_WEIGHT = enum.auto()  # Shown next to each domain.
    PRIVACY = enum.auto()  # Ends the progress line.


@dataclasses.dataclass(frozen=True)
class ReportField:
    """Description of a value that every round, or every evaluation, reports.

    Attributes:
        name: Column in metrics.csv, and tag in TensorBoard, followed by "/DOMAIN" if `per_domain`.
            Unique among a run's quantities.
        label: Label of an axis.
        per_domain: Whether the value is a vector [p] with an entry per domain instead of a scalar.
        unit: Unit of its values.
        higher_is_better: Whether larger values are better; None if neither direction is.
        needs_examples: Whether the value is undefined for a domain without examples in the round.
        role: Role in one-line summaries of rounds; each role except NONE belongs to at most one of
            a run's quantities.
        is_drawn: Whether a report has a plot of the value over the rounds, with a curve per domain.
    """

    name: str
    label: str
    per_domain: bool = False
    unit: Unit = Unit.NONE
    higher_is_better: Optional[bool] = None
    needs_examples: bool = False
    role: Role = Role.NONE
    is_drawn: bool = False


# Nested mappings in the structure of a report, with `ReportField` leaves.
ReportFields = Mapping[str, Any]


def nested(leaves: Iterable[tuple[tuple[str, ...], Any]]) -> OrderedDict[str, Any]:
    """Returns nested mappings from pairs of (keys from the outermost to the innermost, leaf)."""
    root: OrderedDict[str, Any] = OrderedDict()
    for (*outer, last), leaf in leaves:
        group = root
        for key in outer:
            group = group.setdefault(key, OrderedDict())
        group[last] = leaf
    return root


def paired(
    quantities: ReportFields, report: Mapping[str, Any]
) -> Iterator[tuple[ReportField, Any]]:
    """Yields each quantity with its reported value, in the order of `quantities`.

    Raises:
        If a described quantity is not reported, or a reported quantity is not described.
    """
    if set(quantities) != set(report):
        different = ", ".join(sorted(set(quantities) ^ set(report)))
        raise ValueError(
            f"expected a report of the described quantities, found different keys: {different}"
        )
    for key, quantity in quantities.items():
        if isinstance(quantity, Mapping):
            yield from paired(quantity, report[key])
        else:
            yield quantity, report[key]


def flattened(quantities: ReportFields) -> Iterator[ReportField]:
    """Yields the quantities of nested mappings, in order."""
    for quantity in quantities.values():
        if isinstance(quantity, Mapping):
            yield from flattened(quantity)
        else:
            yield quantity
