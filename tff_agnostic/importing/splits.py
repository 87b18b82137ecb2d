"""Which split an example belongs to: a seeded hash of what is to stay together, its unit.

That is the split for good with --nostratify. Otherwise it is a first guess, made while reading;
`importing.strata` moves the units that are too many or too few in a domain.
"""

import itertools
from collections.abc import Container, Mapping, Sequence
from typing import Optional

from tff_agnostic.errors import UserError
from tff_agnostic.importing.records.distinct import hash64
from tff_agnostic.importing.records.options import SPLIT_NAMES
from tff_agnostic.importing.records.reading import SourceExample

TRAIN, HELDOUT, TEST = SPLIT_NAMES
# Options that say how a source is divided which does not say it itself.
_OF_DIVISION = ("split_by", "stratify", "min_per_split")
_HALF = 2**63
_TOLERANCE = 1e-6


def parse_shares(texts: Sequence[str]) -> dict[str, float]:
    """Returns the share of each split from NAME:SHARE texts.

    Raises:
        UserError: If a name or share is not what it has to be, or they do not add up to 1.
    """
    flag = f"--split={','.join(texts)}"
    shares: dict[str, float] = {}
    for text in texts:
        name, _, share = text.partition(":")
        try:
            value = float(share)
        except ValueError:
            value = -1.0
        if name not in SPLIT_NAMES or name in shares or not 0 < value <= 1:
            raise UserError(
                f"{flag}: expected SPLIT:SHARE with different splits of {', '.join(SPLIT_NAMES)} "
                f"and shares above 0, found {text!r}"
            )
        shares[name] = value
    if TRAIN not in shares:
        raise UserError(f"{flag}: expected a share of train, found none")
    if abs(sum(shares.values()) - 1) > _TOLERANCE:
        raise UserError(f"{flag}: expected shares that add up to 1, found {sum(shares.values()):g}")
    return shares


def split_of_unit(unit: int, shares: Mapping[str, float]) -> str:
    """Returns the split that a unit's hash alone gives it.

    Args:
        unit: The hash less 2**63, a signed number of 64 bits.
        shares: Share of each split.
    """
    fraction = (unit + _HALF) / 2**64
    for name, limit in zip(shares, itertools.accumulate(shares.values())):
        if fraction < limit:
            return name
    return list(shares)[-1]


class Splits:
    """Assigns examples to splits; an example's split depends on nothing but itself and the seed.

    Args:
        shares: Share of each split.
        by: A name of `SPLIT_BY`.
        seed: Of the hash.
        given: Names of the options that the user gave. With `split`, the training part of a source
            that has splits of its own is divided; without it, their examples stay where they are.
    """

    def __init__(
        self, shares: Mapping[str, float], by: str, seed: int, given: Container[str] = ()
    ) -> None:
        self._shares = shares
        self._by = by
        self._seed = seed
        self._divide_train = "split" in given
        self._of_division = [name for name in _OF_DIVISION if name in given]
        self._last_key: Optional[str] = None
        self._last: tuple[str, int] = ("", 0)

    def split_of(self, example: SourceExample) -> tuple[str, Optional[int]]:
        """Returns the split of an example and its unit, None where the source says the split.

        Raises:
            UserError: If the source's own split leaves no place for one that was asked for.
        """
        own = example.record.split
        if own is not None:
            self._check_room(own)
            if own != TRAIN or not self._divide_train:
                return own, None
        key = self._key(example)
        # Sources often have one client's records one after another.
        if key != self._last_key:
            unit = hash64(f"{self._seed} {self._by} {key}") - _HALF
            self._last_key, self._last = key, (split_of_unit(unit, self._shares), unit)
        return self._last

    def _key(self, example: SourceExample) -> str:
        if self._by == "group":
            assert example.group is not None
            return example.group
        return example.record.client if self._by == "client" else example.place

    def _check_room(self, own: str) -> None:
        if self._of_division and not self._divide_train:
            raise UserError(
                f"--{self._of_division[0]} has no effect without --split: the source says itself "
                "what is for what"
            )
        if self._divide_train and own != TRAIN and own in self._shares:
            raise UserError(
                f"--split: the source says itself what is for {own}; expected shares of its "
                f"training part without {own}, e.g. train:0.9,heldout:0.1"
            )
