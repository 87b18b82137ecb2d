"""Statistics of numbers, labels and sentences in one pass, and standardization."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Optional

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tff_agnostic.data.store import SortedExamples, column_array
from tff_agnostic.data.store_format import (
    DOMAIN,
    LABEL,
    TOKENS,
    TRAIN,
    NumberStatistics,
    StoreDescription,
)

# Maximum size of an input with statistics, as statistics of pixels are not useful.
_MAX_NUMBERS = 2000
# Number of rows that are added at once; the last digits of sums depend on it.
_BLOCK_ROWS = 1000


class RunningStatistics:
    """Running statistics of d numbers per example.

    Means and squared differences of blocks are combined by the update of Chan, Golub and LeVeque
    1983 ("Algorithms for computing the sample variance", eq. 2.1), in float64, which stays accurate
    if a mean is much larger than the deviation.

    Args:
        size: Number of numbers per example, d.
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
            block: Numbers [n, d], NaN if missing. Infinity counts as missing, because
                training rejects it.
        """
        values = np.where(np.isfinite(block), np.asarray(block, np.float64), np.nan)
        n = np.isfinite(values).sum(axis=0)
        mean = np.nansum(values, axis=0) / np.maximum(n, 1)
        squares = np.nansum(np.square(values - mean), axis=0)
        total = np.maximum(self._count + n, 1)
        step = mean - self._mean
        self._squares += squares + np.square(step) * self._count * n / total
        self._mean += step * n / total
        self._count += n
        self._examples += len(values)
        # These ignore NaN.
        self._least = np.fmin(self._least, np.fmin.reduce(values, axis=0, initial=np.inf))
        self._most = np.fmax(self._most, np.fmax.reduce(values, axis=0, initial=-np.inf))

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


def number_statistics(
    examples: SortedExamples, description: StoreDescription
) -> dict[str, tuple[NumberStatistics, ...]]:
    """Returns the statistics of the training clients' numbers, by input.

    Args:
        examples: Examples of the store, with NaN for missing numbers.
        description: Description of the store, without statistics.
    """
    named = {} if description.columns is None else description.columns.numbers
    most = math.inf if description.is_standardized else _MAX_NUMBERS
    running = {
        name: RunningStatistics(description.num_numbers(name))
        for name, feature in description.features.items()
        if feature.dtype == "float32"
        and name != LABEL
        and (name in named or len(feature.shape) == 1)
        and 0 < description.num_numbers(name) <= most
    }
    for table in examples.batches(TRAIN) if running else ():
        for name, one in running.items():
            values = column_array(table[name], [-1])[:, : description.num_numbers(name)]
            for start in range(0, len(values), _BLOCK_ROWS):
                one.add(values[start : start + _BLOCK_ROWS])
    return {name: one.result() for name, one in running.items()}


def label_range(
    examples: SortedExamples, split: Optional[str] = None
) -> Optional[tuple[float, float]]:
    """Returns the smallest and the largest label of a split or a store; None without examples."""
    ends = [pc.min_max(table[LABEL]).as_py() for table in examples.batches(split)]
    return (min(end["min"] for end in ends), max(end["max"] for end in ends)) if ends else None


def sentence_lengths(examples: SortedExamples) -> list[tuple[str, str, int, int]]:
    """Returns (split, domain, words per sentence, number of sentences), in ascending order."""
    lengths: Counter[tuple[str, str, int]] = Counter()
    for split in examples.rows:
        for table in examples.batches(split):
            words = pc.add(pc.count_substring(table[TOKENS], " "), 1)
            pairs = pa.table({"domain": table[DOMAIN], "words": words})
            counts = pairs.group_by(["domain", "words"], use_threads=False).aggregate(
                [([], "count_all")]
            )
            for row in counts.to_pylist():
                lengths[split, row["domain"], row["words"]] += row["count_all"]
    return [(*key, n) for key, n in sorted(lengths.items())]


def standardized(values: np.ndarray, statistics: Sequence[NumberStatistics]) -> np.ndarray:
    """Scales numbers [n, d] to mean 0 and deviation 1, float32; NaN becomes 0, the mean."""
    mean = np.array([one.mean for one in statistics])
    unit = np.array([one.unit for one in statistics])
    result = (np.asarray(values, np.float64) - mean) / unit
    return np.where(np.isnan(result), 0.0, result).astype(np.float32)
