"""Data frames as clients in memory, and as client stores.

A frame is a mapping from column names to arrays, a Hugging Face data set, or an object with Arrow's
`__arrow_c_stream__`: a pandas or polars data frame, an Arrow table, a DuckDB relation.

    >>> frame = {"who": ["a", "a", "b"], "where": ["x", "y", "x"], "age": [1, 2, 3], "y": [0, 1, 1]}
    >>> columns = {"client_column": "who", "domain_column": "where", "label_column": "y"}
    >>> table = clients_of(frame, {**columns, "feature_columns": ["age"]})
    >>> table.domain_names, table.clients.read("a")["x"].tolist()
    (('x', 'y'), [[1.0], [2.0]])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OptionError
from tff_agnostic.data.clients import InMemoryClients, rows_of
from tff_agnostic.data.store_format import LABEL
from tff_agnostic.importing.arrow_tables import frame_reader
from tff_agnostic.importing.domain_names import DomainNames
from tff_agnostic.importing.importer import Import, checked_output
from tff_agnostic.importing.options import ImportOptions, check_used
from tff_agnostic.importing.report import ImportReport
from tff_agnostic.importing.source import Format, ReadLog, Rows
from tff_agnostic.importing.table_options import check

# Data frames take the options of this format, because its columns have types, as theirs do.
_FORMAT = "parquet"
# Options that apply to clients in memory; other options only concern stores.
_IN_MEMORY = (
    *("client_column", "domain_column", "domain_names", "label_column", "label_kind"),
    *("class_names", "feature_columns", "categorical_columns", "max_categories"),
    *("missing_values", "missing_marks"),
)


@dataclasses.dataclass(frozen=True)
class TableClients:
    """The clients of a data frame, in memory.

    Attributes:
        clients: Examples of each client: "x", float32 [n, d], or a mapping of such arrays by input;
            "y", int32 [n], or float32 [n] if labels are real numbers; "domain_id", int32 [n].
        domain_names: Names of the domains, in the order of their ids.
    """

    clients: InMemoryClients
    domain_names: tuple[str, ...]


def import_table(frame: Any, path: Union[str, Path], **columns: Any) -> ImportReport:
    """Writes a data frame into a client store.

    Args:
        frame: The data frame; see the module.
        path: The store's folder; it must not exist yet.
        **columns: Options of the import: `client_column`, `domain_column`, `feature_columns`,
            `label_column` and so on, see `ImportOptions`.
    """
    options = _options({**columns, "output": str(path)})
    output = checked_output(options)
    read = Format(frame_reader(frame), lambda paths: [], check, has_groups=True)
    return Import(options, frozenset(columns), read, [], output).run(
        ReadLog(options.bad_records == "skip")
    )


def clients_of(frame: Any, columns: Mapping[str, Any]) -> TableClients:
    """Returns the clients of a data frame, without dividing them into splits.

    Args:
        frame: The data frame; see the module.
        columns: Options for columns, names and missing values, as in `import_table`. Categories are
            one-hot encoded in the only input.
    """
    for name in columns:
        if name not in _IN_MEMORY:
            expected = f"one of {', '.join(_IN_MEMORY)}, the options of clients in memory"
            raise OptionError("columns", expected, name)
    options = _options(columns)
    if options.missing_values == "mark":
        expected = "fail or zero, as clients in memory have no marks"
        raise OptionError("missing_values", expected, options.missing_values)
    log, names = ReadLog(False), DomainNames(options.domain_names)
    parts = [names.named(rows, log) for rows in frame_reader(frame)(options, [], log)]
    if not sum(map(len, parts)):
        raise UserError("the table: expected examples, found none")
    domain = pa.concat_arrays([part.domain for part in parts])
    client = pa.concat_arrays([part.client for part in parts])
    domain_names = tuple(sorted(domain.unique().to_pylist()))
    label = np.concatenate([part.features[LABEL] for part in parts])
    example_columns = {
        "x": _inputs(parts, options),
        "y": label.astype(np.int32 if options.are_classes else np.float32),
        "domain_id": np.asarray(pc.index_in(domain, pa.array(domain_names))).astype(np.int32),
    }
    coded = client.dictionary_encode()
    codes = np.asarray(coded.indices)
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes))
    examples = {
        name: rows_of(example_columns, order[end - size : end])
        for name, end, size in zip(coded.dictionary.to_pylist(), ends, np.bincount(codes))
    }
    return TableClients(InMemoryClients(examples), domain_names)


def _options(columns: Mapping[str, Any]) -> ImportOptions:
    fields = {field.name for field in dataclasses.fields(ImportOptions)}
    unknown = next((name for name in columns if name not in fields), None)
    if unknown is not None:
        raise OptionError(unknown, "an option of imports", columns[unknown])
    values = {
        name: tuple(value)
        if isinstance(value, list)
        else (value,)
        if isinstance(value, str) and isinstance(getattr(ImportOptions, name), tuple)
        else value
        for name, value in columns.items()
    }
    options = ImportOptions(format=_FORMAT, **values)
    check_used(options, list(columns))
    check(options)
    return options


def _inputs(parts: list[Rows], options: ImportOptions) -> Any:
    """Returns x: an array [n, d], or a mapping of arrays by input."""
    inputs: dict[str, np.ndarray] = {}
    for name, first in parts[0].features.items():
        if isinstance(first, np.ndarray) and name != LABEL:
            numbers = np.concatenate([part.features[name] for part in parts])
            inputs[name] = np.where(np.isnan(numbers), np.float32(0), numbers)
    one_hot = []
    for column in options.categorical_columns:
        values = pa.concat_arrays([part.features[column] for part in parts])
        known_values = pa.array(sorted(set(values.unique().to_pylist()) - {""}))
        codes = np.asarray(pc.index_in(values, known_values).fill_null(-1))
        one_hot.append((codes[:, np.newaxis] == np.arange(len(known_values))).astype(np.float32))
    if one_hot and len(inputs) > 1:
        raise UserError("columns: expected one input of numbers with categories, found several")
    if one_hot:
        return np.concatenate([*inputs.values(), *one_hot], axis=1)
    first, *more = inputs.values()
    return inputs if more else first
