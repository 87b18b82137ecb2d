"""Encoding and strict decoding of the messages of secure aggregation.

Every message begins with magic bytes, the version, the message type and the session id. A client's
message continues with the client's identity, and ends with a signature over all preceding bytes.
Each message has exactly one valid encoding: fields have fixed widths, numbers are unsigned and
big-endian, and lists of clients are in ascending order.

Decoding needs memory in proportion to the message's length, which the plan limits.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from fleet.secure_aggregation.errors import ProtocolError
from fleet.secure_aggregation.primitives import (
    DIGEST_BYTES,
    KEY_BYTES,
    SEALED_BYTES,
    SIGNATURE_BYTES,
    is_signed,
    sign,
)
from fleet.secure_aggregation.shamir import SHARE_BYTES
from fleet.secure_aggregation.sum_plan import Identities, SumPlan

VERSION = 1
SESSION_BYTES = 32
_MARK = b"SECAGG"
_COUNT_BYTES = 2
_HEADER_BYTES = len(_MARK) + 2 + SESSION_BYTES
_SENDER_BYTES = _HEADER_BYTES + KEY_BYTES
_KEYS_BYTES = _SENDER_BYTES + DIGEST_BYTES + 2 * KEY_BYTES + SIGNATURE_BYTES
_VOTE_BYTES = _SENDER_BYTES + DIGEST_BYTES + SIGNATURE_BYTES
# Bytes of a dealer's two shares for a holder: a share of the masking key and a share of the seed.
TWO_SHARES_BYTES = 2 * SHARE_BYTES
_SEALED_SHARES_BYTES = TWO_SHARES_BYTES + SEALED_BYTES
# Position of the sender's identity in a client's message.
SENDER = slice(_HEADER_BYTES, _SENDER_BYTES)
_T = TypeVar("_T")


class Type(enum.IntEnum):
    """Message types, in the order of a session; the server's messages have odd numbers."""

    BEGIN = 1
    KEYS = 2
    ROSTER = 3
    SHARES = 4
    DELIVERY = 5
    MASKED = 6
    SURVIVORS = 7
    VOTE = 8
    VOTES = 9
    OPENING = 10


@dataclasses.dataclass(frozen=True)
class Commitments:
    """A dealer's commitments to the two shares that it gives a holder."""

    key: bytes
    seed: bytes


@dataclasses.dataclass(frozen=True)
class Keys:
    """A client's public keys for one session.

    Attributes:
        plan: Digest of the client's `SumPlan`.
        sealing: Public key for the encryption of shares.
        masking: Public key from which pairwise masks derive.
        message: The complete signed message, which other clients verify.
    """

    sender: bytes
    plan: bytes
    sealing: bytes
    masking: bytes
    message: bytes


@dataclasses.dataclass(frozen=True)
class Shares:
    """A client's shares of its secrets, for its holders: its neighbours and itself.

    Attributes:
        seed: Commitment to the seed of the client's own mask.
        commitments: Commitments to the shares, keyed by holder.
        sealed: Encrypted shares, keyed by neighbour.
    """

    seed: bytes
    commitments: dict[bytes, Commitments]
    sealed: dict[bytes, bytes]


@dataclasses.dataclass(frozen=True)
class Delivery:
    """Other clients' shares, which the server delivers to a client.

    Attributes:
        sharers: Clients that sent shares, including the receiver.
        parcels: Commitments and encrypted shares of each neighbour in `sharers`, in the order of
            `sharers`.
    """

    sharers: tuple[bytes, ...]
    parcels: tuple[tuple[Commitments, bytes], ...]


def header(kind: Type, session: bytes) -> bytes:
    """Returns the header of a message."""
    return _MARK + bytes([VERSION, kind]) + session


