"""Sampling of cohorts, and reading of the next cohort while a round runs.

`PooledExamples` is the baseline without federated learning: the examples of all clients are pooled,
and shuffled in each pass, so that clients neither drift nor differ. Each round has one client, with
as many examples as all clients of a federated round have on average. Its local steps are minibatch
SGD.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Callable, Optional, Union

import numpy as np

from tff_agnostic.base.options import OptionError
from tff_agnostic.base.registry import Registry
from tff_agnostic.data.clients import ClientDataset, client_domain_counts, rows_of
from tff_agnostic.models.model import Examples

# Indices of random streams, which make samples with the same seed independent. The random streams
# of tasks have other indices.
_STREAM = 7
_POISSON_STREAM = 11
_TURNS_STREAM = 13
_POOLED_STREAM = 17
# Kinds of sampling with cohorts of random size.
SIZES_BY_CHANCE = frozenset({"poisson"})

# Function that maps the index of a round, from 1, to the ids of the round's clients.
Draw = Callable[[int], list[str]]

# A seed of NumPy's generators; or a function that is called with the index of a random stream (and
# the index of a round), and returns an object with the methods of NumPy's generators.
Seed = Union[int, Callable[..., Any]]

# Function that maps (clients, p, c, seed of the run) to the function that samples each cohort.
Sampling = Callable[[ClientDataset, int, int, Seed], Draw]


def sample_cohort(
    client_ids: Sequence[str],
    clients_per_round: int,
    seed: Seed,
    round_num: int,
    strata: Optional[np.ndarray] = None,
) -> list[str]:
    """Samples the cohort C_t without replacement; every client is equally likely.

    The cohort depends only on the arguments, so that a resumed run samples the same cohorts.

    Args:
        client_ids: The clients, sorted.
        clients_per_round: Number of clients per round, c.
        seed: Seed of the run.
        round_num: Index of the round, t, from 1.
        strata: Stratum of each client, int [clients], for stratified sampling: the cohort has
            clients of each stratum in proportion to its size, rounded up or down at random. None
            for uniform sampling, as in Ro et al. 2021, Algorithm 1, line 5.
    """
    check_cohort_size(len(client_ids), clients_per_round)
    rng = _random(seed, _STREAM, round_num)
    if strata is None:
        chosen = rng.choice(len(client_ids), size=clients_per_round, replace=False)
    else:
        chosen = _stratified(strata, clients_per_round, rng)
    return [client_ids[i] for i in chosen]


def domain_strata(clients: ClientDataset, num_domains: int) -> np.ndarray:
    """Returns for each client the domain with most of its examples, int [clients]."""
    return np.argmax(client_domain_counts(clients, num_domains), axis=1)


def poisson_cohort(
    client_ids: Sequence[str], clients_per_round: int, seed: Seed, round_num: int
) -> list[str]:
    """Samples a cohort to which each client belongs independently, with probability c / N.

    A cohort has c clients on average, and may be empty. See `sample_cohort` for the arguments.
    """
    check_cohort_size(len(client_ids), clients_per_round)
    rng = _random(seed, _POISSON_STREAM, round_num)
    takes_part = rng.random(len(client_ids)) * len(client_ids) < clients_per_round
    return [client_ids[i] for i in rng.permutation(np.flatnonzero(takes_part))]


@dataclasses.dataclass(frozen=True)
class SecretCoins:
    """Sampling of secret cohorts: a secret coin decides whether a reporting client participates.

    In each round M of N clients report, in a public cyclic order. Each reporting client
    participates independently with probability c / M. The others are silent: they send reports of
    the same form, but do not participate.

    Attributes:
        client_ids: The clients, sorted.
        answering: Number of reporting clients per round, M.
        clients_per_round: Mean number of participating clients per round, c.
        seed: Seed of the run, which determines the cyclic order.
        secret_seed: Seed of the secret coins.
    """

    client_ids: Sequence[str]
    answering: int
    clients_per_round: int
    seed: int
    secret_seed: Seed

    def drawn(self, round_num: int) -> list[str]:
        """Returns the participating clients of a round."""
        answering = self._answering(round_num)
        return poisson_cohort(answering, self.clients_per_round, self.secret_seed, round_num)

    def num_silent(self, round_num: int, num_drawn: int) -> int:
        """Returns the number of reporting clients that do not participate."""
        return len(self._answering(round_num)) - num_drawn

    def _answering(self, round_num: int) -> Sequence[str]:
        return self._turns[(round_num - 1) % len(self._turns)]

    @functools.cached_property
    def _turns(self) -> list[Sequence[str]]:
        if self.answering == len(self.client_ids):
            return [self.client_ids]
        return list(turns(self.client_ids, self.answering, self.seed))


def turns(client_ids: Sequence[str], clients_per_round: int, seed: Seed) -> list[list[str]]:
    """Returns the cohorts of cyclic sampling; every client is in exactly one cohort.

    Round t has cohort (t - 1) mod (N // c), so that a client participates every N // c rounds. The
    size of a cohort is `mean_cohort_size`, rounded up or down.

    Args:
        client_ids: The clients, sorted.
        clients_per_round: Minimum number of clients per round, c.
        seed: Seed of the clients' random order.
    """
    check_cohort_size(len(client_ids), clients_per_round)
    order = _random(seed, _TURNS_STREAM).permutation(len(client_ids))
    cohorts = np.array_split(order, num_turns(len(client_ids), clients_per_round))
    return [[client_ids[i] for i in cohort] for cohort in cohorts]


def num_turns(num_clients: int, clients_per_round: int) -> int:
    """Returns the number of cohorts of cyclic sampling, N // c."""
    return num_clients // clients_per_round


def mean_cohort_size(cohort_sampling: str, num_clients: int, clients_per_round: int) -> float:
    """Returns the mean number of clients per round: N / (N // c) for cyclic sampling, else c.

    Args:
        cohort_sampling: Name in `COHORT_SAMPLINGS`.
    """
    if cohort_sampling == "turns":
        return num_clients / num_turns(num_clients, clients_per_round)
    return float(clients_per_round)


def check_cohort_size(num_clients: int, clients_per_round: int) -> None:
    """Raises an `OptionError` unless 1 <= `clients_per_round` <= `num_clients`."""
    if not 1 <= clients_per_round <= num_clients:
        expected = f"1 to {num_clients}, the number of training clients"
        raise OptionError("clients_per_round", expected, clients_per_round)


def _random(seed: Seed, *place: int) -> Any:
    """Returns the generator of a random stream, or of a round in it if `place` has two numbers."""
    return seed(*place) if callable(seed) else np.random.default_rng([seed, *place])


def _stratified(strata: np.ndarray, num_places: int, rng: np.random.Generator) -> np.ndarray:
    names, sizes = np.unique(strata, return_counts=True)
    chosen = [
        rng.choice(np.flatnonzero(strata == name), size=count, replace=False)
        for name, count in zip(names, _places(sizes, num_places, rng))
    ]
    return rng.permutation(np.concatenate(chosen))


def _places(sizes: np.ndarray, num_places: int, rng: np.random.Generator) -> np.ndarray:
    # Use integers: an integer quotient could be slightly too small as a float.
    whole, rest = np.divmod(sizes * num_places, sizes.sum())
    left = num_places - whole.sum()
    if left:
        # Systematic sampling: each stratum gets a further place with a probability equal to the
        # fraction that was rounded down.
        edges = np.cumsum(rest) / sizes.sum()
        hits = np.searchsorted(edges, rng.uniform() + np.arange(left), side="right")
        np.add.at(whole, np.minimum(hits, len(sizes) - 1), 1)
    return whole


def _uniform(clients: ClientDataset, num_domains: int, clients_per_round: int, seed: Seed) -> Draw:
    del num_domains
    return lambda round_num: sample_cohort(clients.client_ids, clients_per_round, seed, round_num)


def _stratified_by_domain(
    clients: ClientDataset, num_domains: int, clients_per_round: int, seed: Seed
) -> Draw:
    strata = domain_strata(clients, num_domains)
    ids = clients.client_ids
    return lambda round_num: sample_cohort(ids, clients_per_round, seed, round_num, strata)


def _poisson(clients: ClientDataset, num_domains: int, clients_per_round: int, seed: Seed) -> Draw:
    del num_domains
    return lambda round_num: poisson_cohort(clients.client_ids, clients_per_round, seed, round_num)


def _in_turns(clients: ClientDataset, num_domains: int, clients_per_round: int, seed: Seed) -> Draw:
    del num_domains
    cohorts = turns(clients.client_ids, clients_per_round, seed)
    return lambda round_num: list(cohorts[(round_num - 1) % len(cohorts)])


COHORT_SAMPLINGS: Registry[Sampling] = Registry(
    "cohort sampling",
    {
        "uniform": _uniform,
        "stratified": _stratified_by_domain,
        "poisson": _poisson,
        "turns": _in_turns,
    },
)

# Function that maps (index of a round, number of participating clients) to the examples of silent
# clients, which report without participating.
Silent = Callable[[int, int], list[Examples]]


def no_silent_clients(round_num: int, num_drawn: int) -> list[Examples]:
    """Returns an empty list: only participating clients report."""
    del round_num, num_drawn
    return []


@dataclasses.dataclass(frozen=True)
class Cohorts:
    """The cohorts of a run.

    Attributes:
        draw: Called with the index of a round; returns the ids of its participating clients.
        silent: Called with the index of a round and the number of participating clients; returns
            the examples of silent clients, see `SecretCoins`.
    """

    draw: Draw
    silent: Silent = no_silent_clients


class CohortReader:
    """Samples and reads cohorts, one round ahead; a context manager that owns a thread.

    Args:
        last_round: Number of the last round, after which nothing is read.
    """

    def __init__(self, clients: ClientDataset, cohorts: Cohorts, last_round: int) -> None:
        self._clients = clients
        self._cohorts = cohorts
        self._last_round = last_round
        self._pool = ThreadPoolExecutor(1, "cohort-reader")
        self._next: dict[int, Future[list[Examples]]] = {}

    def __enter__(self) -> CohortReader:
        """Returns this reader."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Ends the thread after the cohort that it is reading."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def read(self, round_num: int) -> Sequence[Examples]:
        """Returns the examples of each client of a round, and starts reading the next cohort."""
        current = self._next.pop(round_num, None) or self._pool.submit(self._read, round_num)
        if round_num < self._last_round:
            self._next = {round_num + 1: self._pool.submit(self._read, round_num + 1)}
        return current.result()

    def _read(self, round_num: int) -> list[Examples]:
        cohort = [self._clients.read(client_id) for client_id in self._cohorts.draw(round_num)]
        return [*cohort, *self._cohorts.silent(round_num, len(cohort))]


def dealt(num_examples: int, size: int, round_num: int, seed: int) -> np.ndarray:
    """Returns the indices of a round's examples, int [size].

    Rounds take consecutive examples from a sequence of passes. Each pass has every example once, in
    an order that depends on the seed and on the index of the pass.

    Args:
        num_examples: Number of all examples, at least 1.
        size: Number of examples per round, at least 1.
        round_num: Index of the round, t, from 1.
        seed: Seed of the run.
    """
    places = np.arange((round_num - 1) * size, round_num * size)
    value = np.empty(size, np.int64)
    for number in np.unique(places // num_examples):
        order = np.random.default_rng([seed, _POOLED_STREAM, number]).permutation(num_examples)
        is_in_pass = places // num_examples == number
        value[is_in_pass] = order[places[is_in_pass] % num_examples]
    return value


class PooledExamples:
    """The pooled examples of another dataset's clients, as one client per round.

    Args:
        clients: The other dataset, which is read completely and held in memory.
        clients_per_round: Number of clients of a federated round.
        seed: Seed of the run.
    """

    def __init__(
        self, clients: ClientDataset, clients_per_round: int, rounds: int, seed: int
    ) -> None:
        everyone = [clients.read(client_id) for client_id in clients.client_ids]
        self._examples = _joined(everyone)
        self._num_examples = len(self._examples["domain_id"])
        self._size = max(1, round(self._num_examples * clients_per_round / len(everyone)))
        self._rounds = rounds
        self._seed = seed

    @property
    def client_ids(self) -> Sequence[str]:
        """An id for each round, in order."""
        return [f"round_{t:08d}" for t in range(1, self._rounds + 1)]

    def read(self, client_id: str) -> Examples:
        """Returns the examples of a round."""
        round_num = int(client_id.rpartition("_")[2])
        rows = dealt(self._num_examples, self._size, round_num, self._seed)
        return rows_of(self._examples, rows)

    def draw(self) -> Draw:
        """Returns the function that selects each round's only client."""
        ids = self.client_ids
        return lambda round_num: [ids[round_num - 1]]


def _joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = parts[0]
    return {
        name: _joined([part[name] for part in parts])
        if isinstance(first[name], Mapping)
        else np.concatenate([part[name] for part in parts])
        for name in first
    }
