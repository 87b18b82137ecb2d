"""Every algorithm by name."""

from typing import Callable

from tff_agnostic.computations.agnostic_fed_avg import agnostic_fed_avg
from tff_agnostic.computations.algorithm import AlgorithmParams, FederatedAlgorithm
from tff_agnostic.computations.fed_avg import fed_avg, fed_avg_target_only
from tff_agnostic.models.functional import Model
from tff_agnostic.registry import Registry

AlgorithmBuilder = Callable[[Model, int, AlgorithmParams], FederatedAlgorithm]

ALGORITHMS: Registry[AlgorithmBuilder] = Registry(
    "algorithm",
    {
        "agnostic_fed_avg": agnostic_fed_avg,
        "fed_avg": fed_avg,
        "fed_avg_target_only": fed_avg_target_only,
    },
)
