"""Every aggregation by name."""

import dataclasses
from typing import Any, Callable

from tff_agnostic.aggregations.aggregation import Aggregation, PlainSum
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.registry import Registry
from tff_agnostic.settings import Settings


@dataclasses.dataclass(frozen=True)
class AggregationSpec:
    """A registry entry.

    Attributes:
        options: A frozen dataclass of settings, which become flags.
        build: From an instance of it to the aggregation.
    """

    options: type
    build: Callable[[Any], Aggregation]


AGGREGATIONS: Registry[AggregationSpec] = Registry(
    "aggregation",
    {
        "plain": AggregationSpec(Settings, lambda options: PlainSum()),
        "secure": AggregationSpec(SecureSumOptions, SecureSum),
    },
)
