"""Federated algorithms, a file each, and the registry of them all."""

from tff_agnostic.algorithms.agnostic_fed_avg import AgnosticFedAvgOptions, build_agnostic_fed_avg
from tff_agnostic.algorithms.fed_avg import FedAvgOptions, build_fed_avg
from tff_agnostic.algorithms.registry import ALGORITHMS
from tff_agnostic.algorithms.spec import AlgorithmSpec, Problem, Trait

__all__ = [
    "ALGORITHMS",
    "AgnosticFedAvgOptions",
    "AlgorithmSpec",
    "FedAvgOptions",
    "Problem",
    "Trait",
    "build_agnostic_fed_avg",
    "build_fed_avg",
]
