"""Secrets and cohorts of private training.

The privacy account assumes that only the server knows a round's participants. Every client receives
the run's seed, so cohorts are drawn with a key derived from the secret noise key instead.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from typing import Any, Union

import numpy as np

from tff_agnostic.aggregations import chacha20
from tff_agnostic.aggregations.private_sum import PrivacyOptions
from tff_agnostic.base.later import tf
from tff_agnostic.base.options import OptionError
from tff_agnostic.computations.algorithm import Algorithm, RunState
from tff_agnostic.computations.clients import SilentClients
from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.data.sampling import (
    COHORT_SAMPLINGS,
    Cohorts,
    SecretCoins,
    Seed,
    domain_strata,
    mean_cohort_size,
    num_turns,
)
from tff_agnostic.privacy.sampling import (
    CohortSampling,
    FixedSizeCohorts,
    PoissonCohorts,
    StratifiedCohorts,
)

# Prefix of the hash that derives the cohorts' key from the noise key without revealing it.
_COHORTS = b"cohorts"
# Random stream for the noise key, distinct from other draws with `noise_seed`.
_NOISE_STREAM = 17


@dataclasses.dataclass(frozen=True)
class CohortPlan:
    """The clients of private training, and how cohorts are sampled.

    Attributes:
        clients: The training clients.
        num_domains: Number of domains p.
        rounds: Number of rounds.
        clients_per_round: Expected number of clients in a round.
        sampling: A name in `COHORT_SAMPLINGS`.
        seed: Seed of the draws that need not be secret.
    """

    clients: ClientDataset
    num_domains: int
    rounds: int
    clients_per_round: int
    sampling: str = "poisson"
    seed: int = 0

    @property
    def num_clients(self) -> int:
        """Number of training clients."""
        return len(self.clients.client_ids)

    @property
    def mean_size(self) -> float:
        """Exact expected number of clients in a round."""
        return mean_cohort_size(self.sampling, self.num_clients, self.clients_per_round)

    @property
    def separation(self) -> int:
        """Number of rounds from a client's turn to its next turn, in cyclic sampling."""
        return num_turns(self.num_clients, self.clients_per_round)

    def random_sampling(self, kind: str) -> CohortSampling:
        """Returns the sampling scheme of randomly drawn cohorts, for the privacy account.

        Args:
            kind: Kind of privacy, for the error message.
        """
        if self.sampling == "poisson":
            return PoissonCohorts(self.num_clients, self.clients_per_round)
        if self.sampling == "uniform":
            return FixedSizeCohorts(self.num_clients, self.clients_per_round)
        if self.sampling == "stratified":
            strata = domain_strata(self.clients, self.num_domains)
            _, sizes = np.unique(strata, return_counts=True)
            return StratifiedCohorts(tuple(map(int, sizes)), self.clients_per_round)
        raise OptionError(
            "cohort_sampling",
            f"poisson, uniform or stratified with {kind} privacy, whose account requires random "
            "cohorts",
            self.sampling,
        )

    def secret(self, state: RunState) -> Cohorts:
        """Returns the cohorts drawn with the secret key in `state`."""
        sampling = COHORT_SAMPLINGS[self.sampling]
        seed = cohort_seed(state)
        return Cohorts(sampling(self.clients, self.num_domains, self.clients_per_round, seed))

    def secret_coins(
        self, state: RunState, algorithm: Algorithm, reporting: int, bundle: int
    ) -> Cohorts:
        """Returns cohorts drawn by secret coins. Silent clients report only zeros with noise.

        Args:
            state: A state with the secret key.
            reporting: Number of clients that report in a round.
            bundle: Number of silent clients that one `SilentClients` entry represents.
        """
        coins = SecretCoins(
            self.clients.client_ids,
            reporting,
            self.clients_per_round,
            self.seed,
            cohort_seed(state),
        )

        def silent(round_num: int, num_drawn: int) -> list[Any]:
            bundles, single = divmod(coins.num_silent(round_num, num_drawn), bundle)
            counts = [bundle] * bundles + [1] * single
            return [SilentClients(algorithm.client_data_spec, count) for count in counts]

        return Cohorts(coins.drawn, silent)


def noise_key(options: PrivacyOptions) -> tuple[int, ...]:
    """Returns the noise key, from the operating system's randomness or from `noise_seed`."""
    generator = options.generator
    if options.noise_seed is None:
        return generator.key(secrets.token_bytes(generator.key_bytes))
    sequence = np.random.SeedSequence([options.noise_seed, _NOISE_STREAM])
    return generator.key(sequence.generate_state(generator.key_bytes // 8, np.uint64).tobytes())


def cohort_seed(state: RunState) -> Seed:
    """Returns the secret seed of cohorts.

    If the noise generator is ChaCha20, it also draws the cohorts; otherwise NumPy's generator does.
    """
    key = np.asarray(state.aggregations[0].noise_key, np.int64)
    digest = hashlib.sha256(_COHORTS + key.tobytes()).digest()
    if len(key) == chacha20.KEY_NUMBERS:
        return lambda *place: SecretNumbers(digest, place)
    return int.from_bytes(digest[:16], "little")


class SecretNumbers:
    """ChaCha20 random numbers, with the methods of `numpy.random.Generator` that cohorts need.

    Args:
        key: Key of ChaCha20, 32 bytes.
        place: Position of the draw, at most two numbers below 2^32; different positions give
            different random numbers.
    """

    def __init__(self, key: bytes, place: tuple[int, ...]) -> None:
        self._key = np.frombuffer(key, np.int64)
        self._place = place
        self._calls = 0

    def random(self, size: int) -> np.ndarray:
        """Returns numbers in [0, 1), multiples of 2^-53."""
        return (self._words(size) >> np.uint64(11)).astype(np.float64) / 2.0**53

    def uniform(self) -> float:
        """Returns one number in [0, 1)."""
        return float(self.random(1)[0])

    def permutation(self, values: Union[int, np.ndarray]) -> np.ndarray:
        """Returns the values of an array, or the integers below `values`, in random order."""
        values = np.arange(values) if isinstance(values, int) else values
        return values[np.argsort(self._words(len(values)), kind="stable")]

    def choice(self, values: Union[int, np.ndarray], size: int, replace: bool) -> np.ndarray:
        """Returns `size` of the values without repetition, in random order."""
        assert not replace
        return self.permutation(values)[:size]

    def _words(self, size: int) -> np.ndarray:
        # Use a separate stream of random words for every call.
        first, second = (*self._place, 0)[:2]
        nonce = np.array([first, second, self._calls], np.uint32)
        self._calls += 1
        with tf.device("/cpu:0"):
            words = chacha20.keystream(tf.constant(self._key), tf.constant(nonce), 2 * size)
        return words.numpy().view(np.uint64)
