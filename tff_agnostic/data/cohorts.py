"""Cohorts of a run, each read while the round before it runs."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable

from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.data.sampling import Draw
from tff_agnostic.models.functional import Examples

# From the number of a round, and how many clients were drawn, to entries of silent clients.
Silent = Callable[[int, int], list[Examples]]


def nobody_silent(round_num: int, num_drawn: int) -> list[Examples]:
    """Returns no entries: clients that are not drawn do not answer."""
    del round_num, num_drawn
    return []


class CohortReader:
    """Samples and reads cohorts, one round ahead; a context manager that owns a thread.

    Args:
        clients: The training clients.
        draw: Says which of them take part; see `data.sampling`.
        last_round: The run's last round, after which there is nothing to read.
        silent: Says which entries a cohort has for clients that answer but were not drawn.
    """

    def __init__(
        self,
        clients: ClientDataset,
        draw: Draw,
        last_round: int,
        silent: Silent = nobody_silent,
    ) -> None:
        self._clients = clients
        self._draw = draw
        self._silent = silent
        self._last_round = last_round
        self._pool = ThreadPoolExecutor(1, "cohort-reader")
        self._next: dict[int, Future[list[Examples]]] = {}

    def __enter__(self) -> "CohortReader":
        """Starts."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends the thread, after the cohort that it is reading."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def read(self, round_num: int) -> Sequence[Examples]:
        """Returns the examples of each client of a round, and starts to read those of the next.

        Raises:
            UserError: If a client is damaged.
        """
        current = self._next.pop(round_num, None) or self._pool.submit(self._read, round_num)
        if round_num < self._last_round:
            self._next = {round_num + 1: self._pool.submit(self._read, round_num + 1)}
        return current.result()

    def _read(self, round_num: int) -> list[Examples]:
        cohort = [self._clients.read(client_id) for client_id in self._draw(round_num)]
        return [*cohort, *self._silent(round_num, len(cohort))]
