"""FedAvg-Sub: FedAvg on a part of the cohort (Laguel, Pillutla, Malick, Harchaoui 2021).

Their "A Superquantile Approach to Federated Learning with Heterogeneous Devices" trains on the
clients of a cohort with the largest losses. This is its control of the budget: FedAvg on as many
clients, about theta m of m, drawn regardless of their losses.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from tff_agnostic.algorithms.fed_avg import FedAvgOptions, fed_avg
from tff_agnostic.algorithms.spec import AlgorithmSpec, Problem, Trait
from tff_agnostic.computations.client_group import ClientGroup, PerClient
from tff_agnostic.computations.client_update import zeros_unless
from tff_agnostic.computations.exchange import Algorithm, ClientFunction
from tff_agnostic.computations.seeds import uniform
from tff_agnostic.computations.structures import ClientCounts, TrainingBroadcast, TrainingOutput
from tff_agnostic.settings import setting

# This use of a client's seed; its shuffling has those from 0.
_DRAW = -2


@dataclasses.dataclass(frozen=True)
class FedAvgSubOptions(FedAvgOptions):
    """Settings of FedAvg-Sub.

    Attributes:
        cohort_share: theta, the probability with which a client of the cohort takes part.
    """

    cohort_share: float = setting(
        0.5,
        "theta: the probability with which each client of a cohort takes part in FedAvg-Sub.",
        positive=True,
        at_most=1.0,
    )


@dataclasses.dataclass(frozen=True)
class FedAvgSubClient:
    """What a client does: FedAvg, if it is drawn.

    Attributes:
        train: What clients of FedAvg do.
        cohort_share: theta.
    """

    train: ClientFunction
    cohort_share: float

    def __call__(
        self,
        broadcast: TrainingBroadcast,
        clients: ClientGroup,
        seed: tf.Tensor,
        per_client: PerClient,
    ) -> TrainingOutput:
        """Returns what each client sends: zeros and its count, if it is not drawn."""
        output: TrainingOutput = self.train(broadcast, clients, seed, per_client)
        is_drawn = takes_part(seed, self.cohort_share)
        kept: TrainingOutput = zeros_unless(is_drawn, output)
        return kept._replace(clients=_counted(output.clients, is_drawn))


def takes_part(seed: tf.Tensor, cohort_share: float) -> tf.Tensor:
    """Returns whether each client is drawn, boolean: all by themselves, with the same probability.

    Args:
        seed: Seed of each client in this round, int64.
        cohort_share: The probability, in (0, 1].
    """
    return uniform(seed, _DRAW) < cohort_share


def _counted(counts: ClientCounts, is_drawn: tf.Tensor) -> ClientCounts:
    """Counts clients that would have contributed, and were not drawn, as without weight."""
    contributed = tf.where(is_drawn, counts.contributed, 0)
    left_out = counts.contributed - contributed
    return counts._replace(contributed=contributed, zero_weight=counts.zero_weight + left_out)


def fed_avg_sub(problem: Problem, options: FedAvgSubOptions) -> Algorithm:
    """Returns FedAvg whose clients each take part with probability theta."""
    base = fed_avg(problem, options)
    (training,) = base.exchanges
    client: Any = FedAvgSubClient(training.client, options.cohort_share)
    return dataclasses.replace(
        base, name="fed_avg_sub", exchanges=(dataclasses.replace(training, client=client),)
    )


ALGORITHM = AlgorithmSpec(
    label="FedAvg-Sub",
    paper="Laguel et al. 2021",
    build=fed_avg_sub,
    options=FedAvgSubOptions,
    # Twins have the same seed, and are drawn together.
    traits=frozenset({Trait.COHORT_TWICE_IS_ONCE}),
)
