"""The exceptions of secure aggregation."""

from __future__ import annotations


class SumError(ValueError):
    """A sum cannot be computed from these plans, identities, values or stored sessions.

    The one-line message names the place, the expected value and the found value.
    """


class ProtocolError(SumError):
    """A party violates the protocol, or too few parties remain.

    Attributes:
        client: Identity of the client at fault; None if unknown.
    """

    def __init__(self, message: str, client: bytes | None = None) -> None:
        super().__init__(message)
        self.client = client
