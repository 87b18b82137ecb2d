"""The messages between server and nodes as bytes, read strictly.

A message is a mark, the version, its kind, the length of its head, a head of JSON, and parts of
bytes, whose sizes the head has. Messages of secure aggregation travel as such parts.
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
    """The kinds of messages; the server's are odd.

    HELLO asks for a node's identity, WELCOME proves it. STAGE carries a message of secure
    aggregation, before the values also the checkpoint for the client; STAGED its answer. WORK
    carries a checkpoint, WORKED the update of plain sums. REFUSED has a one-line message.
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
    """A message."""

    kind: Kind
    head: Mapping[str, Any]
    parts: tuple[bytes, ...] = ()
    where: str = "message"

    def get(self, name: str, kind: type[_T]) -> _T:
        """Returns a value of the head, after a check of its type."""
        value = self.head.get(name)
        if type(value) is not kind:
            raise PlanError(
                f"{self.where}: {name}: expected {kind.__name__}, found {type(value).__name__}"
            )
        return value

    def digest(self, name: str) -> bytes:
        """Returns 32 bytes from 64 hexadecimal digits of the head."""
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
        """Returns a part, after a check of their number."""
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
    """Reads a message; `where` is its name in errors."""
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
    """Returns the tag of a request; its length is limited, so that each answer can repeat it."""
    tag = request.get("tag", str)
    if len(tag) > _MAX_TAG or not tag.isascii():
        raise PlanError(
            f"{request.where}: tag: expected at most {_MAX_TAG} ASCII characters, found {len(tag)}"
        )
    return tag


def refused(words: str) -> Message:
    """Returns a refusal with a message."""
    return Message(Kind.REFUSED, {"words": _in_line(words)})


def refusal_text(message: Message) -> str:
    """Returns the message of a REFUSED, safe for terminals and logs."""
    return _in_line(message.get("words", str))


def _in_line(words: str) -> str:
    # Control characters and surrogates are not printable.
    printable = "".join(c if c.isprintable() else " " for c in words)
    return " ".join(printable.split())[:_MAX_WORDS]


def tagged(message: Message, tag: Optional[str]) -> bytes:
    """Returns a message as bytes, with a request's tag, which identifies the answer."""
    return dataclasses.replace(message, head={**message.head, "tag": tag}).encoded()


def identity_text(challenge: bytes, manifest: bytes) -> bytes:
    """Returns the text that a node signs to prove its identity.

    Args:
        challenge: 32 bytes that the server sends once.
        manifest: SHA-256 of the manifest of the node's plan.
    """
    return digest("fleet hello", challenge, manifest)
