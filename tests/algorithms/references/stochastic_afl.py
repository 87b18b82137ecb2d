"""Stochastic-AFL (Mohri, Sivek, Suresh, "Agnostic Federated Learning", 2019), in float64.

It solves min_w max_{lambda in Lambda} sum_i lambda_i L_i(w). Both players step simultaneously from
(w_{t-1}, lambda_{t-1}), and the output is the mean of the iterates t = 1..T.

A round has a cohort instead of a sample. n_i is the expected number of domain i's examples in a
cohort. The gradient in w is sum_j lambda_i / n_i grad l_j over the cohort's examples j, where i is
j's domain. The gradient in lambda_i is the sum of domain i's losses, divided by n_i.
"""

from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

import numpy as np

from tests.algorithms.references.softmax import Client, Model, Weights, examples, with_finite_loss


class Players(NamedTuple):
    """w_t and lambda_t, their means over 1..t, and the previous step's gradients."""

    w: Weights
    lambda_: np.ndarray
    w_mean: Weights
    lambda_mean: np.ndarray
    t: int = 0
    g_before: Optional[Weights] = None
    h_before: Optional[np.ndarray] = None


class Steps(NamedTuple):
    """The learning rates gamma_w and gamma_lambda, and the variants of both players' steps."""

    gamma_w: float
    gamma_lambda: float
    # Called with (lambda, h, gamma); returns the next lambda, in Lambda.
    ascend: Callable[[np.ndarray, np.ndarray, float], np.ndarray]
    decay: Callable[[int], float] = lambda t: 1.0
    optimistic: bool = False
    radius: Optional[float] = None
    ratio: bool = False


def start(w: Weights, lambda_: np.ndarray) -> Players:
    """Returns the players' state before the first round, from w_0 and lambda_0."""
    return Players(w, lambda_, w, lambda_)


def stochastic_afl_round(
    model: Model,
    players: Players,
    cohort: Sequence[Client],
    n: np.ndarray,
    steps: Steps,
    lambda_for_w: Optional[np.ndarray] = None,
) -> Players:
    """Returns the players after one round; a round without examples changes nothing.

    Args:
        model: Loss and gradient.
        players: Players after round t - 1.
        cohort: Clients; clients without examples or with a non-finite loss are dropped.
        n: Expected number of each domain's examples.
        steps: Options of the steps.
        lambda_for_w: Domain weights in w's gradient, such as the drawn domain's unit vector; None
            for lambda_{t-1}.
    """
    p = len(n)
    kept = with_finite_loss(model, players.w, cohort)
    if not kept:
        return players
    scale = (players.lambda_ if lambda_for_w is None else lambda_for_w) / n
    g = [np.zeros_like(w_m) for w_m in players.w]
    total, count = np.zeros(p), np.zeros(p)
    for client in kept:
        x, y = examples(client)
        for i in range(p):
            in_domain = client["domain_id"] == i
            if not in_domain.any():
                continue
            g_i = model.summed_gradient(players.w, x[in_domain], y[in_domain])
            g = [g_m + scale[i] * g_im for g_m, g_im in zip(g, g_i)]
            total[i] += model.losses(players.w, x[in_domain], y[in_domain]).sum()
            count[i] += in_domain.sum()
    h = total / np.maximum(count, 1) if steps.ratio else total / n
    t = players.t + 1
    g_used, h_used = g, h
    if steps.optimistic and players.g_before is not None:
        g_used = [2 * new - old for new, old in zip(g, players.g_before)]
        h_used = 2 * h - players.h_before
    factor = steps.decay(t)
    w = [w_m - steps.gamma_w * factor * g_m for w_m, g_m in zip(players.w, g_used)]
    if steps.radius is not None:
        norm = np.sqrt(sum(np.sum(w_m**2) for w_m in w))
        w = [w_m * min(1.0, steps.radius / norm) for w_m in w]
    lambda_ = steps.ascend(players.lambda_, h_used, steps.gamma_lambda * factor)
    w_mean = [((t - 1) * mean + w_m) / t for mean, w_m in zip(players.w_mean, w)]
    lambda_mean = ((t - 1) * players.lambda_mean + lambda_) / t
    return Players(w, lambda_, w_mean, lambda_mean, t, g, h)
