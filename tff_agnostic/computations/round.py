"""A round: broadcast, client work, encode, sum, decode, finish.

This is the one place where an exchange meets its aggregation.

Trainings, surveys and evaluations are all exchanges, and every runtime takes its functions from
here: what the server does before and after each sum, and what a client does in between.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.aggregations.aggregation import Aggregation, Bound, ClientFacts
from tff_agnostic.computations.algorithm import (
    Algorithm,
    AnswerAndKept,
    Exchange,
    Report,
    RunState,
    Sums,
)
from tff_agnostic.computations.client_output import all_finite
from tff_agnostic.computations.clients import ClientGroup, PerClient, client_seeds
from tff_agnostic.errors import UserError
from tff_agnostic.report_fields import Quantities, Quantity

_SKIPPED = Quantity(
    "skipped", "whether the round was skipped, because a sum or the update was not finite"
)
_DTYPES = (tf.float32, tf.int64)


class Message(NamedTuple):
    """What the server sends to every client in an exchange.

    Attributes:
        broadcast: What the exchange prepared.
        aggregation: What the aggregation needs of its state.
        seed: Of the round: (seed of the run, number of the round), int32 [2].
    """

    broadcast: Any
    aggregation: Any
    seed: tf.Tensor


class Submission(NamedTuple):
    """What clients are done with in an exchange: of one client, or of many in step or summed.

    Attributes:
        submitted: What goes into the sum, or the sum.
        kept: What stays with the clients for the later exchanges of the round, of many with a
            leading axis of clients; () if the exchange keeps nothing.
    """

    submitted: Any
    kept: Any


@dataclasses.dataclass(frozen=True)
class AggregatedExchange:
    """An exchange with the aggregation that carries it.

    Attributes:
        exchange: What is exchanged.
        aggregation: How it is summed.
    """

    exchange: Exchange
    aggregation: Aggregation

    @property
    def key(self) -> Any:
        """What clients do depends on this alone: equal keys, equal work."""
        bounds = tuple(tf.nest.flatten(self.bounds))
        return self.exchange.name, self.exchange.client, self.aggregation, bounds

    @property
    def bounds(self) -> Any:
        """Bounds of a client's answer, in its structure."""
        return self.exchange.bounds(self.aggregation.limits)

    def on_clients(self) -> "AggregatedExchange":
        """Returns it as clients have it: without what only the server may know."""
        return dataclasses.replace(self, aggregation=self.aggregation.on_clients())

    def initialize(self) -> Any:
        """Returns the state of the aggregation before the first sum."""
        return self.aggregation.initialize(self.bounds)

    def message(self, aggregation_state: Any, broadcast: Any, seed: tf.Tensor) -> Message:
        """On the server: returns what every client is sent."""
        params = self.aggregation.client_params(aggregation_state)
        return Message(broadcast, params, seed)

    def client_work(
        self, message: Message, clients: ClientGroup, per_client: PerClient
    ) -> "Submission":
        """On clients: returns what each of them submits to the sum, and what it keeps."""
        aggregation, bounds = self.aggregation, self.bounds
        max_examples = aggregation.limits.max_examples if aggregation.cuts_clients else None
        used = clients.limited(max_examples)
        seed = client_seeds(message.seed, used)
        output = self.exchange.client(message.broadcast, used, seed, per_client)
        kept: Any = ()
        if self.exchange.keeps:
            check_keeps(self.exchange.name, output)
            output, kept = output
        check_bounds(self.exchange.name, output, bounds)
        examples_cut = tf.cast(clients.num_examples - used.num_examples, tf.int64)

        def encode(output: Any, facts: ClientFacts) -> Any:
            return aggregation.encode(message.aggregation, output, bounds, facts)

        facts = ClientFacts(seed, examples_cut, clients.place)
        return Submission(per_client(encode, output, facts), kept)

    def federated_sum(self, encoded: tff.Value) -> tff.Value:
        """In a federated computation: sums what clients submit."""
        return self.aggregation.federated_sum(encoded, self.bounds)

    def decode(self, aggregation_state: Any, summed: Any) -> tuple[Any, Any, Report]:
        """On the server: returns the aggregation's state, the sum of the answers, and a report."""
        return self.aggregation.decode(aggregation_state, summed, self.bounds)

    def quantities(self, prefix: str = "") -> Quantities:
        """Describes the report of `decode`."""
        return self.aggregation.quantities(self.bounds, prefix)


