"""Statistics of numbers from one pass in bounded memory, and standardization by them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tff_agnostic.data.store_format import LABEL, NumberStatistics, StoreDescription

# Statistics of each number of an image, or of a vector that is one, have no reader.
_MAX_NUMBERS = 2000


def inputs_with_statistics(description: StoreDescription) -> dict[str, int]:
    """Returns the inputs whose numbers have statistics, with the number of their numbers."""
    named = {} if description.columns is None else description.columns.numbers
    sizes = {
        name: description.num_numbers(name)
        for name, feature in description.features.items()
        if feature.dtype == "float32"
        and name != LABEL
        and (name in named or len(feature.shape) == 1)
    }
    most = math.inf if description.is_standardized else _MAX_NUMBERS
    return {name: size for name, size in sizes.items() if 0 < size <= most}


class RunningStatistics:
    """Statistics of d numbers of examples that come in blocks.

    Means and squared differences of blocks are combined by the update of Chan, Golub and LeVeque
    1983 ("Algorithms for computing the sample variance", eq. 2.1), in float64: nothing is lost
    where a mean is large compared with the deviation.

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
            block: [n, d]; NaN where a number is missing. Infinity, which training refuses, also
                counts as missing.
        """
        values = np.asarray(block, np.float64)
        is_present = np.isfinite(values)
        n = is_present.sum(axis=0)
        values = np.where(is_present, values, 0.0)
        mean = values.sum(axis=0) / np.maximum(n, 1)
        differences = np.where(is_present, values - mean, 0.0)
        squares = np.square(differences).sum(axis=0)
        total = np.maximum(self._count + n, 1)
        step = mean - self._mean
        self._squares += squares + np.square(step) * self._count * n / total
        self._mean += step * n / total
        self._count += n
        self._examples += len(values)
        self._least = np.fmin(
            self._least, np.where(is_present, values, np.inf).min(axis=0, initial=np.inf)
        )
        self._most = np.fmax(
            self._most, np.where(is_present, values, -np.inf).max(axis=0, initial=-np.inf)
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
    """Brings d numbers to mean 0 and deviation 1 by their statistics.

    Args:
        statistics: Statistics of each number.
    """

    def __init__(self, statistics: Sequence[NumberStatistics]) -> None:
        self._mean = np.array([one.mean for one in statistics])
        self._unit = np.array([one.unit for one in statistics])

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Returns float32 [..., d]; a missing number, NaN, becomes 0, which is the mean."""
        result = (np.asarray(values, np.float64) - self._mean) / self._unit
        return np.where(np.isnan(result), 0.0, result).astype(np.float32)
