"""An aggregation that averages updates by a TFF factory, and sums all other values securely."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

from tff_agnostic.aggregations.aggregation import (
    Bound,
    ClientFacts,
    ClientLimits,
    FederatedSums,
    SecurityProperty,
)
from tff_agnostic.aggregations.registry import (
    CompressedAggregator,
    DpAggregator,
    RobustAggregator,
    SecureAggregator,
    UpdateAggregator,
)
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf, tff
from tff_agnostic.base.options import Options
from tff_agnostic.base.report_fields import ReportFields
from tff_agnostic.computations.tff_process import PlacedAggregation, TffSums


class _Summand(NamedTuple):
    """Encoded output of a client.

    Attributes:
        updates: Values and client weight of each update in the output.
        others: Encoding of all other values, for the secure sum.
    """

    updates: tuple[Any, ...]
    others: Any


class _FactoryState(NamedTuple):
    """State of a `FactorySum`: the state of each update's process; () before processes exist."""

    updates: Any


@dataclasses.dataclass(frozen=True)
class _Update:
    """Positions of an update's values, and of their weight, in a client's flattened output.

    Attributes:
        values: Indices of the update's values in the order of `tf.nest.flatten`.
        weight: Index of the client's weight.
    """

    values: tuple[int, ...]
    weight: int


