"""Epsilon from below: what the outcomes of an attack prove.

With (epsilon, delta)-differential privacy no event has P(event | with) > e^epsilon P(event |
without) + delta, nor the other way round. An attack scores each of many runs with a client and
without it. "The score is above t" is such an event, so its frequencies bound epsilon from below
(Jagielski, Ullman, Oprea 2020; Nasr et al. 2021). The bound holds for any score; a poor score makes
it small.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tff_agnostic.later import scipy

# Confidence of each of the two frequencies' bounds; both hold together with 95%.
_EACH = 0.975
CONFIDENCE = 2 * _EACH - 1


class LowerBound(NamedTuple):
    """The bound that an attack proves.

    Attributes:
        epsilon: The true epsilon is no smaller, with a confidence of `CONFIDENCE`; 0 if nothing is
            proved.
        hits: Fraction of the runs with the client in which the event occurred.
        false_alarms: Fraction of the runs without the client in which it occurred.
    """

    epsilon: float
    hits: float
    false_alarms: float


def lower_bound(without: np.ndarray, with_client: np.ndarray, delta: float) -> LowerBound:
    """Returns the bound: the first half of the runs chooses the event, the second half counts it.

    Args:
        without: Score of each run without the client [n], in the order of the runs; at least 2.
        delta: The delta that epsilon is for.
    """
    choosing = [scores[: len(scores) // 2] for scores in (without, with_client)]
    counting = [scores[len(scores) // 2 :] for scores in (without, with_client)]
    best = (0.0, 1.0, np.inf)
    # High scores may reveal the client, or low scores its absence.
    for sign in (1.0, -1.0):
        thresholds = np.unique(sign * np.concatenate(choosing))
        proved = _proved(*_by_sign(choosing, sign), thresholds, delta)
        k = int(np.argmax(proved))
        best = max(best, (float(proved[k]), sign, float(thresholds[k])))
    _, sign, threshold = best
    event, other = _by_sign(counting, sign)
    epsilon = float(_proved(event, other, np.array([threshold]), delta)[0])
    is_hit, is_alarm = (float(np.mean(sign * s >= threshold)) for s in counting[::-1])
    return LowerBound(max(0.0, epsilon), is_hit, is_alarm)


def most_that_is_proved(runs: int, delta: float) -> float:
    """Returns the bound if an attack is never wrong.

    Args:
        runs: How many with the client, and as many without it.
        delta: The delta that epsilon is for.
    """
    return lower_bound(np.zeros(runs), np.ones(runs), delta).epsilon


def _by_sign(pair: list[np.ndarray], sign: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns (without, with the client) with the higher scores first."""
    without, with_client = (sign * scores for scores in pair)
    return (with_client, without) if sign > 0 else (without, with_client)


def _proved(
    event: np.ndarray, other: np.ndarray, thresholds: np.ndarray, delta: float
) -> np.ndarray:
    """Returns log((least P(event) - delta) / largest P(other)) of each threshold, or -inf."""
    of_event, of_other = (
        len(scores) - np.searchsorted(np.sort(scores), thresholds) for scores in (event, other)
    )
    # Clopper and Pearson 1934. For 0 and n of n the bounds are 0 and 1.
    least = scipy.stats.beta.ppf(1 - _EACH, of_event, len(event) - of_event + 1)
    most = scipy.stats.beta.ppf(_EACH, of_other + 1, len(other) - of_other)
    gain = np.where(of_event > 0, least, 0.0) - delta
    loss = np.where(of_other < len(other), most, 1.0)
    return np.log(gain, out=np.full(len(thresholds), -np.inf), where=gain > 0) - np.log(loss)
