"""Descriptions of a model's inputs: columns of a table, and the numbers that encode them.

Stores describe their columns (`store_format.StoredColumns`), and tasks make inputs of the columns.
Saved models contain the description of their inputs, so that a user needs no store.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from tff_agnostic.data.store_format import (
    MISSING,
    NO_CATEGORY,
    NumberStatistics,
    StoredColumns,
    StoreDescription,
)

# Key of `inputs_json` in model cards and in the metadata of Keras files.
TABLE = "table"
# The name of a model's only input.
ONLY = "x"
# Kinds of an `Entry`.
NUMBER, MARK, CATEGORY = "number", "missing", "category"
# Kinds of a `Whole`. The ids of categories start at 1; 0 is an unknown category.
IDS, TEXT, SENTENCE, IMAGE = "category ids", "text", "begin of a sentence", "image"
# Kind of an input that is the id of the example's domain, from 0.
DOMAIN = "domain"
# Kind of the inputs from a store that does not describe its columns.
UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One number of an input vector.

    Attributes:
        kind: `NUMBER`; `MARK`, which is 1 if the column's value is missing and else 0; `CATEGORY`,
            which is 1 if the column's value is `value` and else 0; or `UNKNOWN`.
        column: Name of the column; None if unknown.
        item: Index in the column's lists; None for a column of numbers.
        value: Category that a `CATEGORY` entry indicates.
        statistics: Statistics of the training clients' values in the source; None if unknown.
        is_standardized: Whether the number was standardised by these statistics.
    """

    kind: str
    column: Optional[str] = None
    item: Optional[int] = None
    value: Optional[str] = None
    statistics: Optional[NumberStatistics] = None
    is_standardized: bool = False

    @property
    def name(self) -> str:
        """The name of the number: age, age[1], "age is missing", city=Lima; empty if unknown."""
        name = (self.column or "") if self.item is None else f"{self.column}[{self.item}]"
        ends = {MARK: " is missing", CATEGORY: f"={self.value}"}
        return f"{name}{ends.get(self.kind, '')}"

    @property
    def mean(self) -> float:
        """The mean to subtract in a model; 0 without statistics, or if already standardised."""
        return 0.0 if self.statistics is None or self.is_standardized else self.statistics.mean

    @property
    def deviation(self) -> float:
        """The divisor in a model; 1 without statistics, or if already standardised."""
        return 1.0 if self.statistics is None or self.is_standardized else self.statistics.unit

    def to_json(self) -> dict[str, Any]:
        """Returns the entry as JSON values without null, except for an unknown column."""
        result: dict[str, Any] = {"is": self.kind, "column": self.column}
        result.update({"item": self.item, "value": self.value})
        if self.is_standardized and self.statistics is not None:
            result.update({"subtract": self.statistics.mean, "divide_by": self.statistics.unit})
        return {k: v for k, v in result.items() if v is not None or k == "column"}


