"""Private rounds attacked: what thousands of runs with a worst-case client and without it prove.

Each run has a key of its own, and cohorts are those that the package draws. Two attackers look at
it. The first one sees noisy sums before anything is made of them, and whatever of the summed
message has no noise, such as a number of clients; it knows what all others send. Its score is the
likelihood ratio: no other score is better. The second one sees what is published: how each round
changes the state of the algorithm, and the round's report. `lower_bound` has what scores prove.
"""

import dataclasses
from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

import numpy as np
from scipy.special import logsumexp

from tff_agnostic.aggregations.private.private_release import PrivateState
from tff_agnostic.computations.exchange import RunState
from tff_agnostic.privacy.lower_bound import LowerBound, lower_bound
from tff_agnostic.program.private.attacked_rounds import AttackedRounds, Role, Views
from tff_agnostic.program.private.run_keys import cohort_seed

# Of the mean variance, added to each: features may be functions of one another.
_RIDGE = 1e-3


class Drawn(NamedTuple):
    """Who answers a round.

    Attributes:
        clients: Those that take part.
        silent: Of how many clients that a secret coin left out each further entry is made.
    """

    clients: Sequence[str]
    silent: Sequence[int] = ()


@dataclasses.dataclass(frozen=True)
class Cohorts:
    """The cohorts of a run, and what the attacker knows of them.

    Attributes:
        draws: From the secret seed of a run to the draws of its rounds, whose numbers are from 1.
        client: Who is attacked.
        chances: With which chance it takes part in each round [T]; 0 or 1 where that is no secret.
        answers_silently: Whether it answers rounds too in which a coin leaves it out, except those
            of chance 0.
        noise_covariance: Of the noise between rounds [T, T], in variances of a round's; None if
            rounds have independent noise.
    """

    draws: Callable[[int], Callable[[int], Drawn]]
    client: str
    chances: np.ndarray
    answers_silently: bool = False
    noise_covariance: Optional[np.ndarray] = None

    @property
    def rounds(self) -> int:
        """The number of rounds T."""
        return len(self.chances)


class Findings(NamedTuple):
    """What attackers prove.

    Attributes:
        noisy_sums: Of the one that sees noisy sums, and what has no noise.
        published: Of the one that sees what is published.
        shift: By how many standard deviations of its noise the client moves the sums of a round,
            all groups together: one over the noise multiplier, or twice that where it stands in for
            another client.
        runs: Runs with the client; there are as many without it.
    """

    noisy_sums: LowerBound
    published: LowerBound
    shift: float
    runs: int


def attack(
    rounds: AttackedRounds, cohorts: Cohorts, runs: int, delta: float, seed: int
) -> Findings:
    """Plays runs with and without the client, and returns what they prove.

    Args:
        rounds: What is played.
        cohorts: Who takes part.
        runs: How many with the client, and without it.
        delta: The delta that epsilon is for.
        seed: What the keys of runs are drawn with.
    """
    rng = np.random.default_rng(seed)
    scores, features, shift = [], [], 0.0
    for role in (rounds.without, Role.CLIENT):
        keys = rng.integers(2**63, size=[runs, 2], dtype=np.int64)
        entries, num_others, num_silent = _drawn(keys, cohorts, role)
        if rounds.without is Role.OTHER:
            # Whether it is the client that was drawn, the attacker does not know.
            num_others = np.sum(entries[..., 0] != Role.NOBODY, axis=2)
        views = rounds.play(keys, entries, num_others)
        known = sum(
            number[..., np.newaxis] * rounds.clear[kind]
            for kind, number in ((Role.OTHER, num_others), (Role.SILENT, num_silent))
        )
        views = views._replace(in_the_clear=views.in_the_clear - known)
        scores.append(_log_likelihood_ratios(rounds, views, cohorts))
        features.append(np.append(views.published, num_others[..., np.newaxis], axis=-1))
        shift = float(np.max(np.mean(views.shift, axis=0)))
    return Findings(
        lower_bound(*scores, delta), lower_bound(*_discriminated(*features), delta), shift, runs
    )


