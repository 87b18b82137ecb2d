"""Which columns a run has, and their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional, Protocol

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.report_fields import ReportField, ReportFields, Role, Unit, flattened, paired
from tff_agnostic.data.store_format import TEST
from tff_agnostic.metrics.evaluation_report import (
    DEFAULT_PERCENTILES,
    EvaluationReport,
    statistic_names,
)
from tff_agnostic.metrics.metrics_file import ROUND, Column, History, Numbers
from tff_agnostic.models.model import Measure, Model, ModelWeights, measures_of


class TrainingColumns:
    """The columns that a round of training fills.

    Args:
        quantities: What rounds report; see `Training.quantities`.
        tracked_weights: Single weights of the main model; see `Task.tracked_weights`.

    Attributes:
        columns: The columns, in the order of `quantities`, then the weights.
    """

    def __init__(
        self,
        quantities: ReportFields,
        tracked_weights: Mapping[str, tuple[int, int]],
        domain_names: Sequence[str],
    ) -> None:
        self._quantities = quantities
        self._tracked_weights = tracked_weights
        self._domain_names = domain_names
        self._presence = example_counts(list(flattened(quantities)))
        self.columns = tuple(
            column for q in flattened(quantities) for column in _columns(q, domain_names)
        ) + tuple(Column(ReportField(name, label=name)) for name in tracked_weights)

    def values(self, report: Mapping[str, Any], weights: ModelWeights) -> dict[str, Any]:
        """Returns what a round reports, by column name; None where a value is undefined.

        The value of a domain without examples in the round is undefined where it is one of present
        domains: the 0 that algorithms use in its place would mislead a reader.

        Args:
            report: What the round reported.
            weights: The main model after the round.
        """
        pairs = list(paired(self._quantities, report))
        counts = next((value for q, value in pairs if q == self._presence), None)
        values: dict[str, Any] = {}
        for quantity, reported in pairs:
            for i, column in enumerate(_columns(quantity, self._domain_names)):
                absent = quantity.needs_examples and counts is not None and counts[i] == 0
                value = reported[i] if quantity.per_domain else reported
                values[column.name] = None if absent else value
        for name, (weight, index) in self._tracked_weights.items():
            values[name] = np.ravel(weights.trainable[weight])[index]
        return values


class EvaluationColumns:
    """The columns that an evaluation of a run's models fills.

    Args:
        models: Names of the models, the main one first.
        measures: The models' measures, by name.
        clipped: What secure sums count that exceeded its bound, by the field of clients' answers.
        split: Whose clients are evaluated.
        percentiles: Which percentiles over clients evaluations report.

    Attributes:
        columns: For each model and measure one per domain, that of all examples together, that of
            the worst domain, and those of the distribution over clients; then the clipped values.
    """

    def __init__(
        self,
        models: Sequence[str],
        measures: Mapping[str, Measure],
        clipped: Mapping[str, ReportField],
        domain_names: Sequence[str],
        split: str = TEST,
        percentiles: Sequence[float] = DEFAULT_PERCENTILES,
    ) -> None:
        self._split = split
        self._statistics = statistic_names(percentiles)
        self._models = models
        self._measures = measures
        self._clipped = clipped
        self._domain_names = domain_names
        self.columns = tuple(column for i in range(len(models)) for column in self._of_model(i))

    def values(self, reports: Optional[Mapping[str, EvaluationReport]]) -> dict[str, Any]:
        """Returns what an evaluation reports, by column name; None everywhere without one.

        Args:
            reports: The report of each model, by its name; None for a round without evaluation.
        """
        if reports is None:
            return dict.fromkeys(column.name for column in self.columns)
        values: list[Any] = []
        for model in self._models:
            report = reports[model]
            for name in self._measures:
                sets = [report.domains[d] for d in self._domain_names]
                values += [s.measures[name].value for s in (*sets, report.overall)]
                values.append(report.worst(name))
                of_clients = report.overall.measures[name].over_clients()
                values += [of_clients[statistic] for statistic in self._statistics]
            values += [report.clipped[field] for field in self._clipped]
        return {column.name: _defined(v) for column, v in zip(self.columns, values)}

    def _of_model(self, index: int) -> Iterable[Column]:
        further = self._models[index] if index > 0 else None
        for measure in self._measures.values():
            quantity = tested(measure, self._split, further)
            yield from _columns(quantity, self._domain_names)
            yield Column(quantity)
            yield Column(tested_worst(measure, self._split, further))
            for statistic in self._statistics:
                yield Column(tested_over_clients(measure, statistic, self._split, further))
        for field, quantity in self._clipped.items():
            yield Column(
                _of_evaluations(
                    f"clipped {field}",
                    self._split,
                    further,
                    label=f"{quantity.label}, in evaluations",
                    unit=quantity.unit,
                )
            )


def tested(measure: Measure, split: str = TEST, further_model: Optional[str] = None) -> ReportField:
    """Returns a measure on the clients of a split, of the run's main model or of a further one."""
    whose = "" if further_model is None else f" of {further_model}"
    return _of_evaluations(
        measure.name,
        split,
        further_model,
        label=f"{measure.name}{whose} on the {split} clients",
        per_domain=True,
        unit=measure.unit,
        higher_is_better=measure.higher_is_better,
        is_drawn=True,
    )