def read_header(message: bytes, plan: SumPlan, where: str) -> tuple[Type, bytes]:
    """Checks a message's length and header; returns the message type and session id."""
    if not isinstance(message, bytes):
        actual = type(message).__name__
        raise ProtocolError(f"{where}: expected a message of bytes, found {actual}")
    longest = longest_message(plan)
    if len(message) > longest:
        raise ProtocolError(f"{where}: expected at most {longest} bytes, found {len(message)}")
    reader = _Reader(message, where)
    if reader.take(len(_MARK)) != _MARK:
        raise ProtocolError(
            f"{where}: expected a message of secure aggregation, found {message[:6]!r}"
        )
    version = reader.number(1)
    if version != VERSION:
        raise ProtocolError(
            f"{where}: expected version {VERSION} of the protocol, found {version}: install the "
            "same version on the server and on every client"
        )
    kind = reader.number(1)
    if kind not in set(Type):
        raise ProtocolError(f"{where}: expected a type from 1 to {max(Type)}, found {kind}")
    return Type(kind), reader.take(SESSION_BYTES)


def longest_message(plan: SumPlan) -> int:
    """Returns the maximum length of a message in the plan's sessions, in bytes."""
    longest_item = max(
        _KEYS_BYTES, KEY_BYTES + 2 * DIGEST_BYTES + _SEALED_SHARES_BYTES, _VOTE_BYTES, SHARE_BYTES
    )
    around = _SENDER_BYTES + _COUNT_BYTES + DIGEST_BYTES + SIGNATURE_BYTES
    return around + max(plan.max_clients * longest_item, plan.packed_bytes)


class _Reader:
    """Decodes a message from beginning to end.

    Args:
        client: The client at fault if the message is invalid.
    """

    def __init__(self, data: bytes, where: str, client: bytes | None = None) -> None:
        self._data = data
        self._where = where
        self._client = client
        self._at = 0

    def fail(self, text: str) -> ProtocolError:
        return ProtocolError(f"{self._where}: {text}", self._client)

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise self.fail(
                f"expected {count} bytes more at {self._at}, found {len(self._data) - self._at}"
            )
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def several(self, width: int, read: Callable[[], _T], most: int) -> tuple[_T, ...]:
        """Reads a count, and this number of items of `width` bytes each."""
        count = self.number(_COUNT_BYTES)
        left = len(self._data) - self._at
        if count > most or count * width > left:
            raise self.fail(
                f"expected at most {most} items of {width} bytes, found {count} and {left} bytes"
            )
        return tuple(read() for _ in range(count))

    def identities(self, most: int) -> tuple[bytes, ...]:
        clients = self.several(KEY_BYTES, lambda: self.take(KEY_BYTES), most)
        self.ascending(clients)
        return clients

    def ascending(self, identities: Sequence[bytes]) -> None:
        if any(a >= b for a, b in itertools.pairwise(identities)):
            raise self.fail(
                "expected every client once, in ascending order, found a different order"
            )

    def commitments(self) -> Commitments:
        return Commitments(self.take(DIGEST_BYTES), self.take(DIGEST_BYTES))

    def end(self) -> None:
        if self._at != len(self._data):
            raise self.fail(f"expected {self._at} bytes, found {len(self._data)}")


def listed(items: Sequence[bytes]) -> bytes:
    """Encodes a list of equally long items: their count, then the items."""
    return len(items).to_bytes(_COUNT_BYTES, "big") + b"".join(items)


# --- Encoding and decoding of clients' messages


def signed(kind: Type, session: bytes, secret: bytes, sender: bytes, body: bytes) -> bytes:
    """Returns a client's signed message.

    Args:
        secret: Ed25519 secret key of the sender.
        sender: Identity of the sender.
    """
    message = header(kind, session) + sender + body
    return message + sign(secret, message)


