"""Stochastic-AFL (Mohri, Sivek, Suresh, "Agnostic Federated Learning", 2019), in float64.

min over w of max over lambda in Lambda of sum_i lambda_i L_i(w): both players step at once from
(w_{t-1}, lambda_{t-1}), and the output is the mean of the iterates t = 1..T.

A round has a cohort instead of a sample: with n_i the examples of domain i that a cohort is
expected to have, the gradient in w is the sum over the cohort's examples j of domains i of
lambda_i / n_i grad l_j, and that in lambda is the vector of sums of losses over n_i.
"""

from collections.abc import Sequence
from typing import Callable, NamedTuple, Optional

import numpy as np

from tests.algorithms.references.softmax import Client, Model, Weights, examples, with_finite_loss


class Players(NamedTuple):
    """w_t and lambda_t, their means over 1..t, and the gradients of the step before."""

    w: Weights
    lambda_: np.ndarray
    w_mean: Weights
    lambda_mean: np.ndarray
    t: int = 0
    g_before: Optional[Weights] = None
    h_before: Optional[np.ndarray] = None


class Steps(NamedTuple):
    """gamma_w, gamma_lambda, their schedules, and the steps of both players."""

    gamma_w: float
    gamma_lambda: float
    # (lambda, h, gamma) -> the next lambda, in Lambda
    ascend: Callable[[np.ndarray, np.ndarray, float], np.ndarray]
    decay: Callable[[int], float] = lambda t: 1.0
    optimistic: bool = False
    radius: Optional[float] = None
    ratio: bool = False


def start(w: Weights, lambda_: np.ndarray) -> Players:
    """w_0 and lambda_0."""
    return Players(w, lambda_, w, lambda_)


def stochastic_afl_round(
    model: Model,
    players: Players,
    cohort: Sequence[Client],
    n: np.ndarray,
    steps: Steps,
    lambda_for_w: Optional[np.ndarray] = None,
) -> Players:
    """Computes one round; a round without examples changes nothing.

    Args:
        model: The model.
        players: Before.
        cohort: The clients; those without examples or with a loss that is not finite are dropped.
        n: The expected counts.
        steps: Options of the steps.
        lambda_for_w: Weights of the domains in w's gradient, if not lambda_{t-1}: the vertex of the
            drawn domain.
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
    # The mean of all iterates so far.
    w_mean = [((t - 1) * mean + w_m) / t for mean, w_m in zip(players.w_mean, w)]
    lambda_mean = ((t - 1) * players.lambda_mean + lambda_) / t
    return Players(w, lambda_, w_mean, lambda_mean, t, g, h)
