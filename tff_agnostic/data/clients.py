"""Client datasets: views of other datasets, checks of columns, and partitions into clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional, Protocol

import numpy as np

from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.files import content_digest
from tff_agnostic.base.later import tf
from tff_agnostic.models.model import Examples

_MAX_CLIENTS = 1000
_MAX_BYTES = 64 * 2**20


class ClientDataset(Protocol):
    """Clients by id. Ids are sorted, so that sampling does not depend on the order of storage."""

    @property
    def client_ids(self) -> Sequence[str]:
        """The ids of all clients, sorted."""

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples."""


class ListedClients:
    """Base class of datasets, with the sorted ids of the clients in `_ids`."""

    _ids: Sequence[str]

    @property
    def client_ids(self) -> Sequence[str]:
        """The ids of all clients, sorted."""
        return self._ids


class InMemoryClients(ListedClients):
    """Clients held in memory."""

    def __init__(self, clients: Mapping[str, Examples]) -> None:
        self._clients = dict(clients)
        self._ids = sorted(clients)

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples."""
        return self._clients[client_id]


def clients_digest(*datasets: ClientDataset) -> str:
    """Returns a digest of the ids and examples of all clients; reads each client once."""
    facts = [list(clients.client_ids) for clients in datasets]
    examples = (clients.read(name) for clients in datasets for name in clients.client_ids)
    return content_digest(
        facts, (column for client_examples in examples for column in _columns(client_examples))
    )


def _columns(examples: Mapping[str, Any]) -> Iterator[Any]:
    for name in sorted(examples):
        column = examples[name]
        yield from _columns(column) if isinstance(column, Mapping) else (name, column)


class FirstExamples(ListedClients):
    """A view of another dataset, with the first examples of each client.

    Attributes:
        clients: The full dataset.
    """

    def __init__(self, clients: ClientDataset, max_examples: int) -> None:
        self.clients = clients
        self._ids = clients.client_ids
        self._max_examples = max_examples

    def read(self, client_id: str) -> Examples:
        """Returns one client's first examples."""
        return first_rows(self.clients.read(client_id), self._max_examples)

    def client_domain_counts(self) -> Optional[np.ndarray]:
        """Returns numbers of examples by client and domain; None if unknown or truncated."""
        counts = known_counts(self.clients)
        if counts is None or np.any(counts.sum(axis=1) > self._max_examples):
            return None
        return counts


def first_rows(columns: Mapping[str, Any], max_rows: Optional[int]) -> dict[str, Any]:
    """Returns the first `max_rows` rows of a client's columns, or all rows if it is None."""
    return rows_of(columns, slice(max_rows))


