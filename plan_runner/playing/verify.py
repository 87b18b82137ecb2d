"""Replays an export's conformance rounds, and says what matches."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Callable, Optional

import numpy as np

from plan_runner.clients.client import Client
from plan_runner.clients.tflite_beside import TfLiteBeside
from plan_runner.files.archives import read_arrays
from plan_runner.files.export import Export, conformance_client
from plan_runner.files.limits import DEFAULT_LIMITS
from plan_runner.playing.rounds import run_rounds

_SMALLEST_SCALE = 0.01


@dataclasses.dataclass(frozen=True)
class RoundCheck:
    """How a round's tensors compare with those expected.

    Attributes:
        number: The round's.
        tensors: How many are expected or were found.
        differing: Of every tensor that differs by a bit, by how much; see `relative_difference`.
            Infinite if it is missing or not expected.
    """

    number: int
    tensors: int
    differing: Mapping[str, float]

    def failing(self, tolerance: float) -> list[str]:
        """Returns the tensors that differ by more than `tolerance`, or by a bit if that is 0.

        What cannot be compared differs by more than any.
        """
        return [
            name
            for name, difference in self.differing.items()
            if tolerance == 0 or math.isinf(difference) or not difference <= tolerance
        ]


def conformance_clients(export: Export) -> list[Client]:
    """Returns the clients of the conformance rounds, in their order."""
    manifest, most = export.manifest, export.limits.max_records
    return [
        Client(name, export.path(conformance_client(name)), manifest.features, most)
        for name in manifest.conformance.clients
    ]


def verify(
    export: Export,
    begins: Callable[[str], None] = lambda step: None,
    beside: Optional[TfLiteBeside] = None,
) -> Iterator[RoundCheck]:
    """Plays the conformance rounds; yields how each compares.

    Args:
        export: The export, whose graphs are code.
        begins: Is told the name of each round when it begins.
        beside: What else runs every client, and compares.

    Raises:
        PlanError: If the export is not what it has to be.
    """
    clients = conformance_clients(export)
    expected = export.manifest.conformance.expected
    own_state = export.manifest.conformance.state
    state = None if own_state is None else export.path(own_state)
    cohorts = [clients] * len(expected)
    for result, name in zip(run_rounds(export, cohorts, state, begins, beside), expected):
        wanted = read_arrays(export.path(name), export.limits.max_unpacked_mb)
        found = result.tensors
        differing = {}
        for key in sorted({*wanted, *found}):
            if key not in wanted or key not in found:
                differing[key] = math.inf
            elif not _same_bits(wanted[key], found[key]):
                differing[key] = relative_difference(wanted[key], found[key])
        yield RoundCheck(result.number, len({*wanted, *found}), differing)


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz file; see `archives.read_arrays`."""
    return read_arrays(path, DEFAULT_LIMITS.max_unpacked_mb)


def relative_difference(expected: np.ndarray, found: np.ndarray) -> float:
    """Returns the largest difference of two arrays of floats, as a share of the largest number.

    The share is of 0.01 where no number expected is larger: what should be 0 is so up to rounding.
    Equal infinities differ by 0, as two NaNs do, and a NaN and a number by infinity. Arrays of
    another kind that differ, or whose dtypes or shapes do, differ by infinity.
    """
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return math.inf
    if expected.dtype.kind not in "fV":
        return math.inf
    a, b = expected.astype(np.float64), found.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.where(same, 0.0, np.abs(a - b))
    difference = np.max(np.where(np.isnan(differences), math.inf, differences), initial=0.0)
    largest = np.max(np.abs(a), initial=_SMALLEST_SCALE, where=np.isfinite(a))
    return float(difference / largest)


def _same_bits(expected: np.ndarray, found: np.ndarray) -> bool:
    if found.dtype.kind == "O":  # How strings come out of TensorFlow.
        found = found.astype("S")
        expected = expected.astype("S")
        return expected.shape == found.shape and bool(np.all(expected == found))
    return (
        expected.dtype == found.dtype
        and expected.shape == found.shape
        and expected.tobytes() == found.tobytes()
    )
