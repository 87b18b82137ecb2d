"""Options of `./run privacy`, and the mechanisms that they describe."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Callable, Optional, Union

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import OneOf, Options, Within
from tff_agnostic.base.registry import Registry
from tff_agnostic.privacy.accountant import ACCOUNTANTS, check_delta, check_rounds, default_delta
from tff_agnostic.privacy.distributed import INTEGER_NOISES, DistributedNoise, IntegerGroup
from tff_agnostic.privacy.mechanisms import (
    MIN_NOISE,
    CentralNoise,
    Mechanism,
    TreeNoise,
    effective_noise_multiplier,
)
from tff_agnostic.privacy.sampling import (
    COHORT_SAMPLINGS,
    CohortSampling,
    PublicParticipation,
    SecretParticipation,
    noisy_cohorts,
)
from tff_agnostic.privacy.tree import Participations


@dataclasses.dataclass(frozen=True)
class AccountingOptions(Options):
    """Settings of a private run that determine epsilon, noise and rounds. Every field is a flag.

    Attributes:
        privacy: Source of the noise: central (a trusted server adds noise to each round's sum),
            distributed (clients add noise before a secure sum), or tree (a trusted server adds
            noise to a tree of sums over the rounds, for cohorts without sampling).
        noise_multiplier: Noise multiplier z: standard deviation of a round's noise divided by the
            clip norm.
        target_epsilon: Privacy budget: epsilon of the complete run.
        delta: Delta of (epsilon, delta)-differential privacy. [1 / (10 * clients)]
        rounds: Number of communication rounds T.
        clients: Number of training clients N in the population.
        clients_per_round: Number of clients c in a round. Only with privacy central or distributed.
        cohort_sampling: Sampling of a round's clients: poisson (each client independently) or
            fixed_size (exactly c clients without replacement, called uniform in train). Only with
            privacy central or distributed.
        update_share: Share of a round's privacy budget for model updates; statistics have the rest.
        privacy_accountant: Accountant of epsilon: pld or rdp. [depends on the mechanism]
        max_participations: Maximum number of rounds in which a client participates. Only with
            privacy tree.
        min_separation: Minimum number of rounds from one participation of a client to its next.
            Only with privacy tree.
        tree_restart_every: Number of rounds after which a new tree begins; a single tree if not
            given. Only with privacy tree.
        distributed_noise: Distribution of the clients' noise. Only with privacy distributed.
        privacy_dimension: Maximum number of values in a group of released values. Only with privacy
            distributed.
        integer_clip: Clip norm of the integers that clients send. Only with privacy distributed.
        participation: With secret, the server does not learn which clients of a Poisson cohort
            participate, or how many: the other clients send zeros and their share of the noise.
            answering is the number of clients that report in each round, by public turns; by
            default all. Fewer clients send less in total, and epsilon is larger. With public, the
            number of participants is known, and epsilon is several times as large. min_clients is
            the minimum number of clients that add noise; by default all that report. Only with
            privacy distributed.
    """

    privacy: str = "central"
    noise_multiplier: Optional[Annotated[float, Within(least=MIN_NOISE)]] = None
    target_epsilon: Optional[Annotated[float, Within(above=0)]] = None
    delta: Optional[float] = None
    rounds: Optional[Annotated[int, Within(least=1)]] = None
    clients: Optional[Annotated[int, Within(least=1)]] = None
    clients_per_round: Optional[Annotated[int, Within(least=1)]] = None
    cohort_sampling: Annotated[str, OneOf(COHORT_SAMPLINGS)] = "poisson"
    update_share: Annotated[float, Within(above=0, below=1)] = 0.8
    privacy_accountant: Optional[Annotated[str, OneOf(ACCOUNTANTS)]] = None
    max_participations: Optional[Annotated[int, Within(least=1)]] = None
    min_separation: Annotated[int, Within(least=1)] = 1
    tree_restart_every: Optional[Annotated[int, Within(least=1)]] = None
    distributed_noise: Annotated[str, OneOf(INTEGER_NOISES)] = "skellam"
    privacy_dimension: Annotated[int, Within(least=1)] = 2**20
    integer_clip: Annotated[float, Within(above=0)] = 2.0**14
    participation: Union[SecretParticipation, PublicParticipation] = SecretParticipation()

    def __post_init__(self) -> None:
        super().__post_init__()
        PRIVACIES.given("--privacy", self.privacy)
        if self.clients is None:
            raise UserError("--clients: expected the number of clients of the fleet, found none")
        check_rounds(self.rounds or 1)
        _ = self.known_delta
        _ = self.mechanism(1.0)

    def noise_multipliers(self, noise_multiplier: float) -> dict[str, float]:
        """Returns z_g = z / sqrt(w_g) for each group of values that a round releases."""
        shares = {"update": self.update_share, "statistics": 1 - self.update_share}
        return {name: float(noise_multiplier) / math.sqrt(w) for name, w in shares.items()}

    @property
    def known_delta(self) -> float:
        """The given delta, or its default."""
        assert self.clients is not None
        if self.delta is None:
            return default_delta(self.clients)
        check_delta(self.delta, self.clients)
        return self.delta

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """Returns the mechanism of a round for a noise multiplier."""
        return PRIVACIES[self.privacy](self, float(noise_multiplier))

    def sampling(self) -> CohortSampling:
        """Returns the cohort sampling."""
        assert self.clients is not None
        if self.clients_per_round is None:
            raise UserError(
                f"--clients_per_round: expected the number of clients in a round for "
                f"--privacy={self.privacy}, found none"
            )
        return COHORT_SAMPLINGS[self.cohort_sampling](self.clients, self.clients_per_round)


def _central(options: AccountingOptions, noise_multiplier: float) -> Mechanism:
    groups = options.noise_multipliers(noise_multiplier)
    return CentralNoise(effective_noise_multiplier(groups.values()), options.sampling())


def _distributed(options: AccountingOptions, noise_multiplier: float) -> Mechanism:
    sampling, noise_clients, least = noisy_cohorts(options.sampling(), options.participation)
    return DistributedNoise(
        tuple(
            IntegerGroup(z, options.integer_clip, options.privacy_dimension)
            for z in options.noise_multipliers(noise_multiplier).values()
        ),
        options.distributed_noise,
        sampling,
        noise_clients,
        least,
    )


def _tree(options: AccountingOptions, noise_multiplier: float) -> Mechanism:
    groups = options.noise_multipliers(noise_multiplier)
    participations = Participations(
        options.max_participations, options.min_separation, options.tree_restart_every
    )
    return TreeNoise(effective_noise_multiplier(groups.values()), participations)


PRIVACIES: Registry[Callable[[AccountingOptions, float], Mechanism]] = Registry(
    "privacy", {"central": _central, "distributed": _distributed, "tree": _tree}
)
