"""Delta-FL (Laguel et al., "A Superquantile Approach to Federated Learning", 2021), in float64.

The objective is the maximum of sum_k pi_k F_k(w) over mixtures pi of clients with pi_k <= alpha_k /
theta. It equals the mean loss of the worst fraction theta: the (1 - theta)-superquantile of the
losses. In a round, only clients train whose loss reaches the (1 - theta)-quantile, eta.

Clients at eta train in one of two ways. With "paper" they train in full, so that more than theta of
the weight can train. With "exact" they train with the fraction that completes theta, as in the
maximising pi.

The server knows eta in one of three ways: from the round's own losses as in the paper, from the
previous round's losses, or by steps that track it. The first two compare losses by bins of a grid.
`printed_rounds` is the algorithm as printed, which compares exact losses.
"""

from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from tests.algorithms.references.local_sgd import LocalSgd, average, train
from tests.algorithms.references.softmax import (
    Client,
    Model,
    Weights,
    mean_loss,
    size,
    with_finite_loss,
)

# The grid's centres are 10^-6 r^j for j = 0..1024, with r = 10^(12/1024), so the last is 10^6.
CENTERS = 1025
_DECADES = (-6.0, 6.0)

# Fractions of the total weight count as equal if they differ by less, as floats are rounded.
_ROUNDING = 1e-12


class Cut(NamedTuple):
    """The smallest loss (or bin) that trains, and the fraction with which clients at it train."""

    at: float
    share: float


class Survey(NamedTuple):
    """The clients with a finite loss, their losses F_k(w^t) and their weights alpha_k."""

    clients: list[Client]
    loss: np.ndarray
    alpha: np.ndarray


def quantile(losses: ArrayLike, alphas: ArrayLike, theta: float) -> float:
    """Returns eta, the smallest loss v with sum_{F_k <= v} alpha_k >= (1 - theta) sum_k alpha_k.

    Losses with weight 0 are ignored.
    """
    if not 0 < theta <= 1:
        raise ValueError(f"theta is in (0, 1], not {theta}")
    loss, alpha = _normalised(losses, alphas)
    values = np.unique(loss[alpha > 0])
    reached = [alpha[loss <= v].sum() >= 1 - theta - _ROUNDING for v in values]
    return float(values[np.argmax(reached)])


def cut(losses: ArrayLike, alphas: ArrayLike, theta: float, boundary: str) -> Cut:
    """Returns eta, and the fraction in [0, 1] with which clients at eta train."""
    if boundary not in ("paper", "exact"):
        raise ValueError(f"boundary is 'paper' or 'exact', not {boundary!r}")
    eta = quantile(losses, alphas, theta)
    if boundary == "paper":
        return Cut(eta, 1.0)
    loss, alpha = _normalised(losses, alphas)
    left = theta - alpha[loss > eta].sum()
    return Cut(eta, float(min(left / alpha[loss == eta].sum(), 1.0)) if left > _ROUNDING else 0.0)


def shares_above(losses: ArrayLike, c: Cut) -> np.ndarray:
    """Returns 1 for losses above `c.at`, 0 for losses below, and `c.share` for equal losses."""
    loss = np.asarray(losses, np.float64)
    return np.where(loss > c.at, 1.0, np.where(loss == c.at, c.share, 0.0))


def shares(losses: ArrayLike, alphas: ArrayLike, theta: float, boundary: str) -> np.ndarray:
    """Returns, for each client, the fraction in [0, 1] of its weight that trains.

    With "exact", sum_k share_k alpha_k = theta sum_k alpha_k, and equal losses have equal shares.
    """
    return shares_above(losses, cut(losses, alphas, theta, boundary))


def superquantile(losses: ArrayLike, alphas: ArrayLike, theta: float) -> float:
    """Returns min_eta eta + (1/theta) sum_k alpha_k max(F_k - eta, 0), attained at the quantile."""
    loss, alpha = _normalised(losses, alphas)
    eta = quantile(losses, alphas, theta)
    return float(eta + alpha @ np.maximum(loss - eta, 0.0) / theta)


