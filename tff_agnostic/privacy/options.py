"""Settings of `./run privacy`, and the mechanisms that they describe."""

from __future__ import annotations

import dataclasses
import math
from typing import Callable, Optional

from tff_agnostic.errors import UserError
from tff_agnostic.privacy.accountant import ACCOUNTANTS, check_delta, check_rounds, default_delta
from tff_agnostic.privacy.distributed import INTEGER_NOISES, DistributedNoise, IntegerGroup
from tff_agnostic.privacy.mechanisms import (
    LEAST_NOISE,
    CentralNoise,
    Mechanism,
    TreeNoise,
    effective_noise_multiplier,
    update_share_setting,
)
from tff_agnostic.privacy.sampling import (
    COHORT_SAMPLINGS,
    CohortSampling,
    answering_clients_setting,
    noise_of_clients,
    secret_participation_setting,
)
from tff_agnostic.privacy.tree import Participations
from tff_agnostic.registry import Registry
from tff_agnostic.settings import Settings, setting

_SAMPLED = ("central", "distributed")
_OF_SAMPLED = ("privacy", _SAMPLED)
_OF_DISTRIBUTED = ("privacy", ("distributed",))
_OF_TREE = ("privacy", ("tree",))


@dataclasses.dataclass(frozen=True)
class AccountingOptions(Settings):
    """What is asked, and about which run; every field is a flag of `privacy`."""

    privacy: str = setting(
        "central",
        "Who adds noise: central, a trusted server; distributed, clients before a secure sum; "
        "tree, a trusted server to a tree of sums over the rounds, for cohorts without sampling. "
        "One of: central, distributed, tree.",
    )
    noise_multiplier: Optional[float] = setting(
        None,
        "z: standard deviation of a round's noise per clip norm.",
        positive=True,
        at_least=LEAST_NOISE,
    )
    target_epsilon: Optional[float] = setting(None, "Budget of the whole run.", positive=True)
    delta: Optional[float] = setting(
        None, "Delta of (epsilon, delta); one over ten times the clients if not given."
    )
    rounds: Optional[int] = setting(None, "T, communication rounds.", at_least=1)
    clients: Optional[int] = setting(None, "N, training clients in the population.", at_least=1)
    clients_per_round: Optional[int] = setting(
        None, "c, clients in a round.", at_least=1, only_with=_OF_SAMPLED
    )
    cohort_sampling: str = setting(
        "poisson",
        "How a round's clients are drawn: poisson, independently; fixed_size (uniform in train), "
        "exactly as many without replacement.",
        choices=COHORT_SAMPLINGS,
        only_with=_OF_SAMPLED,
    )
    update_share: float = update_share_setting()
    privacy_accountant: Optional[str] = setting(
        None,
        "What computes epsilon: pld or rdp; by default the tighter one that is usual for the "
        "mechanism.",
        choices=ACCOUNTANTS,
    )
    max_participations: Optional[int] = setting(
        None, "Most rounds in which a client takes part.", at_least=1, only_with=_OF_TREE
    )
    min_separation: int = setting(
        1,
        "Least number of rounds from one in which a client takes part to its next one.",
        at_least=1,
        only_with=_OF_TREE,
    )
    tree_restart_every: Optional[int] = setting(
        None,
        "Rounds of a tree before a new one begins; one tree if not given.",
        at_least=1,
        only_with=_OF_TREE,
    )
    distributed_noise: str = setting(
        "skellam", "What clients add.", choices=INTEGER_NOISES, only_with=_OF_DISTRIBUTED
    )
    privacy_dimension: int = setting(
        2**20, "Largest number of values of a group.", at_least=1, only_with=_OF_DISTRIBUTED
    )
    integer_clip: float = setting(
        2.0**14,
        "The clip norm in steps of the integers that clients send.",
        positive=True,
        only_with=_OF_DISTRIBUTED,
    )
    secret_participation: bool = secret_participation_setting(only_with=_OF_DISTRIBUTED)
    answering_clients: Optional[int] = answering_clients_setting(only_with=_OF_DISTRIBUTED)
    privacy_min_clients: Optional[int] = setting(
        None,
        "Least number of clients in a round with noise; by default all that report.",
        at_least=1,
        only_with=_OF_DISTRIBUTED,
    )

    def __post_init__(self) -> None:
        """Checks values together too; see `Settings`."""
        super().__post_init__()
        PRIVACIES.given("--privacy", self.privacy)
        if self.clients is None:
            raise UserError("--clients: expected the number of clients of the fleet, found none")
        check_rounds(self.rounds or 1)
        _ = self.known_delta
        _ = self.mechanism(1.0)

    def noise_multipliers(self, noise_multiplier: float) -> dict[str, float]:
        """Returns z_g = z / sqrt(w_g) of each group that a round releases."""
        shares = {"update": self.update_share, "statistics": 1 - self.update_share}
        return {name: float(noise_multiplier) / math.sqrt(w) for name, w in shares.items()}

    @property
    def known_delta(self) -> float:
        """Returns --delta or its default."""
        assert self.clients is not None
        if self.delta is None:
            return default_delta(self.clients)
        check_delta(self.delta, self.clients)
        return self.delta

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """Returns what a round releases with a noise multiplier."""
        return PRIVACIES[self.privacy](self, float(noise_multiplier))

    def sampling(self) -> CohortSampling:
        """Returns the cohort sampling."""
        assert self.clients is not None
        if self.clients_per_round is None:
            raise UserError(
                f"--clients_per_round: expected the clients of a round for "
                f"--privacy={self.privacy}, found none"
            )
        return COHORT_SAMPLINGS[self.cohort_sampling](self.clients, self.clients_per_round)


@dataclasses.dataclass(frozen=True)
class AuditOptions(Settings):
    """Settings of an audit by attack."""

    audit: bool = setting(
        False,
        "Attack rounds with these settings as well, and compare what the attack proves with the "
        "epsilon that is claimed.",
    )
    audit_runs: int = setting(
        1000,
        "Runs that an audit simulates with the attacked client, and as many without it. More runs "
        "can prove more.",
        at_least=100,
        only_with=("audit", (True,)),
    )
    audit_seed: int = setting(
        0,
        "What the keys of an audit's runs are drawn with.",
        at_least=0,
        only_with=("audit", (True,)),
    )


def _central(options: AccountingOptions, noise_multiplier: float) -> Mechanism:
    groups = options.noise_multipliers(noise_multiplier)
    return CentralNoise(effective_noise_multiplier(groups.values()), options.sampling())


def _distributed(options: AccountingOptions, noise_multiplier: float) -> Mechanism:
    sampling, noise_clients, least = noise_of_clients(
        options.sampling(),
        options.secret_participation,
        options.answering_clients,
        options.privacy_min_clients,
    )
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
