"""Measures the costs of a store with many clients: open, sample, count, and read some clients.

    .venv/bin/python -m benchmarks.timing.large_store [--clients=1000000]

For each step, the script prints the processor seconds, and the process's peak memory so far. The
store has two splits and five domains, and is deleted afterwards.
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tff_agnostic.data.clients import SelectedClients, domain_counts
from tff_agnostic.data.sampling import COHORT_SAMPLINGS
from tff_agnostic.data.store import KEPT_BYTES, StoreClients, ToExamples, load_store
from tff_agnostic.data.store_format import DOMAIN, FEATURES, LABEL, TRAIN, Feature
from tff_agnostic.data.store_writer import StoreWriter

DOMAINS = tuple(f"domain_{k}" for k in range(5))
_FEATURES = {"x": Feature("float32", (8,)), LABEL: Feature("int64"), DOMAIN: Feature("string")}
_MAX_EXAMPLES = 3
_COHORT, _ROUNDS, _READ = 100, 10, 1000
_CLIENTS_AT_ONCE = 100_000


def write_store(path: Path, clients: int) -> None:
    """Writes a store with `clients` training clients, and one tenth as many held-out clients."""
    draw = np.random.default_rng(0)
    values = draw.normal(size=(len(DOMAINS), 8)).astype(np.float32)
    with StoreWriter(path) as writer:
        for split, count in (("heldout", clients // 10), (TRAIN, clients)):
            sizes = draw.integers(1, _MAX_EXAMPLES + 1, size=count)
            domains = draw.integers(len(DOMAINS), size=count)
            names = pa.array([f"client_{k:09d}" for k in range(count)])
            for first in range(0, count, _CLIENTS_AT_ONCE):
                part = slice(first, first + _CLIENTS_AT_ONCE)
                client = np.repeat(np.arange(count)[part], sizes[part])
                domain = np.repeat(domains[part], sizes[part])
                features = {
                    "x": values[domain],
                    LABEL: domain % 2,
                    DOMAIN: pa.array(DOMAINS).take(pa.array(domain)),
                }
                splits = pa.array([split] * len(client))
                writer.add(splits, names.take(pa.array(client)), features)
        writer.finish(FEATURES)


def training_clients(
    path: Path,
    to_examples: ToExamples = lambda _, columns: columns,
    max_kept_bytes: int = KEPT_BYTES,
) -> StoreClients:
    """Opens the training clients; see `StoreClients`."""
    features = {name: one for name, one in _FEATURES.items() if name != DOMAIN}
    store = load_store(path)
    return StoreClients(store, TRAIN, features, to_examples, DOMAINS, max_kept_bytes=max_kept_bytes)


def steps(path: Path) -> Iterator[tuple[str, Any]]:
    """Runs the steps; yields each step's name and result."""
    clients = training_clients(path)
    yield "open", len(clients.client_ids)
    for sampling in ("uniform", "stratified"):
        draw = COHORT_SAMPLINGS[sampling](clients, len(DOMAINS), _COHORT, 0)
        yield f"sample {_ROUNDS} cohorts, {sampling}", [draw(t) for t in range(1, _ROUNDS + 1)]
    yield "count the examples of each domain", domain_counts(clients, len(DOMAINS))
    ids = clients.client_ids
    some = SelectedClients(clients, ids[:: max(1, len(ids) // _READ)])
    yield f"read {_READ:,} clients", [some.read(client_id) for client_id in some.client_ids]


def measured(path: Path) -> list[tuple[str, float, int]]:
    """Returns each step's name, processor seconds, and peak memory so far in bytes."""
    result = []
    last = time.process_time()
    for name, _ in steps(path):
        now, last = time.process_time() - last, time.process_time()
        result.append((name, now, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    return result


def main() -> None:
    """Measures a given or a temporary store, and prints the steps as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--store", type=Path, help="Measure this store, which was written before.")
    arguments = parser.parse_args()
    if arguments.store is not None:
        print(json.dumps(measured(arguments.store)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_store(Path(folder) / "clients.store", arguments.clients)
        print(json.dumps(measured(Path(folder) / "clients.store")))


if __name__ == "__main__":
    main()
