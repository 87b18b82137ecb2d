"""Aggregators of TFF's in place of an `Aggregation`; the bridge loads when it is asked."""

from __future__ import annotations

import importlib
from typing import Any

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.aggregations.secure_sum import SecureSum

# Above this folder: nothing here needs it unless an aggregator of TFF's is at hand.
_BRIDGE = "tff_agnostic.computations.tff_bridge.aggregators"


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
        others: The secure sums.
        mean_weight: What an unweighted factory takes for a client's weight: it is given the
            client's update times its weight over this one.
        only_secure: Refuse rounds in which anything but a secure sum leaves clients.

    Raises:
        UserError: If it is no such factory.
    """
    bridge = importlib.import_module(_BRIDGE)
    aggregation: Aggregation = bridge.factory_sum(factory, others, mean_weight, only_secure)
    return aggregation
