"""Timings of sides on a workload, and numbers derived from them."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any, Optional


@dataclasses.dataclass
class SideResult:
    """Timings of one side on one workload; lists have an entry per repetition.

    Attributes:
        title: Name of the side in tables.
        description: Sizes of the workload.
        seconds: Seconds of each steady-state round.
        first_round: Seconds from the start of the process to the end of the first round.
        peak_bytes: Maximum memory of the side's processes.
        settings: Setting of the steady-state rounds; empty if the side has only one setting.
        versions: Versions of the side's packages, keyed by name.
        failure: One-line error message; None if the side has not failed.
    """

    title: str
    description: str
    seconds: list[list[float]] = dataclasses.field(default_factory=list)
    first_round: list[float] = dataclasses.field(default_factory=list)
    peak_bytes: list[int] = dataclasses.field(default_factory=list)
    settings: list[str] = dataclasses.field(default_factory=list)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    failure: Optional[str] = None

    @property
    def rounds(self) -> list[float]:
        """Seconds of all repetitions' steady-state rounds."""
        return [seconds for repetition in self.seconds for seconds in repetition]

    @property
    def median(self) -> float:
        """Median seconds of a steady-state round."""
        return statistics.median(self.rounds)

    def summary(self) -> dict[str, Any]:
        """Returns the numbers for a table row; empty without rounds."""
        if not self.rounds:
            return {}
        return {
            "median_seconds": self.median,
            "min_seconds": min(self.rounds),
            "max_seconds": max(self.rounds),
            "first_round_seconds": min(self.first_round),
            "peak_bytes": max(self.peak_bytes),
        }

    def to_json(self) -> dict[str, Any]:
        """Returns all fields and the summary as JSON values."""
        return {**dataclasses.asdict(self), **self.summary()}


@dataclasses.dataclass(frozen=True)
class WorkloadResult:
    """Results of all sides on one workload.

    Attributes:
        description: Sizes of the workload.
        sides: Results of the sides; the first side is the baseline.
        products: Result of the side that only computes matrix products.
        flops: Number of additions and multiplications of these matrix products.
    """

    name: str
    description: str
    sides: Sequence[SideResult]
    products: SideResult
    flops: int

    @property
    def ours(self) -> SideResult:
        """Result of the baseline, this package's AgnosticFedAvg."""
        return self.sides[0]

    def ratio(self, side: SideResult) -> Optional[float]:
        """Returns a side's seconds per round, divided by the baseline's; None without rounds."""
        return side.median / self.ours.median if side.rounds and self.ours.rounds else None

    @property
    def products_share(self) -> Optional[float]:
        """Seconds of the matrix products, as a fraction of the baseline's round."""
        return self.ratio(self.products)

    @property
    def gflops_per_second(self) -> Optional[float]:
        """Speed of the matrix products, in 10^9 operations per second."""
        return self.flops / self.products.median / 1e9 if self.products.rounds else None

    def failures(self) -> list[str]:
        """Returns a one-line message for each side that failed."""
        return failures([*self.sides, self.products], self.name)

    def to_json(self) -> dict[str, Any]:
        """Returns all results as JSON values."""
        return {
            "description": self.description,
            "sides": {
                side.title: {**side.to_json(), "ratio": self.ratio(side)} for side in self.sides
            },
            "matrix_products": {
                **self.products.to_json(),
                "flops": self.flops,
                "gflops_per_second": self.gflops_per_second,
                "share_of_our_round": self.products_share,
            },
        }


def failures(sides: Sequence[SideResult], where: str) -> list[str]:
    """Returns a one-line message for each side that failed."""
    return [f"{side.title}, {where}: {side.failure}" for side in sides if side.failure]
