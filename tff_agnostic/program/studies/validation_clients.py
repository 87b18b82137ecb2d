"""The validation clients of `recommend`: the held-out clients, or half of them.

A baseline run stops at the round that is best on held-out clients (`runs.baselines`), so a method
with these baselines depends on those clients. Therefore, if there are baseline runs, one half of
the held-out clients stops them, and the other half validates. If a task has no held-out clients, a
fraction of the training clients replaces them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.data.clients import ClientDataset, SelectedClients, client_domain_counts
from tff_agnostic.data.store import load_store
from tff_agnostic.metrics.intervals import MIN_CLIENTS, has_enough
from tff_agnostic.program.runs.heldout import heldout_defaults, heldout_options
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.trainer import LoadedTasks
from tff_agnostic.tasks.task import HELDOUT_SPLIT, Task

# If a task has no held-out clients, one in this many training clients is a validation client.
_ONE_IN = 5
# Distinguishes this random stream from other streams with the run's seed.
_STREAM = 17
_FINGERPRINT = "validation clients"


def one_in(counts: np.ndarray, parts: int, rng: np.random.Generator) -> np.ndarray:
    """Returns a mask that selects one in `parts` clients, with the same fraction of each domain.

    The mask selects every `parts`-th client of a list that is sorted by domain and otherwise
    random. A client's domain is the domain of most of its examples.

    Args:
        counts: Examples of each client and domain, int64 [n, p].

    Returns:
        The mask, bool [n].
    """
    order = rng.permutation(len(counts))
    order = order[np.argsort(counts[order].argmax(axis=1), kind="stable")]
    taken = np.zeros(len(counts), bool)
    taken[order[rng.integers(parts) :: parts]] = True
    return taken


@dataclasses.dataclass(frozen=True)
class ValidationClients:
    """Loads tasks that are evaluated on validation clients.

    Attributes:
        data: The client store of tasks that read one; otherwise None.
        seed: Seed of the random divisions of clients, which are equal for all runs.
        is_halved: Whether half of the held-out clients stop baseline runs.
    """

    task: str
    data: Optional[Path]
    seed: int
    is_halved: bool
    _load: LoadedTasks = dataclasses.field(default_factory=LoadedTasks)
    _made: dict[tuple[int, bool], tuple[Task, Task, Task]] = dataclasses.field(default_factory=dict)

    @property
    def are_heldout(self) -> bool:
        """Whether validation clients are held-out clients instead of training clients."""
        if not heldout_defaults(self.task):
            return False
        return self.data is None or HELDOUT_SPLIT in load_store(self.data).splits()

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options of the task, by field, for runs on validation clients."""
        return heldout_options(self.task, given) if self.are_heldout else dict(given)

    def judging(self, spec: RunSettings) -> Task:
        """Returns the task of a run, evaluated on validation clients."""
        return self._divided(spec)[0]

    def stopping(self, spec: RunSettings) -> Task:
        """Returns the task of a baseline run, evaluated on the clients that stop baseline runs."""
        return self._divided(spec)[1]

    def _divided(self, spec: RunSettings) -> tuple[Task, Task]:
        whole = self._load(spec)
        key = (id(whole), self.is_halved)
        if key not in self._made:
            # Keep `whole`, so that its id stays unique.
            self._made[key] = (*self._parts(whole), whole)
        return self._made[key][:2]

    def _parts(self, whole: Task) -> tuple[Task, Task]:
        rng = np.random.default_rng([self.seed, _STREAM])
        train, judges = whole.train, whole.test
        if not self.are_heldout:
            judges, train = _split(whole.train, whole.num_domains, _ONE_IN, rng)
        stoppers = judges
        if self.is_halved:
            judges, stoppers = _split(judges, whole.num_domains, 2, rng)
        fingerprint = {**whole.fingerprint, _FINGERPRINT: f"{self.seed}, {self.is_halved}"}
        judging, stopping = (
            dataclasses.replace(
                whole, train=train, test=entry, test_split=HELDOUT_SPLIT, fingerprint=fingerprint
            )
            for entry in (judges, stoppers)
        )
        return judging, stopping

    def described(self, judging: Task) -> str:
        """Returns a sentence on the validation clients."""
        count, names = len(judging.test.client_ids), "held-out clients"
        if not self.are_heldout:
            names = f"training clients, one in {_ONE_IN}, as there are no held-out ones"
        half = ", half of them: the other half stops the reference runs" if self.is_halved else ""
        return f"{count} validation clients judge ({names}{half})"


def _split(
    clients: ClientDataset, num_domains: int, parts: int, rng: np.random.Generator
) -> tuple[ClientDataset, ClientDataset]:
    """Divides clients at random: returns one of `parts` equal parts, and the remaining clients."""
    taken = one_in(client_domain_counts(clients, num_domains), parts, rng)
    ids = clients.client_ids
    part, rest = ([ids[i] for i in np.flatnonzero(entry)] for entry in (taken, ~taken))
    return SelectedClients(clients, part), SelectedClients(clients, rest)


def check_judges(task: Task) -> list[str]:
    """Checks the number of validation clients; returns the domains with too few.

    Clients are counted by Kish's effective number, as in `metrics.intervals`: clients of different
    sizes count as fewer clients of equal size.

    Raises:
        UserError: If every domain has too few validation clients.
    """
    names = task.domain_names
    if len(names) < 2:
        actual = f"one, {names[0]}" if names else "none"
        raise UserError(
            "expected clients of two or more domains, to choose what is good for each of them, "
            f"found {actual}: name the column of the domain with import_data --domain_column"
        )
    counts = client_domain_counts(task.test, len(names)).astype(np.float64)
    squares = (counts**2).sum(axis=0)
    clients = counts.sum(axis=0) ** 2 / np.where(squares > 0, squares, 1.0)
    few = [name for name, entry in zip(names, clients) if not has_enough(float(entry))]
    if len(few) == len(names):
        raise UserError(
            f"expected a domain with {MIN_CLIENTS} or more effective validation clients, found "
            f"{max(clients):.3g} at most: import the data with a larger share for them "
            f"(import_data --split=train:0.6,{HELDOUT_SPLIT}:0.2,test:0.2)"
        )
    return few