def cvar_lambda(domain_losses: ArrayLike, example_shares: ArrayLike, theta: float) -> np.ndarray:
    """Returns the maximising pi, with domains instead of clients; it sums to 1.

    pi_i is alpha_i / theta for losses above eta and 0 below. Domains at eta share the remaining
    weight in proportion to alpha_i.
    """
    _, alpha = _normalised(domain_losses, example_shares)
    return alpha * shares(domain_losses, example_shares, theta, "exact") / theta


def nearest_center(losses: ArrayLike) -> np.ndarray:
    """Returns the index of the centre nearest to each loss, compared by logarithms.

    Losses outside the grid are clipped to its first or last centre.
    """
    low, high = _DECADES
    decades = np.log10(np.clip(np.asarray(losses, np.float64), 10.0**low, 10.0**high))
    return np.rint((decades - low) / (high - low) * (CENTERS - 1)).astype(int)


def printed_rounds(
    model: Model,
    w_0: Weights,
    cohorts: Sequence[Sequence[Client]],
    theta: float,
    sgd: LocalSgd,
    rounds_per_threshold: int = 1,
) -> list[Weights]:
    """Runs Algorithm 1 with `rounds_per_threshold` rounds per w-step; with 1 it is Algorithm 2.

    Line numbers of Algorithm 2 are in brackets. alpha_k = n_k, as in section V.

    Returns:
        The weights w after each round.
    """
    w, iterates = list(w_0), []
    for t, S_t in enumerate(cohorts):
        F = np.array([mean_loss(model, w, k) for k in S_t])  # [4]
        alpha = np.array([float(size(k)) for k in S_t])
        if t % rounds_per_threshold == 0:
            eta = quantile(F, alpha, theta)  # line 2: argmin of G(w_t, .) [5]
        S_filtered = [k for k, F_k in zip(S_t, F) if F_k >= eta]  # [6]
        local = [(size(k), train(model, w, k, sgd)) for k in S_filtered]  # [7, 8]
        w = average(w, local)  # a round of FedAvg of line 3 [9]
        iterates.append(w)
    return iterates


def survey_round(
    model: Model,
    w_t: Weights,
    clients: Sequence[Client],
    theta: float,
    sgd: LocalSgd,
    weighting: str = "examples",
    boundary: str = "paper",
) -> Weights:
    """Computes a round of Algorithm 2, whose threshold is the quantile of the clients' losses.

    Losses in the same bin are ties. A client without examples or with a non-finite loss is dropped.
    A client with a finite loss but non-finite w_k counts in the quantile, not in the average.
    Without clients, the result is w^t.
    """
    survey = _survey(model, w_t, clients, weighting)
    if not survey.clients:
        return list(w_t)
    share = shares(nearest_center(survey.loss), survey.alpha, theta, boundary)
    return _train_shares(model, w_t, survey, share, sgd)


def smoothed_shares(
    losses: ArrayLike, alphas: ArrayLike, theta: float, nu: float
) -> tuple[np.ndarray, float]:
    """Returns each client's h_nu'(F_k - eta), and eta, which minimises the smoothed objective.

    With alphas that sum to 1, the objective's derivative in eta is
    1 - (1/theta) sum_k alpha_k h_nu'(F_k - eta), where h_nu'(r) = min(max(r / nu, 0), 1). A root
    finder sets the derivative to 0.
    """
    loss, alpha = _normalised(losses, alphas)
    if theta == 1:
        return np.ones(len(loss)), float(loss.min() - nu)

    def counted(eta: float) -> np.ndarray:
        return np.clip((loss - eta) / nu, 0.0, 1.0)

    eta = brentq(
        lambda eta: alpha @ counted(eta) - theta, loss.min() - 2 * nu, loss.max(), xtol=1e-14
    )
    return counted(eta), float(eta)


def smoothed_round(
    model: Model,
    w_t: Weights,
    clients: Sequence[Client],
    theta: float,
    sgd: LocalSgd,
    weighting: str,
    nu: float,
) -> Weights:
    """Computes one round with the smoothed objective and losses rounded to bins' centres."""
    survey = _survey(model, w_t, clients, weighting)
    if not survey.clients:
        return list(w_t)
    low, high = _DECADES
    centers = 10.0 ** (low + nearest_center(survey.loss) / (CENTERS - 1) * (high - low))
    share, _ = smoothed_shares(centers, survey.alpha, theta, nu)
    return _train_shares(model, w_t, survey, share, sgd)


