"""What the runner is asked for."""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any, Optional

from plan_runner.files.limits import DEFAULT_LIMITS, Limits

# Of the largest number of a tensor: what builds of TensorFlow, and processors, may differ by.
ROUNDING = 1e-4


@dataclasses.dataclass(frozen=True)
class Request:
    """One run of the runner; paths are text, as all of it may go to another process.

    Attributes:
        plan: Folder of the export.
        verify: Replay its conformance rounds; otherwise play rounds of `clients`.
        tolerance: Of `verify`: the largest difference of floats that passes.
        clients: Folder of clients.
        rounds: Number of rounds; None is 1, or all that `cohorts` has.
        clients_per_round: Clients drawn for every round; None is all.
        seed: Of drawing them.
        cohorts: File with the clients of every round instead.
        state: Checkpoint to begin with instead of the export's.
        limits: What all of it may take.
        trust: Play without a sandbox.
    """

    plan: str
    verify: bool
    tolerance: float = ROUNDING
    clients: str = ""
    rounds: Optional[int] = None
    clients_per_round: Optional[int] = None
    seed: int = 0
    cohorts: Optional[str] = None
    state: Optional[str] = None
    limits: Limits = DEFAULT_LIMITS
    trust: bool = False

    def paths(self) -> Iterator[str]:
        """Yields what has to be read for it: files, and folders with what links in them lead to."""
        for given in (self.plan, self.clients, self.cohorts, self.state):
            if given:
                yield given
        # Clients may lie elsewhere; files of an export may not.
        if self.clients and os.path.isdir(self.clients):
            for entry in os.scandir(self.clients):
                if entry.is_symlink():
                    yield os.path.realpath(entry.path)

    def to_json(self) -> dict[str, Any]:
        """Returns it as what JSON has; see `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Request":
        """Returns the request of which this is `to_json`."""
        return cls(**{**value, "limits": Limits(**value["limits"])})
