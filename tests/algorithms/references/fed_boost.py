"""FedBoost and AFLBoost in NumPy, float64, written from the paper (Hamer, Mohri, Suresh 2020).

It implements figures 1 and 2, equation (8), and an unbiased variant of section 4.2. Predictors are
given by their outputs for an example, an array [q, classes] whose rows are distributions.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple

import numpy as np


class Example(NamedTuple):
    """An example: the predictors' outputs h [q, classes], its class y, and its domain."""

    h: np.ndarray
    y: int
    domain: int = 0


def gammas(sampling: str, alpha: np.ndarray, budget: int, uniform_share: float = 0.0) -> np.ndarray:
    """Returns the predictors' sampling probabilities, by equation (8) if "weighted"."""
    q = len(alpha)
    if sampling == "none":
        return np.ones(q)
    even = np.full(q, budget / q)
    if sampling == "uniform":
        return even
    return (1 - uniform_share) * np.minimum(1.0, alpha * budget) + uniform_share * even


def loss_at(loss: str, weights: np.ndarray, example: Example) -> float:
    """Returns the loss of the mixture sum_k weights_k h_k on an example."""
    mixed = weights @ example.h
    if loss == "log":
        return float(-np.log(mixed[example.y]))
    target = np.eye(example.h.shape[1])[example.y]
    return float(np.sum((mixed - target) ** 2))


def gradient_at(loss: str, weights: np.ndarray, example: Example) -> np.ndarray:
    """Returns the gradient of `loss_at` in the q weights: <grad loss(h), h_k> for each k."""
    mixed = weights @ example.h
    if loss == "log":
        return -example.h[:, example.y] / mixed[example.y]
    target = np.eye(example.h.shape[1])[example.y]
    return 2 * example.h @ (mixed - target)


def estimate(
    estimator: str,
    loss: str,
    alpha: np.ndarray,
    gamma: np.ndarray,
    mask: np.ndarray,
    example: Example,
) -> np.ndarray:
    """Returns the gradient at alpha, estimated from predictors in the mask; zeros without any."""
    if not mask.any():
        return np.zeros_like(alpha)
    gradient = gradient_at(loss, mask * alpha / gamma, example)
    if estimator == "all":
        return gradient
    if estimator == "masked":
        return mask * gradient
    if estimator == "centred":
        return mask / gamma * (1 + gradient)
    divided = mask / gamma * gradient
    if estimator == "divided":
        return divided
    assert estimator == "unbiased"
    squared_norms = np.sum(example.h**2, axis=1)
    return divided - mask / gamma * 2 * alpha * squared_norms * (1 / gamma - 1)


def masks(q: int) -> Iterator[np.ndarray]:
    """Yields all 2^q masks of q predictors."""
    for bits in itertools.product([0.0, 1.0], repeat=q):
        yield np.array(bits)


def expectation(gamma: np.ndarray, value: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Returns the exact mean of `value` over masks that sample predictors independently."""
    return np.sum(
        [np.prod(np.where(m > 0, gamma, 1 - gamma)) * value(m) for m in masks(len(gamma))], axis=0
    )


def entropy_step(alpha: np.ndarray, gradient: np.ndarray, rate: float) -> np.ndarray:
    """Returns alpha after a step of mirror descent with F = sum x log x."""
    exponents = np.log(np.maximum(alpha, 1e-300)) - rate * gradient
    raised = np.where(alpha > 0, np.exp(exponents - exponents.max()), 0.0)
    return raised / raised.sum()


def euclidean_step(alpha: np.ndarray, gradient: np.ndarray, rate: float) -> np.ndarray:
    """Returns alpha after a step with F = |x|^2 / 2, projected to the simplex by bisection."""
    point = alpha - rate * gradient
    low, high = point.min() - 1.0, point.max()
    for _ in range(200):
        middle = (low + high) / 2
        if np.maximum(point - middle, 0).sum() > 1:
            low = middle
        else:
            high = middle
    return np.maximum(point - high, 0)


STEPS = {"entropy": entropy_step, "euclidean": euclidean_step}


def fed_boost_round(
    alpha: np.ndarray,
    cohort: Sequence[Sequence[Example]],
    gamma: np.ndarray,
    mask: np.ndarray,
    loss: str,
    estimator: str,
    mirror_map: str,
    rate: float,
) -> np.ndarray:
    """Returns alpha_{t+1} by figure 1, lines 3 to 5; alpha_t without predictors or examples."""
    clients = [client for client in cohort if len(client)]
    if not clients or not mask.any():
        return alpha
    m = sum(len(client) for client in clients)
    delta = np.zeros_like(alpha)
    for client in clients:
        estimates = [estimate(estimator, loss, alpha, gamma, mask, example) for example in client]
        # A client's weight m_j / m, times the mean over its examples.
        delta += len(client) / m * np.mean(estimates, axis=0)
    return STEPS[mirror_map](alpha, delta, rate)


def afl_boost_round(
    alpha: np.ndarray,
    lambda_: np.ndarray,
    cohort: Sequence[Sequence[Example]],
    gamma: np.ndarray,
    mask: np.ndarray,
    loss: str,
    estimator: str,
    mirror_map: str,
    rate: float,
    lambda_rate: float,
    counts: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns alpha and lambda after figure 2, lines 3 to 7.

    Examples have the weights lambda_k / N_k of objective (11), where `counts` are N_k. lambda
    ascends on the simplex with the entropy as mirror map.
    """
    examples = [example for client in cohort for example in client]
    if not examples or not mask.any():
        return alpha, lambda_
    delta, losses = np.zeros_like(alpha), np.zeros_like(lambda_)
    for example in examples:
        k = example.domain
        actual = estimate(estimator, loss, alpha, gamma, mask, example)
        delta += lambda_[k] / counts[k] * actual
        losses[k] += loss_at(loss, mask * alpha / gamma, example) / counts[k]
    return STEPS[mirror_map](alpha, delta, rate), entropy_step(lambda_, -losses, lambda_rate)


def capacity(distributions: np.ndarray, rounds: int = 20_000) -> tuple[np.ndarray, float]:
    """Returns argmax and max of sum_k lambda_k KL(D_k || sum_l lambda_l D_l), by Blahut-Arimoto."""
    lambda_ = np.full(len(distributions), 1 / len(distributions))
    for _ in range(rounds):
        mixed = lambda_ @ distributions
        divergences = np.sum(distributions * np.log(distributions / mixed), axis=1)
        lambda_ = lambda_ * np.exp(divergences)
        lambda_ /= lambda_.sum()
    return lambda_, float(lambda_ @ divergences)


def mean_loss(loss: str, alpha: np.ndarray, cohort: Sequence[Any]) -> float:
    """Returns the mean loss over all examples of a cohort."""
    return float(np.mean([loss_at(loss, alpha, e) for client in cohort for e in client]))
