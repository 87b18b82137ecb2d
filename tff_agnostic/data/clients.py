"""Client datasets: a client is a dict of NumPy arrays "x", "y" and "domain_id"."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Examples


class ClientDataset(Protocol):
    """Clients by id. Ids are sorted, so that sampling does not depend on how they were stored."""

    @property
    def client_ids(self) -> Sequence[str]:
        """Every client's id, sorted."""

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples.

        Raises:
            UserError: If the client's data is damaged or does not fit the dataset.
        """


class InMemoryClients:
    """Clients held in memory."""

    def __init__(self, clients: Mapping[str, Examples]) -> None:
        self._clients = {client_id: clients[client_id] for client_id in sorted(clients)}

    @property
    def client_ids(self) -> Sequence[str]:
        """Every client's id, sorted."""
        return list(self._clients)

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples."""
        return self._clients[client_id]


class FirstExamples:
    """The first examples of each client of another dataset.

    Args:
        clients: The other dataset.
        max_examples: How many of each client.
    """

    def __init__(self, clients: ClientDataset, max_examples: int) -> None:
        self._clients = clients
        self._max_examples = max_examples

    @property
    def client_ids(self) -> Sequence[str]:
        """Every client's id, sorted."""
        return self._clients.client_ids

    def read(self, client_id: str) -> Examples:
        """Returns one client's first examples."""
        return _first_rows(self._clients.read(client_id), self._max_examples)


def _first_rows(columns: Mapping[str, Any], max_rows: int) -> dict[str, Any]:
    return {
        name: _first_rows(column, max_rows) if isinstance(column, Mapping) else column[:max_rows]
        for name, column in columns.items()
    }


def domain_counts(clients: ClientDataset, num_domains: int) -> np.ndarray:
    """Returns the number of examples of each domain over all clients, int64 [p]."""
    counts = np.zeros([num_domains], np.int64)
    for client_id in clients.client_ids:
        counts += np.bincount(clients.read(client_id)["domain_id"], minlength=num_domains)
    return counts


def checked_examples(
    columns: Mapping[str, Any], spec: Mapping[str, Any], num_domains: int, where: str
) -> dict[str, Any]:
    """Checks one client's columns against what the model and the domains expect.

    Args:
        columns: The arrays "x", "y" and "domain_id"; "x" and "y" may be mappings of arrays.
        spec: What `Model.client_data_spec` returned: tensor specs with first dimension None.
        num_domains: p; domain ids are in [0, p).
        where: Which client, or file, for messages.

    Returns:
        The columns in the order of `spec`.

    Raises:
        UserError: If a column is missing, has another dtype or shape, holds values that are not
            finite, a domain id is out of range, or the columns differ in length.
    """
    for name in spec:
        if name not in columns:
            raise UserError(
                f"{where}: expected columns {', '.join(spec)}, found {', '.join(columns) or 'none'}"
            )
    checked = {name: columns[name] for name in spec}
    arrays: list[np.ndarray] = []
    for name, column_spec in spec.items():
        arrays += _check_column(checked[name], column_spec, f"{where}: {name}")
    lengths = [len(array) for array in arrays]
    if len(set(lengths)) > 1:
        raise UserError(
            f"{where}: expected columns of one length, found {', '.join(spec)} with lengths "
            f"{', '.join(map(str, lengths))}"
        )
    _check_range(checked["domain_id"], num_domains, "domain ids", where)
    return checked


def check_labels(labels: np.ndarray, num_classes: int, where: str) -> None:
    """Raises a `UserError` unless every label is in [0, num_classes)."""
    _check_range(labels, num_classes, "labels", where)


def _check_column(column: Any, spec: Any, where: str) -> list[np.ndarray]:
    if isinstance(spec, Mapping):
        if not isinstance(column, Mapping) or set(column) != set(spec):
            found = ", ".join(column) if isinstance(column, Mapping) else type(column).__name__
            raise UserError(f"{where}: expected arrays {', '.join(spec)}, found {found}")
        parts = [_check_column(column[key], spec[key], f"{where}.{key}") for key in spec]
        return [array for part in parts for array in part]
    expected = np.dtype(spec.dtype.as_numpy_dtype)
    if not isinstance(column, np.ndarray) or column.dtype != expected:
        found = column.dtype if isinstance(column, np.ndarray) else type(column).__name__
        raise UserError(f"{where}: expected {expected} values, found {found}")
    if not spec.shape.is_compatible_with(column.shape):
        raise UserError(f"{where}: expected an array of shape {spec.shape}, found {column.shape}")
    if column.dtype.kind == "f" and not np.all(np.isfinite(column)):
        row = int(np.argwhere(~np.isfinite(column))[0][0])
        raise UserError(f"{where}: expected finite numbers, found NaN or infinity in row {row}")
    return [column]


def _check_range(values: np.ndarray, limit: int, what: str, where: str) -> None:
    outside = (values < 0) | (values >= limit)
    if np.any(outside):
        row = int(np.argmax(outside))
        raise UserError(
            f"{where}: expected {what} from 0 to {limit - 1}, found {values[row]} in row {row}"
        )