def smoothed_superquantile(losses: ArrayLike, alphas: ArrayLike, theta: float, nu: float) -> float:
    """Returns min_eta eta + (1/theta) sum_k alpha_k h_nu(F_k - eta)."""
    loss, alpha = _normalised(losses, alphas)
    _, eta = smoothed_shares(losses, alphas, theta, nu)
    above = np.maximum(loss - eta, 0.0)
    h = np.where(above <= nu, above**2 / (2 * nu), above - nu / 2)
    return float(eta + alpha @ h / theta)


def lagged_round(
    model: Model,
    w_t: Weights,
    c: Optional[Cut],
    clients: Sequence[Client],
    theta: float,
    sgd: LocalSgd,
    weighting: str = "examples",
    boundary: str = "paper",
) -> tuple[Weights, Optional[Cut]]:
    """Computes one round with the previous round's threshold `c`.

    Returns:
        The next weights, and the threshold from this round's losses at w^t, as a bin's index. In
        the first round, `c` is None and all clients train. A round without finite losses keeps `c`.
    """
    survey = _survey(model, w_t, clients, weighting)
    if not survey.clients:
        return list(w_t), c
    bins = nearest_center(survey.loss)
    share = np.ones(len(bins)) if c is None else shares_above(bins, c)
    w = _train_shares(model, w_t, survey, share, sgd)
    return w, cut(bins, survey.alpha, theta, boundary)


def tracked_round(
    model: Model,
    w_t: Weights,
    eta: Optional[float],
    clients: Sequence[Client],
    theta: float,
    sgd: LocalSgd,
    weighting: str = "examples",
    rate: float = 0.2,
) -> tuple[Weights, Optional[float]]:
    """Trains the clients with F_k >= eta; returns w and eta exp(-rate (below - (1 - theta))).

    `below` is the fraction of the weight whose loss is below eta. In the first round, eta is None,
    all clients train, and the next eta is a tenth of the mean loss: it starts low, since it grows
    faster than it falls. A round without finite losses keeps eta.
    """
    survey = _survey(model, w_t, clients, weighting)
    if not survey.clients:
        return list(w_t), eta
    loss, alpha = _normalised(survey.loss, survey.alpha)
    if eta is None:
        return _train_shares(model, w_t, survey, np.ones(len(loss)), sgd), float(alpha @ loss) / 10
    w = _train_shares(model, w_t, survey, np.where(loss >= eta, 1.0, 0.0), sgd)
    return w, float(eta * np.exp(-rate * (alpha[loss < eta].sum() - (1 - theta))))


def _normalised(losses: ArrayLike, alphas: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Returns the losses, and the weights divided by their sum."""
    alpha = np.asarray(alphas, np.float64)
    return np.asarray(losses, np.float64), alpha / alpha.sum()


def _survey(model: Model, w_t: Weights, clients: Sequence[Client], weighting: str) -> Survey:
    if weighting not in ("examples", "equal"):
        raise ValueError(f"weighting is 'examples' or 'equal', not {weighting!r}")
    kept = with_finite_loss(model, w_t, clients)
    loss = [mean_loss(model, w_t, client) for client in kept]
    alpha = [size(client) if weighting == "examples" else 1 for client in kept]
    return Survey(kept, np.array(loss, np.float64), np.array(alpha, np.float64))


def _train_shares(
    model: Model, w_t: Weights, survey: Survey, share: np.ndarray, sgd: LocalSgd
) -> Weights:
    """Returns w^t + sum_k s_k alpha_k (w_k - w^t) / sum_k s_k alpha_k with the shares s_k."""
    return average(
        w_t,
        (
            (share_k * alpha_k, train(model, w_t, client, sgd))
            for client, share_k, alpha_k in zip(survey.clients, share, survey.alpha)
        ),
    )
