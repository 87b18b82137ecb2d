"""What the isolated process writes to the one that watches it: a line of JSON for each event."""

import json
from collections.abc import Iterator
from typing import Any

# A line is told of names and numbers of an export: none of ours is longer.
_LONGEST_LINE = 1 << 20

STEP, LINE, RESULTS, STATUS, ERROR = "step", "line", "results", "status", "error"
_VALUES = {STEP: str, LINE: str, RESULTS: str, STATUS: int, ERROR: str}


class NoEventError(ValueError):
    """What has arrived is no event."""


def encoded(kind: str, value: Any) -> bytes:
    """Returns an event as a line."""
    return json.dumps([kind, value]).encode() + b"\n"


class Decoder:
    """Finds the events in what arrives in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[tuple[str, Any]]:
        """Yields the events (kind, value) that are whole after another piece.

        Raises:
            NoEventError: If it is no event, or too long for one.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            raise NoEventError(f"a line of more than {_LONGEST_LINE} bytes")
        for line in lines:
            yield _event(line)


def _event(line: bytes) -> tuple[str, Any]:
    try:
        kind, value = json.loads(line)
        if type(value) is _VALUES[kind]:
            return kind, value
    # Its process may have been taken over by what it runs.
    except (KeyError, RecursionError, TypeError, ValueError):
        pass
    raise NoEventError("something that is no event")
