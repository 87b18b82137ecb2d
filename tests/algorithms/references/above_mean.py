"""An algorithm of two steps: clients with losses below the round's mean do not train.

First exchange: a client sends F_k(w^t), its mean loss over all its examples, and a 1; the server
divides the sums and broadcasts the quotient, in which clients count equally. Second exchange:
the clients with F_k(w^t) >= mean train by local SGD from w^t and are averaged by n_k.
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
        mean_loss: The broadcast mean; NaN if no client sent a loss.
        trains: Whether each client trained, in the given order.
    """

    w: Weights
    mean_loss: float
    trains: list[bool]


def above_mean_round(model: Model, w_t: Weights, clients: Sequence[Client], sgd: LocalSgd) -> Round:
    """Computes one round; returns w^t if no client trains.

    A client without examples, or whose loss at w^t is not finite, does nothing in either exchange.
    One whose loss is finite but whose w_k is not counts in the mean, which is sent by then, and
    not in the average.
    """
    F = [mean_loss(model, w_t, client) for client in clients]
    sent = [F_k for F_k in F if np.isfinite(F_k)]
    mean = sum(sent) / len(sent) if sent else float("nan")
    # Neither a NaN loss nor a NaN mean is >= anything; an infinite loss would be.
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
