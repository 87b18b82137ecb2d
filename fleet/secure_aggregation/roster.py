"""What parties compute alike from the roster of a session: who shares what with whom, and keys."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.secure_aggregation.messages import Commitments, Keys
from fleet.secure_aggregation.primitives import agree, derive_key, digest
from fleet.secure_aggregation.shamir import SHARE_BYTES

OF_KEY, OF_SEED = b"key", b"seed"


def neighbours(client: bytes, roster: Sequence[bytes]) -> tuple[bytes, ...]:
    """Returns with whom a client shares masks and secrets: here with all others.

    Some hundred clients and more need fewer neighbours (Bell et al. 2020): any function of the
    roster will do that names u among v's neighbours if it names v among u's.
    """
    return tuple(other for other in roster if other != client)


class Roster:
    """Who takes part in a session.

    Attributes:
        keys: The clients' keys by identity, in ascending order.
        digest: What stands for all of it: the session, who takes part, with which keys.
    """

    def __init__(self, session: bytes, keys: Sequence[Keys]) -> None:
        self.keys = {entry.sender: entry for entry in keys}
        self.digest = digest("roster", session, *(k.message for k in keys))
        self._points = {client: number for number, client in enumerate(self.keys, 1)}

    def point(self, client: bytes) -> int:
        """Returns where the polynomials of a client's holders are evaluated for it."""
        return self._points[client]

    def holders(self, client: bytes) -> tuple[bytes, ...]:
        """Returns who holds shares of a client's secrets: its neighbours and itself."""
        return tuple(sorted((client, *neighbours(client, tuple(self.keys)))))


def survivors_digest(roster: bytes, survivors: Sequence[bytes]) -> bytes:
    """Returns what clients sign: whose values are summed, among whom.

    Args:
        roster: The digest of the roster, which is of one session.
    """
    return digest("survivors", roster, *survivors)


def seed_commitment(roster: bytes, dealer: bytes, seed: bytes) -> bytes:
    """Returns what binds a client to the seed of its own mask."""
    return digest("seed", roster, dealer, seed)


def share_commitment(
    roster: bytes, dealer: bytes, holder: bytes, what: bytes, share: bytes
) -> bytes:
    """Returns what binds a dealer to a share of its key or of its seed."""
    return digest("share", roster, dealer, holder, what, share)


def share_commitments(roster: bytes, dealer: bytes, holder: bytes, shares: bytes) -> Commitments:
    """Returns what binds a dealer to the two shares that it gives a holder."""
    of_key, of_seed = shares[:SHARE_BYTES], shares[SHARE_BYTES:]
    return Commitments(
        share_commitment(roster, dealer, holder, OF_KEY, of_key),
        share_commitment(roster, dealer, holder, OF_SEED, of_seed),
    )


def own_key(seed: bytes, roster: bytes, client: bytes) -> bytes:
    """Returns the key of the mask that a client adds for itself.

    Args:
        roster: Digest of the session's roster.
    """
    return derive_key(seed, roster, b"own mask" + client)


def pair_key(secret: bytes, public: bytes, roster: bytes, one: bytes, other: bytes) -> bytes:
    """Returns the key of the mask that two clients have in common.

    Args:
        secret: Masking secret of either of them.
        public: Masking key of the other.
        roster: Digest of the session's roster.
    """
    pair = min(one, other) + max(one, other)
    return derive_key(agree(secret, public), roster, b"pair mask" + pair)


def pair_sign(client: bytes, other: bytes) -> int:
    """Returns 1 where a client adds the mask that it shares with another, -1 where it subtracts."""
    return 1 if client < other else -1
