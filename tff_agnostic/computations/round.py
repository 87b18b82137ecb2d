"""Runs a round step by step: broadcast, client work, encode, sum, decode, finish.

Only this module combines a communication step with its aggregation. Training rounds, surveys (extra
passes that collect clients' losses) and evaluations consist of such steps. Every runtime takes its
functions from here: the server's functions before and after each sum, and the clients' in between.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from tff_agnostic.aggregations.aggregation import Aggregation, Bound, ClientFacts, FederatedSums
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tf
from tff_agnostic.base.report_fields import ReportField, ReportFields
from tff_agnostic.computations.algorithm import (
    Algorithm,
    ClientResult,
    CommunicationStep,
    Report,
    RoundView,
    RunState,
    Sums,
)
from tff_agnostic.computations.client_output import all_finite
from tff_agnostic.computations.clients import Clients

_SKIPPED = ReportField(
    "skipped", "whether the round was skipped, because a sum or the update was not finite"
)
_DTYPES = ("float32", "int64")


class Message(NamedTuple):
    """The server's message to every client in a step.

    Attributes:
        broadcast: The algorithm's broadcast.
        aggregation: Parameters for clients that the aggregation derives from its state.
        seed: Seed of the round, int32 [2]: the run's seed, and the number of the round.
    """

    broadcast: Any
    aggregation: Any
    seed: tf.Tensor


@dataclasses.dataclass(frozen=True)
class RoundStep:
    """A communication step with the aggregation that sums its outputs."""

    step: CommunicationStep
    aggregation: Aggregation

    @property
    def key(self) -> Any:
        """Key of the client work: steps with equal keys have equal client work."""
        bounds = tuple(tf.nest.flatten(self.bounds))
        return self.step.name, self.step.client_work, self.aggregation, bounds

    @property
    def bounds(self) -> Any:
        """Bounds of a client's output, in the output's structure."""
        return self.step.bounds(self.aggregation.limits)

    def on_clients(self) -> RoundStep:
        """Returns the step without the values that only the server may know."""
        return dataclasses.replace(self, aggregation=self.aggregation.on_clients())

    def initialize(self) -> Any:
        """Returns the state of the aggregation before the first sum."""
        return self.aggregation.initialize(self.bounds)

    def message(self, aggregation_state: Any, broadcast: Any, seed: tf.Tensor) -> Message:
        """On the server: returns the message to every client."""
        return Message(broadcast, self.aggregation.client_params(aggregation_state), seed)

    def client_work(self, message: Message, clients: Clients) -> ClientResult:
        """On clients: returns each client's encoded output and its state."""
        aggregation, bounds = self.aggregation, self.bounds
        max_examples = aggregation.limits.examples if aggregation.cuts_clients else None
        used = clients.limited(max_examples).seeded(message.seed)
        result = self.step.client_work(message.broadcast, used)
        output, state = client_result(self.step, result)
        check_bounds(self.step.name, output, bounds)
        examples_cut = tf.cast(clients.num_examples - used.num_examples, tf.int64)

        if not aggregation.encodes:
            return ClientResult(output, state)

        def encode(output: Any, facts: ClientFacts) -> Any:
            return aggregation.encode(message.aggregation, output, bounds, facts)

        facts = ClientFacts(used.seed, examples_cut, clients.place)
        return ClientResult(clients.map(encode, output, facts), state)

    def federated_sum(self, encoded: Any, sums: FederatedSums) -> Any:
        """In a federated computation: returns the sum over clients, at the server."""
        return self.aggregation.federated_sum(encoded, self.bounds, sums)

    def decode(self, aggregation_state: Any, summed: Any) -> tuple[Any, Any, Report]:
        """On the server: returns the aggregation's next state, the decoded sum, and a report."""
        return self.aggregation.decode(aggregation_state, summed, self.bounds)

    def quantities(self, prefix: str = "") -> ReportFields:
        """Returns descriptions of the values that `decode` reports."""
        return self.aggregation.quantities(self.bounds, prefix)


def client_result(step: CommunicationStep, result: Any) -> ClientResult:
    """Checks the type of a client work's result, and returns it as a `ClientResult`."""
    if isinstance(result, ClientResult) is not step.keeps_client_state:
        expected = "a ClientResult" if step.keeps_client_state else "no ClientResult"
        raise UserError(
            f"step {step.name!r}: expected client_work to return {expected}, as "
            f"keeps_client_state={step.keeps_client_state} says, found {type(result).__name__}"
        )
    return result if step.keeps_client_state else ClientResult(result)


def floats_are_finite(structure: Any) -> tf.Tensor:
    """Returns whether all floating-point values of a structure are finite, a boolean scalar."""
    values = [tf.convert_to_tensor(value) for value in tf.nest.flatten(structure)]
    return all_finite([value for value in values if value.dtype.is_floating])


