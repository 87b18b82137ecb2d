"""FedProx: Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Algorithm 2.

Client k minimises F_k(w) + mu / 2 ||w - w^t||^2 approximately: the gradient of every local step
gains mu (w - w^t), which is 0 at the first one.
"""

import dataclasses

import numpy as np

from tff_agnostic.algorithms.fed_avg import FedAvgOptions, with_constant_scale
from tff_agnostic.algorithms.spec import AlgorithmSpec, Problem, Trait
from tff_agnostic.computations.exchange import Algorithm
from tff_agnostic.settings import setting


@dataclasses.dataclass(frozen=True)
class FedProxOptions(FedAvgOptions):
    """Settings of FedProx.

    Attributes:
        mu: Weight of the proximal term; with 0 it is FedAvg. A batch has its share of the term:
            all of it with `batch_normalizer` "batch", and with "client" the share of the client's
            examples that it holds, as of the client's loss.
    """

    mu: float = setting(
        0.1, "Weight of FedProx's proximal term mu / 2 ||w - w^t||^2.", at_least=0.0
    )


def fed_prox(problem: Problem, options: FedProxOptions) -> Algorithm:
    """Returns FedProx; clients are averaged by their numbers of examples, as in FedAvg."""
    scale = np.ones([problem.num_domains], np.float32)
    return with_constant_scale("fed_prox", problem, options, scale, proximal=options.mu)


ALGORITHM = AlgorithmSpec(
    label="FedProx",
    paper="Li et al. 2020, Algorithm 2",
    build=fed_prox,
    options=FedProxOptions,
    traits=frozenset(
        {
            Trait.DOMAIN_BLIND,
            Trait.PARTITION_BLIND,
            Trait.COHORT_TWICE_IS_ONCE,
            Trait.LEARNS_FROM_EVERY_DOMAIN,
        }
    ),
)
