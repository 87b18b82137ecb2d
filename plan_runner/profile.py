"""Interface of plan profiles, which run the server's two halves of a round, and the clients.

The server's first half creates the checkpoint for clients. The second half applies the sums.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Optional, Union

import numpy as np

from plan_runner.client import ClientGraph
from plan_runner.graph_session import GraphSession
from plan_runner.ram_files import File


@dataclasses.dataclass(frozen=True)
class Sent:
    """A client's output in a round.

    Attributes:
        tensors: Tensors to sum, keyed by name.
        size: Number of bytes that the client sends.
        checkpoint: File with the tensors; None if the client's graph writes no file.
    """

    tensors: Mapping[str, np.ndarray]
    size: int = 0
    checkpoint: Optional[File] = None


class Sums(abc.ABC):
    """The sums over a round's clients."""

    @abc.abstractmethod
    def add(self, client: str, sent: Sent) -> None:
        """Adds a client's output; the order of calls determines the rounding of floats.

        Args:
            client: The client's name, for error messages.
        """

    @abc.abstractmethod
    def results(self) -> dict[str, np.ndarray]:
        """Returns the sums, as `Profile.end_round` requires them."""


class Profile(abc.ABC):
    """A loaded plan, which runs the server's two halves of a round and the clients.

    Attributes:
        client: The client's graph.
    """

    client: ClientGraph
    _sessions: Sequence[Union[GraphSession, ClientGraph]]

    @abc.abstractmethod
    def begin_round(self, state: File, scratch: File) -> File:
        """Runs the server's first half of a round, and returns the checkpoint for clients.

        Args:
            state: Checkpoint of the server's state.
            scratch: Empty folder for this round's files.
        """

    @abc.abstractmethod
    def play_client(
        self, name: str, examples: Sequence[bytes], checkpoint: File, scratch: File
    ) -> Sent:
        """Runs a client.

        Args:
            name: The client's name, for error messages.
            examples: Serialised examples.
            checkpoint: Result of `begin_round`.
            scratch: Folder for the client's checkpoint, which overwrites the previous client's.
        """

    @abc.abstractmethod
    def new_sums(self) -> Sums:
        """Returns sums over no clients."""

    @abc.abstractmethod
    def end_round(
        self, sums: Mapping[str, np.ndarray], scratch: File
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Runs the server's second half of a round.

        Args:
            sums: Return value of `Sums.results`.
            scratch: The folder that `begin_round` used for this round.

        Returns:
            The tensors of the server's new checkpoint, and the server's outputs.
        """

    def close(self) -> None:
        """Closes the sessions."""
        for session in self._sessions:
            session.close()
