"""FedProx (Li et al. 2020) in NumPy and float64: device k minimises F_k(w) + (mu/2) ||w - w^t||^2.

All devices train for all epochs; FedProx's partial work is not modelled.
"""

from collections.abc import Sequence

from tests.algorithms.references.local_sgd import LocalSgd, average, train
from tests.algorithms.references.softmax import Client, Model, Weights, size, with_finite_loss


def train_proximal(model: Model, w_t: Weights, client: Client, sgd: LocalSgd, mu: float) -> Weights:
    """Returns w_k, the result of local SGD on F_k(w) + (mu/2) ||w - w^t||^2 from w^t.

    Each step adds mu (w - w^t) to the gradient, whichever divisor the loss's gradient has. With
    "client", an epoch of b batches therefore adds the full term b times.
    """
    return train(
        model,
        w_t,
        client,
        sgd,
        extra_gradient=lambda w: [mu * (w_m - anchor) for w_m, anchor in zip(w, w_t)],
    )


def fed_prox_round(
    model: Model, w_t: Weights, clients: Sequence[Client], sgd: LocalSgd, mu: float
) -> Weights:
    """Returns w^{t+1} = sum_k n_k w_k / sum_k n_k.

    Both sums omit clients without examples and clients with a non-finite loss at w^t or non-finite
    w_k. Without clients, the result is w^t.
    """
    kept = with_finite_loss(model, w_t, clients)
    return average(
        w_t, ((size(client), train_proximal(model, w_t, client, sgd, mu)) for client in kept)
    )
