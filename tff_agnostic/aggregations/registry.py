"""Registries of aggregations, kinds of differential privacy, and TFF's aggregators."""

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

# Module of a higher layer, so imported only for aggregators of TFF.
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
        noise_multiplier: Standard deviation of the noise in the summed updates, as a multiple of
            the norm to which updates are clipped; less than a tenth of the clients per round. It
            gives no epsilon for a round, as losses and counts have no noise.
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
    """Returns an aggregation that averages updates by a TFF factory.

    Losses, counts and weights are summed securely. The aggregation runs only in TFF: in the
    learning process, and with `--runtime=tff`. Its state is part of the learning process' state.

    Args:
        factory: A `tff.aggregators.WeightedAggregationFactory`, or an unweighted factory, that
            returns a mean, such as `tff.learning.robust_aggregator()`.
        mean_weight: Client weight that an unweighted factory assumes. The factory receives each
            client's update times the client's weight over this weight.
        only_secure: Whether to reject rounds in which clients send anything except secure sums.
    """
    aggregation: Aggregation = _bridge().factory_sum(factory, others, mean_weight, only_secure)
    return aggregation


def named(
    aggregator: UpdateAggregator,
    limited: LimitedOptions,
    run_options: Options,
    expected_clients: float,
) -> Aggregation:
    """Returns the aggregation for an aggregator of `tff.learning`, with a run's options.

    If a round's sum of weights is known, an unweighted aggregator receives updates divided by the
    expected weight of a client.

    Args:
        limited: Options that limit all values except updates, which are summed separately.
        run_options: Options of the run's aggregation. If it is secure, sums of all values except
            updates use these options, and rounds with sums that are not secure are rejected.
        expected_clients: Expected number of clients per round.
    """
    only_secure = isinstance(run_options, SecureSumOptions)
    # Plain sums have no minimum number of clients.
    sums = run_options if only_secure else SecureSumOptions(limited.limit, secure_min_clients=1)
    bridge = _bridge()
    aggregation: Aggregation = bridge.named_sum(aggregator, sums, expected_clients, only_secure)
    return aggregation


def _bridge() -> Any:
    return importlib.import_module(_BRIDGE)


@dataclasses.dataclass(frozen=True)
class AggregationSpec:
    """Registry entry of an aggregation.

    Attributes:
        options: A frozen dataclass of options, which become flags.
        build: options -> the aggregation.
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
    """Registry entry of an aggregator of TFF.

    Attributes:
        kind: Class of the TFF aggregator; None if the run's aggregation sums the updates.
        options: Options of the sums of all values except updates; they become flags.
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
    """Facts that a run determines in addition to its options.

    Attributes:
        expected_clients: Expected number of clients per round.
        noise_key: The secret key of the generator.
        noise_multiplier: Noise multiplier z.
        min_noise_clients: Minimum number of clients with noise in a round, if clients add the
            noise; otherwise 0.
        noise_clients: Number of clients that report with noise, if larger than the expected number
            of training clients; otherwise 0.
    """

    expected_clients: float
    noise_key: tuple[int, ...]
    noise_multiplier: float
    min_noise_clients: int = 0
    noise_clients: int = 0


_Build = Callable[[str, Aggregation, Any, NoiseFacts], PrivateAggregation]


@dataclasses.dataclass(frozen=True)
class PrivacySpec:
    """Registry entry of a kind of differential privacy.

    Attributes:
        options: A frozen dataclass of options, which become flags.
        build: (name, inner sums, options, facts) -> private sums; None for sums without noise.
    """

    options: type
    build: Optional[_Build]


def _server_noise(noise: Noise) -> _Build:
    return lambda name, inner, options, facts: CentralDpSum(
        inner, options, name, *facts[:3], noise=noise
    )


def _client_noise(
    name: str, inner: Aggregation, options: Any, facts: NoiseFacts
) -> PrivateAggregation:
    return DistributedDpSum(inner, options, name, **facts._asdict())


PRIVACIES: Registry[PrivacySpec] = Registry(
    "privacy",
    {
        "none": PrivacySpec(Options, None),
        "central": PrivacySpec(ServerNoiseOptions, _server_noise(gaussian)),
        "distributed": PrivacySpec(DistributedOptions, _client_noise),
        "tree": PrivacySpec(ServerNoiseOptions, _server_noise(TreeResidual())),
    },
)
