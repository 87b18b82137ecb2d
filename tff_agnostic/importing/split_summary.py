"""What one split of a store holds: clients, examples, and how domains overlap in clients."""

import dataclasses
import itertools
import sqlite3
from collections import Counter
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Count:
    """How much there is of something."""

    clients: int
    examples: int


@dataclasses.dataclass(frozen=True)
class SplitSummary:
    """What one split holds.

    Attributes:
        total: All of it.
        domains: By domain; a client with examples of several counts in each.
        clients_by_num_domains: How many clients have examples of that many domains.
        shared: How many clients have examples of both domains of a pair.
    """

    total: Count
    domains: Mapping[str, Count]
    clients_by_num_domains: Mapping[int, int]
    shared: Mapping[tuple[str, str], int]

    def clients_with(self, a: str, b: str) -> int:
        """Returns how many clients have examples of two domains, which may be one."""
        if a == b:
            return self.domains[a].clients if a in self.domains else 0
        return self.shared.get((min(a, b), max(a, b)), 0)

    def to_json(self) -> dict[str, Any]:
        """Returns the same as JSON values."""
        return {
            **dataclasses.asdict(self.total),
            "domains": {name: dataclasses.asdict(count) for name, count in self.domains.items()},
            "clients_by_number_of_domains": {
                str(k): n for k, n in self.clients_by_num_domains.items()
            },
            "clients_in_both": [
                {"domains": list(pair), "clients": n} for pair, n in self.shared.items()
            ],
        }


def summary_of_split(db: sqlite3.Connection, split: str) -> SplitSummary:
    """Returns what a split of a finished store holds."""
    domains = {
        domain: Count(clients, examples)
        for domain, clients, examples in db.execute(
            "SELECT domain, COUNT(*), SUM(num_examples) FROM client_domains WHERE split_name = ? "
            "GROUP BY domain ORDER BY domain",
            [split],
        )
    }
    by_number: Counter[int] = Counter()
    shared: Counter[tuple[str, str]] = Counter()
    rows = db.execute(
        "SELECT client_id, domain FROM client_domains WHERE split_name = ? ORDER BY client_id",
        [split],
    )
    for _, group in itertools.groupby(rows, key=lambda row: row[0]):
        own = sorted(domain for _, domain in group)
        by_number[len(own)] += 1
        shared.update(itertools.combinations(own, 2))
    return SplitSummary(
        total=Count(sum(by_number.values()), sum(n.examples for n in domains.values())),
        domains=domains,
        clients_by_num_domains=dict(sorted(by_number.items())),
        shared=dict(sorted(shared.items())),
    )
