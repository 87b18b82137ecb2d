"""Attacks on private rounds: lower bounds of epsilon, from thousands of runs.

Each run has its own key, and the package draws the cohorts. There are two attackers:

- The first attacker knows all other clients' messages. It observes noisy sums, and all parts of
  summed messages without noise, such as the number of clients. Its score is the likelihood ratio,
  which is optimal.
- The second attacker observes published values: changes of the algorithm's state, and reports.

(epsilon, delta)-differential privacy requires P(event | with) <= e^epsilon P(event | without) +
delta for each event, and the same with both sides swapped. "The score is above t" is an event, so
its frequencies bound epsilon from below (Jagielski, Ullman, Oprea 2020; Nasr et al. 2021). The
bound holds for any score, but is small for a poor score.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

import numpy as np

from tests.privacy.attacks.rounds import AttackedRounds, Observations, Role
from tff_agnostic.aggregations.private_sum import PrivateState
from tff_agnostic.base.later import scipy
from tff_agnostic.computations.algorithm import RunState
from tff_agnostic.data.sampling import Seed
from tff_agnostic.training.private_cohorts import cohort_seed

# Confidence of each frequency's bound, so that both bounds hold with confidence 95%.
_EACH = 0.975


def lower_bound(without: np.ndarray, with_client: np.ndarray, delta: float) -> float:
    """Returns a lower bound of epsilon with confidence 95%; 0 if the scores prove nothing.

    One half of the runs chooses the event, and the other half counts it.

    Args:
        without: Score of each run without the client, [n], with n at least 2.
        with_client: Score of each run with the client, [n].
        delta: The delta that epsilon is for.
    """
    choosing = [scores[: len(scores) // 2] for scores in (without, with_client)]
    counting = [scores[len(scores) // 2 :] for scores in (without, with_client)]
    best = (0.0, 1.0, np.inf)
    # High scores can reveal the client's presence, or low scores its absence.
    for sign in (1.0, -1.0):
        thresholds = np.unique(sign * np.concatenate(choosing))
        proved = _proved(*_by_sign(choosing, sign), thresholds, delta)
        k = int(np.argmax(proved))
        best = max(best, (float(proved[k]), sign, float(thresholds[k])))
    _, sign, threshold = best
    event, other = _by_sign(counting, sign)
    return max(0.0, float(_proved(event, other, np.array([threshold]), delta)[0]))


def _by_sign(pair: list[np.ndarray], sign: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns both cases' signed scores, first of the case in which the event is more frequent."""
    without, with_client = (sign * scores for scores in pair)
    return (with_client, without) if sign > 0 else (without, with_client)


def _proved(
    event: np.ndarray, other: np.ndarray, thresholds: np.ndarray, delta: float
) -> np.ndarray:
    """Returns log((min P(event) - delta) / max P(other)) for each threshold, or -inf.

    The minimum and the maximum are confidence bounds.
    """
    event_counts, other_counts = (
        len(scores) - np.searchsorted(np.sort(scores), thresholds) for scores in (event, other)
    )
    # Clopper and Pearson 1934; for 0 of n and n of n the bounds are 0 and 1.
    least = scipy.stats.beta.ppf(1 - _EACH, event_counts, len(event) - event_counts + 1)
    most = scipy.stats.beta.ppf(_EACH, other_counts + 1, len(other) - other_counts)
    gain = np.where(event_counts > 0, least, 0.0) - delta
    loss = np.where(other_counts < len(other), most, 1.0)
    return np.log(gain, out=np.full(len(thresholds), -np.inf), where=gain > 0) - np.log(loss)


# Regularisation of the features' covariance, as features can be linearly dependent.
_RIDGE = 1e-3
# Minimum difference of a feature's means, in standard errors; smaller differences are random.
_MIN_DIFFERENCE = 3.0


class Drawn(NamedTuple):
    """The clients that send messages in a round.

    Attributes:
        clients: Ids of participating clients.
        silent: Number of non-participating clients in each silent entry.
    """

    clients: Sequence[str]
    silent: Sequence[int] = ()


@dataclasses.dataclass(frozen=True)
class Cohorts:
    """The cohorts of a run, and the attacker's knowledge about them.

    Attributes:
        draws: Called with a run's secret seed; returns a function that draws the cohort of round t,
            from 1.
        client: Id of the attacked client.
        chances: Probability that the attacked client takes part in each round, [T]; 0 or 1 if its
            participation is not secret.
        answers_silently: Whether the attacked client sends noise when a coin excludes it; not in
            rounds with probability 0.
        noise_covariance: Covariance of noise between rounds, [T, T], relative to a round's
            variance; None if the noise is independent.
    """

    draws: Callable[[Seed], Callable[[int], Drawn]]
    client: str
    chances: np.ndarray
    answers_silently: bool = False
    noise_covariance: Optional[np.ndarray] = None

    @property
    def rounds(self) -> int:
        """Number of rounds, T."""
        return len(self.chances)


