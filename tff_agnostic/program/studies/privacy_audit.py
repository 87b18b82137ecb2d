"""Audits by attack: what a mechanism claims beside what attackers of its rounds prove.

A mechanism's rounds are played with a model of few weights and clients without examples, on which
no account depends. So is the size of a fleet, where only the share of it that is drawn counts: a
smaller one with the same share is played.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional, Union

import numpy as np
from tabulate import tabulate

from tff_agnostic.aggregations.aggregation import Aggregation, ClientLimits, PlainSum
from tff_agnostic.aggregations.distributed_sum import DistributedDpSum
from tff_agnostic.aggregations.noise import TreeResidual
from tff_agnostic.aggregations.registry import PRIVACIES, NoiseFacts
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.algorithms import ALGORITHMS
from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.computations.algorithm import AlgorithmSpec, Problem
from tff_agnostic.computations.round import Round
from tff_agnostic.data.sampling import SecretCoins, Seed, poisson_cohort, sample_cohort, turns
from tff_agnostic.models import logistic_regression
from tff_agnostic.privacy.accountant import PrivacyAccountant
from tff_agnostic.privacy.distributed import DistributedNoise
from tff_agnostic.privacy.mechanisms import CentralNoise, TreeNoise
from tff_agnostic.privacy.sampling import (
    CountedCohorts,
    FixedSizeCohorts,
    PoissonCohorts,
    SecretCohorts,
    StratifiedCohorts,
)
from tff_agnostic.privacy.tree import Participations, noise_covariance
from tff_agnostic.program.studies.attacked_rounds import AttackedRounds, Role
from tff_agnostic.program.studies.attacks import (
    CONFIDENCE,
    Cohorts,
    Drawn,
    Findings,
    attack,
    most_that_is_proved,
)
from tff_agnostic.program.studies.privacy_options import AuditOptions
from tff_agnostic.program.studies.privacy_planning import Answer
from tff_agnostic.training.private_cohorts import noise_key

# What can be audited.
Audited = Union[CentralNoise, DistributedNoise, TreeNoise]

# Of the model that is played, and the domains of the algorithm.
_FEATURES, _CLASSES, _DOMAINS = 4, 3, 2
_LIMITS = ClientLimits(examples=20, loss=5.0)
_CLIP_NORM = 0.5
# Of accounts, clients' noise may be another one.
_PLAYED_NOISE = "skellam"
# Of a fleet that is made smaller: the client has others beside it.
_FEWEST_CLIENTS = 6
# Coins of clients, and entries with noise of their own, that an audit has time for.
_MAX_COINS, _MAX_ENTRIES = 10**9, 10**7


@dataclasses.dataclass(frozen=True)
class Audit:
    """What was claimed, and what attackers prove.

    Attributes:
        claimed: The epsilon of the account.
        delta: The delta that it is for.
        findings: What attackers prove.
        rounds: Rounds of each run.
        played: Whose rounds, in words.
    """

    claimed: float
    delta: float
    findings: Findings
    rounds: int
    played: str

    @property
    def proved(self) -> float:
        """Returns the largest epsilon that is proved to be too small."""
        return max(self.findings.noisy_sums.epsilon, self.findings.published.epsilon)

    @property
    def is_refuted(self) -> bool:
        """Returns whether the claim is proved to be too small."""
        return self.proved > self.claimed

    @property
    def sentence(self) -> str:
        """Returns the result in one line."""
        if self.is_refuted:
            return (
                "the claim is wrong: the attack proves that epsilon is at least "
                f"{self.proved:.4f}, and {self.claimed:.4f} is claimed"
            )
        return (
            "the attack does not refute the claim: it proves that epsilon is at least "
            f"{self.proved:.4f}, and {self.claimed:.4f} is claimed"
        )

    def table(self) -> str:
        """Returns what was played, what that proves, and what it cannot show."""
        noisy, published, _, shows_participation, runs = self.findings
        in_the_clear = "nothing shows whether the attacked client takes part in a round"
        if shows_participation:
            in_the_clear = "what has no noise shows whether the attacked client takes part"
        most = most_that_is_proved(runs, self.delta)
        text: str = tabulate(
            [
                ("claimed", f"epsilon {self.claimed:.4f} for delta {self.delta:.3g}"),
                ("played", f"{runs} runs with the attacked client, {runs} without: {self.played}"),
                ("attack 1", f"noisy sums, all other clients known: epsilon {noisy.epsilon:.4f}"),
                ("attack 2", f"what is published: epsilon {published.epsilon:.4f}"),
                ("in the clear", in_the_clear),
                ("confidence", f"{CONFIDENCE:.0%} that no smaller epsilon is true"),
                ("limit", f"an attack that is never wrong would prove {most:.4f} in so many runs"),
                (
                    "cannot show",
                    "that the claim is true: more runs, or a better attack, may prove more",
                ),
                (
                    "cannot show",
                    "anything about your fleet: who is drawn, keys, code and arithmetic of devices",
                ),
            ],
            tablefmt="plain",
            disable_numparse=True,
        )
        return text

    def to_json(self) -> dict[str, Any]:
        """Returns the same for programs."""
        noisy, published, shift, shows_participation, runs = self.findings
        return {
            "claimed": self.claimed,
            "delta": self.delta,
            "from_noisy_sums": noisy.epsilon,
            "from_what_is_published": published.epsilon,
            "confidence": CONFIDENCE,
            "is_refuted": self.is_refuted,
            "shift": shift,
            "shows_participation": shows_participation,
            "runs": runs,
            "rounds": self.rounds,
        }


def audit(
    mechanism: Audited,
    rounds: int,
    delta: float,
    runs: int,
    seed: int = 0,
    claimed: Optional[float] = None,
    algorithm: str = "agnostic_fed_avg",
    secure: bool = False,
    without: Optional[Role] = None,
    **settings: Any,
) -> Audit:
    """Attacks rounds of a mechanism.

    Args:
        rounds: Rounds of a run.
        runs: How many runs with the attacked client, and without it.
        seed: What keys are drawn with.
        claimed: The epsilon that is claimed; that of the mechanism's own account if None.
        secure: Whether a server's noise is added to secure sums.
        without: What the client sends in runs without it, if not what the mechanism's neighbours
            have it send.
        **settings: Of the private sums.
    """
    if claimed is None:
        claimed = PrivacyAccountant([mechanism], delta).epsilon(rounds)
    small: Any = _smaller(mechanism)
    drawn_from = small.participations if isinstance(small, TreeNoise) else small.sampling
    fleet: _Fleet = _FLEETS[type(drawn_from)](drawn_from)
    played = _round_of(small, fleet, ALGORITHMS[algorithm], secure, settings)
    release, silent = played.steps[0].aggregation, fleet.num_silent
    bundle = release.bundle if isinstance(release, DistributedDpSum) else 1
    _check_size(rounds * runs, fleet, release.numbers_clients, silent // bundle + silent % bundle)
    attacked = AttackedRounds(played, fleet.without if without is None else without)
    return Audit(
        claimed,
        delta,
        attack(attacked, fleet.cohorts(rounds, bundle), runs, delta, seed),
        rounds,
        f"{counted(rounds, 'round')} of {ALGORITHMS[algorithm].label} with "
        f"{counted(fleet.num_clients, 'client')} each",
    )


def audit_of_answer(found: Answer, options: AuditOptions) -> Audit:
    """Attacks rounds that an answer is about, and compares with the epsilon that it claims."""
    asked, claim = found.options, found.statement
    if asked.privacy == "distributed" and asked.distributed_noise != _PLAYED_NOISE:
        raise UserError(
            f"--audit: expected --distributed_noise={_PLAYED_NOISE}, which rounds have, found "
            f"{asked.distributed_noise}"
        )
    mechanism = asked.mechanism(claim.noise_multiplier)
    assert isinstance(mechanism, (CentralNoise, DistributedNoise, TreeNoise))
    return audit(
        mechanism,
        claim.rounds,
        claim.delta,
        options.audit_runs,
        options.audit_seed,
        claimed=claim.epsilon,
        update_share=asked.update_share,
    )


class _Fleet(NamedTuple):
    """Clients, and how their cohorts are drawn.

    Attributes:
        num_clients: How many there are.
        clients_per_round: How many take part in a round, on average.
        without: What the attacked client sends in runs without it.
        cohorts: (rounds, how many silent clients one entry may stand for) -> the cohorts.
        num_silent: How many clients answer a round in silence, on average.
    """

    num_clients: int
    clients_per_round: float
    without: Role
    cohorts: Callable[[int, int], Cohorts]
    num_silent: int = 0


def _ids(num_clients: int) -> list[str]:
    return [f"{k:08}" for k in range(num_clients)]


def _all_alike(
    num_clients: int, drawn: float, without: Role, draw: Callable[[list[str], Seed, int], list[str]]
) -> _Fleet:
    """Returns a fleet of which each round draws by (clients, secret seed, number of the round)."""
    ids, rate = _ids(num_clients), drawn / num_clients
    return _Fleet(
        num_clients,
        drawn,
        without,
        lambda rounds, bundle: Cohorts(
            lambda seed: lambda t: Drawn(draw(ids, seed, t)), ids[0], np.full(rounds, rate)
        ),
    )


def _poisson(sampling: PoissonCohorts) -> _Fleet:
    drawn = int(sampling.expected_clients)
    return _all_alike(
        sampling.clients, drawn, Role.NOBODY, lambda ids, *of: poisson_cohort(ids, drawn, *of)
    )


def _counted(sampling: CountedCohorts) -> _Fleet:
    drawn = int(sampling.expected_clients)
    return _all_alike(
        sampling.clients, drawn, Role.OTHER, lambda ids, *of: poisson_cohort(ids, drawn, *of)
    )


def _fixed_size(sampling: FixedSizeCohorts) -> _Fleet:
    drawn = sampling.clients_per_round
    return _all_alike(
        sampling.clients, drawn, Role.OTHER, lambda ids, *of: sample_cohort(ids, drawn, *of)
    )


def _stratified(sampling: StratifiedCohorts) -> _Fleet:
    sizes, drawn = sampling.strata, sampling.clients_per_round
    # The first client is attacked: of the stratum with the largest rate.
    first = max(sizes, key=lambda size: -(-size * drawn // sum(sizes)) / size)
    strata = np.repeat(range(len(sizes)), [first, *_without_one(sizes, first)])

    def draw(ids: list[str], seed: Seed, round_num: int) -> list[str]:
        return sample_cohort(ids, drawn, seed, round_num, strata)

    return _all_alike(sum(sizes), drawn, Role.OTHER, draw)


def _without_one(sizes: tuple[int, ...], size: int) -> list[int]:
    rest = list(sizes)
    rest.remove(size)
    return rest


def _secret(sampling: SecretCohorts) -> _Fleet:
    ids, answering, drawn = (
        _ids(sampling.clients),
        sampling.answering,
        int(sampling.expected_clients),
    )
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

    return _Fleet(len(ids), drawn, Role.SILENT, cohorts, answering - drawn)


def _in_trees(participations: Participations) -> _Fleet:
    """Returns a client that takes part as early and often as it may, and one other."""

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

    return _Fleet(2, 2, Role.NOBODY, cohorts)


# By what an account takes for granted.
_FLEETS: dict[type, Callable[[Any], _Fleet]] = {
    CountedCohorts: _counted,
    FixedSizeCohorts: _fixed_size,
    Participations: _in_trees,
    PoissonCohorts: _poisson,
    SecretCohorts: _secret,
    StratifiedCohorts: _stratified,
}
# Whose accounts depend on shares of the fleet alone.
_OF_SHARES = (FixedSizeCohorts, PoissonCohorts, SecretCohorts)


def _smaller(mechanism: Audited) -> Audited:
    """Returns the mechanism of a smaller fleet, of the same shares, which has the same account."""
    if isinstance(mechanism, TreeNoise) or not isinstance(mechanism.sampling, _OF_SHARES):
        return mechanism
    of_sampling = dataclasses.asdict(mechanism.sampling)
    of_noise: dict[str, Any] = {}
    if isinstance(mechanism, DistributedNoise):
        of_noise = {
            "noise_clients": mechanism.noise_clients,
            "min_clients": mechanism.min_clients,
        }
    shared = math.gcd(*map(int, [*of_sampling.values(), *of_noise.values()]))
    enough = max(1, mechanism.sampling.clients // _FEWEST_CLIENTS)
    common = max(k for k in range(1, min(shared, enough) + 1) if shared % k == 0)
    # Of a type that `replace` does not follow: three samplings, two mechanisms.
    known: Any = mechanism
    sampling = dataclasses.replace(
        known.sampling, **{name: int(value) // common for name, value in of_sampling.items()}
    )
    of_noise = {name: value // common for name, value in of_noise.items()}
    smaller: Audited = dataclasses.replace(known, sampling=sampling, **of_noise)
    return smaller


def _round_of(
    mechanism: Audited,
    fleet: _Fleet,
    algorithm: AlgorithmSpec,
    secure: bool,
    settings: Mapping[str, Any],
) -> Round:
    limits, name = _LIMITS, _NAMES[type(mechanism)]
    of_clients: tuple[int, ...] = ()
    of_mechanism: dict[str, Any] = {}
    if isinstance(mechanism, DistributedNoise):
        secure, of_clients = True, (mechanism.min_clients, mechanism.noise_clients)
        of_mechanism["integer_clip"] = mechanism.groups[0].clip
    if isinstance(mechanism, TreeNoise):
        of_mechanism["noise"] = TreeResidual(mechanism.participations.restart_every)
    inner: Aggregation = PlainSum()
    if secure:
        inner = SecureSum(SecureSumOptions(limits, secure_min_clients=1))
    spec, z = PRIVACIES[name], float(mechanism.noise_multiplier)
    assert spec.build is not None
    options = spec.options(noise_multiplier=z, clip_norm=_CLIP_NORM, limit=limits, **settings)
    # Each run has another one in its place.
    key = noise_key(options)
    release = spec.build(
        name,
        inner,
        options,
        NoiseFacts(float(fleet.clients_per_round), key, z, *of_clients),
    )
    release = dataclasses.replace(release, **of_mechanism)
    model = logistic_regression(_FEATURES, _CLASSES)
    counts = (limits.examples * fleet.clients_per_round / _DOMAINS,) * _DOMAINS
    problem = Problem(model, tuple(map(str, range(_DOMAINS))), expected_counts=counts)
    return Round(algorithm.build(problem, algorithm.options()), release)


_NAMES = {CentralNoise: "central", DistributedNoise: "distributed", TreeNoise: "tree"}


def _check_size(rounds: int, fleet: _Fleet, has_entries: bool, silent_entries: int) -> None:
    """Raises a `UserError` if all rounds together take too long."""
    coins = 2 * rounds * fleet.num_clients
    entries = 2 * rounds * int(fleet.clients_per_round + silent_entries) if has_entries else 0
    for what, found, most in (
        ("cohorts", coins, _MAX_COINS),
        ("noise of clients", entries, _MAX_ENTRIES),
    ):
        if found > most:
            raise UserError(
                f"--audit: expected at most {most:,} draws for {what}, found {found:,}: give fewer "
                "--rounds or --audit_runs, or a smaller fleet of which a round draws the same share"
            )
