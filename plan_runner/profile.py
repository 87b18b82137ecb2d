"""Interface of the kinds of plans, which run the parts of a round."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional, Union

import numpy as np

from plan_runner.client import Client, ClientGraph
from plan_runner.graph_session import GraphSession
from plan_runner.ram_files import File


@dataclasses.dataclass(frozen=True)
class Sent:
    """A client's output in a round.

    Attributes:
        tensors: Tensors to sum, by name.
        checkpoint: The file with the tensors, if the client's graph writes one.
    """

    tensors: Mapping[str, np.ndarray]
    checkpoint: Optional[File] = None


class Sums(abc.ABC):
    """The sums of a round, over its clients."""

    @abc.abstractmethod
    def add(self, client: str, sent: Sent) -> None:
        """Adds a client's output; floats are summed in the order of the calls.

        Args:
            client: The client's name, for messages.
        """

    @abc.abstractmethod
    def results(self) -> dict[str, np.ndarray]:
        """Returns the sums, keyed by the names that `Profile.end_round` takes."""

    @property
    @abc.abstractmethod
    def bytes_up(self) -> float:
        """Mean size of a client's output."""


@dataclasses.dataclass(frozen=True)
class RoundOutcome:
    """The results of a round.

    Attributes:
        tensors: The server's new state and the metrics, by name.
        bytes_down: Size of the checkpoint for clients.
        bytes_up: Mean size of a client's output.
        outputs: The server's outputs in addition to its checkpoint, by name.
    """

    tensors: Mapping[str, np.ndarray]
    bytes_down: int
    bytes_up: float
    outputs: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


class Profile(abc.ABC):
    """A loaded plan of one kind, which runs the server's two halves of a round and its clients.

    Attributes:
        client: The client's graph.
    """

    client: ClientGraph
    _sessions: Sequence[Union[GraphSession, ClientGraph]]

    @abc.abstractmethod
    def begin_round(self, state: File, scratch: File) -> File:
        """Runs the server's first half; returns the checkpoint for clients.

        Args:
            state: Checkpoint of the server's state.
            scratch: An empty folder for this round's files.
        """

    @abc.abstractmethod
    def play_client(
        self, name: str, examples: Sequence[bytes], checkpoint: File, scratch: File
    ) -> Sent:
        """Runs a client.

        Args:
            name: The client's name, for messages.
            examples: Serialised examples.
            checkpoint: Result of `begin_round`.
            scratch: Folder for the client's file, which replaces the previous client's.
        """

    @abc.abstractmethod
    def new_sums(self) -> Sums:
        """Returns empty sums."""

    @abc.abstractmethod
    def end_round(
        self, sums: Mapping[str, np.ndarray], scratch: File
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Runs the server's second half; returns its checkpoint's tensors, and its outputs.

        Args:
            sums: Results of `new_sums`.
            scratch: Folder of the first half, which ran last.
        """

    def run_round(self, state: Path, clients: Sequence[Client], scratch: Path) -> RoundOutcome:
        """Runs a round.

        Args:
            state: Checkpoint of the server's state.
            clients: The clients, in the order of their sum.
            scratch: An empty folder for this round's files.
        """
        sums = self.new_sums()
        down = self.begin_round(state, scratch)
        for client in clients:
            sent = self.play_client(client.name, client.examples(), down, scratch)
            sums.add(client.name, sent)
        tensors, outputs = self.end_round(sums.results(), scratch)
        return RoundOutcome(tensors, down.stat().st_size, sums.bytes_up, outputs)

    def close(self) -> None:
        """Closes the sessions."""
        for session in self._sessions:
            session.close()
