"""FedAvg-Sub (Laguel et al. 2021): FedAvg on the part of the cohort that was drawn."""

from collections.abc import Sequence

from tests.algorithms.references.local_sgd import LocalSgd, fed_avg_round
from tests.algorithms.references.softmax import Client, Model, Weights


def fed_avg_sub_round(
    model: Model,
    w_t: Weights,
    clients: Sequence[Client],
    drawn: Sequence[bool],
    sgd: LocalSgd,
) -> Weights:
    """One round: sum_k n_k w_k / sum_k n_k over the drawn clients; w^t where none is drawn.

    Who is drawn is an argument: that is chance, and for tests of how it is drawn.
    """
    part = [client for client, is_drawn in zip(clients, drawn) if is_drawn]
    return fed_avg_round(model, w_t, part, sgd)