class Findings(NamedTuple):
    """The results of attacks.

    Attributes:
        noisy_sums: Bound that the first attacker proves, who observes noisy sums.
        published: Bound that the second attacker proves, who observes published values.
        shift: Change of a round's sums by the client, in standard deviations of the noise. It is
            the reciprocal of the noise multiplier, doubled if the client replaces another one.
        shows_participation: Whether values without noise reveal the client's secret participation.
    """

    noisy_sums: float
    published: float
    shift: float
    shows_participation: bool


def attack(
    rounds: AttackedRounds, cohorts: Cohorts, runs: int, delta: float, seed: int
) -> Findings:
    """Executes runs with and without the client, and returns the proved bounds.

    Args:
        runs: Number of runs with the client, and of runs without it.
        delta: The delta that epsilon is for.
        seed: Seed of the runs' keys.
    """
    rng = np.random.default_rng(seed)
    scores: list[np.ndarray] = []
    features: list[np.ndarray] = []
    shift = 0.0
    for role in (rounds.without, Role.CLIENT):
        keys = rounds.keys(rng, runs)
        entries, num_others, num_silent = _drawn(keys, cohorts, role)
        if rounds.without is Role.OTHER:
            # The attacker does not know whether the client was drawn.
            num_others = np.sum(entries[..., 0] != Role.NOBODY, axis=2)
        observed = rounds.run(keys, entries, num_others)
        clear = num_others[..., np.newaxis] * rounds.clear[Role.OTHER]
        clear += num_silent[..., np.newaxis] * rounds.clear[Role.SILENT]
        observed = observed._replace(in_the_clear=observed.in_the_clear - clear)
        scores.append(_log_likelihood_ratios(rounds, observed, cohorts))
        features.append(np.append(observed.published, num_others[..., np.newaxis], axis=-1))
        shift = float(np.max(np.mean(observed.shift, axis=0)))
    left_out, taking_part = _clear(rounds, cohorts)
    is_secret = (cohorts.chances > 0) & (cohorts.chances < 1)
    return Findings(
        lower_bound(scores[0], scores[1], delta),
        lower_bound(*_discriminated(features[0], features[1]), delta),
        shift,
        bool(np.any((left_out != taking_part)[is_secret])),
    )