@dataclasses.dataclass(frozen=True)
class FactorySum(PlacedAggregation):
    """Averages updates by a TFF aggregation factory, and sums all other values securely.

    Bounds identify an update beta^k delta^k (signed values of a ratio) and its weight beta^k (the
    ratio's denominator). A weighted factory receives delta^k and beta^k, and returns the weighted
    mean. An unweighted factory receives beta^k delta^k / `mean_weight`, and returns the mean, so
    that weights, which an agnostic algorithm changes, still count. To recover the sum, the server
    multiplies the mean by the total weight, or by the number of clients times `mean_weight`.

    Attributes:
        factory: A `tff.aggregators.WeightedAggregationFactory`, or an unweighted factory, that
            returns a mean, like the factories of `tff.learning`.
        others: Aggregation of losses, counts and weights.
        mean_weight: Client weight that an unweighted factory assumes.
        expected_clients: Expected number of clients per round. If it is set, and if a round's
            expected sum of weights is known (`Bound.public_sum`), an unweighted factory assumes the
            expected mean weight of the contributing clients instead of `mean_weight`.
        only_secure: Whether to reject rounds in which clients send anything except secure sums.
    """

    factory: Any
    others: SecureSum = SecureSum()
    mean_weight: float = 1.0
    only_secure: bool = False
    expected_clients: Optional[float] = None
    name: str = "tff"

    @property
    def cuts_clients(self) -> bool:
        """Whether at most `limits.examples` examples of a client are used."""
        return True

    @property
    def guarantees(self) -> frozenset[SecurityProperty]:
        """Properties to check before the first round."""
        return frozenset({SecurityProperty.SECURE_SUMS}) if self.only_secure else frozenset()

    @property
    def limits(self) -> ClientLimits:
        """Limits of one client's values in secure sums."""
        return self.others.limits

    @property
    def min_clients(self) -> int:
        """Minimum number of clients of a sum."""
        return self.others.min_clients

    @property
    def is_weighted(self) -> bool:
        """Whether the factory takes weights."""
        return isinstance(self.factory, tff.aggregators.WeightedAggregationFactory)

    def assumed_weight(self, weight: Bound) -> float:
        """Returns the client weight that an unweighted factory assumes, from the weight's bound."""
        if self.expected_clients is None or weight.public_sum is None:
            return self.mean_weight
        return weight.public_sum / (self.expected_clients * weight.contributing)

    def for_steps(self, bounds: Sequence[Any]) -> tuple[FactorySum, ...]:
        """Returns itself for each step; raises a `UserError` if no step has an update."""
        if not any(map(_updates_in, bounds)):
            raise UserError(
                "aggregators of TFF average model updates: expected an algorithm whose clients "
                "send updates, found none"
            )
        return super().for_steps(bounds)

    def on_clients(self) -> FactorySum:
        """Raises an error, as this aggregation requires TFF."""
        raise UserError(
            "aggregators of TFF run only in TFF's executor: expected the runtime tff, found a "
            "different runtime"
        )

    def initialize(self, bounds: Any) -> Any:
        """Returns the state without process states, which TFF adds."""
        del bounds
        return _FactoryState(())

    def rounding(self, bound: Bound) -> float:
        """Returns the maximum rounding error of secure sums."""
        return self.others.rounding(bound)

    def client_params(self, state: Any) -> Any:
        """Returns (), as clients need no parameters."""
        del state
        return ()

    def encode(self, params: Any, output: Any, bounds: Any, client: ClientFacts) -> Any:
        """Returns a `_Summand`, or the secure sum's encoding if there is no update."""
        updates = _updates_in(bounds)
        rest, rest_bounds = _without(updates, output, bounds)
        others = self.others.encode(params, rest, rest_bounds, client)
        if not updates:
            return others
        leaves, leaf_bounds = tf.nest.flatten(output), tf.nest.flatten(bounds)
        encoded = []
        for update in updates:
            divisor = weight = leaves[update.weight]
            if not self.is_weighted:
                divisor = tf.constant(self.assumed_weight(leaf_bounds[update.weight]), tf.float32)
            values = [tf.math.divide_no_nan(leaves[i], divisor) for i in update.values]
            encoded.append((values, weight))
        return _Summand(tuple(encoded), others)

    def federated_sum(self, encoded: Any, bounds: Any, sums: FederatedSums) -> Any:
        """Returns the secure sum of an output without an update."""
        return self.others.federated_sum(encoded, bounds, sums)

    def process(self, encoded_type: tff.Type, bounds: Any) -> Any:
        """Returns the process of a step with updates; None for a step without updates."""
        updates = _updates_in(bounds)
        if not updates:
            return None
        _, rest_bounds = _without(updates, bounds, bounds)
        processes = [self._update_process(*pair) for pair in encoded_type.updates]

        @tff.federated_computation
        def initialize_fn() -> Any:
            return tff.federated_zip(tuple(process.initialize() for process in processes))

        @tff.federated_computation(
            initialize_fn.type_signature.result, tff.FederatedType(encoded_type, tff.CLIENTS)
        )
        def next_fn(states: Any, encoded: Any) -> Any:
            outputs = []
            for k, process in enumerate(processes):
                values, weight = encoded.updates[k][0], encoded.updates[k][1]
                weights = (weight,) if process.is_weighted else ()
                outputs.append(process.next(states[k], values, *weights))
            others = self.others.federated_sum(encoded.others, rest_bounds, TffSums())
            means = tuple(output.result for output in outputs)
            return tff.templates.MeasuredProcessOutput(
                tff.federated_zip(tuple(output.state for output in outputs)),
                tff.federated_zip(_Summand(means, others)),
                tff.federated_value((), tff.SERVER),
            )

        return _Placed(initialize_fn, next_fn)

    def _update_process(self, values_type: tff.Type, weight_type: tff.Type) -> Any:
        types = (values_type, weight_type) if self.is_weighted else (values_type,)
        process = self.factory.create(*types)
        result_type = process.next.type_signature.result.result.member
        if not values_type.is_assignable_from(result_type):
            raise UserError(
                "aggregations.from_tff: expected a factory whose results have the type of its "
                f"values, {values_type}, found {result_type}"
            )
        return process

    def with_placed(self, state: _FactoryState, placed: Any) -> _FactoryState:
        """Returns the state with `placed` as the states of the processes."""
        return state._replace(updates=placed)

    def placed_in(self, state: _FactoryState) -> Any:
        """Returns the states of the processes."""
        return state.updates

    def decode(self, state: Any, summed: Any, bounds: Any) -> tuple[Any, Any, Mapping[str, Any]]:
        """Returns the unchanged state, the sums (each mean times its total weight) and a report."""
        updates = _updates_in(bounds)
        if not updates:
            return self.others.decode(state, summed, bounds)
        _, rest_bounds = _without(updates, bounds, bounds)
        _, rest, report = self.others.decode((), summed.others, rest_bounds)
        in_updates = {i for update in updates for i in update.values}
        other_sums, leaf_bounds = iter(tf.nest.flatten(rest)), tf.nest.flatten(bounds)
        leaves: list[Any] = [
            None if i in in_updates else next(other_sums) for i in range(len(leaf_bounds))
        ]
        num_clients = tf.cast(summed.others.num_clients, tf.float32)
        for update, mean in zip(updates, summed.updates):
            weight = tf.cast(leaves[update.weight], tf.float32)
            factor = weight
            if not self.is_weighted:
                factor = num_clients * self.assumed_weight(leaf_bounds[update.weight])
            for i, value in zip(update.values, tf.nest.flatten(mean)):
                # With a total weight of 0, a weighted mean is 0/0.
                leaves[i] = tf.where(weight > 0, value * factor, tf.zeros_like(value))
        return state, tf.nest.pack_sequence_as(bounds, leaves), report

    def quantities(self, bounds: Any, prefix: str = "") -> ReportFields:
        """Returns descriptions of the values that the secure sums report."""
        _, rest_bounds = _without(_updates_in(bounds), bounds, bounds)
        return self.others.quantities(rest_bounds, prefix)


