"""Which split an example belongs to: a seeded hash of what is to stay together."""

from collections.abc import Sequence

from tff_agnostic.errors import UserError
from tff_agnostic.importing.distinct import hash64
from tff_agnostic.importing.options import SPLIT_NAMES
from tff_agnostic.importing.reading import SourceExample

TRAIN = "train"
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


class Splits:
    """Assigns examples to splits; an example's split depends on nothing but itself and the seed.

    Args:
        shares: Share of each split.
        by: A name of `SPLIT_BY`.
        seed: Of the hash.
        divide_train: Whether the training part of a source with splits of its own is divided.
    """

    def __init__(
        self, shares: dict[str, float], by: str, seed: int, divide_train: bool = False
    ) -> None:
        self._by = by
        self._seed = seed
        self._divide_train = divide_train
        self._names = list(shares)
        total, limits = 0.0, []
        for share in shares.values():
            total += share
            limits.append(total)
        self._limits = limits
        self._last: tuple[str, str] = ("", "")

    def split_of(self, example: SourceExample) -> str:
        """Returns the split of an example.

        Raises:
            UserError: If the source's own split leaves no place for one that was asked for.
        """
        own = example.record.split
        if own is not None:
            if not self._divide_train:
                return own
            if own != TRAIN:
                self._check_not_ours(own)
                return own
        return self._drawn(self._key(example))

    def _key(self, example: SourceExample) -> str:
        if self._by == "group":
            assert example.group is not None
            return example.group
        return example.record.client if self._by == "client" else example.place

    def _drawn(self, key: str) -> str:
        if self._last[0] != key or not self._last[1]:
            self._last = (key, self._draw(key))
        return self._last[1]

    def _draw(self, key: str) -> str:
        fraction = hash64(f"{self._seed} {self._by} {key}") / 2**64
        for name, limit in zip(self._names, self._limits):
            if fraction < limit:
                return name
        return self._names[-1]

    def _check_not_ours(self, own: str) -> None:
        if own in self._names:
            raise UserError(
                f"--split: the source says itself what is for {own}; expected shares of its "
                f"training part without {own}, e.g. train:0.9,heldout:0.1"
            )
