"""Whether any mixture helps the worst domain, and whether an algorithm found it.

Pure functions on arrays of the worst domain's measure, one number per trial.
"""

import dataclasses
import enum
import math
from collections.abc import Mapping

import numpy as np


class Outcome(enum.Enum):
    """What is attainable, and what was attained."""

    NONE_HELPS = "none_helps"
    FOUND = "found"
    MISSED = "missed"
    UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class End:
    """Where trials ended.

    Attributes:
        mean: Of the worst domain's measure.
        spread: Its sample standard deviation; NaN of one trial, and of numbers that are not finite.
    """

    mean: float
    spread: float

    @property
    def noise(self) -> float:
        """The standard deviation, 0 where it is not known."""
        return 0.0 if math.isnan(self.spread) else self.spread


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What follows from the worst domain's measure at each mixture and of each algorithm.

    "Better" is higher or lower, as the measure has it.

    Attributes:
        outcome: A mixture helps if its mean is better than the training mixture's by more than the
            standard deviation, the larger of the two. An algorithm found it if its mean is better
            than the best mixture's, or worse by no more than the best mixture's standard deviation.
            "Found" is that at least one did; "unknown", that no domain was counted.
        best: The mixture with the best mean: the training mixture if no other one is better.
        training_end: Where the training mixture ended.
        best_end: Where the best mixture ended.
        ends: Where each algorithm ended, by its name.
        gain: By how much the best is better than the training mixture, at least 0.
        gaps: By how much the best is better than each algorithm; negative where the algorithm is
            better.
        found_by: The algorithms that found the best mixture, whether it helps or not.
    """

    outcome: Outcome
    best: int
    training_end: End
    best_end: End
    ends: Mapping[str, End]
    gain: float
    gaps: Mapping[str, float]
    found_by: tuple[str, ...]


def judge(
    mixtures: np.ndarray,
    training: int,
    algorithms: Mapping[str, np.ndarray],
    higher_is_better: bool,
) -> Verdict:
    """Returns what the trials say.

    Args:
        mixtures: The worst domain's measure at each mixture and trial, [mixtures, trials]; NaN
            where no domain was counted.
        training: Which of the mixtures is that of the training examples.
        algorithms: The same of each algorithm, [trials], by its name.
        higher_is_better: Which direction is good.
    """
    sign = 1.0 if higher_is_better else -1.0
    goodness = sign * mixtures.mean(axis=1)
    best = training
    if not math.isnan(goodness[training]) and np.nanmax(goodness) > goodness[training]:
        best = int(np.nanargmax(goodness))
    training_end, best_end = end_of(mixtures[training]), end_of(mixtures[best])
    ends = {name: end_of(values) for name, values in algorithms.items()}
    gain = 0.0 if best == training else float(goodness[best] - goodness[training])
    gaps = {name: sign * (best_end.mean - end.mean) for name, end in ends.items()}
    found_by = tuple(name for name, gap in gaps.items() if gap <= best_end.noise)
    if math.isnan(goodness[training]):
        outcome = Outcome.UNKNOWN
    elif gain <= max(training_end.noise, best_end.noise):
        outcome = Outcome.NONE_HELPS
    else:
        outcome = Outcome.FOUND if found_by else Outcome.MISSED
    return Verdict(outcome, best, training_end, best_end, ends, gain, gaps, found_by)


def end_of(values: np.ndarray) -> End:
    """Returns the mean and the spread of trials, [trials]."""
    is_known = len(values) > 1 and bool(np.all(np.isfinite(values)))
    return End(float(np.mean(values)), float(np.std(values, ddof=1)) if is_known else math.nan)
