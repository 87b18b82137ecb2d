"""The split of each example, optionally with equal shares in every domain.

A unit is a set of examples that stay in one split, such as the examples of a client. While the
source is read, a seeded hash of the unit determines its split. With stratify=false this split is
final. Otherwise units are then grouped into strata, by the domain of most of their examples; each
stratum is sorted by hash, and split by rank. So only the surplus units of a split move to another
split.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Container, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.importing.options import SPLIT_NAMES
from tff_agnostic.importing.source import Rows, hash64

TRAIN, HELDOUT, TEST = SPLIT_NAMES
# Options that have no effect on a source with its own splits.
_DIVISION_OPTIONS = ("split_by", "stratify", "min_per_split")
_HALF = 2**63
_TOLERANCE = 1e-6


def parse_shares(texts: Sequence[str]) -> dict[str, float]:
    """Parses NAME:SHARE strings; returns the share of each split."""
    shares: dict[str, float] = {}
    for text in texts:
        name, _, share = text.partition(":")
        try:
            value = float(share)
        except ValueError:
            value = -1.0
        if name not in SPLIT_NAMES or name in shares or not 0 < value <= 1:
            names = ", ".join(SPLIT_NAMES)
            expected = f"SPLIT:SHARE with different splits of {names} and shares above 0"
            raise OptionError("split", expected, text)
        shares[name] = value
    if TRAIN not in shares:
        raise OptionError("split", "a share of train", ",".join(texts))
    if abs(sum(shares.values()) - 1) > _TOLERANCE:
        result = Verbatim(f"{sum(shares.values()):g}")
        raise OptionError("split", "shares that add up to 1", result)
    return shares


def unit_split(unit: int, shares: Mapping[str, float]) -> str:
    """Returns the split that the hash of a unit determines.

    Args:
        unit: Hash of the unit minus 2**63, a signed 64-bit integer.
    """
    fraction = (unit + _HALF) / 2**64
    for name, limit in zip(shares, itertools.accumulate(shares.values())):
        if fraction < limit:
            return name
    return list(shares)[-1]


class Splits:
    """An assignment of examples to splits, which depends only on each example and the seed.

    Args:
        shares: Fraction of each split.
        by: Unit that stays in one split: client, group or example.
        seed: Seed of the hash.
        given: Names of the options that the user gave. A source's own splits are kept, but its
            training part is divided if `split` is given.
    """

    def __init__(
        self, shares: Mapping[str, float], by: str, seed: int, given: Container[str] = ()
    ) -> None:
        self._shares = shares
        self._by = by
        self._seed = seed
        self._divide_train = "split" in given
        self._division_options = [name for name in _DIVISION_OPTIONS if name in given]

    def assign(self, rows: Rows) -> tuple[pa.Array, pa.Array]:
        """Returns each example's split, and its unit (null if the source names the split)."""
        is_named = np.zeros(len(rows), bool)
        for own_split in rows.split.unique().drop_null().to_pylist():
            self._check_room(own_split)
            if own_split != TRAIN or not self._divide_train:
                is_named |= np.asarray(pc.equal(rows.split, own_split).fill_null(False))
        keys, codes = self._keys(rows)
        units = [hash64(f"{self._seed} {self._by} {key}") - _HALF for key in keys]
        names = pa.array([unit_split(unit, self._shares) for unit in units], pa.string())
        codes = pa.array(codes, mask=is_named)
        return (
            pc.coalesce(names.take(codes), rows.split),
            pa.array(units, pa.int64()).take(codes),
        )

    def _keys(self, rows: Rows) -> tuple[list[str], np.ndarray]:
        """Returns the names of units, and for each example the index of its unit."""
        if self._by == "example":
            return [rows.place(k) for k in range(len(rows))], np.arange(len(rows))
        column = rows.group if self._by == "group" else rows.client
        assert column is not None
        coded = column.dictionary_encode()
        return coded.dictionary.to_pylist(), np.asarray(coded.indices)

    def _check_room(self, own_split: str) -> None:
        if self._division_options and not self._divide_train:
            expected = "no value without split: the source has its own splits"
            raise OptionError(self._division_options[0], expected, Verbatim("a value"))
        if self._divide_train and own_split != TRAIN and own_split in self._shares:
            expected = (
                f"shares of the source's training part without {own_split}, e.g. "
                f"train:0.9,heldout:0.1, as the source has its own split {own_split}"
            )
            result = ",".join(f"{name}:{share:g}" for name, share in self._shares.items())
            raise OptionError("split", expected, result)


@dataclasses.dataclass(frozen=True)
class Stratum:
    """The units that belong to one domain.

    Attributes:
        units: Hashes of the units minus 2**63, ascending, int64 [n].
        examples: Number of the units' examples, in all domains.
        largest: Maximum number of examples of a unit.
    """

    units: np.ndarray
    examples: int
    largest: int


def unit_strata(units: Iterable[tuple[int, str, int]]) -> dict[str, Stratum]:
    """Groups units into one stratum per domain.

    Args:
        units: (unit, domain, examples), ordered by unit. A unit belongs to the domain of most of
            its examples, the first by name if tied.
    """
    result: dict[str, list[int]] = {}
    sizes: dict[str, list[int]] = {}
    for unit, rows in itertools.groupby(units, key=lambda row: row[0]):
        counts = {domain: n for _, domain, n in rows}
        domain = min(counts, key=lambda name: (-counts[name], name))
        result.setdefault(domain, []).append(unit)
        size = sum(counts.values())
        total, largest = sizes.setdefault(domain, [0, 0])
        sizes[domain] = [total + size, max(largest, size)]
    return {
        domain: Stratum(np.array(result[domain], np.int64), *sizes[domain])
        for domain in sorted(result)
    }


def split_sizes(count: int, shares: Mapping[str, float], fewest: int) -> dict[str, int]:
    """Returns the number of units of a stratum in each split.

    Shares are rounded. First test and then heldout get at least `fewest` units, as long as one unit
    remains for training.

    Args:
        count: Number of units in the stratum, at least 1.
        shares: Share of each split, including train.
        fewest: Minimum number of units in test and heldout.
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
    """Returns the new split of each unit whose split by rank differs from `unit_split`."""
    moved = {}
    for stratum in strata.values():
        sizes = split_sizes(len(stratum.units), shares, fewest)
        by_rank = itertools.chain.from_iterable([name] * size for name, size in sizes.items())
        for unit, split in zip(stratum.units.tolist(), by_rank):
            if split != unit_split(unit, shares):
                moved[unit] = split
    return moved
