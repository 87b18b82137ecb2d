"""Encoding and strict decoding of the messages between server and nodes.

A message consists of magic bytes, the version, the kind, the head's length, a JSON head, and binary
parts, whose sizes are in the head. Messages of secure aggregation are sent as parts.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from typing import Any, Optional, TypeVar

from fleet.secure_aggregation.primitives import digest
from plan_runner.errors import PlanError

VERSION = 1
_MARK = b"FLEET"
_LENGTH_BYTES = 4
_START = len(_MARK) + 2 + _LENGTH_BYTES
_MAX_HEAD = 1 << 16
_MAX_PARTS = 4
_MAX_WORDS = 1000
_MAX_TAG = 64
_SIZES = "sizes"
_T = TypeVar("_T")


class Kind(enum.IntEnum):
    """Kinds of messages; the server's messages have odd numbers.

    HELLO asks a node to prove its identity, and WELCOME contains the proof. STAGE contains a
    secure-aggregation message, and the checkpoint if the client must compute its values; STAGED
    contains the answer. Without secure aggregation, WORK contains the checkpoint, and WORKED
    contains the client's update. REFUSED contains the reason as a one-line string.
    """

    HELLO = 1
    WELCOME = 2
    STAGE = 3
    STAGED = 4
    WORK = 5
    WORKED = 6
    REFUSED = 8


@dataclasses.dataclass(frozen=True)
class Message:
    """A message between server and node."""

    kind: Kind
    head: Mapping[str, Any]
    parts: tuple[bytes, ...] = ()
    where: str = "message"

    def get(self, name: str, kind: type[_T]) -> _T:
        """Returns a value of the head, and checks its type."""
        value = self.head.get(name)
        if type(value) is not kind:
            raise PlanError(
                f"{self.where}: {name}: expected {kind.__name__}, found {type(value).__name__}"
            )
        return value

    def digest(self, name: str) -> bytes:
        """Returns a value of the head, 64 hexadecimal digits, as 32 bytes."""
        text = self.get(name, str)
        try:
            value = bytes.fromhex(text)
        except ValueError:
            value = b""
        if len(value) != 32 or value.hex() != text:
            raise PlanError(
                f"{self.where}: {name}: expected 64 hexadecimal digits, found {text!r:.80}"
            )
        return value

    def part(self, number: int, count: int) -> bytes:
        """Returns a binary part of the message, and checks the number of parts."""
        if len(self.parts) != count:
            raise PlanError(f"{self.where}: expected {count} parts, found {len(self.parts)}")
        return self.parts[number]

    def encoded(self) -> bytes:
        """Returns the message as bytes."""
        head = json.dumps({_SIZES: [len(part) for part in self.parts], **self.head}).encode()
        if len(head) > _MAX_HEAD or len(self.parts) > _MAX_PARTS:
            raise ValueError("expected a shorter message")
        start = _MARK + bytes([VERSION, self.kind]) + len(head).to_bytes(_LENGTH_BYTES, "big")
        return b"".join([start, head, *self.parts])


def decoded(data: bytes, where: str) -> Message:
    """Decodes a message; `where` is the name of the message in errors."""
    if not isinstance(data, bytes) or data[: len(_MARK)] != _MARK or len(data) < _START:
        raise PlanError(f"{where}: expected a message of this fleet, found {data[:9]!r}")
    version, number = data[len(_MARK)], data[len(_MARK) + 1]
    if version != VERSION:
        raise PlanError(
            f"{where}: expected version {VERSION} of the fleet's messages, found {version}: "
            "install the same version on the server and on every node"
        )
    if number not in set(Kind):
        raise PlanError(f"{where}: expected a known kind of message, found {number}")
    length = int.from_bytes(data[_START - _LENGTH_BYTES : _START], "big")
    if length > min(_MAX_HEAD, len(data) - _START):
        raise PlanError(f"{where}: expected a head within the message, found {length} bytes")
    try:
        head = json.loads(data[_START : _START + length])
        sizes = head.pop(_SIZES)
        whole = all(type(size) is int and size >= 0 for size in sizes)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise PlanError(f"{where}: expected a head of JSON, cannot read it") from None
    at = _START + length
    if not whole or len(sizes) > _MAX_PARTS or at + sum(sizes) != len(data):
        raise PlanError(f"{where}: expected parts that fill the message, found sizes {sizes}")
    parts = []
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return Message(Kind(number), head, tuple(parts), where)


def request_tag(request: bytes) -> str:
    """Returns the tag of a request; see `tagged`."""
    return checked_tag(decoded(request, "request"))


def checked_tag(request: Message) -> str:
    """Returns the tag of a request, and limits its length, so that the answer can repeat it."""
    tag = request.get("tag", str)
    if len(tag) > _MAX_TAG or not tag.isascii():
        raise PlanError(
            f"{request.where}: tag: expected at most {_MAX_TAG} ASCII characters, found {len(tag)}"
        )
    return tag


def refused(words: str) -> Message:
    """Returns a REFUSED message with the reason."""
    return Message(Kind.REFUSED, {"words": _in_line(words)})


def refusal_text(message: Message) -> str:
    """Returns the reason in a REFUSED message, safe for terminals and logs."""
    return _in_line(message.get("words", str))


def _in_line(words: str) -> str:
    # Control characters and surrogates are not printable.
    printable = "".join(c if c.isprintable() else " " for c in words)
    return " ".join(printable.split())[:_MAX_WORDS]


def tagged(message: Message, tag: Optional[str]) -> bytes:
    """Encodes a message with a tag; an answer has the tag of its request."""
    return dataclasses.replace(message, head={**message.head, "tag": tag}).encoded()


def identity_text(challenge: bytes, manifest: bytes) -> bytes:
    """Returns the bytes that a node signs to prove its identity.

    Args:
        challenge: 32 random bytes that the server sends only once.
        manifest: SHA-256 of the manifest of the node's plan.
    """
    return digest("fleet hello", challenge, manifest)
