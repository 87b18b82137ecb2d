"""FedProx (Li et al. 2020) in NumPy and float64: device k minimises F_k(w) + (mu/2) ||w - w^t||^2.

All devices do all of the work: the method's partial work is not modelled.
"""

from collections.abc import Sequence

from tests.algorithms.references.local_sgd import LocalSgd, average, train
from tests.algorithms.references.softmax import Client, Model, Weights, size, with_finite_loss


def train_proximal(model: Model, w_t: Weights, client: Client, sgd: LocalSgd, mu: float) -> Weights:
    """w_k: local SGD on F_k(w) + (mu/2) ||w - w^t||^2, started at w^t.

    Each step's gradient gains mu (w - w^t) in full, whichever divisor the loss's gradient has:
    with "client" an epoch of b batches pulls b times, each time with all of mu.
    """
    return train(
        model,
        w_t,
        client,
        sgd,
        # Towards w^t: the step is against the gradient, so w loses eta mu (w - w^t).
        extra_gradient=lambda w: [mu * (w_m - anchor) for w_m, anchor in zip(w, w_t)],
    )


def fed_prox_round(
    model: Model, w_t: Weights, clients: Sequence[Client], sgd: LocalSgd, mu: float
) -> Weights:
    """Computes one round: w^{t+1} = sum_k n_k w_k / sum_k n_k.

    A client without examples, or whose loss at w^t or w_k is not finite, is dropped: it counts
    neither above nor below the line. If no client remains, the result is w^t.
    """
    kept = with_finite_loss(model, w_t, clients)
    return average(
        w_t, ((size(client), train_proximal(model, w_t, client, sgd, mu)) for client in kept)
    )
