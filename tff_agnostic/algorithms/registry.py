"""Every algorithm by name."""

from tff_agnostic.algorithms import (
    afl_boost,
    agnostic_fed_avg,
    delta_fl,
    fed_avg,
    fed_avg_sub,
    fed_boost,
    fed_prox,
    q_ffl,
    stochastic_afl,
    term,
)
from tff_agnostic.algorithms.spec import AlgorithmSpec
from tff_agnostic.registry import Registry

ALGORITHMS: Registry[AlgorithmSpec] = Registry(
    "algorithm",
    {
        "afl_boost": afl_boost.ALGORITHM,
        "agnostic_fed_avg": agnostic_fed_avg.ALGORITHM,
        "delta_fl": delta_fl.ALGORITHM,
        "fed_avg": fed_avg.ALGORITHM,
        "fed_avg_sub": fed_avg_sub.ALGORITHM,
        "fed_avg_target_only": fed_avg.TARGET_ONLY,
        "fed_boost": fed_boost.ALGORITHM,
        "fed_prox": fed_prox.ALGORITHM,
        "q_ffl": q_ffl.ALGORITHM,
        "stochastic_afl": stochastic_afl.ALGORITHM,
        "term": term.ALGORITHM,
    },
)
