"""The messages between server and nodes as bytes, read strictly.

A message is a mark, the version, its kind, a head of JSON with its length before it, and parts of
bytes, whose lengths the head begins with. Messages of secure aggregation travel as such parts.
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
_LONGEST_HEAD = 1 << 16
_MOST_PARTS = 4
_LONGEST_WORDS = 1000
# The server's have 16 characters.
_LONGEST_TAG = 64
_SIZES = "sizes"
_T = TypeVar("_T")


class Kind(enum.IntEnum):
    """The kinds of messages; the server's are odd.

    HELLO asks for versions, plan and identity; WELCOME tells them. STAGE carries a message of
    secure aggregation, of the stage before values with the checkpoint for the client; STAGED its
    answer. WORK carries a checkpoint, WORKED the update of plain sums. A node answers REFUSED with
    a line of words to whatever it does not do.
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
    """A message.

    Attributes:
        head: What JSON has, by name.
        parts: Bytes.
        where: What the message is called in errors.
    """

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
        """Returns 32 bytes that the head has as hexadecimal digits."""
        text = self.get(name, str)
        try:
            value = bytes.fromhex(text)
        except ValueError:
            value = b""
        if len(value) != 32 or value.hex() != text:
            raise PlanError(f"{self.where}: {name}: expected 64 hexadecimal digits, found others")
        return value

    def part(self, number: int, count: int) -> bytes:
        """Returns a part, after a check of how many there are."""
        if len(self.parts) != count:
            raise PlanError(f"{self.where}: expected {count} parts, found {len(self.parts)}")
        return self.parts[number]

    def encoded(self) -> bytes:
        """Returns it as bytes."""
        head = json.dumps({_SIZES: [len(part) for part in self.parts], **self.head}).encode()
        if len(head) > _LONGEST_HEAD or len(self.parts) > _MOST_PARTS:
            raise ValueError("expected a shorter message")
        start = _MARK + bytes([VERSION, self.kind]) + len(head).to_bytes(_LENGTH_BYTES, "big")
        return b"".join([start, head, *self.parts])


def decoded(data: bytes, where: str) -> Message:
    """Reads a message.

    Args:
        where: What it is called in errors.
    """
    if not isinstance(data, bytes) or data[: len(_MARK)] != _MARK or len(data) < _START:
        raise PlanError(f"{where}: expected a message of this fleet, found other bytes")
    version, number = data[len(_MARK)], data[len(_MARK) + 1]
    if version != VERSION:
        raise PlanError(
            f"{where}: expected version {VERSION} of the fleet's messages, found {version}: "
            "install the same version on the server and on every node"
        )
    if number not in set(Kind):
        raise PlanError(f"{where}: expected a known kind of message, found {number}")
    length = int.from_bytes(data[_START - _LENGTH_BYTES : _START], "big")
    if length > min(_LONGEST_HEAD, len(data) - _START):
        raise PlanError(f"{where}: expected a head within the message, found {length} bytes")
    try:
        head = json.loads(data[_START : _START + length])
        sizes = head.pop(_SIZES)
        whole = all(type(size) is int and size >= 0 for size in sizes)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise PlanError(f"{where}: expected a head of JSON, found other bytes") from None
    at = _START + length
    if not whole or len(sizes) > _MOST_PARTS or at + sum(sizes) != len(data):
        raise PlanError(f"{where}: expected parts that fill the message, found others")
    parts = []
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return Message(Kind(number), head, tuple(parts), where)


def tag_of(request: bytes) -> str:
    """Returns the tag of a request; see `tagged`."""
    return checked_tag(decoded(request, "request"))


def checked_tag(request: Message) -> str:
    """Returns the tag of a request, for which each answer has room."""
    tag = request.get("tag", str)
    if len(tag) > _LONGEST_TAG or not tag.isascii():
        raise PlanError(
            f"{request.where}: tag: expected at most {_LONGEST_TAG} ASCII characters, found others"
        )
    return tag


def refused(words: str) -> Message:
    """Returns an answer in words."""
    return Message(Kind.REFUSED, {"words": _in_line(words)})


def words_of(message: Message) -> str:
    """Returns the words of a REFUSED, for terminals and logs, whoever wrote them."""
    return _in_line(message.get("words", str))


def _in_line(words: str) -> str:
    # Neither what moves a terminal's cursor nor what no encoding has is printable.
    printable = "".join(c if c.isprintable() else " " for c in words)
    return " ".join(printable.split())[:_LONGEST_WORDS]


def tagged(message: Message, tag: Optional[str]) -> bytes:
    """Returns a message as bytes, with a request's tag, by which the server knows its answer."""
    return dataclasses.replace(message, head={**message.head, "tag": tag}).encoded()


def identity_text(challenge: bytes, manifest: bytes) -> bytes:
    """Returns what a node signs to show its identity.

    Args:
        challenge: 32 bytes of the server's, which it sends once.
        manifest: SHA-256 of the manifest of the node's plan.
    """
    return digest("fleet hello", challenge, manifest)
