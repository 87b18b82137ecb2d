"""Cohorts of a run, each read while the round before it runs."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Optional

import numpy as np

from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.data.sampling import sample_cohort
from tff_agnostic.models.functional import Examples


class CohortReader:
    """Samples and reads cohorts, one round ahead; a context manager that owns a thread.

    Args:
        clients: The training clients.
        clients_per_round: c.
        seed: Seed of the run; see `sample_cohort`.
        last_round: The run's last round, after which there is nothing to read.
        strata: See `sample_cohort`.
    """

    def __init__(
        self,
        clients: ClientDataset,
        clients_per_round: int,
        seed: int,
        last_round: int,
        strata: Optional[np.ndarray] = None,
    ) -> None:
        self._clients = clients
        self._client_ids = clients.client_ids
        self._strata = strata
        self._clients_per_round = clients_per_round
        self._seed = seed
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
        cohort = sample_cohort(
            self._client_ids, self._clients_per_round, self._seed, round_num, self._strata
        )
        return [self._clients.read(client_id) for client_id in cohort]
