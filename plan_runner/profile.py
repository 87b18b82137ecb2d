"""Interface of the kinds of plans, which run the parts of a round."""

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
        tensors: Tensors to sum, by name.
        size: Bytes of the tensors when sent.
        checkpoint: The file with the tensors, if the client's graph writes one.
    """

    tensors: Mapping[str, np.ndarray]
    size: int = 0
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

    def close(self) -> None:
        """Closes the sessions."""
        for session in self._sessions:
            session.close()
