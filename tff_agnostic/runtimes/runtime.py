"""The protocol that all runtimes implement."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Optional, Protocol

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation, require_enough_clients
from tff_agnostic.base.later import tf
from tff_agnostic.base.report_fields import ReportFields
from tff_agnostic.computations.algorithm import Algorithm, Report, RunState
from tff_agnostic.computations.evaluation import Measurement, model_measurement
from tff_agnostic.computations.verification import SecurityReport
from tff_agnostic.models.model import Examples, Model


class Training(Protocol):
    """Runs the rounds of one algorithm; states and reports are structures of NumPy arrays.

    Attributes:
        security: Report on the values that reach the server; None if the aggregation does not
            guarantee security.
        quantities: Descriptions of the values in a round's report, in the report's structure.
    """

    security: Optional[SecurityReport]
    quantities: ReportFields

    def initialize(self) -> RunState:
        """Returns the state before the first round."""

    def next(self, state: RunState, cohort: Sequence[Examples]) -> tuple[RunState, Report]:
        """Runs one round on a cohort."""


class RawEvaluation(NamedTuple):
    """The result of an evaluation.

    Attributes:
        output: Sums over the clients; an `EvaluationOutput` for a model's evaluation.
        clipped: Number of values in each field that exceeded the bounds of secure sums; empty for
            other sums.
    """

    output: Any
    clipped: Mapping[str, int]


class Evaluation(abc.ABC):
    """Federated evaluation of a model's weights, or federated measurement of other values.

    Args:
        aggregation: How client outputs are summed.
    """

    def __init__(self, aggregation: Aggregation) -> None:
        self._aggregation = aggregation

    def __call__(
        self, measured: Any, parts: Iterable[Sequence[Examples]], state: Any = None
    ) -> RawEvaluation:
        """Evaluates weights on one chunk of clients after another, to limit the clients in memory.

        The chunks' sums are added before decoding, so that no partial sum is revealed.

        Args:
            measured: The values to evaluate, such as a model's weights.
            parts: The clients in chunks.
            state: State of the aggregation; its initial state if None.
        """
        return self.for_each([measured], parts, [state])[0]

    def for_each(
        self,
        measured: Sequence[Any],
        parts: Iterable[Sequence[Examples]],
        states: Optional[Sequence[Any]] = None,
    ) -> list[RawEvaluation]:
        """Evaluates several models, such as a family, while reading clients once.

        Each model's result is the same as if it were evaluated alone.

        Args:
            measured: Each evaluation's values to evaluate, such as a model's weights.
            parts: The clients in chunks.
            states: State of the aggregation for each evaluation; None for initial states.
        """
        with self._scope():
            before = [self._state_or_initial(state) for state in states or [None] * len(measured)]
            messages = list(map(self._message, measured, before))
            totals: Optional[list[Any]] = None
            num_clients = 0
            for clients in parts:
                num_clients += len(clients)
                sums = self._sums(messages, clients)
                totals = sums if totals is None else self._added(totals, sums)
            require_enough_clients(self._aggregation, num_clients)
            if totals is None:
                totals = self._sums(messages, [])
            return [_evaluated(*self._decoded(*decoded)) for decoded in zip(before, totals)]

    def _scope(self) -> contextlib.AbstractContextManager:
        """Returns the context in which evaluations run."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def _state_or_initial(self, state: Any) -> Any:
        """Returns `state`, or the aggregation's initial state if it is None."""

    @abc.abstractmethod
    def _message(self, measured: Any, state: Any) -> Any:
        """Returns the message to clients."""

    @abc.abstractmethod
    def _sums(self, messages: Sequence[Any], clients: Sequence[Examples]) -> list[Any]:
        """Returns the sum over clients for each message."""

    @abc.abstractmethod
    def _added(self, totals: list[Any], sums: list[Any]) -> list[Any]:
        """Adds the sums over a chunk of clients to the sums over earlier chunks."""

    @abc.abstractmethod
    def _decoded(self, state: Any, total: Any) -> tuple[Any, Report]:
        """Returns the decoded sum of client outputs, and the aggregation's report."""


class Runtime(Protocol):
    """Executes algorithms; as a context manager it acquires and releases resources."""

    def __enter__(self) -> Runtime:
        """Acquires processes and devices."""

    def __exit__(self, *exc_info: object) -> None:
        """Releases processes and devices."""

    def training(self, algorithm: Algorithm, aggregation: Aggregation) -> Training:
        """Prepares rounds of `algorithm`."""

    def evaluation(self, model: Model, num_domains: int, aggregation: Aggregation) -> Evaluation:
        """Prepares evaluations of `model`."""
        return self.measurement(model_measurement(model, num_domains), aggregation)

    def measurement(self, measurement: Measurement, aggregation: Aggregation) -> Evaluation:
        """Prepares any kind of evaluation, for example of several models at once."""

    def check_clients_per_round(self, clients_per_round: int) -> None:
        """Checks that the runtime supports rounds with this number of clients.

        If cohorts have random sizes, the number is their mean size, and any size must be possible.
        By default a runtime supports any number.
        """
        del clients_per_round

    def execution(self) -> Mapping[str, Any]:
        """Returns the execution settings that may change the last bits of results, by flag."""

    def take_events(self) -> list[str]:
        """Returns a line for the user about each event since the last call of this method."""
        return []


def to_numpy_examples(examples: Examples) -> dict[str, Any]:
    """Returns a client's columns in the order that TFF types expect."""
    return {key: examples[key] for key in ("x", "y", "domain_id")}


def _evaluated(output: Any, report: Report) -> RawEvaluation:
    clipped = report.get("clipped", {})
    return RawEvaluation(
        tf.nest.map_structure(np.asarray, output),
        {field: int(count) for field, count in clipped.items()},
    )
