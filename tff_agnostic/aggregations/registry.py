"""Every aggregation, every kind of differential privacy and TFF's aggregators by name."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Annotated, Any, Callable, NamedTuple, Optional, Union

from tff_agnostic.aggregations.aggregation import Aggregation, LimitedOptions, PlainSum
from tff_agnostic.aggregations.distributed_sum import DistributedDpSum
from tff_agnostic.aggregations.noise import Noise, TreeResidual, gaussian
from tff_agnostic.aggregations.private_sum import (
    CentralDpSum,
    DistributedOptions,
    PrivateAggregation,
    ServerNoiseOptions,
)
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.base.options import Options, Within
from tff_agnostic.base.registry import Registry

# Above this folder: nothing here needs it unless an aggregator of TFF's is at hand.
_BRIDGE = "tff_agnostic.computations.tff_bridge.aggregators"


@dataclasses.dataclass(frozen=True)
class RobustAggregator(Options):
    """`tff.learning.robust_aggregator()`."""


@dataclasses.dataclass(frozen=True)
class CompressedAggregator(Options):
    """`tff.learning.compression_aggregator()`."""


@dataclasses.dataclass(frozen=True)
class DpAggregator(Options):
    """`tff.learning.dp_aggregator`.

    Attributes:
        noise_multiplier: Standard deviation of the noise in the sum of the updates, as a multiple
            of the norm that each is clipped to; less than a tenth of the clients per round. No
            epsilon of a round follows from it: losses and counts have no noise.
    """

    noise_multiplier: Annotated[float, Within(above=0)]


@dataclasses.dataclass(frozen=True)
class SecureAggregator(Options):
    """`tff.learning.secure_aggregator()`."""


UpdateAggregator = Union[RobustAggregator, CompressedAggregator, DpAggregator, SecureAggregator]


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


def named(
    aggregator: UpdateAggregator,
    limited: LimitedOptions,
    of_run: Options,
    expected_clients: float,
) -> Aggregation:
    """Returns `from_tff` of an aggregator of `tff.learning`, as runs have it.

    An unweighted one receives updates over the weight that a client is expected to have, where the
    algorithm knows the sum of a round's weights.

    Args:
        aggregator: The aggregator.
        limited: Limits of the sums next to it.
        of_run: Options of the run's aggregation. If it is secure, it has the sums next to the
            aggregator, and rounds are refused in which anything but a secure sum leaves clients.
        expected_clients: Expected number of clients of a round.
    """
    only_secure = isinstance(of_run, SecureSumOptions)
    # Plain sums promise nothing: they may be of a single client.
    sums = of_run if only_secure else SecureSumOptions(limited.limit, secure_min_clients=1)
    bridge = _bridge()
    aggregation: Aggregation = bridge.named_sum(aggregator, sums, expected_clients, only_secure)
    return aggregation


def _bridge() -> Any:
    return importlib.import_module(_BRIDGE)


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
        "plain": AggregationSpec(Options, lambda options: PlainSum()),
        "secure": AggregationSpec(SecureSumOptions, SecureSum),
    },
)


@dataclasses.dataclass(frozen=True)
class UpdateAggregatorSpec:
    """A registry entry.

    Attributes:
        kind: Class of the aggregator; None where the run's aggregation sums updates too.
        options: Options of the sums next to it, which become flags.
    """

    kind: Optional[type[Options]]
    options: type


UPDATE_AGGREGATORS: Registry[UpdateAggregatorSpec] = Registry(
    "update aggregator",
    {
        "none": UpdateAggregatorSpec(None, Options),
        "robust": UpdateAggregatorSpec(RobustAggregator, LimitedOptions),
        "compressed": UpdateAggregatorSpec(CompressedAggregator, LimitedOptions),
        "dp": UpdateAggregatorSpec(DpAggregator, LimitedOptions),
        "secure": UpdateAggregatorSpec(SecureAggregator, LimitedOptions),
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
_Build = Callable[[str, Aggregation, Any, NoiseFacts], PrivateAggregation]


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


def _of_server(noise: Noise) -> _Build:
    return lambda name, inner, options, facts: CentralDpSum(
        inner, options, name, *facts[:3], noise=noise
    )


def _of_clients(
    name: str, inner: Aggregation, options: Any, facts: NoiseFacts
) -> PrivateAggregation:
    return DistributedDpSum(inner, options, name, **facts._asdict())


PRIVACIES: Registry[PrivacySpec] = Registry(
    "privacy",
    {
        "none": PrivacySpec(Options, None),
        "central": PrivacySpec(ServerNoiseOptions, _of_server(gaussian)),
        "distributed": PrivacySpec(DistributedOptions, _of_clients),
        "tree": PrivacySpec(ServerNoiseOptions, _of_server(TreeResidual())),
    },
)