def _drawn(
    keys: np.ndarray, cohorts: Cohorts, role: Role
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws the cohorts of runs in which the attacked client has the given role.

    Returns:
        Entries [R, T, E, 2], as in `AttackedRounds.run`; and, without the attacked client, the
        numbers of participants [R, T] and of silent clients [R, T].
    """
    result: list[list[tuple[int, int]]] = []
    others = []
    for key in keys:
        draw = cohorts.draws(cohort_seed(RunState((), (PrivateState(key, (), (), ()),), ())))
        for t, chance in enumerate(cohorts.chances):
            drawn = draw(t + 1)
            roles = [role if name == cohorts.client else Role.OTHER for name in drawn.clients]
            is_left_out = chance > 0 and cohorts.client not in drawn.clients
            num_silent = sum(drawn.silent) - (cohorts.answers_silently and is_left_out)
            others.append((len(drawn.clients) - (cohorts.client in drawn.clients), num_silent))
            silent = [(int(Role.SILENT), count) for count in drawn.silent]
            result.append([*((int(each), int(each is Role.SILENT)) for each in roles), *silent])
    table = np.zeros([len(result), max(1, *map(len, result)), 2], np.int32)
    for row, entries in zip(table, result):
        row[: len(entries)] = np.reshape(entries, [-1, 2])
    shape = len(keys), cohorts.rounds
    counts = np.reshape(others, [*shape, 2])
    return table.reshape([*shape, -1, 2]), counts[..., 0], counts[..., 1]


class _Case(NamedTuple):
    """A hypothesis about rounds: the attacked client participates or not.

    Attributes:
        chance: Probability of the hypothesis in each round, [T].
        shift: Client's contribution to noisy values, [R, T].
        clear: Client's contribution to values without noise, [T, M].
    """

    chance: np.ndarray
    shift: np.ndarray
    clear: np.ndarray


def _log_likelihood_ratios(
    rounds: AttackedRounds, observed: Observations, cohorts: Cohorts
) -> np.ndarray:
    """Returns each run's score, a sum over rounds, since coins and noise are independent."""
    noisy, shift, chances = observed.noisy, observed.shift, cohorts.chances
    if cohorts.noise_covariance is not None:
        # Participation is not secret here. Whiten the noise and the client's contribution.
        root = np.linalg.cholesky(cohorts.noise_covariance)
        noisy, shift = (np.linalg.solve(root, v.T).T for v in (noisy, shift * chances))
        chances = np.ones(cohorts.rounds)
    nothing = np.zeros_like(shift)
    left_out, taking_part = _clear(rounds, cohorts)
    out = _Case(1 - chances, nothing, left_out)
    with_client = [out, _Case(chances, shift, taking_part)]
    without = [_Case(np.ones(cohorts.rounds), nothing, left_out)]
    if rounds.without is Role.SILENT:
        silent = np.broadcast_to(rounds.clear[Role.SILENT], left_out.shape)
        without = [out, _Case(chances, nothing, silent)]
    log_with, log_without = (
        _log_likelihood(noisy, observed.in_the_clear, cases) for cases in (with_client, without)
    )
    if np.any(np.isneginf(log_with) & np.isneginf(log_without)):
        raise ValueError("a message has a value without noise that no client sends")
    ratios: np.ndarray = np.sum(log_with - log_without, axis=1)
    return ratios


def _clear(rounds: AttackedRounds, cohorts: Cohorts) -> tuple[np.ndarray, np.ndarray]:
    """Returns the client's values without noise in each round, [T, M].

    The first result is for rounds that exclude the client, the second for rounds with it.
    """
    clear, is_asked = rounds.clear, cohorts.chances > 0
    silently = is_asked & cohorts.answers_silently
    left_out = silently[:, np.newaxis] * clear[Role.SILENT]
    base = clear[Role.OTHER] if rounds.without is Role.OTHER else 0
    return left_out, np.broadcast_to(clear[Role.CLIENT] - base, left_out.shape)


def _log_likelihood(
    noisy: np.ndarray, in_the_clear: np.ndarray, cases: Sequence[_Case]
) -> np.ndarray:
    """Returns each round's log likelihood, [R, T], up to a common constant.

    Args:
        noisy: Values with unit noise, [R, T].
        in_the_clear: Values without noise, [R, T, M].
        cases: All possible hypotheses.
    """
    terms = []
    for chance, shift, clear in cases:
        is_possible = np.all(in_the_clear == clear, axis=-1) & (chance > 0)
        log_chance = np.log(chance, out=np.zeros_like(chance), where=chance > 0)
        terms.append(np.where(is_possible, log_chance + noisy * shift - shift**2 / 2, -np.inf))
    result: np.ndarray = scipy.special.logsumexp(terms, axis=0)
    return result


def _discriminated(without: np.ndarray, with_client: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns scores of runs, [R], from features of their rounds, [R, T, F].

    There is a linear discriminant per round and one for all rounds. Another discriminant combines
    their scores. All use only the first half of the runs, as `lower_bound` counts the second half.
    """
    both, half = (without, with_client), len(without) // 2
    first, second = (features[:half] for features in both)
    num_rounds, num_features = first.shape[1:]
    rows = [each.reshape([-1, num_features]) for each in (first, second)]
    overall = _discriminant(rows[0], rows[1], _MIN_DIFFERENCE)
    by_round = [
        _discriminant(first[:, t], second[:, t], _MIN_DIFFERENCE) for t in range(num_rounds)
    ]
    directions = np.stack([by_round, [overall] * len(by_round)])
    scores = [np.einsum("rtf,ktf->rkt", f, directions).reshape([len(f), -1]) for f in both]
    last = _discriminant(scores[0][:half], scores[1][:half], 0.0)
    return scores[0] @ last, scores[1] @ last


def _discriminant(
    without: np.ndarray, with_client: np.ndarray, min_difference: float
) -> np.ndarray:
    """Returns the weights, [F], of Fisher's linear discriminant of features, [n, F].

    Args:
        without: Features of runs without the client.
        with_client: Features of runs with the client.
        min_difference: Minimum difference of a feature's means, in standard errors; features with a
            smaller difference have weight 0.
    """
    scale = np.std(np.concatenate([without, with_client]), axis=0)
    scale[scale == 0] = 1.0
    scaled = without / scale, with_client / scale
    difference = np.mean(scaled[1], axis=0) - np.mean(scaled[0], axis=0)
    weights = np.zeros_like(difference)
    chosen = np.abs(difference) >= min_difference * math.sqrt(2 / len(without))
    if np.any(chosen):
        spread = np.mean([np.cov(rows[:, chosen], rowvar=False) for rows in scaled], axis=0)
        spread = np.atleast_2d(spread) + _RIDGE * np.eye(np.count_nonzero(chosen))
        weights[chosen] = np.linalg.solve(spread, difference[chosen])
    return weights / scale