def _real_ones_are_finite(structure: Any) -> tf.Tensor:
    values = [tf.convert_to_tensor(value) for value in tf.nest.flatten(structure)]
    return all_finite([value for value in values if value.dtype.is_floating])


class SumsSoFar(NamedTuple):
    """What the server keeps between the exchanges of a round.

    Attributes:
        sums: The sum of each exchange.
        aggregations: The state of each one's aggregation after it.
        reports: What each aggregation reported.
    """

    sums: Sums = ()
    aggregations: tuple[Any, ...] = ()
    reports: tuple[Report, ...] = ()


class AggregatedRound:
    """A round of an algorithm over an aggregation, as functions of the server around each sum.

    A round is `start`, the clients' work of the first exchange and its sum, `go_on` with every
    further exchange, and `finish`.

    Args:
        algorithm: The algorithm.
        aggregation: How every exchange is summed.

    Attributes:
        exchanges: The exchanges with the aggregation.
    """

    def __init__(self, algorithm: Algorithm, aggregation: Aggregation) -> None:
        self._algorithm = algorithm
        exchanges = algorithm.exchanges
        bounds = [exchange.bounds(aggregation.limits) for exchange in exchanges]
        aggregations = aggregation.of_exchanges(bounds)
        self.exchanges = tuple(map(AggregatedExchange, exchanges, aggregations))

    @property
    def client_data_spec(self) -> Any:
        """Tensor specs of one client's examples."""
        return self._algorithm.client_data_spec

    def initialize(self) -> RunState:
        """Returns the state before the first round."""
        return RunState(
            algorithm=self._algorithm.initialize(),
            aggregations=tuple(exchange.initialize() for exchange in self.exchanges),
            round_num=tf.constant(0, tf.int32),
        )

    def start(self, state: RunState) -> Message:
        """Returns the message of the first exchange."""
        return self._message(state, ())

    def go_on(self, state: RunState, so_far: SumsSoFar, summed: Any) -> tuple[Message, SumsSoFar]:
        """Takes the sum of an exchange, and returns the message of the next one."""
        so_far = self._decoded(state, so_far, summed)
        return self._message(state, so_far.sums), so_far

    def finish(self, state: RunState, so_far: SumsSoFar, summed: Any) -> tuple[RunState, Report]:
        """Takes the sum of the last exchange, and returns the next state and the round's report.

        Numbers of clients that are all finite can have a sum that is not, or a server's update
        that is not. No later round would mend such a state: the round is then skipped, which is a
        round in which no client took part, and reported so.
        """
        sums, aggregations, reports = self._decoded(state, so_far, summed)

        def finished(sums: Sums) -> tuple[Any, Report]:
            return self._algorithm.finish(state.algorithm, sums)

        no_sums = tf.nest.map_structure(tf.zeros_like, sums)
        has_sums = _real_ones_are_finite(sums)
        next_state, report = finished(
            tf.nest.map_structure(lambda s, zero: tf.where(has_sums, s, zero), sums, no_sums)
        )
        check_state(state.algorithm, next_state)
        # A state that is not finite by itself, such as a least loss so far, says nothing.
        has_state = tf.cond(
            _real_ones_are_finite(next_state),
            lambda: True,
            lambda: ~_real_ones_are_finite(state.algorithm),
        )
        next_state, report = tf.cond(
            has_state,
            lambda: (next_state, report),
            lambda: finished(no_sums),
        )
        # What an aggregation remembers stands by itself: noise must not be used again.
        aggregations = tf.cond(
            _real_ones_are_finite(aggregations),
            lambda: aggregations,
            lambda: state.aggregations,
        )
        skipped = tf.cast(~(has_sums & has_state), tf.int64)
        return (
            RunState(next_state, aggregations, state.round_num + 1),
            OrderedDict(report, aggregator=self._by_exchange(reports), skipped=skipped),
        )

    @property
    def quantities(self) -> Quantities:
        """Describes the report of a round."""
        names = [exchange.exchange.name for exchange in self.exchanges]
        prefixes = [""] if len(names) == 1 else [f"{name} " for name in names]
        of_aggregations = [e.quantities(prefix) for e, prefix in zip(self.exchanges, prefixes)]
        return OrderedDict(
            self._algorithm.quantities,
            aggregator=self._by_exchange(of_aggregations),
            skipped=_SKIPPED,
        )

    def _message(self, state: RunState, sums: Sums) -> Message:
        k = len(sums)
        exchange = self.exchanges[k]
        broadcast = exchange.exchange.prepare(state.algorithm, sums)
        seed = tf.stack([self._algorithm.seed, state.round_num])
        return exchange.message(state.aggregations[k], broadcast, seed)

    def _decoded(self, state: RunState, so_far: SumsSoFar, summed: Any) -> SumsSoFar:
        k = len(so_far.sums)
        aggregation, sums, report = self.exchanges[k].decode(state.aggregations[k], summed)
        return SumsSoFar(
            (*so_far.sums, sums),
            (*so_far.aggregations, aggregation),
            (*so_far.reports, report),
        )

    def _by_exchange(self, reports: Any) -> Mapping[str, Any]:
        if len(self.exchanges) == 1:
            return OrderedDict(reports[0])
        return OrderedDict(
            (exchange.exchange.name, report) for exchange, report in zip(self.exchanges, reports)
        )


