"""q-FedAvg (Li et al., "Fair Resource Allocation in Federated Learning", 2020), float64.

It minimises sum_k p_k / (q+1) F_k(w)^{q+1} with p_k = n_k / n. The paper draws devices with
probability p_k and sums them equally, which is the weighting "equal". The weighting "examples" is
for uniformly drawn devices: the sums of Delta_k and of h_k both weight devices by n_k.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tests.algorithms.references.local_sgd import LocalSgd, train
from tests.algorithms.references.softmax import (
    Client,
    Model,
    Weights,
    all_finite,
    mean_loss,
    size,
    with_finite_loss,
)

# Offset that the authors' code adds to F, since 0^(q - 1) is infinite for q < 1.
LOSS_OFFSET = 1e-10


class Message(NamedTuple):
    """Device k's message: Delta_k with shapes as in w, and h_k."""

    Delta: Weights
    h: float


def q_fed_avg_message(
    model: Model, w_t: Weights, client: Client, q: float, sgd: LocalSgd
) -> Message:
    """Returns Delta_k and h_k of one device as published, with L = 1/eta."""
    F, Dw, L = _losses_and_steps(model, w_t, client, sgd)
    with np.errstate(over="ignore", invalid="ignore"):
        Delta = [F**q * Dw_m for Dw_m in Dw]
        h = q * F ** (q - 1) * _squared_norm(Dw) + L * F**q
    return Message(Delta, float(h))


def q_fed_avg_round(
    model: Model,
    w_t: Weights,
    clients: Sequence[Client],
    q: float,
    sgd: LocalSgd,
    weighting: str = "equal",
) -> Weights:
    """Returns w^{t+1} = w^t - sum_k Delta_k / sum_k h_k.

    Both sums omit clients without examples and clients with a non-finite loss, Delta_k or h_k. If
    sum_k h_k is 0, the result is w^t.
    """
    kept = with_finite_loss(model, w_t, clients)
    messages = [q_fed_avg_message(model, w_t, client, q, sgd) for client in kept]
    return _step(w_t, kept, messages, weighting)


def _losses_and_steps(
    model: Model, w_t: Weights, client: Client, sgd: LocalSgd
) -> tuple[np.float64, Weights, float]:
    """Returns F_k(w^t) over all examples, before training; Dw_k = L (w^t - w_k); and L."""
    L = 1.0 / sgd.eta
    w_k = train(model, w_t, client, sgd)
    Dw = [L * (w_m - w_km) for w_m, w_km in zip(w_t, w_k)]
    # If a power overflows, NumPy's float becomes infinite, while Python's raises an error.
    return np.float64(mean_loss(model, w_t, client) + LOSS_OFFSET), Dw, L


def _squared_norm(w: Weights) -> float:
    return float(sum(np.sum(w_m**2) for w_m in w))


def _step(
    w_t: Weights, clients: Sequence[Client], messages: Sequence[Message], weighting: str
) -> Weights:
    """Returns the server's next weights from one message per client."""
    if weighting not in ("examples", "equal"):
        raise ValueError(f"weighting is 'examples' or 'equal', not {weighting!r}")
    total, total_h = [np.zeros_like(w_m, dtype=np.float64) for w_m in w_t], 0.0
    for client, (Delta, h) in zip(clients, messages):
        if not (all_finite(Delta) and np.isfinite(h)):
            continue
        c_k = size(client) if weighting == "examples" else 1
        total = [total_m + c_k * Delta_m for total_m, Delta_m in zip(total, Delta)]
        total_h += c_k * h
    if total_h == 0.0:
        return list(w_t)
    return [w_m - total_m / total_h for w_m, total_m in zip(w_t, total)]
