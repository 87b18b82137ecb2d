"""A builder of Stochastic-AFL on a small problem, for tests."""

from typing import Any

import numpy as np

from tests.support.algorithms import builder_arguments
from tests.support.options import make_options
from tff_agnostic.algorithms import Problem
from tff_agnostic.algorithms.stochastic_afl import StochasticAflOptions, stochastic_afl
from tff_agnostic.models import logistic_regression

# Expected number of examples of each domain in a round.
COUNTS = np.array([6.0, 5.0, 8.0])


def build_afl(num_domains: int = 3, counts: Any = COUNTS, **settings: Any) -> Any:
    """Returns Stochastic-AFL; `settings` are flags and arguments of its builder."""
    arguments = builder_arguments(stochastic_afl, settings)
    options = {name: value for name, value in settings.items() if name not in arguments}
    problem = Problem(
        logistic_regression(4, 3),
        tuple(map(str, range(num_domains))),
        seed=7,
        expected_counts=tuple(counts),
    )
    return stochastic_afl(problem, make_options(StochasticAflOptions, **options), **arguments)
