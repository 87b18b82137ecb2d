"""Numbers of a store in the making: their statistics, gaps that are filled, and standardizing."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from typing import Callable, Optional

import numpy as np

from tff_agnostic.data.example_bytes import example_class
from tff_agnostic.data.statistics import NumberStatistics, RunningStatistics, Standardization
from tff_agnostic.data.store_format import LABEL, TRAIN, StoreDescription

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
