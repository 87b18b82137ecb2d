"""The exceptions of secure aggregation."""

from __future__ import annotations


class SumError(ValueError):
    """A sum cannot be computed from these plans, identities, values or stored sessions.

    The message is one line: what was expected, what was found, and where.
    """


class ProtocolError(SumError):
    """A party violates the protocol, or too few parties remain.

    Attributes:
        client: Identity of the client at fault; None if no single client is known to be.
    """

    def __init__(self, message: str, client: bytes | None = None) -> None:
        super().__init__(message)
        self.client = client
