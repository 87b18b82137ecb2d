"""An algorithm of two steps: clients with losses below the round's mean do not train.

In the first step, a client sends F_k(w^t), its mean loss over all its examples. The server
broadcasts the mean over clients. In the second step, clients with F_k(w^t) >= mean train by local
SGD from w^t, and the server averages them by n_k.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tests.algorithms.references.local_sgd import LocalSgd, average, train
from tests.algorithms.references.softmax import Client, Model, Weights, mean_loss, size


class Round(NamedTuple):
    """The results of a round.

    Attributes:
        w: w^{t+1}.
        mean_loss: Mean loss that the server broadcast; NaN if no client sent a loss.
        trains: Whether each client trained, in the given order.
    """

    w: Weights
    mean_loss: float
    trains: list[bool]


def above_mean_round(model: Model, w_t: Weights, clients: Sequence[Client], sgd: LocalSgd) -> Round:
    """Computes one round; returns w^t if no client trains.

    A client without examples or with a non-finite loss at w^t takes no part in either step. A
    client with a finite loss but non-finite w_k counts in the mean loss, not in the average.
    """
    F = [mean_loss(model, w_t, client) for client in clients]
    sent = [F_k for F_k in F if np.isfinite(F_k)]
    mean = sum(sent) / len(sent) if sent else float("nan")
    # Comparisons with NaN are False, but an infinite loss would pass F_k >= mean.
    trains = [bool(np.isfinite(F_k) and F_k >= mean) for F_k in F]
    w = average(
        w_t,
        (
            (size(client), train(model, w_t, client, sgd))
            for client, chosen in zip(clients, trains)
            if chosen
        ),
    )
    return Round(w, mean, trains)
