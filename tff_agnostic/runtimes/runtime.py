"""The protocol of runtimes."""

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
from tff_agnostic.computations.evaluation import Measurement, measurement_of_model
from tff_agnostic.computations.verification import SecurityReport
from tff_agnostic.models.model import Examples, Model


class Training(Protocol):
    """Rounds of one algorithm; states and reports are structures of NumPy arrays.

    Attributes:
        security: What reaches the server, where the aggregation promises something of it.
        quantities: Describes what a round reports, in the structure of the report.
    """

    security: Optional[SecurityReport]
    quantities: ReportFields

    def initialize(self) -> RunState:
        """Returns the state before the first round."""

    def next(self, state: RunState, cohort: Sequence[Examples]) -> tuple[RunState, Report]:
        """Runs one round on a cohort."""


class Evaluated(NamedTuple):
    """What an evaluation gives.

    Attributes:
        output: Sums over the clients; of a model's evaluation an `EvaluationOutput`.
        clipped: How many values of each field exceeded the bounds of secure sums; empty for others.
    """

    output: Any
    clipped: Mapping[str, int]


class Evaluation(abc.ABC):
    """Federated evaluation, of a model's weights or of what else a measurement is of.

    Args:
        aggregation: What happens before and after the sum.
    """

    def __init__(self, aggregation: Aggregation) -> None:
        self._aggregation = aggregation

    def __call__(
        self, measured: Any, parts: Iterable[Sequence[Examples]], state: Any = None
    ) -> Evaluated:
        """Evaluates weights on clients that come in parts, so that not all need be in memory.

        The parts' sums are added before anything is decoded: no sum of a part is looked at.

        Args:
            measured: What is measured, such as weights.
            parts: The clients.
            state: Of the aggregation; that before its first sum if None.
        """
        return self.of_each([measured], parts, [state])[0]

    def of_each(
        self,
        measured: Sequence[Any],
        parts: Iterable[Sequence[Examples]],
        states: Optional[Sequence[Any]] = None,
    ) -> list[Evaluated]:
        """Evaluates several, such as the models of a family, on clients that are read once.

        Each has the numbers that it has alone.

        Args:
            measured: What is measured.
            parts: The clients.
            states: Of the aggregation, of each; None for those before its first sum.
        """
        with self._scope():
            before = [self._begun(state) for state in states or [None] * len(measured)]
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
            return [_evaluated(*self._decoded(*of_one)) for of_one in zip(before, totals)]

    def _scope(self) -> contextlib.AbstractContextManager:
        """Returns the context in which it is run."""
        return contextlib.nullcontext()

    @abc.abstractmethod
    def _begun(self, state: Any) -> Any:
        """Returns the state of the aggregation; that before its first sum if None."""

    @abc.abstractmethod
    def _message(self, measured: Any, state: Any) -> Any:
        """Returns what clients are sent."""

    @abc.abstractmethod
    def _sums(self, messages: Sequence[Any], clients: Sequence[Examples]) -> list[Any]:
        """Returns the sum over clients for each message."""

    @abc.abstractmethod
    def _added(self, totals: list[Any], sums: list[Any]) -> list[Any]:
        """Returns sums over earlier parts and over one more."""

    @abc.abstractmethod
    def _decoded(self, state: Any, total: Any) -> tuple[Any, Report]:
        """Returns what clients have contributed, and the report of the aggregation."""


class Runtime(Protocol):
    """Executes algorithms; a context manager that owns whatever it starts."""

    def __enter__(self) -> Runtime:
        """Acquires processes and devices."""

    def __exit__(self, *exc_info: object) -> None:
        """Releases them."""

    def training(self, algorithm: Algorithm, aggregation: Aggregation) -> Training:
        """Prepares rounds of `algorithm`."""

    def evaluation(self, model: Model, num_domains: int, aggregation: Aggregation) -> Evaluation:
        """Prepares evaluations of `model`."""
        return self.measurement(measurement_of_model(model, num_domains), aggregation)

    def measurement(self, measurement: Measurement, aggregation: Aggregation) -> Evaluation:
        """Prepares evaluations of another kind, such as of several models at once."""

    def check_clients_per_round(self, clients_per_round: int) -> None:
        """Checks that rounds of so many clients suit the runtime.

        Cohorts of a size by chance have so many on average, and any number runs. By default any
        number suits.
        """
        del clients_per_round

    def execution(self) -> Mapping[str, Any]:
        """Returns the settings of how rounds are executed that may change last bits, by flag."""

    def take_events(self) -> list[str]:
        """Returns what a user should know to have happened since the last call, a line each."""
        return []


def to_numpy_examples(examples: Examples) -> dict[str, Any]:
    """Returns a client's columns in the order that TFF types expect."""
    return {key: examples[key] for key in ("x", "y", "domain_id")}


def _evaluated(output: Any, report: Report) -> Evaluated:
    """Returns the result of an evaluation, in NumPy, from what was decoded."""
    clipped = report.get("clipped", {})
    return Evaluated(
        tf.nest.map_structure(np.asarray, output),
        {field: int(count) for field, count in clipped.items()},
    )
