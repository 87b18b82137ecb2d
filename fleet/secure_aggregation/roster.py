"""The roster of a session, from which all parties derive the same holders, digests and keys."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.secure_aggregation.messages import Commitments, Keys
from fleet.secure_aggregation.primitives import agree, derive_key, digest
from fleet.secure_aggregation.shamir import SHARE_BYTES

KEY, SEED = b"key", b"seed"


def neighbours(client: bytes, roster: Sequence[bytes]) -> tuple[bytes, ...]:
    """Returns the clients with which a client shares masks and secrets: all others.

    Fewer neighbours would be cheaper for hundreds of clients (Bell et al. 2020). Any symmetric
    relation is correct: if v is a neighbour of u, then u must be a neighbour of v.
    """
    return tuple(other for other in roster if other != client)


class Roster:
    """The members of a session.

    Attributes:
        keys: Clients' keys, keyed by identity in ascending order.
        digest: Digest of the session, its members and their keys.
    """

    def __init__(self, session: bytes, keys: Sequence[Keys]) -> None:
        self.keys = {entry.sender: entry for entry in keys}
        self.digest = digest("roster", session, *(k.message for k in keys))
        self._points = {client: number for number, client in enumerate(self.keys, 1)}

    def point(self, client: bytes) -> int:
        """Returns the point at which a holder's shares evaluate the dealers' polynomials."""
        return self._points[client]

    def holders(self, client: bytes) -> tuple[bytes, ...]:
        """Returns the holders of a client's shares: its neighbours and itself."""
        return tuple(sorted((client, *neighbours(client, tuple(self.keys)))))

    def survivors_digest(self, survivors: Sequence[bytes]) -> bytes:
        """Returns the digest of the survivors, which clients sign as their vote."""
        return digest("survivors", self.digest, *survivors)

    def seed_commitment(self, dealer: bytes, seed: bytes) -> bytes:
        """Returns a client's commitment to the seed of its own mask."""
        return digest("seed", self.digest, dealer, seed)

    def share_commitment(self, dealer: bytes, holder: bytes, what: bytes, share: bytes) -> bytes:
        """Returns a dealer's commitment to a share of its key or its seed."""
        return digest("share", self.digest, dealer, holder, what, share)

    def share_commitments(self, dealer: bytes, holder: bytes, shares: bytes) -> Commitments:
        """Returns a dealer's commitments to the two shares that it gives a holder."""
        return Commitments(
            self.share_commitment(dealer, holder, KEY, shares[:SHARE_BYTES]),
            self.share_commitment(dealer, holder, SEED, shares[SHARE_BYTES:]),
        )

    def own_key(self, seed: bytes, client: bytes) -> bytes:
        """Returns the key of a client's own mask."""
        return derive_key(seed, self.digest, b"own mask" + client)

    def pair_key(self, secret: bytes, client: bytes, other: bytes) -> bytes:
        """Returns the key of two clients' pairwise mask, given one client's masking secret.

        Raises:
            ValueError: The other client's key is weak; see `primitives.agree`.
        """
        pair = min(client, other) + max(client, other)
        return derive_key(agree(secret, self.keys[other].masking), self.digest, b"pair mask" + pair)


def pair_sign(client: bytes, other: bytes) -> int:
    """Returns 1 if a client adds its pairwise mask with another client, -1 if it subtracts it."""
    return 1 if client < other else -1
