"""Aggregators of TFF's in place of an `Aggregation`; the bridge loads when it is asked."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any, Optional

from tff_agnostic.aggregations.aggregation import Aggregation, ClientLimits
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.settings import Settings, setting

# Above this folder: nothing here needs it unless an aggregator of TFF's is at hand.
_BRIDGE = "tff_agnostic.computations.tff_bridge.aggregators"


@dataclasses.dataclass(frozen=True)
class NoisyUpdateOptions(ClientLimits):
    """Settings of `tff.learning.dp_aggregator`, and the limits of what is summed beside it.

    Attributes:
        noise_multiplier: z: the standard deviation of the noise in the sum of the updates, as a
            multiple of the norm that each is clipped to.
    """

    noise_multiplier: Optional[float] = setting(
        None,
        "Standard deviation of the noise in the sum of the updates, as a multiple of the norm that "
        "each is clipped to; less than a tenth of --clients_per_round. No epsilon of a round "
        "follows from it: losses and counts have no noise.",
        flag="update_noise_multiplier",
        positive=True,
    )


def from_tff(
    factory: Any,
    others: SecureSum = SecureSum(),
    mean_weight: float = 1.0,
    only_secure: bool = False,
) -> Aggregation:
    """Returns an aggregation whose updates a factory of TFF's averages.

    Losses, counts and weights of clients are in secure sums beside it. It runs in TFF: in the
    learning process, and in `--runtime=tff`. Its state is part of the learning process's.

    Args:
        factory: A `tff.aggregators.WeightedAggregationFactory`, or an unweighted one, that returns
            a mean, as `tff.learning.robust_aggregator()` does.
        mean_weight: What an unweighted factory takes for a client's weight: it is given the
            client's update times its weight over this one.
        only_secure: Refuse rounds in which anything but a secure sum leaves clients.
    """
    aggregation: Aggregation = _bridge().factory_sum(factory, others, mean_weight, only_secure)
    return aggregation


def named(name: str, options: ClientLimits, own: Settings, expected_clients: float) -> Aggregation:
    """Returns the same with one of the aggregators of `tff.learning`, as runs have it.

    An unweighted one is given updates over the weight that a client is expected to have, where the
    algorithm says what a round's add up to.

    Args:
        name: Of the aggregator.
        options: Limits of what is summed beside it, and settings of the aggregator if it has any.
        own: Settings of the run's aggregation. If that is secure, its sums are those beside it, and
            rounds are refused in which anything but a secure sum leaves clients.
        expected_clients: The number of clients that a round is expected to have.
    """
    only_secure = isinstance(own, SecureSumOptions)
    limits = {f.name: getattr(options, f.name) for f in dataclasses.fields(ClientLimits)}
    # Nothing is promised of plain sums: they may be of a single client.
    sums = own if only_secure else SecureSumOptions(**limits, min_clients=1)
    bridge = _bridge()
    aggregation: Aggregation = bridge.named_sum(name, options, sums, expected_clients, only_secure)
    return aggregation


def _bridge() -> Any:
    return importlib.import_module(_BRIDGE)
