"""Client datasets: a client is a dict of NumPy arrays "x", "y" and "domain_id"."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

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
    tf.nest.map_structure(
        lambda array, column_spec: _check_column(array, column_spec, where), checked, dict(spec)
    )
    lengths = {len(column) for column in tf.nest.flatten(checked)}
    if len(lengths) > 1:
        raise UserError(f"{where}: expected columns of one length, found lengths {sorted(lengths)}")
    _check_domain_ids(checked["domain_id"], num_domains, where)
    return checked


def _check_column(array: Any, spec: tf.TensorSpec, where: str) -> None:
    expected_dtype = spec.dtype.as_numpy_dtype
    if not isinstance(array, np.ndarray) or array.dtype != expected_dtype:
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise UserError(
            f"{where}: expected {np.dtype(expected_dtype)} values of shape {spec.shape}, found "
            f"{found}"
        )
    if not spec.shape.is_compatible_with(array.shape):
        raise UserError(f"{where}: expected an array of shape {spec.shape}, found {array.shape}")
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise UserError(f"{where}: expected finite numbers, found NaN or infinity in row {row}")


def _check_domain_ids(domain_id: np.ndarray, num_domains: int, where: str) -> None:
    outside = (domain_id < 0) | (domain_id >= num_domains)
    if np.any(outside):
        row = int(np.argmax(outside))
        raise UserError(
            f"{where}: expected domain ids from 0 to {num_domains - 1}, found {domain_id[row]} in "
            f"row {row}"
        )