def message_sender(
    message: bytes, kind: Type, session: bytes, identities: Identities, where: str
) -> bytes:
    """Checks the header and signature of a client's message, and returns the sender."""
    start = header(kind, session)
    if message[:_HEADER_BYTES] != start:
        raise ProtocolError(
            f"{where}: expected {kind.name} of session {session.hex()[:16]}, found a different one"
        )
    reader = _Reader(message, where)
    reader.take(_HEADER_BYTES)
    sender = reader.take(KEY_BYTES)
    if sender not in identities:
        raise ProtocolError(
            f"{where}: expected a client with a known identity, found one {identities.name(sender)}"
        )
    reader.take(SIGNATURE_BYTES)
    text, signature = message[:-SIGNATURE_BYTES], message[-SIGNATURE_BYTES:]
    if not is_signed(sender, text, signature):
        raise ProtocolError(
            f"{where}: expected the signature of client {identities.name(sender)}, found none"
        )
    return sender


def _body(message: bytes, where: str) -> tuple[bytes, _Reader]:
    """Returns the sender of a client's message, and a decoder of the message's body."""
    sender = message[SENDER]
    return sender, _Reader(message[_SENDER_BYTES:-SIGNATURE_BYTES], where, sender)


def keys_body(plan: bytes, sealing: bytes, masking: bytes) -> bytes:
    """Returns the body of a KEYS message."""
    return plan + sealing + masking


def read_keys(message: bytes, where: str) -> Keys:
    """Decodes a KEYS message, whose signature the caller has checked."""
    sender, reader = _body(message, where)
    keys = Keys(
        sender, reader.take(DIGEST_BYTES), reader.take(KEY_BYTES), reader.take(KEY_BYTES), message
    )
    reader.end()
    return keys


def shares_body(seed: bytes, commitments: Sequence[Commitments], sealed: Sequence[bytes]) -> bytes:
    """Returns the body of a SHARES message."""
    return seed + listed([c.key + c.seed for c in commitments]) + listed(sealed)


def read_shares(message: bytes, holders: Sequence[bytes], where: str) -> Shares:
    """Decodes a SHARES message, whose signature the caller has checked.

    Args:
        holders: The sender's holders, in the order of the shares.
    """
    sender, reader = _body(message, where)
    count = len(holders)
    seed = reader.take(DIGEST_BYTES)
    commitments = reader.several(2 * DIGEST_BYTES, reader.commitments, count)
    sealed = reader.several(_SEALED_SHARES_BYTES, lambda: reader.take(_SEALED_SHARES_BYTES), count)
    reader.end()
    if len(commitments) != count or len(sealed) != count - 1:
        raise reader.fail(f"expected shares for {count} holders, found {len(commitments)}")
    neighbours = [holder for holder in holders if holder != sender]
    return Shares(seed, dict(zip(holders, commitments)), dict(zip(neighbours, sealed)))


def read_masked(message: bytes, plan: SumPlan, where: str) -> list[np.ndarray]:
    """Decodes a MASKED message with a checked signature; returns one vector per tensor."""
    _, reader = _body(message, where)
    packed = reader.take(plan.packed_bytes)
    reader.end()
    vectors = plan.unpack(packed)
    if vectors is None:
        raise reader.fail("expected numbers below their moduli, found a larger one")
    return vectors


def read_vote(message: bytes, where: str) -> bytes:
    """Decodes a VOTE message with a checked signature; returns the digest of the survivors."""
    _, reader = _body(message, where)
    survivors = reader.take(DIGEST_BYTES)
    reader.end()
    return survivors


def read_opening(message: bytes, dealers: int, where: str) -> tuple[bytes, ...]:
    """Decodes an OPENING message with a checked signature; returns one share per dealer."""
    _, reader = _body(message, where)
    shares = reader.several(SHARE_BYTES, lambda: reader.take(SHARE_BYTES), dealers)
    reader.end()
    if len(shares) != dealers:
        raise reader.fail(f"expected shares of {dealers} clients, found {len(shares)}")
    return shares


# --- Encoding and decoding of the server's messages


def begin_message(session: bytes, plan: bytes) -> bytes:
    """Returns a BEGIN message, which asks a client to take part."""
    return header(Type.BEGIN, session) + plan