class _Placed(NamedTuple):
    """The members of a `tff.templates.AggregationProcess` that a learning process needs."""

    initialize: tff.Computation
    next: tff.Computation

    @property
    def state_type(self) -> tff.Type:
        """Type of the state at the server."""
        return self.initialize.type_signature.result


def factory_sum(factory: Any, others: SecureSum, mean_weight: float, only_secure: bool) -> Any:
    """Returns a `FactorySum`; see `aggregations.from_tff`."""
    kinds = (
        tff.aggregators.WeightedAggregationFactory,
        tff.aggregators.UnweightedAggregationFactory,
    )
    if not isinstance(factory, kinds):
        raise UserError(
            "aggregations.from_tff: expected a weighted or unweighted factory of tff.aggregators, "
            f"found {type(factory).__name__}"
        )
    sums = (
        tff.aggregators.EncodedSumFactory,
        tff.aggregators.SecureModularSumFactory,
        tff.aggregators.SecureSumFactory,
        tff.aggregators.SumFactory,
    )
    if isinstance(factory, sums):
        raise UserError(
            "aggregations.from_tff: expected a factory that returns a mean, found "
            f"{type(factory).__name__}: use tff.aggregators.UnweightedMeanFactory"
        )
    if mean_weight <= 0:
        raise UserError(
            f"aggregations.from_tff: expected a positive mean_weight, found {mean_weight}"
        )
    return FactorySum(factory, others, mean_weight, only_secure)


# Functions (aggregator, expected number of clients per round) -> TFF factory.
_FACTORIES: Mapping[type[Options], Callable[[Any, float], Any]] = {
    RobustAggregator: lambda aggregator, clients: tff.learning.robust_aggregator(),
    CompressedAggregator: lambda aggregator, clients: tff.learning.compression_aggregator(),
    DpAggregator: lambda aggregator, clients: _with_noise(aggregator, clients),
    SecureAggregator: lambda aggregator, clients: tff.learning.secure_aggregator(),
}


def named_sum(
    aggregator: UpdateAggregator,
    sums: SecureSumOptions,
    expected_clients: float,
    only_secure: bool,
) -> FactorySum:
    """Returns a `FactorySum`; see `aggregations.registry.named`."""
    return FactorySum(
        _FACTORIES[type(aggregator)](aggregator, expected_clients),
        SecureSum(sums),
        only_secure=only_secure,
        expected_clients=expected_clients,
    )


def _with_noise(aggregator: DpAggregator, expected_clients: float) -> Any:
    z = aggregator.noise_multiplier
    # TFF spends a part of the budget on counting clipped clients, with noise sigma = c / 20. The
    # updates get noise 1 / sqrt(z^-2 - (2 sigma)^-2), which is infinite for z = 2 sigma. TFF itself
    # rejects only z > 2 sigma.
    if 10 * z >= expected_clients:
        expected = f"less than a tenth of the clients per round, {expected_clients / 10:g}"
        raise aggregator.error("noise_multiplier", expected)
    return tff.learning.dp_aggregator(z, expected_clients)


def _updates_in(bounds: Any) -> tuple[_Update, ...]:
    """Returns the updates of an output, identified by their bounds."""
    leaves = tf.nest.flatten(bounds)
    ratios = OrderedDict.fromkeys(b.ratio for b in leaves if b.signed and not b.entrywise)
    updates = []
    for ratio in ratios:
        weights = [i for i, b in enumerate(leaves) if b.ratio == ratio and b.denominator]
        values = [i for i, b in enumerate(leaves) if b.ratio == ratio and b.signed]
        if ratio is not None and len(weights) == 1:
            updates.append(_Update(tuple(values), weights[0]))
    return tuple(updates)


def _without(updates: Sequence[_Update], values: Any, bounds: Any) -> tuple[Any, Any]:
    """Replaces the updates by () in values and in bounds."""
    position = iter(range(len(tf.nest.flatten(bounds))))
    in_updates = {i for update in updates for i in update.values}
    is_update = tf.nest.map_structure(lambda _: next(position) in in_updates, bounds)

    def others(part: Any, marks: Any) -> Any:
        leaves = tf.nest.flatten(marks)
        if leaves and all(leaves):
            return ()
        if not any(leaves):
            return part
        if hasattr(part, "_fields"):
            return part._make(map(others, part, marks))
        if isinstance(part, Mapping):
            return OrderedDict((key, others(part[key], marks[key])) for key in part)
        return type(part)(map(others, part, marks))

    return others(values, is_update), others(bounds, is_update)
