"""Results of measurements, as plain numbers."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any, Optional


@dataclasses.dataclass
class SideResult:
    """Timings of one side on one workload; lists have an entry per repetition.

    Attributes:
        title: Name in tables.
        description: The workload's sizes.
        seconds: Seconds of every steady-state round.
        first_round: Seconds from the start of the process to the end of the first round.
        peak_bytes: Maximum memory of its processes, at the start and in rounds.
        settings: Setting of the steady-state rounds; empty if the side has only one.
        versions: Versions of its packages.
        failure: One-line message; None if the side has not failed.
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
        """Seconds of the steady-state rounds of all repetitions."""
        return [seconds for repetition in self.seconds for seconds in repetition]

    @property
    def median(self) -> float:
        """Median seconds of a steady-state round."""
        return statistics.median(self.rounds)

    def summary(self) -> dict[str, Any]:
        """Returns the numbers of a table's row; empty without rounds."""
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
        """Returns everything as JSON values."""
        return {**dataclasses.asdict(self), **self.summary()}


@dataclasses.dataclass(frozen=True)
class WorkloadResult:
    """All sides on one workload; the first one is the baseline.

    Attributes:
        name: The workload's name.
        description: Its sizes.
        sides: A result per side.
        products: Rounds of the matrix products alone.
        flops: Additions and multiplications of those products.
    """

    name: str
    description: str
    sides: Sequence[SideResult]
    products: SideResult
    flops: int

    @property
    def ours(self) -> SideResult:
        """The baseline: this package's side."""
        return self.sides[0]

    def ratio(self, side: SideResult) -> Optional[float]:
        """Returns a side's seconds per round over ours; None if either has no rounds."""
        return side.median / self.ours.median if side.rounds and self.ours.rounds else None

    @property
    def products_share(self) -> Optional[float]:
        """Seconds of the matrix products alone over those of our round."""
        return self.ratio(self.products)

    @property
    def gflops_per_second(self) -> Optional[float]:
        """Speed of the matrix products alone, in 10^9 operations per second."""
        return self.flops / self.products.median / 1e9 if self.products.rounds else None

    def failures(self) -> list[str]:
        """Returns a line for each side that failed."""
        return failures([*self.sides, self.products], self.name)

    def to_json(self) -> dict[str, Any]:
        """Returns everything as JSON values."""
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
    """Returns a line for each side that failed."""
    return [f"{side.title}, {where}: {side.failure}" for side in sides if side.failure]