def list_message(kind: Type, session: bytes, items: Sequence[bytes]) -> bytes:
    """Returns a message that lists KEYS messages (ROSTER), identities (SURVIVORS) or votes."""
    return header(kind, session) + listed(items)


def read_begin(message: bytes, where: str) -> bytes:
    """Decodes a BEGIN message; returns the digest of the server's `SumPlan`."""
    reader = _after_header(message, where)
    plan = reader.take(DIGEST_BYTES)
    reader.end()
    return plan


def read_roster(
    message: bytes, session: bytes, plan: SumPlan, identities: Identities, where: str
) -> tuple[Keys, ...]:
    """Decodes a ROSTER message, and checks its signatures, plans and keys."""
    reader = _after_header(message, where)
    parts = reader.several(_KEYS_BYTES, lambda: reader.take(_KEYS_BYTES), plan.max_clients)
    reader.end()
    if len(parts) < plan.min_clients:
        raise reader.fail(f"expected at least {plan.min_clients} clients, found {len(parts)}")
    reader.ascending(
        [message_sender(part, Type.KEYS, session, identities, where) for part in parts]
    )
    keys = tuple(read_keys(part, where) for part in parts)
    check_keys(keys, plan, identities, where)
    return keys


def check_keys(keys: Sequence[Keys], plan: SumPlan, identities: Identities, where: str) -> None:
    """Checks that clients have the same plan and distinct keys."""
    expected, seen = plan.digest(), set()
    for entry in keys:
        name = identities.name(entry.sender)
        if entry.plan != expected:
            raise ProtocolError(
                f"{where}: expected the plan {expected.hex()[:16]}, client {name} has "
                f"{entry.plan.hex()[:16]}: plan, limits or moduli differ",
                entry.sender,
            )
        if entry.sealing in seen or entry.masking in seen or entry.sealing == entry.masking:
            raise ProtocolError(
                f"{where}: expected unique keys, client {name} has another client's",
                entry.sender,
            )
        seen |= {entry.sealing, entry.masking}


def delivery_message(
    session: bytes, sharers: Sequence[bytes], parcels: Sequence[tuple[Commitments, bytes]]
) -> bytes:
    """Returns a DELIVERY message."""
    parts = [c.key + c.seed + sealed for c, sealed in parcels]
    return header(Type.DELIVERY, session) + listed(sharers) + listed(parts)


def read_delivery(message: bytes, plan: SumPlan, where: str) -> Delivery:
    """Decodes a DELIVERY message."""
    reader = _after_header(message, where)
    sharers = reader.identities(plan.max_clients)
    parcels = reader.several(
        2 * DIGEST_BYTES + _SEALED_SHARES_BYTES,
        lambda: (reader.commitments(), reader.take(_SEALED_SHARES_BYTES)),
        plan.max_clients,
    )
    reader.end()
    return Delivery(sharers, parcels)


def read_survivors(message: bytes, plan: SumPlan, where: str) -> tuple[bytes, ...]:
    """Decodes a SURVIVORS message."""
    reader = _after_header(message, where)
    survivors = reader.identities(plan.max_clients)
    reader.end()
    return survivors


def read_votes(
    message: bytes, session: bytes, plan: SumPlan, identities: Identities, where: str
) -> dict[bytes, bytes]:
    """Decodes a VOTES message, and checks signatures; returns each client's signed digest."""
    reader = _after_header(message, where)
    parts = reader.several(_VOTE_BYTES, lambda: reader.take(_VOTE_BYTES), plan.max_clients)
    reader.end()
    senders = [message_sender(part, Type.VOTE, session, identities, where) for part in parts]
    reader.ascending(senders)
    return {sender: read_vote(part, where) for sender, part in zip(senders, parts)}


def _after_header(message: bytes, where: str) -> _Reader:
    reader = _Reader(message, where)
    reader.take(_HEADER_BYTES)
    return reader
