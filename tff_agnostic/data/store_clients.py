"""The clients of one split of a store, as a client dataset."""

from collections.abc import Mapping, Sequence
from typing import Callable, Optional

import numpy as np

from tff_agnostic.data.store import Store
from tff_agnostic.data.store_format import Feature
from tff_agnostic.data.stored_examples import parse_examples
from tff_agnostic.errors import UserError
from tff_agnostic.models.functional import Examples

# (client id, columns) -> examples, the columns being those of the features asked for.
ToExamples = Callable[[str, Mapping[str, np.ndarray]], Examples]


class StoreClients:
    """Clients of a split; reading one touches its rows only.

    Args:
        store: The store.
        split: Name of the split.
        features: The features to parse.
        to_examples: Makes a client's examples of its columns.
        domain_names: Names of the task's domains, in the order of their ids.
        has_row_each: Whether every example of the store becomes one example.

    Raises:
        UserError: If the split has no clients.
    """

    def __init__(
        self,
        store: Store,
        split: str,
        features: Mapping[str, Feature],
        to_examples: ToExamples,
        domain_names: Sequence[str],
        has_row_each: bool = True,
    ) -> None:
        self._store = store
        self._split = split
        self._features = features
        self._to_examples = to_examples
        self._domain_names = domain_names
        self._has_row_each = has_row_each
        self._counts = store.client_counts(split)
        self._ids = list(self._counts)

    @property
    def client_ids(self) -> Sequence[str]:
        """Every client's id, sorted."""
        return self._ids

    def read(self, client_id: str) -> Examples:
        """Returns one client's examples; see `ClientDataset.read`."""
        where = f"{self._store.path}: client {client_id}"
        count = self._counts.get(client_id)
        serialized = [] if count is None else self._store.read(self._split, client_id)
        if not serialized:
            raise UserError(f"{where}: expected examples in split {self._split}, found none")
        if len(serialized) != count:
            raise UserError(
                f"{where}: expected {count} examples in split {self._split}, as the table "
                f"client_metadata has it, found {len(serialized)}"
            )
        return self._to_examples(client_id, parse_examples(serialized, self._features, where))

    def client_domain_counts(self) -> Optional[np.ndarray]:
        """Returns the examples of each client and domain, int64 [clients, p]; None if not known."""
        # A task may have domains that are not those of the store.
        if not self._has_row_each or not {*self._store.description.domains} <= {
            *self._domain_names
        }:
            return None
        counts = self._store.domain_counts(self._split)
        if counts is None:
            return None
        unknown = next((client for client in self._ids if client not in counts), None)
        if unknown is not None:
            raise UserError(
                f"{self._store.path}: expected the domains of every client in split {self._split}, "
                f"found none of client {unknown}"
            )
        return np.array(
            [[counts[client].get(name, 0) for name in self._domain_names] for client in self._ids],
            np.int64,
        )
