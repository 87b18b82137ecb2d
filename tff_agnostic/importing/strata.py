"""Splits that keep their shares in every domain.

The units of a split, such as clients, are put into strata by the domain of most of their examples.
Within a stratum they are ordered by hash and cut by rank.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping

import numpy as np

from tff_agnostic.importing.splits import HELDOUT, TEST, TRAIN, split_of_unit


@dataclasses.dataclass(frozen=True)
class Stratum:
    """The units of one domain.

    Attributes:
        units: Their names, signed numbers of 64 bits in ascending order, int64 [n].
        examples: Their examples, of all domains.
        largest: The most examples of a unit.
    """

    units: np.ndarray
    examples: int
    largest: int


def strata_of(units: Iterable[tuple[int, str, int]]) -> dict[str, Stratum]:
    """Returns the stratum of each domain that is some unit's.

    Args:
        units: (unit, domain, examples), units in ascending order; the domain of a unit is that of
            most of its examples, the first by name of those with equally many.
    """
    found: dict[str, list[int]] = {}
    sizes: dict[str, list[int]] = {}
    for unit, rows in itertools.groupby(units, key=lambda row: row[0]):
        counts = {domain: n for _, domain, n in rows}
        domain = min(counts, key=lambda name: (-counts[name], name))
        found.setdefault(domain, []).append(unit)
        size = sum(counts.values())
        total, largest = sizes.setdefault(domain, [0, 0])
        sizes[domain] = [total + size, max(largest, size)]
    return {
        domain: Stratum(np.array(found[domain], np.int64), *sizes[domain])
        for domain in sorted(found)
    }


def split_sizes(count: int, shares: Mapping[str, float], fewest: int) -> dict[str, int]:
    """Returns how many units of a stratum belong to each split.

    They are the shares, rounded; test and then heldout get `fewest` all the same, as far as one
    unit is left to train on.

    Args:
        count: Units of the stratum, at least 1.
        shares: Share of each split; train is one of them.
        fewest: How many units test and heldout have at least.
    """
    sizes = {}
    left = count - 1
    for name in (TEST, HELDOUT):
        if name in shares:
            wanted = max(math.floor(count * shares[name] + 0.5), fewest)
            sizes[name] = min(wanted, left)
            left -= sizes[name]
    sizes[TRAIN] = left + 1
    return {name: sizes[name] for name in shares}


def moves(
    strata: Mapping[str, Stratum], shares: Mapping[str, float], fewest: int
) -> dict[int, str]:
    """Returns the units whose split by rank is not `split_of_unit`, with that split."""
    moved = {}
    for stratum in strata.values():
        sizes = split_sizes(len(stratum.units), shares, fewest)
        by_rank = itertools.chain.from_iterable([name] * size for name, size in sizes.items())
        for unit, split in zip(stratum.units.tolist(), by_rank):
            if split != split_of_unit(unit, shares):
                moved[unit] = split
    return moved
