"""Notes about the clients of a run that its page states first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tff_agnostic.base.errors import agreeing, some_of
from tff_agnostic.data.data_warnings import Remark

# A client dominates a domain with this share of its examples, if that is also this many times an
# equal part.
_LARGE_SHARE = 0.25
_TIMES_EQUAL = 3.0
_MAX_NAMES = 5


def dominant_clients(counts: np.ndarray, domain_names: Sequence[str], split: str) -> list[Remark]:
    """Returns a warning about domains most of whose information is of one client.

    Args:
        counts: Examples of each client and domain, int [clients, p].
        domain_names: Names of the p domains.
        split: Split of the clients.
    """
    totals, holders = counts.sum(axis=0), np.sum(counts > 0, axis=0)
    shares = counts.max(axis=0, initial=0) / np.maximum(totals, 1)
    limits = np.maximum(_LARGE_SHARE, _TIMES_EQUAL / np.maximum(holders, 1))
    order = [int(i) for i in np.argsort(-shares, kind="stable") if shares[i] >= limits[i]]
    if not order:
        return []
    large = {domain_names[i]: float(shares[i]) for i in order}
    listed = [f"{domain_names[i]} ({shares[i]:.0%}, {holders[i]} clients)" for i in order]
    verb = agreeing(len(order), "has", "have")
    return [
        Remark(
            "dominant_clients",
            f"{len(order)} of {len(domain_names)} domains {verb} a client with a large share of "
            f"their {split} examples: {some_of(listed, _MAX_NAMES)}. Numbers of all examples there "
            "are mostly of that client; means over clients count it once.",
            {"split": split, "domains": large},
        )
    ]
