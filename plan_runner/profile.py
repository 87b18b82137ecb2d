"""The interface of the kinds of plans, each of which plays the parts of a round in its own way."""

import abc
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

import numpy as np

from plan_runner.client import Client, ClientGraph
from plan_runner.ram_files import File


@dataclasses.dataclass(frozen=True)
class Sent:
    """What a client sends in a round.

    Attributes:
        tensors: What is summed, by name.
        checkpoint: The file that they are in, if the client's graph writes one.
    """

    tensors: Mapping[str, np.ndarray]
    checkpoint: Optional[File] = None


class Sums(abc.ABC):
    """The sums of a round, over its clients."""

    @abc.abstractmethod
    def add(self, client: str, sent: Sent) -> None:
        """Adds what a client sends; floats are summed in the order of the calls.

        Args:
            client: Its name, for messages.
        """

    @abc.abstractmethod
    def results(self) -> dict[str, np.ndarray]:
        """Returns the sums, by the names that `Profile.end_round` takes."""

    @property
    @abc.abstractmethod
    def bytes_up(self) -> float:
        """The mean size of what a client sends."""


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

    A round has a half of the server's before its clients, and one after them.

    Attributes:
        client: Plays the clients.
    """

    client: ClientGraph
    _sessions: contextlib.ExitStack

    @abc.abstractmethod
    def begin_round(self, state: File, scratch: File) -> File:
        """Plays the server's first half; returns the checkpoint that every client gets.

        Args:
            state: The checkpoint of the server's state.
            scratch: An empty folder for this round's files.
        """

    @abc.abstractmethod
    def play_client(
        self, name: str, examples: Sequence[bytes], checkpoint: File, scratch: File
    ) -> Sent:
        """Plays a client.

        Args:
            name: Its name, for messages.
            examples: Its serialised examples.
            checkpoint: What `begin_round` returned.
            scratch: A folder for the file that it sends, in the place of the client's before.
        """

    @abc.abstractmethod
    def new_sums(self, clients: int) -> Sums:
        """Returns sums to which nothing is added yet.

        Args:
            clients: How many take part at most.
        """

    @abc.abstractmethod
    def end_round(
        self, sums: Mapping[str, np.ndarray], scratch: File
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Plays the server's second half; returns its checkpoint's tensors, and its outputs.

        Args:
            sums: Results of `new_sums`.
            scratch: The folder of the first half, which has been played last.
        """

    def run_round(self, state: Path, clients: Sequence[Client], scratch: Path) -> RoundOutcome:
        """Plays a round.

        Args:
            state: The checkpoint of the server's state.
            clients: The clients, in the order in which they are summed; at least one.
            scratch: An empty folder for this round's files.
        """
        self.client.check_cohort(clients)
        sums = self.new_sums(len(clients))
        down = self.begin_round(state, scratch)
        for client in clients:
            sent = self.play_client(client.name, client.examples(), down, scratch)
            sums.add(client.name, sent)
        tensors, outputs = self.end_round(sums.results(), scratch)
        return RoundOutcome(tensors, down.stat().st_size, sums.bytes_up, outputs)

    def close(self) -> None:
        """Ends its sessions."""
        self._sessions.close()