def rows_of(columns: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    """Returns the indexed rows of each column; a column may be a mapping of columns.

    Args:
        rows: NumPy index of the rows.
    """
    return {
        name: rows_of(column, rows) if isinstance(column, Mapping) else column[rows]
        for name, column in columns.items()
    }


class SelectedClients(ListedClients):
    """A view of another dataset, with some of its clients."""

    def __init__(self, clients: ClientDataset, client_ids: Iterable[str]) -> None:
        self._clients = clients
        self._ids = sorted(client_ids)

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples."""
        return self._clients.read(client_id)

    def client_domain_counts(self) -> Optional[np.ndarray]:
        """Returns the number of examples by client and domain; see `known_counts`."""
        counts = known_counts(self._clients)
        if counts is None:
            return None
        row_by_client = {client_id: row for row, client_id in enumerate(self._clients.client_ids)}
        return counts[[row_by_client[client_id] for client_id in self._ids]]


class DomainClients(ListedClients):
    """A view of another dataset: one domain's examples, and the clients that have any of them.

    Args:
        clients: The full dataset.
        domain: Id of the domain.
        num_domains: Number of domains, p.
    """

    def __init__(self, clients: ClientDataset, domain: int, num_domains: int) -> None:
        self._clients = clients
        self._domain = domain
        counts = client_domain_counts(clients, num_domains)
        self._counts = np.where(np.arange(num_domains) == domain, counts, 0)
        has = self._counts.sum(axis=1) > 0
        self._counts = self._counts[has]
        self._ids = [client_id for client_id, is_in in zip(clients.client_ids, has) if is_in]

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples of the domain."""
        examples = self._clients.read(client_id)
        return rows_of(examples, examples["domain_id"] == self._domain)

    def client_domain_counts(self) -> np.ndarray:
        """Returns the number of examples by client and domain; see `known_counts`."""
        return self._counts


def known_counts(clients: ClientDataset) -> Optional[np.ndarray]:
    """Returns the number of examples by client and domain, int64 [clients, p], if it is known.

    No client is read. The result is None if the dataset has no method `client_domain_counts`, or
    if the method returns None.
    """
    counts = getattr(clients, "client_domain_counts", lambda: None)
    array: Optional[np.ndarray] = counts()
    return array


def client_domain_counts(clients: ClientDataset, num_domains: int) -> np.ndarray:
    """Returns the number of examples by client and domain, int64 [clients, p].

    Reads every client if the dataset does not know the counts.
    """
    counts = known_counts(clients)
    if counts is None:
        read = (clients.read(client_id)["domain_id"] for client_id in clients.client_ids)
        rows = [np.bincount(domain_id, minlength=num_domains) for domain_id in read]
        counts = np.array(rows, np.int64).reshape(-1, num_domains)
    return counts


def domain_counts(
    clients: ClientDataset, num_domains: int, max_reads: Optional[int] = None
) -> np.ndarray:
    """Returns each domain's number of examples, [p]; an estimate if some clients are not read."""
    counts = some_counts(clients, num_domains, max_reads)
    if len(counts) == len(clients.client_ids):
        return counts.sum(axis=0)
    return counts.sum(axis=0) * (len(clients.client_ids) / len(counts))


def some_counts(
    clients: ClientDataset, num_domains: int, max_reads: Optional[int] = None
) -> np.ndarray:
    """Returns the number of examples by client and domain, int64 [clients, p].

    Args:
        max_reads: Maximum number of clients to read; None for all. If more reads are necessary, the
            result only has rows for this number of clients, evenly spaced among the sorted ids.
    """
    ids = clients.client_ids
    if max_reads is None or len(ids) <= max_reads or known_counts(clients) is not None:
        return client_domain_counts(clients, num_domains)
    chosen = [ids[i] for i in np.linspace(0, len(ids) - 1, max_reads).astype(int)]
    return client_domain_counts(SelectedClients(clients, chosen), num_domains)


def checked_examples(
    columns: Mapping[str, Any], spec: Mapping[str, Any], num_domains: int, where: str
) -> dict[str, Any]:
    """Checks one client's columns against a model's specs and the number of domains.

    Args:
        columns: The arrays "x", "y" and "domain_id"; "x" and "y" may be mappings of arrays.
        spec: The result of `Model.client_data_spec`: tensor specs with first dimension None.
        num_domains: Number of domains, p; domain ids are in [0, p).
        where: Name of the client or file, for messages.

    Returns:
        The columns in the order of `spec`.
    """
    if not spec.keys() <= columns.keys():
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
            result = ", ".join(column) if isinstance(column, Mapping) else type(column).__name__
            raise UserError(f"{where}: expected arrays {', '.join(spec)}, found {result}")
        parts = [_check_column(column[key], spec[key], f"{where}.{key}") for key in spec]
        return [array for part in parts for array in part]
    expected = np.dtype(spec.dtype.as_numpy_dtype)
    if not isinstance(column, np.ndarray) or column.dtype != expected:
        result = column.dtype if isinstance(column, np.ndarray) else type(column).__name__
        raise UserError(f"{where}: expected {expected} values, found {result}")
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


def in_parts(clients: Iterable[Examples]) -> Iterator[list[Examples]]:
    """Groups the examples of clients into lists of limited size."""
    part: list[Examples] = []
    num_bytes = 0
    for examples in clients:
        part.append(examples)
        num_bytes += sum(np.asarray(column).nbytes for column in tf.nest.flatten(examples))
        if len(part) == _MAX_CLIENTS or num_bytes >= _MAX_BYTES:
            yield part
            part, num_bytes = [], 0
    if part:
        yield part


def dirichlet_partition(
    domain_id: np.ndarray, num_clients: int, concentration: float, rng: np.random.Generator
) -> list[np.ndarray]:
    """Returns the rows of each client, so that clients have skewed mixtures of domains.

    Every domain's examples are dealt to the clients in proportions drawn from a symmetric Dirichlet
    distribution (Hsu et al. 2019). A client without any example gets one from the largest client.

    Args:
        domain_id: Domain of each example, int [n].
        concentration: Dirichlet parameter; mixtures are skewed if it is small, and even if it is
            large.
    """
    if num_clients > len(domain_id):
        raise UserError(
            "clients: expected at most one for each of the "
            f"{counted(len(domain_id), 'example')}, found {num_clients}"
        )
    parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    for domain in np.unique(domain_id):
        rows = rng.permutation(np.flatnonzero(domain_id == domain))
        shares = rng.dirichlet([concentration] * num_clients)
        cuts = np.round(np.cumsum(shares)[:-1] * len(rows)).astype(int)
        for part, dealt in zip(parts, np.split(rows, cuts)):
            part.append(dealt)
    clients = [np.sort(np.concatenate(part)) for part in parts]
    for i, rows in enumerate(clients):
        if len(rows) == 0:
            largest = max(range(num_clients), key=lambda k: len(clients[k]))
            clients[i], clients[largest] = clients[largest][-1:], clients[largest][:-1]
    return clients


def even_partition(
    num_examples: int, num_clients: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Returns the rows of each client, dealt at random; sizes differ by at most 1."""
    return [np.sort(rows) for rows in np.array_split(rng.permutation(num_examples), num_clients)]
