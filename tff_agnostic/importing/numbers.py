"""What an import tells of the numbers of its training clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, Optional

from tabulate import tabulate

from tff_agnostic.data.data_warnings import Remark
from tff_agnostic.data.inputs import vector_of
from tff_agnostic.data.store_format import NumberStatistics, StoreDescription
from tff_agnostic.errors import some_of

# A longer table cannot be read; the JSON report has every number.
_MAX_ROWS = 40
_MAX_NAMES = 5
# Numbers so many times as large as others, or as 1: one learning rate cannot fit both.
_TIMES = 100


class Numbers(NamedTuple):
    """The numbers of a store.

    Attributes:
        statistics: Of training clients, by what each number is called.
        are_standardized: Whether the store has them with mean 0 and deviation 1.
    """

    statistics: Mapping[str, NumberStatistics]
    are_standardized: bool

    def table(self) -> Optional[str]:
        """Returns the statistics for people; None where there are none, or too many to read."""
        if not 0 < len(self.statistics) <= _MAX_ROWS:
            return None
        rows = [
            [name, one.mean, one.deviation, one.least, one.most, one.missing]
            for name, one in self.statistics.items()
        ]
        headers = ["number", "mean", "deviation", "least", "most", "missing"]
        how = ", before they are standardized" if self.are_standardized else ""
        table = tabulate(rows, headers=headers, floatfmt=".4g")
        return f"Numbers of the training clients{how}:\n{table}"

    def to_json(self) -> dict[str, Any]:
        """Returns the same as JSON values."""
        return {
            "standardized": self.are_standardized,
            "statistics": {name: dataclasses.asdict(one) for name, one in self.statistics.items()},
        }

    def remarks(self) -> list[Remark]:
        """Returns the warning about numbers of very different sizes, or far from 1."""
        sizes = {name: one.size for name, one in self.statistics.items() if one.size > 0}
        if not sizes or self.are_standardized:
            return []
        largest, smallest = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
        if sizes[largest] <= _TIMES * min(1.0, sizes[smallest]):
            return []
        large = [f"{name} ({size:.3g})" for name, size in sizes.items() if size > _TIMES]
        told = some_of(large or [f"{largest} ({sizes[largest]:.3g})"], _MAX_NAMES)
        beside = f" beside {smallest} ({sizes[smallest]:.3g})" if smallest != largest else ""
        return [
            Remark(
                "scales",
                f"Numbers differ much in size, or are far from 1: {told}{beside}, by the root of "
                "the mean of squares. No learning rate fits both: --standardize brings each to "
                "mean 0 and deviation 1, or a model divides by data.x_deviation.",
                {"sizes": sizes},
            )
        ]


def numbers_of(description: StoreDescription) -> Numbers:
    """Returns the numbers of a finished store."""
    found = {}
    for name in description.statistics:
        for k, entry in enumerate(vector_of(description, name)):
            if entry.statistics is not None:
                found[entry.name or f"{name}[{k}]"] = entry.statistics
    return Numbers(found, description.is_standardized)
