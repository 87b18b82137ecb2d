"""What it takes to open a store of many clients, sample and count them, and read some.

    .venv/bin/python -m benchmarks.timing.large_store [--clients=1000000]

Processor seconds are those of each step, peak memory that of the process so far. The store has two
splits and five domains, and is deleted afterwards.
"""

import argparse
import contextlib
import json
import resource
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tff_agnostic.data.clients import SelectedClients, domain_counts
from tff_agnostic.data.sampling import COHORT_SAMPLINGS
from tff_agnostic.data.store import KEPT_BYTES, Store, StoreClients, ToExamples
from tff_agnostic.data.store_examples import ExampleSerializer
from tff_agnostic.data.store_format import (
    DOMAIN,
    INDICES,
    LABEL,
    OWN_TABLES,
    TFF_TABLES,
    TRAIN,
    Feature,
    StoreDescription,
)

DOMAINS = tuple(f"domain_{k}" for k in range(5))
_FEATURES = {"x": Feature("float32", (8,)), LABEL: Feature("int64"), DOMAIN: Feature("string")}
_MOST_EXAMPLES = 3
_COHORT, _ROUNDS, _READ = 100, 10, 1000


def write_store(path: Path, clients: int) -> None:
    """Writes a store: as many clients to train on, and a tenth of them held out."""
    draw = np.random.default_rng(0)
    serialize = ExampleSerializer()
    protos = [
        serialize({"x": draw.normal(size=8).astype(np.float32), LABEL: k % 2, DOMAIN: domain})
        for k, domain in enumerate(DOMAINS)
    ]
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.executescript("PRAGMA journal_mode=OFF;" + TFF_TABLES + OWN_TABLES)
        for split, count in (("heldout", clients // 10), (TRAIN, clients)):
            sizes = draw.integers(1, _MOST_EXAMPLES + 1, size=count).tolist()
            domains = draw.integers(len(DOMAINS), size=count).tolist()
            rows = [
                (split, f"client_{k:09d}", domain, size)
                for k, (domain, size) in enumerate(zip(domains, sizes))
            ]
            database.executemany(
                "INSERT INTO examples VALUES (?, ?, ?)",
                ((s, c, protos[domain]) for s, c, domain, size in rows for _ in range(size)),
            )
            database.executemany(
                "INSERT INTO client_domains VALUES (?, ?, ?, ?)",
                ((s, c, DOMAINS[domain], size) for s, c, domain, size in rows),
            )
            database.executemany(
                "INSERT INTO client_metadata VALUES (?, ?, ?)",
                ((c, s, size) for s, c, _, size in rows),
            )
        description = StoreDescription("features", _FEATURES, DOMAINS, num_classes=2)
        database.executescript(INDICES)
        database.execute("INSERT INTO tff_agnostic VALUES (?)", [description.to_json()])
        database.commit()


def clients_of(
    path: Path,
    to_examples: ToExamples = lambda _, columns: columns,
    most_kept: int = KEPT_BYTES,
) -> StoreClients:
    """Opens the clients to train on; see `StoreClients`."""
    features = {name: one for name, one in _FEATURES.items() if name != DOMAIN}
    return StoreClients(Store(path), TRAIN, features, to_examples, DOMAINS, most_kept=most_kept)


def steps(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields the name of each step and what it found, after it."""
    clients = clients_of(path)
    yield "open", len(clients.client_ids)
    for sampling in ("uniform", "stratified"):
        draw = COHORT_SAMPLINGS[sampling](clients, len(DOMAINS), _COHORT, 0)
        yield f"sample {_ROUNDS} cohorts, {sampling}", [draw(t) for t in range(1, _ROUNDS + 1)]
    yield "count the examples of each domain", domain_counts(clients, len(DOMAINS))
    ids = clients.client_ids
    some = SelectedClients(clients, ids[:: max(1, len(ids) // _READ)])
    yield f"read {_READ:,} clients", [some.read(client_id) for client_id in some.client_ids]


def measured(path: Path) -> list[tuple[str, float, int]]:
    """Returns the name, the processor seconds and the peak memory in bytes so far of each step."""
    found = []
    last = time.process_time()
    for name, _ in steps(path):
        now, last = time.process_time() - last, time.process_time()
        found.append((name, now, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    return found


def main() -> None:
    """Writes the store in a temporary folder and prints the steps, a line of JSON each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--store", type=Path, help="Measure this store, which was written before.")
    arguments = parser.parse_args()
    if arguments.store is not None:
        print(json.dumps(measured(arguments.store)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write_store(Path(folder) / "clients.sqlite", arguments.clients)
        print(json.dumps(measured(Path(folder) / "clients.sqlite")))


if __name__ == "__main__":
    main()
