"""Statistics of numbers, from one pass over them in bounded memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Optional

import numpy as np


@dataclasses.dataclass(frozen=True)
class NumberStatistics:
    """What the values of one number are.

    Attributes:
        count: How many values there are.
        missing: How many examples lack it.
        mean: Their mean; 0 without values.
        deviation: Their standard deviation, of all of them and not of a sample: its square is the
            mean of squared differences from the mean.
        least: The smallest; None without values.
        most: The largest; None without values.
    """

    count: int
    missing: int
    mean: float
    deviation: float
    least: Optional[float]
    most: Optional[float]

    def to_json(self) -> list[Optional[float]]:
        """Returns the same as JSON values."""
        return [self.count, self.missing, self.mean, self.deviation, self.least, self.most]

    @classmethod
    def of_json(cls, value: Any) -> NumberStatistics:
        """Returns what `to_json` wrote.

        Raises:
            ValueError: If it is something else.
        """
        count, missing, mean, deviation, least, most = value
        found = cls(count, missing, mean, deviation, least, most)
        ends = [] if least is None and most is None and count == 0 else [least, most]
        are_numbers = all(
            isinstance(number, (int, float)) and math.isfinite(number)
            for number in (count, missing, mean, deviation, *ends)
        )
        if not are_numbers or min(count, missing, deviation) < 0:
            raise ValueError(f"expected the statistics of numbers, found {value!r:.100}")
        return found

    @property
    def size(self) -> float:
        """The root of the mean of squares: how large values are."""
        return float(np.hypot(self.mean, self.deviation))

    @property
    def unit(self) -> float:
        """What to divide by for a deviation of 1; 1 where all values are the same."""
        return self.deviation or 1.0


class RunningStatistics:
    """Statistics of d numbers of examples that come in blocks.

    Means and squared differences of blocks are put together by the update of Chan, Golub and
    LeVeque 1983 ("Algorithms for computing the sample variance", eq. 2.1), in float64: nothing is
    lost where a mean is large beside the deviation.

    Args:
        size: d.
    """

    def __init__(self, size: int) -> None:
        self._examples = 0
        self._count = np.zeros(size, np.int64)
        self._mean = np.zeros(size)
        # Sums of squared differences from the mean.
        self._squares = np.zeros(size)
        self._least = np.full(size, np.inf)
        self._most = np.full(size, -np.inf)

    def add(self, block: np.ndarray) -> None:
        """Adds examples.

        Args:
            block: [n, d]; NaN where a number is missing. Infinity, which training refuses, counts
                as missing too.
        """
        values = np.asarray(block, np.float64)
        is_there = np.isfinite(values)
        n = is_there.sum(axis=0)
        values = np.where(is_there, values, 0.0)
        mean = values.sum(axis=0) / np.maximum(n, 1)
        differences = np.where(is_there, values - mean, 0.0)
        squares = np.square(differences).sum(axis=0)
        total = np.maximum(self._count + n, 1)
        step = mean - self._mean
        self._squares += squares + np.square(step) * self._count * n / total
        self._mean += step * n / total
        self._count += n
        self._examples += len(values)
        self._least = np.fmin(
            self._least, np.where(is_there, values, np.inf).min(axis=0, initial=np.inf)
        )
        self._most = np.fmax(
            self._most, np.where(is_there, values, -np.inf).max(axis=0, initial=-np.inf)
        )

    def result(self) -> tuple[NumberStatistics, ...]:
        """Returns the statistics of each number."""
        return tuple(
            NumberStatistics(
                count=int(n),
                missing=self._examples - int(n),
                mean=float(mean),
                deviation=float(np.sqrt(squares / max(n, 1))),
                least=float(least) if n else None,
                most=float(most) if n else None,
            )
            for n, mean, squares, least, most in zip(
                self._count, self._mean, self._squares, self._least, self._most
            )
        )


class Standardization:
    """Brings d numbers to mean 0 and deviation 1, where the statistics are theirs.

    Args:
        statistics: Of each number.
    """

    def __init__(self, statistics: Sequence[NumberStatistics]) -> None:
        self._mean = np.array([one.mean for one in statistics])
        self._unit = np.array([one.unit for one in statistics])

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Returns float32 [..., d]; a missing number, NaN, becomes 0, which is the mean."""
        found = (np.asarray(values, np.float64) - self._mean) / self._unit
        return np.where(np.isnan(found), 0.0, found).astype(np.float32)
