"""The rows of one run: what a round reports, and the evaluation after it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.models.functional import ModelWeights
from tff_agnostic.models.measures import measures_of
from tff_agnostic.program.reporting.column import Column
from tff_agnostic.program.reporting.columns import (
    EvaluationColumns,
    TrainingColumns,
    distinct,
    with_role,
)
from tff_agnostic.program.reporting.evaluation_report import EvaluationReport
from tff_agnostic.program.reporting.history import History
from tff_agnostic.program.reporting.packed_rows import Row
from tff_agnostic.quantities import Quantities, Quantity, Role, flattened
from tff_agnostic.tasks.task import Task


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
        task: Task,
        quantities: Quantities,
        models: Sequence[str],
        clipped: Mapping[str, Quantity],
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
    ) -> Row:
        """Adds and returns the row of a round.

        Args:
            round_num: The round.
            report: What it reported.
            weights: The main model after it.
            reports: The evaluation of each model, by its name; None if there was none.

        Raises:
            UserError: If it cannot be written.
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
        last = self.history.rows[-1]
        return {
            column.domain: float(last[column.name])
            for column in self.columns
            if column.quantity == self._weights and column.domain is not None and last[column.name]
        }
