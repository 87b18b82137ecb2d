"""Aggregations that promise more than they keep, and one that promises nothing."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable

from tff_agnostic.aggregations.aggregation import ClientFacts, FederatedSums, SecurityProperty
from tff_agnostic.computations import SecureSum

# Bounds of an answer -> whether a value of that answer leaks.
Leaks = Callable[[Any], bool]


@dataclasses.dataclass(frozen=True)
class Leaky(SecureSum):
    """Secure sums, and beside them one value of a client in a plain one.

    Attributes:
        name: What it calls itself.
        leaks: In which exchanges it does.
        guarantees: What it promises.
    """

    name: str = "secure"
    leaks: Leaks = lambda bounds: True
    guarantees: frozenset[SecurityProperty] = frozenset({SecurityProperty.SECURE_SUMS})

    def encode(self, params: Any, output: Any, bounds: Any, client: ClientFacts) -> Any:
        """Adds a number of a client's last field."""
        secure = super().encode(params, output, bounds, client)
        return {"mood": client.examples_cut, "secure": secure} if self.leaks(bounds) else secure

    def federated_sum(self, encoded: Any, bounds: Any, sums: FederatedSums) -> Any:
        """Sums it in plain."""
        if not self.leaks(bounds):
            return super().federated_sum(encoded, bounds, sums)
        secure = super().federated_sum(encoded["secure"], bounds, sums)
        return sums.joined({"mood": sums.plain(encoded["mood"]), "secure": secure})

    def decode(self, state: Any, summed: Any, bounds: Any) -> tuple[Any, Any, Mapping[str, Any]]:
        """Forgets it."""
        return super().decode(state, summed["secure"] if self.leaks(bounds) else summed, bounds)
