"""The interface of the kinds of plans, each of which runs a round in its own way."""

import abc
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from plan_runner.client import Client, ClientGraph


@dataclasses.dataclass(frozen=True)
class RoundOutcome:
    """The results of a round.

    Attributes:
        tensors: The server's new state and the metrics, by name.
        bytes_down: The size of the checkpoint that every client gets.
        bytes_up: The mean size of what a client sends.
        outputs: The server's outputs in addition to its checkpoint, by name.
    """

    tensors: Mapping[str, np.ndarray]
    bytes_down: int
    bytes_up: float
    outputs: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


class Profile(abc.ABC):
    """Plays the server and the clients of one kind of plan; its graphs are loaded once.

    Attributes:
        client: Plays the clients.
    """

    client: ClientGraph
    _sessions: contextlib.ExitStack

    @abc.abstractmethod
    def run_round(self, state: Path, clients: Sequence[Client], scratch: Path) -> RoundOutcome:
        """Plays a round.

        Args:
            state: The checkpoint of the server's state.
            clients: The clients, in the order in which they are summed; at least one.
            scratch: An empty folder for this round's files.
        """

    def close(self) -> None:
        """Ends its sessions."""
        self._sessions.close()
