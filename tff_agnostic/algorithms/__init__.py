"""Federated algorithms, one per file, and their registry."""

from __future__ import annotations

from tff_agnostic.algorithms import (
    agnostic_fed_avg,
    delta_fl,
    fed_avg,
    fed_boost,
    q_ffl,
    stochastic_afl,
    term,
)
from tff_agnostic.algorithms.agnostic_fed_avg import AgnosticFedAvgOptions, build_agnostic_fed_avg
from tff_agnostic.algorithms.fed_avg import FedAvgOptions, build_fed_avg
from tff_agnostic.base.registry import Registry
from tff_agnostic.computations.algorithm import AlgorithmSpec, Problem, Trait

ALGORITHMS: Registry[AlgorithmSpec] = Registry(
    "algorithm",
    {
        "afl_boost": fed_boost.AFL_BOOST,
        "agnostic_fed_avg": agnostic_fed_avg.ALGORITHM,
        "delta_fl": delta_fl.ALGORITHM,
        "fed_avg": fed_avg.ALGORITHM,
        "fed_avg_sub": fed_avg.FED_AVG_SUB,
        "fed_avg_target_only": fed_avg.TARGET_ONLY,
        "fed_boost": fed_boost.ALGORITHM,
        "fed_prox": fed_avg.FED_PROX,
        "q_ffl": q_ffl.ALGORITHM,
        "stochastic_afl": stochastic_afl.ALGORITHM,
        "term": term.ALGORITHM,
    },
)

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
