"""What rounds and evaluations report, described: files, tables, plots and curves are made of this.

A report is nested mappings of tensors. Mappings of the same structure, whose leaves are
`ReportField`, describe it. Nothing downstream takes the name of a quantity apart.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional


class Unit(enum.Enum):
    """What the numbers of a quantity are, where that matters for how they are shown."""

    NONE = enum.auto()
    SHARE = enum.auto()  # In [0, 1]; people read percent.
    EXAMPLES = enum.auto()
    CLIENTS = enum.auto()
    VALUES = enum.auto()
    FACTOR = enum.auto()  # Differences are ratios: logarithmic axes, such as for perplexity.


class Role(enum.Enum):
    """What a quantity is for those who show a round in a line, or domains in a table."""

    NONE = enum.auto()
    DOMAIN_LOSS = enum.auto()  # The progress line names the domain in which it is largest.
    DOMAIN_WEIGHT = enum.auto()  # Stands beside each domain.
    PRIVACY = enum.auto()  # Ends the progress line.


@dataclasses.dataclass(frozen=True)
class ReportField:
    """Something that every round, or every evaluation, reports.

    Attributes:
        name: Its column in metrics.csv, and its tag in TensorBoard; with "/DOMAIN" after it where
            it is `per_domain`. Different from those of all other quantities of a run.
        label: What it is, for the axis of a plot.
        per_domain: Whether it is a vector [p] with an entry per domain, or a scalar.
        unit: What its numbers are.
        higher_is_better: Which direction is good; None if neither is.
        of_present_domains: Whether it is undefined for a domain without examples in the round.
        role: What it is for those who show a round in a line; at most one quantity of a run has
            each role but NONE.
        is_drawn: Whether a run draws its course over the rounds, a curve per domain.
        file_name: Of that plot, without suffix; made of the name if None.
    """

    name: str
    label: str
    per_domain: bool = False
    unit: Unit = Unit.NONE
    higher_is_better: Optional[bool] = None
    of_present_domains: bool = False
    role: Role = Role.NONE
    is_drawn: bool = False
    file_name: Optional[str] = None


# Nested mappings, as those of a report; their leaves are `ReportField`.
ReportFields = Mapping[str, Any]


def nested(leaves: Iterable[tuple[tuple[str, ...], Any]]) -> OrderedDict[str, Any]:
    """Returns nested mappings of (keys from the outermost to the innermost, leaf)."""
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
    """Yields each quantity with what was reported of it, in the order of `quantities`.

    Raises:
        ValueError: If one is described and not reported, or reported and not described.
    """
    if set(quantities) != set(report):
        different = ", ".join(sorted(set(quantities) ^ set(report)))
        raise ValueError(f"expected a report of what is described, found a difference: {different}")
    for key, quantity in quantities.items():
        if isinstance(quantity, Mapping):
            yield from paired(quantity, report[key])
        else:
            yield quantity, report[key]


def flattened(quantities: ReportFields) -> Iterator[ReportField]:
    """Yields the quantities of nested mappings, in their order."""
    for quantity in quantities.values():
        if isinstance(quantity, Mapping):
            yield from flattened(quantity)
        else:
            yield quantity
