"""Numbers of a store in the making: their statistics in one pass, gaps filled, standardizing."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Callable, Optional

import numpy as np

from tff_agnostic.data.example_bytes import example_class
from tff_agnostic.data.store_format import LABEL, TRAIN, NumberStatistics, StoreDescription

# Of images, and vectors that are some, nobody wants statistics of each number.
_MAX_NUMBERS = 2000
_BLOCK_ROWS = 1000
# float32 NaN, as examples hold it where a number is missing.
_GAP = np.float32("nan").tobytes()

_Change = Callable[[np.ndarray], np.ndarray]
Statistics = Mapping[str, tuple[NumberStatistics, ...]]


def inputs_with_statistics(description: StoreDescription) -> dict[str, int]:
    """Returns the inputs of real numbers of which statistics are told, and how many they have."""
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


def statistics_of(database: sqlite3.Connection, sizes: Mapping[str, int]) -> Statistics:
    """Returns the statistics of the training clients' numbers, by input.

    Args:
        database: A store in the making; a number is NaN in it where it is missing.
        sizes: How many numbers each input has, marks not counted.
    """
    if not sizes:
        return {}
    running = {name: RunningStatistics(size) for name, size in sizes.items()}
    example = example_class()()
    rows = database.execute(
        "SELECT serialized_example_proto FROM examples WHERE split_name = ? ORDER BY rowid", [TRAIN]
    )
    while block := rows.fetchmany(_BLOCK_ROWS):
        values: dict[str, list[list[float]]] = {name: [] for name in sizes}
        for (proto,) in block:
            example.ParseFromString(proto)
            features = example.features.feature
            for name, size in sizes.items():
                values[name].append(features[name].float_list.value[:size])
        for name, of_name in values.items():
            running[name].add(np.array(of_name, np.float64))
    return {name: one.result() for name, one in running.items()}


def complete(
    database: sqlite3.Connection, sizes: Mapping[str, int], standardize_by: Optional[Statistics]
) -> None:
    """Puts 0 where a number is missing, and standardizes if that is wanted.

    Args:
        database: A store in the making.
        sizes: How many numbers each input has, marks not counted.
        standardize_by: The statistics of its inputs, by which numbers are standardized; None if
            they stay as they are.
    """
    change: dict[str, _Change] = dict.fromkeys(sizes, _filled)
    if standardize_by is not None:
        change.update({name: Standardization(standardize_by[name]) for name in sizes})
    example = example_class()()

    def completed(proto: bytes) -> bytes:
        example.ParseFromString(proto)
        features = example.features.feature
        for name, size in sizes.items():
            values = features[name].float_list.value
            values[:size] = change[name](np.array(values[:size], np.float32)).tolist()
        return bytes(example.SerializeToString(deterministic=True))

    database.create_function("completed", 1, completed, deterministic=True)
    where = "" if standardize_by is not None else "WHERE instr(serialized_example_proto, ?) > 0"
    database.execute(
        "UPDATE examples SET serialized_example_proto = completed(serialized_example_proto) "
        + where,
        [] if standardize_by is not None else [_GAP],
    )


def _filled(values: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(values), np.float32(0), values)


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