@dataclasses.dataclass(frozen=True)
class Whole:
    """An input that encodes a single column.

    Attributes:
        kind: `IDS`, `TEXT`, `SENTENCE`, `IMAGE`, `DOMAIN` or `UNKNOWN`.
        column: The column; None if unknown.
        values: Categories ordered by id, or domains ordered by index.
    """

    kind: str
    column: Optional[str] = None
    values: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the input as JSON values."""
        values = {"values": list(self.values)} if self.kind in (IDS, DOMAIN) else {}
        return {"is": self.kind, "column": self.column, **values}


# The entries of a vector or a flattened array; or an input that encodes a single column.
Input = Union[tuple[Entry, ...], Whole]


@dataclasses.dataclass(frozen=True)
class ModelInputs:
    """All inputs of a model.

    Attributes:
        inputs: The inputs by name; a single input is named `ONLY`.
        columns: The store's description of its columns; None if it has none.
    """

    inputs: Mapping[str, Input]
    columns: Optional[StoredColumns]

    @property
    def are_column_inputs(self) -> bool:
        """Whether named columns of numbers and categories suffice to build every input."""
        return self.columns is not None and all(
            one.kind == IDS
            if isinstance(one, Whole)
            else all(entry.column is not None for entry in one)
            for one in self.inputs.values()
        )

    def vector_entries(self) -> list[Entry]:
        """Returns the entries of all inputs that are vectors."""
        return [
            entry for one in self.inputs.values() if not isinstance(one, Whole) for entry in one
        ]

    def numbers(self) -> dict[str, Optional[int]]:
        """Returns the length of lists by numeric column; None for a column of plain numbers."""
        result: dict[str, Optional[int]] = {}
        for entry in self.vector_entries():
            if entry.kind == NUMBER and entry.column is not None:
                result[entry.column] = None if entry.item is None else entry.item + 1
        return result

    def categories(self) -> list[str]:
        """Returns the names of the categorical columns."""
        id_columns = [
            one.column
            for one in self.inputs.values()
            if isinstance(one, Whole) and one.kind == IDS and one.column is not None
        ]
        one_hot = [e.column for e in self.vector_entries() if e.kind == CATEGORY and e.column]
        return list(dict.fromkeys([*id_columns, *one_hot]))

    @property
    def missing_category(self) -> str:
        """The category of missing values, or "" if they have none."""
        return MISSING if self.columns is not None and self.columns.are_marked else NO_CATEGORY


def inputs_json(
    inputs: Optional[ModelInputs],
    class_names: Optional[Sequence[str]],
    words: Optional[Sequence[str]],
) -> dict[str, Any]:
    """Returns the description of a model's inputs and classes for model cards and Keras files.

    Args:
        inputs: Inputs of the model; None if the task does not describe them.
        class_names: Names of the classes, if they have any.
        words: The vocabulary of texts; word k has the id k + 1.
    """
    result: dict[str, Any] = {"inputs": None, "columns": None}
    if inputs is not None:
        result["inputs"] = {
            name: one.to_json() if isinstance(one, Whole) else [e.to_json() for e in one]
            for name, one in inputs.inputs.items()
        }
        if (columns := inputs.columns) is not None:
            used = {*inputs.numbers(), *inputs.categories()}
            result["columns"] = dict(columns.roles)
            result["domain_is_an_input"] = columns.roles.get("domain") in used
            cells = columns.missing_cells
            result["missing_cells"] = None if cells is None else list(cells)
            result["missing_category"] = inputs.missing_category
            if columns.words:
                result["words"] = dict(columns.words)
        if any(isinstance(one, Whole) and one.kind == DOMAIN for one in inputs.inputs.values()):
            result["domain_is_an_input"] = True
    result["classes"] = None if class_names is None else list(class_names)
    if words is not None:
        result["vocabulary"] = list(words)
    return result


def input_vector(description: StoreDescription, name: str) -> tuple[Entry, ...]:
    """Returns the entries of a stored input, with indicators of missing values at its end."""
    columns, size = description.columns, math.prod(description.features[name].shape)
    numbers = description.statistics.get(name, (None,) * description.num_numbers(name))
    is_standardized = description.is_standardized
    number_columns = () if columns is None else columns.numbers.get(name, ())
    if columns is None or not number_columns:
        entries = [Entry(UNKNOWN, statistics=one) for one in numbers]
        return (*entries, *(Entry(UNKNOWN),) * (size - len(entries)))
    entries, seen, times = [], dict.fromkeys(number_columns, 0), Counter(number_columns)
    for column, one in zip(number_columns, numbers, strict=True):
        item = seen[column] if times[column] > 1 else None
        entries.append(Entry(NUMBER, column, item, None, one, is_standardized))
        seen[column] += 1
    return (*entries, *(Entry(MARK, column) for column in seen if columns.are_marked))


def one_hot(categories: Mapping[str, Sequence[str]]) -> tuple[Entry, ...]:
    """Returns the one-hot entries of categorical columns, one entry per known value."""
    return tuple(
        Entry(CATEGORY, column, value=value)
        for column, values in categories.items()
        for value in values
    )
