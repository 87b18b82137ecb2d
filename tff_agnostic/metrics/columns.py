"""The columns of metrics.csv, and their values from reports."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

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
from tff_agnostic.models.model import Measure, ModelWeights


class TrainingColumns:
    """The columns of metrics.csv that a training round fills.

    Args:
        quantities: Quantities that rounds report; see `Training.quantities`.
        tracked_weights: Single weights of the main model to report; see `Task.tracked_weights`.

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
        ) + tuple(Column(ReportField(name, label=name, is_drawn=True)) for name in tracked_weights)

    def values(self, report: Mapping[str, Any], weights: ModelWeights) -> dict[str, Any]:
        """Returns the values of a round by column name; None if a value is undefined.

        Quantities that need examples are None for a domain without examples in the round, as the 0
        from the algorithm would mislead readers.

        Args:
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
    """The columns of metrics.csv that an evaluation of a run's models fills.

    Args:
        models: Names of the models, the main one first.
        clipped: Quantities that count the values that secure sums clip, by field of the client
            output.

    Attributes:
        columns: For each model and measure, a column per domain, and columns for all examples, for
            the worst domain, and for statistics over clients. After a model's measures, columns of
            clipped values.
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
        self.columns = tuple(
            column for i in range(len(models)) for column in self._model_columns(i)
        )

    def values(self, reports: Optional[Mapping[str, EvaluationReport]]) -> dict[str, Any]:
        """Returns the values of an evaluation by column name; all are None if there is none.

        Args:
            reports: Report of each model, by its name; None for a round without evaluation.
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
                over_clients = report.overall.measures[name].over_clients()
                values += [over_clients[statistic] for statistic in self._statistics]
            values += [report.clipped[field] for field in self._clipped]
        # Write an empty cell instead of NaN.
        cells = (None if isinstance(v, float) and math.isnan(v) else v for v in values)
        return dict(zip((column.name for column in self.columns), cells))

    def _model_columns(self, index: int) -> Iterable[Column]:
        further = self._models[index] if index > 0 else None
        for measure in self._measures.values():
            quantity = tested(measure, self._split, further)
            yield from _columns(quantity, self._domain_names)
            yield Column(quantity)
            yield Column(tested_worst(measure, self._split, further))
            for statistic in self._statistics:
                name = f"{measure.name} over clients/{statistic}"
                label = f"{statistic} of {measure.name} over the {self._split} clients"
                yield Column(_tested(measure, name, label, self._split, further))
        for field, quantity in self._clipped.items():
            name = _column_name(f"clipped {field}", self._split, further)
            label = f"{quantity.label}, in evaluations"
            yield Column(ReportField(name, label, unit=quantity.unit))


def tested(measure: Measure, split: str = TEST, further_model: Optional[str] = None) -> ReportField:
    """Returns a measure of the main model, or of a further model, on the clients of a split."""
    model = "" if further_model is None else f" of {further_model}"
    label = f"{measure.name}{model} on the {split} clients"
    quantity = _tested(measure, measure.name, label, split, further_model)
    return dataclasses.replace(quantity, per_domain=True, is_drawn=True)


def tested_worst(
    measure: Measure, split: str = TEST, further_model: Optional[str] = None
) -> ReportField:
    """Returns a measure on the worst counted domain; see `tested`."""
    label = f"{measure.name} of the worst domain on the {split} clients"
    return _tested(measure, f"worst {measure.name}", label, split, further_model)


def _tested(
    measure: Measure, name: str, label: str, split: str, further_model: Optional[str]
) -> ReportField:
    column, better = _column_name(name, split, further_model), measure.higher_is_better
    return ReportField(column, label, unit=measure.unit, higher_is_better=better)


def _column_name(name: str, split: str, further_model: Optional[str]) -> str:
    model = "" if further_model is None else f"[{further_model}]"
    return f"{split}{model}/{name}"


def with_role(quantities: Iterable[ReportField], role: Role) -> Optional[ReportField]:
    """Returns the quantity that has a given role; None if there is none."""
    return next((quantity for quantity in quantities if quantity.role is role), None)


def distinct(columns: Iterable[Column]) -> tuple[Column, ...]:
    """Returns the columns; raises a `UserError` if two columns have the same name."""
    by_name: dict[str, Column] = {}
    for column in columns:
        if column.name == ROUND or column.name in by_name:
            raise UserError(
                f"metrics.csv: expected columns of different names, found two called "
                f"{column.name!r}: rename a quantity or a domain"
            )
        by_name[column.name] = column
    return tuple(by_name.values())


def _columns(quantity: ReportField, domain_names: Sequence[str]) -> list[Column]:
    if not quantity.per_domain:
        return [Column(quantity)]
    return [Column(quantity, domain) for domain in domain_names]


def example_counts(quantities: Sequence[ReportField]) -> Optional[ReportField]:
    """Returns the quantity that counts each domain's examples in a round; None if there is none."""
    counts = next((q for q in quantities if q.per_domain and q.unit is Unit.EXAMPLES), None)
    needed = next((q for q in quantities if q.needs_examples), None)
    if needed is not None and counts is None:
        raise UserError(
            f"quantity {needed.name!r}: expected another quantity per domain, with the examples of "
            "a round, found none"
        )
    return counts


class RunRows:
    """The rows of metrics.csv of a run, filled by its rounds and evaluations.

    Args:
        quantities: Quantities that rounds report; see `Training.quantities`.

    Attributes:
        weight_name: Name of the domains' weights; empty without weights.
    """

    def __init__(
        self,
        path: Path,
        quantities: ReportFields,
        training: TrainingColumns,
        evaluations: EvaluationColumns,
    ) -> None:
        self._training, self._evaluations = training, evaluations
        self.history = History(path, distinct((*training.columns, *evaluations.columns)))
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
            weights: The main model after the round.
            reports: Report of each model, by its name; None for a round without evaluation.
        """
        values = self._training.values(report, weights)
        return self.history.append(round_num, {**values, **self._evaluations.values(reports)})

    def change_evaluation(
        self, round_num: int, reports: Optional[Mapping[str, EvaluationReport]]
    ) -> None:
        """Replaces the evaluation of a round; `History.write` writes the file."""
        self.history.change(round_num, self._evaluations.values(reports))

    def domain_weights(self) -> dict[str, float]:
        """Returns the weight of each domain after the last round; empty if there are none."""
        last = self.history.numbers(len(self.history))
        return {
            column.domain: last[column.name]
            for column in self.columns
            if column.quantity == self._weights and column.domain is not None
            if column.name in last
        }
