"""The portfolio of `recommend`: methods, the learning rates of their settings, and a schedule.

The first setting of a method has the given learning rates, or the task's. The others multiply them
by fixed factors, which all methods share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from tff_agnostic.base.errors import UserError
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.comparison import BASELINE
from tff_agnostic.program.studies.methods import LAST_LAYER

_CLIENT, _DOMAIN = "client_learning_rate", "lambda_learning_rate"
# Searched learning rates of each method, by its word in --portfolio.
PORTFOLIO: Mapping[str, tuple[str, ...]] = {
    BASELINE: (_CLIENT,),
    "uniform": (_CLIENT,),
    "frozen": (_CLIENT, _DOMAIN),
    "excess_own": (_CLIENT, _DOMAIN),
    "excess_trivial": (_CLIENT, _DOMAIN),
    LAST_LAYER: (_CLIENT,),
    "domain_input": (_CLIENT,),
}
# Only tried if named: the model needs the domain wherever it is used.
IF_NAMED = ("domain_input",)
# Factors of each setting, for methods with one learning rate and with two.
_ONE_RATE = (1.0, 2.0, 0.5, 4.0, 0.25, 1.4, 0.7, 8.0)
FACTORS = (
    (1.0, 1.0),
    (2.0, 0.3),
    (0.5, 3.0),
    (2.0, 3.0),
    (4.0, 1.0),
    (1.0, 0.1),
    (0.25, 1.0),
    (0.5, 0.1),
)
# Number of methods with more trials, in addition to FedAvg.
FINALISTS = 2


def learning_rates(row: str, first: RunSettings, number: int) -> list[dict[str, float]]:
    """Returns the changed learning rates of each setting of a method, by flag."""
    values, flags = first.settings(), PORTFOLIO[row]
    # The first factors are near 1.
    tried = FACTORS if len(flags) > 1 else [(factor,) for factor in _ONE_RATE]
    return [
        {flag: values[flag] * factor for flag, factor in zip(flags, factors) if factor != 1.0}
        for factors in tried[:number]
    ]


class Schedule(NamedTuple):
    """The numbers of settings and trials.

    Attributes:
        trials: Number of seeds of finalists, and of the final runs.
    """

    tries: int
    trials: int


def schedule_within(
    seconds: float, used: float, by_row: Mapping[str, float], most: Schedule
) -> Schedule:
    """Returns the largest schedule that fits into a time.

    More trials precede more settings: intervals need them.

    Args:
        seconds: The time for all runs.
        used: Seconds of the first settings and of baseline runs.
        by_row: Seconds of one run of each method, which are part of `used`.

    Raises:
        UserError: If not even one trial of all fits.
    """
    every = sum(by_row.values())
    others = sorted(s for row, s in by_row.items() if row != BASELINE)
    finalist_seconds = by_row[BASELINE] + sum(others[-FINALISTS:])
    # FedAvg and the choice, which may be the longest method.
    final_seconds = by_row[BASELINE] + max(by_row.values())
    for trials in range(most.trials, 0, -1):
        at_end = trials * final_seconds
        rest = seconds - used - (trials - 1) * finalist_seconds - at_end
        if rest >= 0:
            more = int(min(rest / every, most.tries)) if every > 0 else most.tries
            return Schedule(min(most.tries, 1 + more), trials)
    least = used + final_seconds
    raise UserError(
        f"--hours: expected {math.ceil(least / 36) / 100:g} or more, for one run of each of "
        f"{', '.join(by_row)} and 2 at the end, found {seconds / 3600:g}"
    )
