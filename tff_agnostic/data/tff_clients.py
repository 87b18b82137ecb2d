"""Conversion between TFF's client data and this package's client datasets."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.data.store import Store
from tff_agnostic.models.model import Examples

# Module to import on first use, because it is in a higher layer.
_BRIDGE = "tff_agnostic.computations.tff_bridge.programs"

# Function that maps a client id to the domain of the client's examples: an index or, in stores, a
# name.
DomainOf = Callable[[str], Any]


def from_tff(source: Any, domain_fn: Optional[DomainOf] = None) -> ClientDataset:
    """Converts TFF's client data to a client dataset, which reads one client at a time.

    Args:
        source: A `tff.simulation.datasets.ClientData`, or a sequence of `tf.data.Dataset`, whose
            clients are called "0", "1" and so on, with leading zeros that keep their order.
            Elements are single examples: (x, y), or a mapping of "x", "y" and "domain_id".
        domain_fn: Called with a client id; returns the client's domain. Needed if examples have no
            "domain_id".
    """
    clients: ClientDataset = _bridge().clients_from_tff(source, domain_fn)
    return clients


def cohort(
    source: Any, client_ids: Optional[Sequence[str]] = None, domain_fn: Optional[DomainOf] = None
) -> list[Examples]:
    """Returns TFF's client data as a cohort, the argument of a learning process's `next`.

    Args:
        source: See `from_tff`.
        client_ids: Ids of the cohort's clients; all if None.
        domain_fn: See `from_tff`.
    """
    clients = from_tff(source, domain_fn)
    strangers = sorted({*(client_ids or ())} - {*clients.client_ids})
    if strangers:
        raise UserError(f"clients: expected known client ids, found {strangers[0]!r}")
    chosen = clients.client_ids if client_ids is None else client_ids
    return [clients.read(client_id) for client_id in chosen]


def to_store(
    path: Path,
    splits: Mapping[str, Any],
    domain_fn: Optional[DomainOf] = None,
    feature_name: str = "x",
) -> None:
    """Writes TFF's client data to a store.

    Args:
        path: The store's folder; it must not exist yet.
        splits: Clients by split ("train", "heldout", "test"), each like `source` in `from_tff`.
        domain_fn: See `from_tff`; may return the name of the domain.
        feature_name: Name of x in the store.
    """
    _bridge().store_from_tff(path, splits, domain_fn, feature_name)


def to_tff(store: Store, split: str = "train") -> Any:
    """Returns a split of a store as a `tff.simulation.datasets.ClientData`.

    Elements are the store's features, including "domain".
    """
    return _bridge().StoreClientData(store, split)


def source(clients: ClientDataset, process: Any, seed: int = 0) -> Any:
    """Converts a client dataset to a `tff.program.FederatedDataSource`, for TFF's programs.

    A cohort is a uniform sample without replacement. It depends only on the seed and the number of
    earlier cohorts, so that a resumed program samples the next cohort.

    Args:
        process: The learning process, which determines the type of clients.
        seed: Seed of the sampling.
    """
    return _bridge().ClientSource(clients, process, seed)


def _bridge() -> Any:
    return importlib.import_module(_BRIDGE)