def tested_worst(
    measure: Measure, split: str = TEST, further_model: Optional[str] = None
) -> ReportField:
    """Returns the same of whichever domain is worst, of those that are counted."""
    return _of_evaluations(
        f"worst {measure.name}",
        split,
        further_model,
        label=f"{measure.name} of the worst domain on the {split} clients",
        unit=measure.unit,
        higher_is_better=measure.higher_is_better,
    )


def tested_over_clients(
    measure: Measure,
    statistic: str,
    split: str = TEST,
    further_model: Optional[str] = None,
) -> ReportField:
    """Returns what describes a measure's distribution over clients; see `statistic_names`."""
    return _of_evaluations(
        f"{measure.name} over clients/{statistic}",
        split,
        further_model,
        label=f"{statistic} of {measure.name} over the {split} clients",
        unit=measure.unit,
        higher_is_better=measure.higher_is_better,
    )


def _of_evaluations(
    name: str, split: str, further_model: Optional[str], **described: Any
) -> ReportField:
    model = "" if further_model is None else f"[{further_model}]"
    return ReportField(f"{split}{model}/{name}", **described)


def with_role(quantities: Iterable[ReportField], role: Role) -> Optional[ReportField]:
    """Returns the quantity that has a role; None if none has."""
    return next((quantity for quantity in quantities if quantity.role is role), None)


def distinct(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Returns the columns of a whole run."""
    by_name: dict[str, Column] = {}
    for column in columns:
        if column.name == ROUND or column.name in by_name:
            raise UserError(
                f"metrics.csv: expected columns of different names, found two called "
                f"{column.name!r}: a quantity or a domain needs another name"
            )
        by_name[column.name] = column
    return tuple(by_name.values())


def _columns(quantity: ReportField, domain_names: Sequence[str]) -> list[Column]:
    if not quantity.per_domain:
        return [Column(quantity)]
    return [Column(quantity, domain) for domain in domain_names]


def example_counts(quantities: Sequence[ReportField]) -> Optional[ReportField]:
    """Returns the quantity with the examples of each domain in a round; None without one."""
    found = next((q for q in quantities if q.per_domain and q.unit is Unit.EXAMPLES), None)
    needed = next((q for q in quantities if q.needs_examples), None)
    if needed is not None and found is None:
        raise UserError(
            f"quantity {needed.name!r}: expected another one per domain, in examples, that says "
            "which domains are present in a round, found none"
        )
    return found


def _defined(value: Any) -> Any:
    # What has no examples has no value: an empty cell, not a NaN.
    return None if isinstance(value, float) and math.isnan(value) else value


class EvaluatedTask(Protocol):
    """The attributes of `tasks.task.Task` that columns need."""

    @property
    def domain_names(self) -> tuple[str, ...]:
        """See `Task.domain_names`."""

    @property
    def model(self) -> Model:
        """See `Task.model`."""

    @property
    def tracked_weights(self) -> Mapping[str, tuple[int, int]]:
        """See `Task.tracked_weights`."""

    @property
    def test_split(self) -> str:
        """See `Task.test_split`."""


class RunRows:
    """metrics.csv of a run, filled by its rounds and its evaluations.

    Args:
        path: The file.
        task: The run's task.
        quantities: What rounds report; see `Training.quantities`.
        models: Names of the models that are evaluated, the main one first.
        clipped: What secure sums of evaluations count that exceeded its bound.
        percentiles: Which percentiles over clients evaluations report.

    Attributes:
        history: The rows.
        weight_name: What the run calls the domains' weights; empty if it has none.
    """

    def __init__(
        self,
        path: Path,
        task: EvaluatedTask,
        quantities: ReportFields,
        models: Sequence[str],
        clipped: Mapping[str, ReportField],
        percentiles: Sequence[float],
    ) -> None:
        names = task.domain_names
        self._of_training = TrainingColumns(quantities, task.tracked_weights, names)
        self._of_evaluations = EvaluationColumns(
            models, measures_of(task.model), clipped, names, task.test_split, percentiles
        )
        columns = (*self._of_training.columns, *self._of_evaluations.columns)
        self.history = History(path, distinct(columns))
        self._weights = with_role(flattened(quantities), Role.DOMAIN_WEIGHT)
        self.weight_name = "" if self._weights is None else self._weights.name

    @property
    def columns(self) -> Sequence[Column]:
        """The columns of the file."""
        return self.history.columns

    def append(
        self,
        round_num: int,
        report: Mapping[str, Any],
        weights: ModelWeights,
        reports: Optional[Mapping[str, EvaluationReport]],
    ) -> Numbers:
        """Adds the row of a round, and returns its numbers.

        Args:
            report: What it reported.
            weights: The main model after it.
            reports: The evaluation of each model, by its name; None if there was none.
        """
        values = self._of_training.values(report, weights)
        return self.history.append(round_num, {**values, **self._of_evaluations.values(reports)})

    def change_evaluation(
        self, round_num: int, reports: Optional[Mapping[str, EvaluationReport]]
    ) -> None:
        """Gives a round another evaluation, or none; `History.write` makes the file follow."""
        self.history.change(round_num, self._of_evaluations.values(reports))

    def domain_weights(self) -> dict[str, float]:
        """Returns the weight of each domain after the last round; empty if there are none."""
        last = self.history.numbers(len(self.history))
        return {
            column.domain: last[column.name]
            for column in self.columns
            if column.quantity == self._weights and column.domain is not None
            if column.name in last
        }
