"""Audits, which compare claimed epsilons with lower bounds from attacks on rounds.

Complete rounds run thousands of times, with and without a worst-case client. The model is small and
clients have no examples, since accounts do not depend on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np

from tests.privacy.attacks.rounds import AttackedRounds, Role
from tests.privacy.attacks.scores import Cohorts, Drawn, Findings, attack
from tff_agnostic.aggregations.aggregation import Aggregation, ClientLimits, PlainSum
from tff_agnostic.aggregations.distributed_sum import DistributedDpSum
from tff_agnostic.aggregations.noise import TreeResidual
from tff_agnostic.aggregations.private_sum import AdaptiveClipping
from tff_agnostic.aggregations.registry import PRIVACIES, NoiseFacts
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.computations.algorithm import AlgorithmSpec, Problem
from tff_agnostic.computations.round import Round
from tff_agnostic.data.sampling import SecretCoins, Seed, poisson_cohort, sample_cohort, turns
from tff_agnostic.models import logistic_regression
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.distributed import DistributedNoise, IntegerGroup
from tff_agnostic.privacy.mechanisms import CentralNoise, Mechanism, TreeNoise
from tff_agnostic.privacy.sampling import (
    CohortSampling,
    CountedCohorts,
    FixedSizeCohorts,
    PoissonCohorts,
    SecretCohorts,
    StratifiedCohorts,
)
from tff_agnostic.privacy.tree import Participations, noise_covariance
from tff_agnostic.training.private_cohorts import noise_key

Audited = Union[CentralNoise, DistributedNoise, TreeNoise]

# Sizes of the attacked model, and number of domains.
_FEATURES, _CLASSES, _DOMAINS = 4, 3, 2
_LIMITS = ClientLimits(examples=20, loss=5.0)
_CLIP_NORM = 0.5


class Audit(NamedTuple):
    """A claimed epsilon, and the results of attacks.

    Attributes:
        claimed: Epsilon that the account claims.
        findings: Results of the attacks.
    """

    claimed: float
    findings: Findings

    @property
    def is_refuted(self) -> bool:
        """Whether the attacks prove that the true epsilon exceeds the claimed epsilon."""
        return max(self.findings.noisy_sums, self.findings.published) > self.claimed


class _Fleet(NamedTuple):
    """A fleet of clients, and its cohorts.

    Attributes:
        clients_per_round: Mean number of clients in a round.
        without: Role of the attacked client in runs without it.
        cohorts: Called with the number of rounds, and the maximum number of silent clients per
            entry of a cohort; returns the cohorts.
    """

    clients_per_round: float
    without: Role
    cohorts: Callable[[int, int], Cohorts]


def _ids(num_clients: int) -> list[str]:
    return [f"{k:08}" for k in range(num_clients)]


def _uniform_fleet(
    num_clients: int, drawn: float, without: Role, draw: Callable[[list[str], Seed, int], list[str]]
) -> _Fleet:
    """Returns a fleet in which `draw`, called with clients, seed and round, draws cohorts."""
    ids, rate = _ids(num_clients), drawn / num_clients
    return _Fleet(
        drawn,
        without,
        lambda rounds, bundle: Cohorts(
            lambda seed: lambda t: Drawn(draw(ids, seed, t)), ids[0], np.full(rounds, rate)
        ),
    )


def _poisson(sampling: PoissonCohorts) -> _Fleet:
    drawn = int(sampling.expected_clients)
    return _uniform_fleet(
        sampling.clients, drawn, Role.NOBODY, lambda ids, *draw: poisson_cohort(ids, drawn, *draw)
    )


def _counted(sampling: CountedCohorts) -> _Fleet:
    drawn = int(sampling.expected_clients)
    return _uniform_fleet(
        sampling.clients, drawn, Role.OTHER, lambda ids, *draw: poisson_cohort(ids, drawn, *draw)
    )


def _fixed_size(sampling: FixedSizeCohorts) -> _Fleet:
    drawn = sampling.clients_per_round
    return _uniform_fleet(
        sampling.clients, drawn, Role.OTHER, lambda ids, *draw: sample_cohort(ids, drawn, *draw)
    )


def _stratified(sampling: StratifiedCohorts) -> _Fleet:
    sizes, drawn = sampling.strata, sampling.clients_per_round
    # The attacked client is the first one, so its stratum, with the largest rate, comes first.
    first = max(sizes, key=lambda size: -(-size * drawn // sum(sizes)) / size)
    others = list(sizes)
    others.remove(first)
    strata = np.repeat(range(len(sizes)), [first, *others])

    def draw(ids: list[str], seed: Seed, round_num: int) -> list[str]:
        return sample_cohort(ids, drawn, seed, round_num, strata)

    return _uniform_fleet(sum(sizes), drawn, Role.OTHER, draw)


def _secret(sampling: SecretCohorts) -> _Fleet:
    ids, answering = _ids(sampling.clients), sampling.answering
    drawn = int(sampling.expected_clients)
    groups = [ids] if answering == len(ids) else turns(ids, answering, 0)

    def cohorts(rounds: int, bundle: int) -> Cohorts:
        def draws(seed: Seed) -> Callable[[int], Drawn]:
            coins = SecretCoins(ids, answering, drawn, 0, seed)

            def draw(round_num: int) -> Drawn:
                clients = coins.drawn(round_num)
                bundles, single = divmod(coins.num_silent(round_num, len(clients)), bundle)
                return Drawn(clients, [bundle] * bundles + [1] * single)

            return draw

        is_turn = np.arange(rounds) % len(groups) == 0
        return Cohorts(draws, groups[0][0], is_turn * (drawn / len(groups[0])), True)

    return _Fleet(drawn, Role.SILENT, cohorts)


def _in_trees(participations: Participations) -> _Fleet:
    """Returns a fleet of two clients; the attacked one takes part as early and often as allowed."""

    def cohorts(rounds: int, bundle: int) -> Cohorts:
        del bundle
        takes_part = np.arange(rounds) % participations.min_separation == 0
        takes_part &= np.cumsum(takes_part) <= (participations.max_participations or rounds)
        client, other = _ids(2)
        return Cohorts(
            lambda seed: lambda t: Drawn([client, other] if takes_part[t - 1] else [other]),
            client,
            takes_part.astype(float),
            noise_covariance=noise_covariance(participations, rounds),
        )

    return _Fleet(2, Role.NOBODY, cohorts)


# Builders of fleets, by the account's assumption about cohorts.
_FLEETS: dict[type, Callable[[Any], _Fleet]] = {
    CountedCohorts: _counted,
    FixedSizeCohorts: _fixed_size,
    Participations: _in_trees,
    PoissonCohorts: _poisson,
    SecretCohorts: _secret,
    StratifiedCohorts: _stratified,
}


def _attacked_round(
    mechanism: Audited,
    fleet: _Fleet,
    algorithm: AlgorithmSpec,
    secure: bool,
    settings: Mapping[str, Any],
) -> Round:
    limits, name = _LIMITS, _NAMES[type(mechanism)]
    client_counts: tuple[int, ...] = ()
    changes: dict[str, Any] = {}
    if isinstance(mechanism, DistributedNoise):
        secure, client_counts = True, (mechanism.min_clients, mechanism.noise_clients)
        changes["integer_clip"] = mechanism.groups[0].clip
    if isinstance(mechanism, TreeNoise):
        changes["noise"] = TreeResidual(mechanism.participations.restart_every)
    inner: Aggregation = PlainSum()
    if secure:
        inner = SecureSum(SecureSumOptions(limits, secure_min_clients=1))
    spec, z = PRIVACIES[name], float(mechanism.noise_multiplier)
    assert spec.build is not None
    options = spec.options(noise_multiplier=z, clip_norm=_CLIP_NORM, limit=limits, **settings)
    # Each run replaces this key by its own.
    key = noise_key(options)
    release = spec.build(
        name, inner, options, NoiseFacts(float(fleet.clients_per_round), key, z, *client_counts)
    )
    release = dataclasses.replace(release, **changes)
    model = logistic_regression(_FEATURES, _CLASSES)
    counts = (limits.examples * fleet.clients_per_round / _DOMAINS,) * _DOMAINS
    problem = Problem(model, tuple(map(str, range(_DOMAINS))), expected_counts=counts)
    return Round(algorithm.build(problem, algorithm.options()), release)


_NAMES = {CentralNoise: "central", DistributedNoise: "distributed", TreeNoise: "tree"}


_STEPS, _VALUES = 2.0**14, 16
_ALL, _THIRD, _SIXTH = PoissonCohorts(6, 6), PoissonCohorts(6, 2), PoissonCohorts(6, 1)


@dataclasses.dataclass(frozen=True)
class Mode:
    """A mode of private training to attack, and its claim.

    Attributes:
        mechanism: Mechanism of a round.
        rounds: Number of rounds in a run.
        algorithm: Name of the attacked algorithm.
        settings: Settings of the private sums.
        secure: Whether the server adds noise to secure sums.
        without: Role of the attacked client in runs without it; None for the role that the
            mechanism's definition of neighbours implies.
        delta: The delta that epsilon is for.
        account: Mechanism whose epsilon a control wrongly claims as its own; None for the epsilon
            of `mechanism`.
    """

    mechanism: Audited
    rounds: int
    algorithm: str = "agnostic_fed_avg"
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    secure: bool = False
    without: Optional[Role] = None
    delta: float = 0.02
    account: Optional[Mechanism] = None

    @property
    def is_control(self) -> bool:
        """Whether the claimed epsilon is wrong on purpose."""
        return self.account is not None

    def audited(self, runs: int, seed: int = 0) -> Audit:
        """Attacks `runs` runs with and without the client, and returns the results."""
        is_tree = isinstance(self.mechanism, TreeNoise)
        sampling = getattr(self.mechanism, "participations" if is_tree else "sampling")
        fleet: _Fleet = _FLEETS[type(sampling)](sampling)
        algorithm = ALGORITHMS[self.algorithm]
        attacked = _attacked_round(self.mechanism, fleet, algorithm, self.secure, self.settings)
        release = attacked.steps[0].aggregation
        bundle = release.bundle if isinstance(release, DistributedDpSum) else 1
        without = fleet.without if self.without is None else self.without
        cohorts = fleet.cohorts(self.rounds, bundle)
        findings = attack(AttackedRounds(attacked, without), cohorts, runs, self.delta, seed)
        account = PrivacyAccountant([self.account or self.mechanism], self.delta)
        return Audit(account.epsilon(self.rounds), findings)


def _clients_noise(z: float, sampling: Any, noise_clients: int, least: int) -> DistributedNoise:
    groups = (IntegerGroup(z, _STEPS, _VALUES),)
    return DistributedNoise(groups, "skellam", sampling, noise_clients, least)


def _central(z: float, sampling: CohortSampling = _ALL) -> CentralNoise:
    return CentralNoise(z, sampling)


# A round has 2 of 20 clients on average, and their number is public.
_COUNTED = _clients_noise(0.8, CountedCohorts(20, 2, 1), 2, 1)

MODES = {
    "central, all clients, FedAvg": Mode(_central(1), 2, "fed_avg"),
    "central, all clients": Mode(_central(1), 2),
    "central, adaptive clipping": Mode(_central(1), 2, settings={"clipping": AdaptiveClipping()}),
    "central, joint clipping": Mode(_central(1), 2, settings={"joint_clipping": True}),
    "central, secure sums": Mode(_central(1), 2, secure=True),
    "central, Delta-FL (two exchanges)": Mode(_central(1), 2, "delta_fl"),
    "central, Poisson, 2 of 6": Mode(_central(0.8, _THIRD), 3),
    "central, Poisson, 1 of 6, FedAvg": Mode(_central(0.5, _SIXTH), 4, "fed_avg"),
    "central, 3 of 6": Mode(_central(2, FixedSizeCohorts(6, 3)), 2),
    "central, 3 of 4 and 2 in strata": Mode(_central(2, StratifiedCohorts((4, 2), 3)), 2),
    "tree, 8 rounds, a client in two": Mode(TreeNoise(2, Participations(2, 4)), 8),
    "tree, adaptive, new every 3 rounds": Mode(
        TreeNoise(2, Participations(min_separation=2, restart_every=3)),
        6,
        "fed_avg",
        {"clipping": AdaptiveClipping()},
    ),
    "distributed, all clients, FedAvg": Mode(
        _clients_noise(1.2, SecretCohorts(6, 6, 6), 6, 6), 2, "fed_avg"
    ),
    "distributed, all clients": Mode(_clients_noise(1.2, SecretCohorts(6, 6, 6), 6, 6), 2),
    "distributed, 2 of 6, a secret": Mode(_clients_noise(0.8, SecretCohorts(6, 6, 2), 6, 6), 3),
    "distributed, 2 of 6, ChaCha20": Mode(
        _clients_noise(0.8, SecretCohorts(6, 6, 2), 6, 6), 3, settings={"noise_generator": "secure"}
    ),
    "distributed, 1 of 6 in turns of 12": Mode(
        _clients_noise(0.8, SecretCohorts(12, 6, 1), 6, 6),
        6,
        settings={"clipping": AdaptiveClipping()},
    ),
    "distributed, 3 of 6": Mode(_clients_noise(2, FixedSizeCohorts(6, 3), 3, 3), 2),
    "distributed, 2 of 20, counted": Mode(_COUNTED, 4),
    "control: half the noise that is claimed": Mode(_central(0.5), 2, account=_central(1)),
    "control: half the noise, tree": Mode(
        TreeNoise(1, Participations(1)), 4, account=TreeNoise(2, Participations(1))
    ),
    "control: half the noise, distributed": Mode(
        _clients_noise(0.6, SecretCohorts(6, 6, 6), 6, 6),
        2,
        account=_clients_noise(1.2, SecretCohorts(6, 6, 6), 6, 6),
    ),
    "control: counted, claimed as a secret": Mode(
        _COUNTED,
        8,
        without=Role.SILENT,
        delta=0.04,
        account=CentralNoise(0.8, PoissonCohorts(20, 2)),
    ),
}
