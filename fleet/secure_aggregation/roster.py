"""The roster of a session: its holders of shares, commitments and keys, equal for all parties."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.secure_aggregation.messages import Commitments, Keys
from fleet.secure_aggregation.primitives import agree, derive_key, digest
from fleet.secure_aggregation.shamir import SHARE_BYTES

KEY, SEED = b"key", b"seed"


def neighbours(client: bytes, roster: Sequence[bytes]) -> tuple[bytes, ...]:
    """Returns the clients that share masks and secrets with a client: here all others.

    Hundreds of clients need fewer neighbours (Bell et al. 2020). Any symmetric function of the
    roster is correct: u must be among v's neighbours if v is among u's.
    """
    return tuple(other for other in roster if other != client)


class Roster:
    """The members of a session.

    Attributes:
        keys: The clients' keys by identity, in ascending order.
        digest: Digest of the session, its members and their keys.
    """

    def __init__(self, session: bytes, keys: Sequence[Keys]) -> None:
        self.keys = {entry.sender: entry for entry in keys}
        self.digest = digest("roster", session, *(k.message for k in keys))
        self._points = {client: number for number, client in enumerate(self.keys, 1)}

    def point(self, client: bytes) -> int:
        """Returns the point at which polynomials are evaluated for a client."""
        return self._points[client]

    def holders(self, client: bytes) -> tuple[bytes, ...]:
        """Returns the holders of a client's shares: its neighbours and itself."""
        return tuple(sorted((client, *neighbours(client, tuple(self.keys)))))

    def survivors_digest(self, survivors: Sequence[bytes]) -> bytes:
        """Returns the message that clients sign as their vote."""
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
        """Returns the key of the mask that a client adds for itself."""
        return derive_key(seed, self.digest, b"own mask" + client)

    def pair_key(self, secret: bytes, client: bytes, other: bytes) -> bytes:
        """Returns the key of a pair's mask, given the client's masking secret.

        Raises:
            ValueError: The other client's key is weak; see `primitives.agree`.
        """
        pair = min(client, other) + max(client, other)
        return derive_key(agree(secret, self.keys[other].masking), self.digest, b"pair mask" + pair)


def pair_sign(client: bytes, other: bytes) -> int:
    """Returns 1 where a client adds the mask that it shares with another, -1 where it subtracts."""
    return 1 if client < other else -1