class RoundProgress(NamedTuple):
    """The server's intermediate values between the steps of a round.

    Attributes:
        sums: Sums of the steps so far.
        aggregations: State of the aggregation after each step.
        reports: Report of the aggregation of each step.
    """

    sums: Sums = ()
    aggregations: tuple[Any, ...] = ()
    reports: tuple[Report, ...] = ()


class Round:
    """A round of an algorithm with an aggregation: the server's functions around each sum.

    A round calls `start`, then `next_step` after every sum except the last, then `finish`; see
    `play`.

    Args:
        aggregation: The aggregation to use in every step.

    Attributes:
        steps: The steps with their aggregation.
    """

    def __init__(self, algorithm: Algorithm, aggregation: Aggregation) -> None:
        self._algorithm = algorithm
        bounds = [step.bounds(aggregation.limits) for step in algorithm.steps]
        self.steps = tuple(map(RoundStep, algorithm.steps, aggregation.for_steps(bounds)))

    @property
    def client_data_spec(self) -> Mapping[str, Any]:
        """Tensor specs of one client's examples."""
        return self._algorithm.client_data_spec

    def initialize(self) -> RunState:
        """Returns the state before the first round."""
        return RunState(
            algorithm=self._algorithm.initialize(),
            aggregations=tuple(step.initialize() for step in self.steps),
            round_num=tf.constant(0, tf.int32),
        )

    def start(self, state: RunState) -> Message:
        """Returns the message of the first step."""
        return self._message(state, ())

    def next_step(
        self, state: RunState, progress: RoundProgress, summed: Any
    ) -> tuple[Message, RoundProgress]:
        """Takes the sum of a step, and returns the message of the next step."""
        progress = self._decoded(state, progress, summed)
        return self._message(state, progress.sums), progress

    def finish(
        self, state: RunState, progress: RoundProgress, summed: Any
    ) -> tuple[RunState, Report]:
        """Takes the sum of the last step, and returns the next state and the round's report.

        Finite client outputs can still have a non-finite sum or server update, and a non-finite
        state never recovers. Such a round is skipped: its result is that of a round without
        clients, and it reports skipped=1.
        """
        sums, aggregations, reports = self._decoded(state, progress, summed)
        no_sums = tf.nest.map_structure(tf.zeros_like, sums)
        has_sums = floats_are_finite(sums)
        sums = tf.nest.map_structure(lambda s, zero: tf.where(has_sums, s, zero), sums, no_sums)
        after = self._algorithm.finish(state.algorithm, *sums)
        check_state(state.algorithm, after)
        # Some states contain infinity from the start, such as a running minimum. After a round that
        # began with such a state, non-finite values do not indicate divergence.
        has_state = tf.cond(
            floats_are_finite(after),
            lambda: True,
            lambda: ~floats_are_finite(state.algorithm),
        )
        after, sums = tf.cond(
            has_state,
            lambda: (after, sums),
            lambda: (self._algorithm.finish(state.algorithm, *no_sums), no_sums),
        )
        # Advance the aggregations even if the round is skipped: noise must not be reused.
        aggregations = tf.cond(
            floats_are_finite(aggregations),
            lambda: aggregations,
            lambda: state.aggregations,
        )
        skipped = tf.cast(~(has_sums & has_state), tf.int64)
        report = self._algorithm.report(RoundView(state.algorithm, sums, after, state.round_num))
        return (
            RunState(after, aggregations, state.round_num + 1),
            OrderedDict(report, aggregator=self._by_step(reports), skipped=skipped),
        )

    @property
    def quantities(self) -> ReportFields:
        """Descriptions of the values that a round reports."""
        names = [step.step.name for step in self.steps]
        prefixes = [""] if len(names) == 1 else [f"{name} " for name in names]
        aggregation_fields = [s.quantities(prefix) for s, prefix in zip(self.steps, prefixes)]
        return OrderedDict(
            self._algorithm.quantities,
            aggregator=self._by_step(aggregation_fields),
            skipped=_SKIPPED,
        )

    def _message(self, state: RunState, sums: Sums) -> Message:
        k = len(sums)
        broadcast = self.steps[k].step.broadcast(state.algorithm, *sums)
        seed = tf.stack([self._algorithm.problem.seed, state.round_num])
        return self.steps[k].message(state.aggregations[k], broadcast, seed)

    def _decoded(self, state: RunState, progress: RoundProgress, summed: Any) -> RoundProgress:
        k = len(progress.sums)
        aggregation, sums, report = self.steps[k].decode(state.aggregations[k], summed)
        return RoundProgress(
            (*progress.sums, sums),
            (*progress.aggregations, aggregation),
            (*progress.reports, report),
        )

    def _by_step(self, reports: Sequence[Any]) -> Mapping[str, Any]:
        if len(self.steps) == 1:
            return OrderedDict(reports[0])
        return OrderedDict((step.step.name, report) for step, report in zip(self.steps, reports))


class RoundFunctions(NamedTuple):
    """The functions of a `Round`, or traces of them."""

    start: Callable[..., Any]
    next_step: Callable[..., Any]
    finish: Callable[..., Any]


