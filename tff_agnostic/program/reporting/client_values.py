"""The clients' values of one measure, as a server knows them: by value, and by size of the client.

Both are sums over clients, and only what is not empty is kept: enough to draw them, and small
enough for result.json.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_agnostic.computations.evaluation import SIZES, ClientDistribution, SizeSums, grid_of
from tff_agnostic.files import finite_or_none
from tff_agnostic.models.measures import Measure
from tff_agnostic.program.reporting.measured import values_of

# Of the centres of bins, which are wider than that.
_DIGITS = 6


@dataclasses.dataclass(frozen=True)
class ClientValues:
    """One measure over the clients, all domains together.

    Attributes:
        values: Centres of the bins that hold clients, ascending; NaN if one is infinite.
        clients: How many clients each of them holds.
        sizes: The smallest number of examples in each bin of sizes that holds clients; bins end
            where twice as many begin.
        size_clients: How many clients each of them holds.
        size_means: Mean of their values; of a metric with a transform, the transform of the mean of
            their ratios. NaN if it is infinite.
    """

    values: Sequence[float]
    clients: Sequence[int]
    sizes: Sequence[int]
    size_clients: Sequence[int]
    size_means: Sequence[float]

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON value; what is infinite is null."""
        return {
            "histogram": {
                "value": list(map(finite_or_none, self.values)),
                "clients": list(self.clients),
            },
            "by_size": {
                "examples": list(self.sizes),
                "clients": list(self.size_clients),
                "mean": list(map(finite_or_none, self.size_means)),
            },
        }


def client_values(measure: Measure, of: ClientDistribution, by_size: SizeSums) -> ClientValues:
    """Returns a measure over the clients from the sums of an evaluation.

    Args:
        measure: What was measured.
        of: Its distribution over the clients; the last row, of all domains, is used.
        by_size: Its sums by size of the client.
    """
    histogram = np.asarray(of.histogram[-1])
    (filled,) = np.nonzero(histogram)
    (held,) = np.nonzero(np.asarray(by_size.num_clients))
    size_clients = np.asarray(by_size.num_clients)[held]
    ratios = np.asarray(by_size.total, np.float64)[held] / size_clients
    centers = values_of(measure.metric, grid_of(measure.metric).centers()[filled])
    return ClientValues(
        values=[float(f"{center:.{_DIGITS}g}") for center in centers],
        clients=histogram[filled].tolist(),
        sizes=SIZES.lower()[held].tolist(),
        size_clients=size_clients.tolist(),
        size_means=values_of(measure.metric, ratios).tolist(),
    )


def client_values_from_json(found: Mapping[str, Any]) -> ClientValues:
    """Returns what `ClientValues.to_json` made a JSON value of.

    Raises:
        LookupError: If something is missing.
        TypeError: If something is of another type.
        ValueError: If what belongs together has different lengths.
    """
    histogram, by_size = found["histogram"], found["by_size"]
    result = ClientValues(
        values=_numbers(histogram["value"]),
        clients=list(map(int, histogram["clients"])),
        sizes=list(map(int, by_size["examples"])),
        size_clients=list(map(int, by_size["clients"])),
        size_means=_numbers(by_size["mean"]),
    )
    lengths = (len(result.values), len(result.clients))
    size_lengths = {len(result.sizes), len(result.size_clients), len(result.size_means)}
    if len({*lengths}) > 1 or len(size_lengths) > 1:
        raise ValueError("expected lists of one length")
    return result


def _numbers(values: Sequence[Any]) -> list[float]:
    return [float("nan") if value is None else float(value) for value in values]
