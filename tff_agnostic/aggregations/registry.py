"""Every aggregation, every kind of differential privacy and TFF's aggregators by name."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from typing import Annotated, Any, Callable, NamedTuple, Optional

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
from tff_agnostic.registry import Registry

# Above this folder: nothing here needs it unless an aggregator of TFF's is at hand.
_BRIDGE = "tff_agnostic.computations.tff_bridge.aggregators"


@dataclasses.dataclass(frozen=True)
class NoisyUpdateOptions(LimitedOptions):
    """Options of `tff.learning.dp_aggregator`, and the limits of what is summed beside it.

    Attributes:
        update_noise_multiplier: Standard deviation of the noise in the sum of the updates, as a
            multiple of the norm that each is clipped to; less than a tenth of the clients per
            round. No epsilon of a round follows from it: losses and counts have no noise.
    """

    update_noise_multiplier: Optional[Annotated[float, Within(above=0)]] = None


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


def named(name: str, options: LimitedOptions, own: Options, expected_clients: float) -> Aggregation:
    """Returns the same with one of the aggregators of `tff.learning`, as runs have it.

    An unweighted one is given updates over the weight that a client is expected to have, where the
    algorithm says what a round's add up to.

    Args:
        name: Of the aggregator.
        options: Limits of what is summed beside it, and settings of the aggregator if it has any.
        own: Options of the run's aggregation. If that is secure, its sums are those beside it, and
            rounds are refused in which anything but a secure sum leaves clients.
        expected_clients: The number of clients that a round is expected to have.
    """
    only_secure = isinstance(own, SecureSumOptions)
    # Nothing is promised of plain sums: they may be of a single client.
    sums = own if only_secure else SecureSumOptions(options.limit, secure_min_clients=1)
    bridge = _bridge()
    aggregation: Aggregation = bridge.named_sum(name, options, sums, expected_clients, only_secure)
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
        "none": UpdateAggregatorSpec(Options, None),
        "robust": UpdateAggregatorSpec(LimitedOptions, functools.partial(named, "robust")),
        "compressed": UpdateAggregatorSpec(LimitedOptions, functools.partial(named, "compressed")),
        "dp": UpdateAggregatorSpec(NoisyUpdateOptions, functools.partial(named, "dp")),
        "secure": UpdateAggregatorSpec(LimitedOptions, functools.partial(named, "secure")),
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