def play(
    functions: RoundFunctions,
    steps: Sequence[RoundStep],
    state: RunState,
    sum_step: Callable[[int, Message, Any, bool], ClientResult],
) -> tuple[RunState, Report]:
    """Runs a round.

    Args:
        functions: The server's functions.
        state: The state before the round.
        sum_step: (index of the step, message, client states, is_due) -> the sum over the cohort,
            with the client states after the step. If is_due is false, the sum is over no clients.

    Returns:
        The state after the round, and its report.
    """
    message, progress = functions.start(state), RoundProgress()
    # Client states of the steps that are due (True), and of the steps that are not (False).
    client_states: dict[bool, Any] = {True: (), False: ()}
    for k, step in enumerate(steps):
        is_due = step.step.is_due is None or bool(step.step.is_due(state.algorithm))
        result = sum_step(k, message, client_states[is_due], is_due)
        if step.step.keeps_client_state:
            client_states[is_due] = result.state
        if k < len(steps) - 1:
            message, progress = functions.next_step(state, progress, result.output)
    next_state, report = functions.finish(state, progress, result.output)
    return next_state, report


def tensor_specs(structure: Any) -> Any:
    """Returns the specs of a structure of tensors."""
    return tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), structure)


def traced_specs(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the specs of a function's result, from the specs of its arguments."""
    traced = tf.function(function, autograph=False).get_concrete_function(*arguments)
    return tensor_specs(traced.structured_outputs)


def trace_steps(round_: Round, sum_step: Callable[[int, Message, Any], ClientResult]) -> None:
    """Traces all steps of a round on tensor specs, up to the last sum.

    Args:
        sum_step: As in `play`, but called with specs, and without `is_due`.
    """
    start, next_step = (
        functools.partial(traced_specs, function) for function in (round_.start, round_.next_step)
    )
    functions = RoundFunctions(start, next_step, lambda *sums: (None, None))
    steps = [
        dataclasses.replace(step, step=dataclasses.replace(step.step, is_due=None))
        for step in round_.steps
    ]
    state = traced_specs(round_.initialize)
    play(functions, steps, state, lambda k, message, kept, is_due: sum_step(k, message, kept))


def check_bounds(step: str, output: Any, bounds: Any) -> None:
    """Checks that every value of a client's output has a bound."""
    fields = getattr(output, "_fields", None)
    if fields is None:
        raise UserError(
            f"step {step!r}: expected clients to send a named tuple, found {type(output).__name__}"
        )
    bound_fields = getattr(bounds, "_fields", ())
    different = sorted(set(fields) ^ set(bound_fields))
    if different:
        raise UserError(
            f"step {step!r}: expected bounds of {', '.join(fields)}, as clients send, "
            f"found {', '.join(bound_fields) or type(bounds).__name__}: only one of them "
            f"has {', '.join(different)}"
        )
    for field in fields:
        _check_field(f"step {step!r}, {field}", getattr(output, field), bounds, field)


def _check_field(where: str, values: Any, bounds: Any, field: str) -> None:
    leaves, limits = tf.nest.flatten(values), tf.nest.flatten(getattr(bounds, field))
    if len(leaves) != len(limits):
        raise UserError(
            f"{where}: expected a bound of each of {len(leaves)} values, found {len(limits)}"
        )
    for value, bound in zip(leaves, limits):
        if not isinstance(bound, Bound):
            raise UserError(f"{where}: expected a Bound, found {type(bound).__name__}")
        if not tf.is_tensor(value) or value.dtype.name not in _DTYPES:
            kind = value.dtype.name if tf.is_tensor(value) else type(value).__name__
            raise UserError(
                f"{where}: expected float32 or int64 tensors, which can be summed, found {kind}"
            )
        if bound.integer != value.dtype.is_integer:
            raise UserError(
                f"{where}: expected integer={value.dtype.is_integer} in the bound of "
                f"{value.dtype.name} values, found {bound.integer}"
            )


def check_state(before: Any, after: Any) -> None:
    """Checks that a round keeps the structure, shapes and dtypes of the state."""
    try:
        tf.nest.assert_same_structure(before, after, check_types=False)
    except (TypeError, ValueError):
        raise UserError(
            "expected finish to return a state of the structure that initialize returned, "
            f"{_names(before)}, found {_names(after)}"
        ) from None
    for i, (old, new) in enumerate(zip(tf.nest.flatten(before), tf.nest.flatten(after))):
        new = tf.convert_to_tensor(new)
        if old.dtype != new.dtype or not old.shape.is_compatible_with(new.shape):
            raise UserError(
                "expected finish to return a state of the shapes and dtypes that initialize "
                f"returned, {old.dtype.name}{old.shape} for value {i}, found "
                f"{new.dtype.name}{new.shape}"
            )


def _names(structure: Any) -> str:
    fields = getattr(structure, "_fields", None)
    return f"{type(structure).__name__}({', '.join(fields)})" if fields else repr(type(structure))