def check_bounds(exchange: str, output: Any, bounds: Any) -> None:
    """Checks that every value of a client's answer has a bound.

    Raises:
        UserError: If the answer is no named tuple of float32 and int64 tensors, or the bounds are
            not in its structure.
    """
    fields = getattr(output, "_fields", None)
    if fields is None:
        raise UserError(
            f"exchange {exchange!r}: expected clients to answer with a named tuple, found "
            f"{type(output).__name__}"
        )
    bound_fields = getattr(bounds, "_fields", ())
    different = sorted(set(fields) ^ set(bound_fields))
    if different:
        raise UserError(
            f"exchange {exchange!r}: expected bounds of {', '.join(fields)}, as clients answer, "
            f"found {', '.join(bound_fields) or type(bounds).__name__}: {', '.join(different)} "
            "is in one of them only"
        )
    for field in fields:
        _check_field(f"exchange {exchange!r}, {field}", getattr(output, field), bounds, field)


def check_keeps(exchange: str, output: Any) -> None:
    """Checks that clients return what they keep beside their answer.

    Raises:
        UserError: Otherwise.
    """
    if not isinstance(output, AnswerAndKept):
        raise UserError(
            f"exchange {exchange!r}: expected clients to return an AnswerAndKept, as keeps=True "
            f"says, found {type(output).__name__}"
        )


def _check_field(where: str, values: Any, bounds: Any, field: str) -> None:
    leaves, limits = tf.nest.flatten(values), tf.nest.flatten(getattr(bounds, field))
    if len(leaves) != len(limits):
        raise UserError(
            f"{where}: expected a bound of each of {len(leaves)} values, found {len(limits)}"
        )
    for value, bound in zip(leaves, limits):
        if not isinstance(bound, Bound):
            raise UserError(f"{where}: expected a Bound, found {type(bound).__name__}")
        if not tf.is_tensor(value) or value.dtype not in _DTYPES:
            found = value.dtype.name if tf.is_tensor(value) else type(value).__name__
            raise UserError(
                f"{where}: expected float32 or int64 tensors, which can be summed, found {found}"
            )
        if bound.integer != value.dtype.is_integer:
            raise UserError(
                f"{where}: expected integer={value.dtype.is_integer} in the bound of "
                f"{value.dtype.name} values, found {bound.integer}"
            )


def check_state(before: Any, after: Any) -> None:
    """Checks that a round leaves a state of the structure, shapes and dtypes that it found.

    Raises:
        UserError: Otherwise; names the first difference.
    """
    try:
        tf.nest.assert_same_structure(before, after, check_types=False)
    except (TypeError, ValueError):
        raise UserError(
            "expected finish to return a state of the structure that initialize returned, found "
            f"another one: {_names(before)} before, {_names(after)} after"
        ) from None
    for i, (old, new) in enumerate(zip(tf.nest.flatten(before), tf.nest.flatten(after))):
        new = tf.convert_to_tensor(new)
        if old.dtype != new.dtype or not old.shape.is_compatible_with(new.shape):
            raise UserError(
                "expected finish to return a state of the shapes and dtypes that initialize "
                f"returned, found another one of value {i}: {old.dtype.name}{old.shape} before, "
                f"{new.dtype.name}{new.shape} after"
            )


def _names(structure: Any) -> str:
    fields = getattr(structure, "_fields", None)
    return f"{type(structure).__name__}({', '.join(fields)})" if fields else repr(type(structure))