def _drawn(
    keys: np.ndarray, cohorts: Cohorts, role: Role
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the cohorts of runs in which the client has a role.

    Returns:
        (entries [R, T, E, 2], how many others take part [R, T], how many others are silent [R, T]);
        see `AttackedRounds.play`.
    """
    found: list[list[tuple[int, int]]] = []
    others = []
    for key in keys:
        draw = cohorts.draws(cohort_seed(RunState((), (PrivateState(key, (), (), ()),), ())))
        for t, chance in enumerate(cohorts.chances):
            drawn = draw(t + 1)
            roles = [role if name == cohorts.client else Role.OTHER for name in drawn.clients]
            is_left_out = chance > 0 and cohorts.client not in drawn.clients
            num_silent = sum(drawn.silent) - (cohorts.answers_silently and is_left_out)
            others.append((len(drawn.clients) - (cohorts.client in drawn.clients), num_silent))
            entries = [(each, int(each is Role.SILENT)) for each in roles]
            found.append([*entries, *((Role.SILENT, count) for count in drawn.silent)])
    table = np.zeros([len(found), max(1, *map(len, found)), 2], np.int32)
    for row, entries in zip(table, found):
        row[: len(entries)] = np.reshape(entries, [-1, 2])
    shape = len(keys), cohorts.rounds
    num_others, num_silent = np.reshape(others, [*shape, 2]).transpose([2, 0, 1])
    return table.reshape([*shape, -1, 2]), num_others, num_silent


class _Case(NamedTuple):
    """What may have happened in a round.

    Attributes:
        chance: With which chance [T].
        shift: What the client then adds to noise [R, T].
        clear: What of its message has no noise [T, M], or [M].
    """

    chance: np.ndarray
    shift: np.ndarray
    clear: np.ndarray


def _log_likelihood_ratios(rounds: AttackedRounds, views: Views, cohorts: Cohorts) -> np.ndarray:
    """Returns the score of each run: of all its rounds, as coins and noise are independent."""
    noisy, shift, chances = views.noisy, views.shift, cohorts.chances
    if cohorts.noise_covariance is not None:
        # Who takes part is no secret here. What the client adds is whitened with the noise.
        root = np.linalg.cholesky(cohorts.noise_covariance)
        noisy, shift = (np.linalg.solve(root, v.T).T for v in (noisy, shift * chances))
        chances = np.ones(cohorts.rounds)
    nothing, clear = np.zeros_like(shift), rounds.clear
    silently = (chances > 0) & cohorts.answers_silently
    left_out = silently[:, np.newaxis] * clear[Role.SILENT]
    out = _Case(1 - chances, nothing, left_out)
    base = clear[Role.OTHER] if rounds.without is Role.OTHER else np.zeros_like(left_out)
    with_client = [out, _Case(chances, shift, clear[Role.CLIENT] - base)]
    without = [_Case(np.ones(cohorts.rounds), nothing, left_out)]
    if rounds.without is Role.SILENT:
        without = [out, _Case(chances, nothing, clear[Role.SILENT])]
    log_with, log_without = (
        _log_likelihood(noisy, views.in_the_clear, cases) for cases in (with_client, without)
    )
    if np.any(np.isneginf(log_with) & np.isneginf(log_without)):
        raise ValueError("a message has something in the clear that no client sends")
    ratios: np.ndarray = np.sum(log_with - log_without, axis=1)
    return ratios


def _log_likelihood(
    noisy: np.ndarray, in_the_clear: np.ndarray, cases: Sequence[_Case]
) -> np.ndarray:
    """Returns the logarithm of the likelihood of each round [R, T], but for a common factor.

    Args:
        noisy: Of unit noise [R, T].
        in_the_clear: [R, T, M].
        cases: All that may have happened.
    """
    terms = []
    for chance, shift, clear in cases:
        is_possible = np.all(in_the_clear == clear, axis=-1) & (chance > 0)
        log_chance = np.log(chance, out=np.zeros_like(chance), where=chance > 0)
        terms.append(np.where(is_possible, log_chance + noisy * shift - shift**2 / 2, -np.inf))
    found: np.ndarray = logsumexp(terms, axis=0)
    return found


def _discriminated(without: np.ndarray, with_client: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores of runs [R] from features of their rounds [R, T, F].

    Linear discriminants, of the features of each round, and of the rounds. They are those of the
    first half of the runs, which `lower_bound` chooses by as well.
    """
    half = len(without) // 2

    def scored(without: np.ndarray, with_client: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        both = np.concatenate([without[:half], with_client[:half]])
        scale = np.std(both, axis=0)
        scale[scale == 0] = 1.0
        a, b = ((values - np.mean(both, axis=0)) / scale for values in (without, with_client))
        spread = np.cov(a[:half], rowvar=False) + np.cov(b[:half], rowvar=False)
        spread = np.atleast_2d(spread) / 2 + _RIDGE * np.eye(a.shape[1])
        weights = np.linalg.solve(spread, np.mean(b[:half], axis=0) - np.mean(a[:half], axis=0))
        return a @ weights, b @ weights

    rounds = [scored(without[:, t], with_client[:, t]) for t in range(without.shape[1])]
    return scored(*(np.stack(of_rounds, axis=1) for of_rounds in zip(*rounds)))
