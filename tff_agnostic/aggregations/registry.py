"""Every aggregation, every kind of differential privacy and TFF's aggregators by name."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, NamedTuple, Optional

from tff_agnostic.aggregations.aggregation import Aggregation, ClientLimits, PlainSum
from tff_agnostic.aggregations.distributed_sum import DistributedDpSum
from tff_agnostic.aggregations.noise import Noise, TreeResidual, gaussian
from tff_agnostic.aggregations.privacy_options import (
    DistributedOptions,
    ServerNoiseOptions,
    TreeOptions,
)
from tff_agnostic.aggregations.private_sum import CentralDpSum
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.aggregations.tff_factories import NoisyUpdateOptions, named
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


@dataclasses.dataclass(frozen=True)
class UpdateAggregatorSpec:
    """A registry entry: who averages the updates of a run, beside an aggregation for all else.

    Attributes:
        options: A frozen dataclass of settings, which become flags.
        build: From an instance of it, the settings of the run's aggregation, and the number of
            clients that a round is expected to have, to the aggregation of training; None where the
            run's aggregation sums updates too.
    """

    options: type
    build: Optional[Callable[[Any, Any, float], Aggregation]]


UPDATE_AGGREGATORS: Registry[UpdateAggregatorSpec] = Registry(
    "update aggregator",
    {
        "none": UpdateAggregatorSpec(Settings, None),
        "robust": UpdateAggregatorSpec(ClientLimits, functools.partial(named, "robust")),
        "compressed": UpdateAggregatorSpec(ClientLimits, functools.partial(named, "compressed")),
        "dp": UpdateAggregatorSpec(NoisyUpdateOptions, functools.partial(named, "dp")),
        "secure": UpdateAggregatorSpec(ClientLimits, functools.partial(named, "secure")),
    },
)


class NoiseFacts(NamedTuple):
    """Facts that a run determines in addition to its settings.

    Attributes:
        expected_clients: Expected number of clients of a round.
        noise_key: The secret key of the generator.
        noise_multiplier: z.
        least_clients: Least number of clients with noise in a round, where clients add it;
            otherwise 0.
        noise_clients: Number of clients that report with noise, if it is larger than the expected
            number that trains; otherwise 0.
    """

    expected_clients: float
    noise_key: tuple[int, ...]
    noise_multiplier: float
    least_clients: int = 0
    noise_clients: int = 0


# From (name, inner sums, settings, facts) to private sums.
_Build = Callable[[str, Aggregation, Any, NoiseFacts], Aggregation]


@dataclasses.dataclass(frozen=True)
class PrivacySpec:
    """A registry entry.

    Attributes:
        options: A frozen dataclass of settings, which become flags.
        build: From a name, sums, an instance of the settings and facts to private sums over those
            sums; None where there is no noise.
    """

    options: type
    build: Optional[_Build]


def _of_server(noise_of: Callable[[Any], Noise]) -> _Build:
    return lambda name, inner, options, facts: CentralDpSum(
        inner, options, name, *facts[:3], noise=noise_of(options)
    )


def _of_clients(name: str, inner: Aggregation, options: Any, facts: NoiseFacts) -> Aggregation:
    return DistributedDpSum(inner, options, name, **facts._asdict())


PRIVACIES: Registry[PrivacySpec] = Registry(
    "privacy",
    {
        "none": PrivacySpec(Settings, None),
        "central": PrivacySpec(ServerNoiseOptions, _of_server(lambda options: gaussian)),
        "distributed": PrivacySpec(DistributedOptions, _of_clients),
        "tree": PrivacySpec(
            TreeOptions, _of_server(lambda options: TreeResidual(options.tree_restart_every))
        ),
    },
)
