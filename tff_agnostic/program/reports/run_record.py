"""Reads the results of a run from its folder."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_json
from tff_agnostic.base.report_fields import ReportField, Role, Unit
from tff_agnostic.metrics.columns import with_role
from tff_agnostic.metrics.evaluation_report import VALUE
from tff_agnostic.metrics.intervals import MIN_CLIENTS, Resampled, read_resampled
from tff_agnostic.metrics.metrics_file import Column, read_history
from tff_agnostic.models.model import Measure
from tff_agnostic.program.options.tasks import check_format
from tff_agnostic.program.reports.document import DECIMALS, Number

RESULT = "result.json"
# Key of result.json with the description of the run.
ABOUT = "about"
_KEYS = {"algorithm", "task", "rounds", "seed"}
_RESAMPLED = "resampled.npz"


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """The results of a run.

    Attributes:
        result: Content of result.json.
        config: Content of config.json.
        fingerprint: Content of fingerprint.json; empty without the file.
        columns: Columns of metrics.csv by name.
        where: Folder of the run with a slash, relative to the page; empty for the page's own run.
        resampled: Results for resampled test clients; None if clients were not resampled.
    """

    result: Mapping[str, Any]
    config: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    columns: Mapping[str, np.ndarray]
    measures: Mapping[str, Measure]
    where: str = ""
    resampled: Optional[Resampled] = None

    def get(self, *keys: Any) -> Any:
        """Returns the value at a path in result.json; None if it is missing."""
        value: Any = self.result
        for key in keys:
            try:
                value = value[key]
            except (LookupError, TypeError):
                return None
        return value

    def value(self, *keys: Any) -> float:
        """Returns the number at a path in result.json; NaN if it is missing or null."""
        value = self.get(*keys)
        return math.nan if value is None else float(value)

    def about(self, *keys: Any) -> Any:
        """Returns a value of the run's description; None if it is missing."""
        return self.get(ABOUT, *keys)

    def number(self, *keys: Any, unit: Unit = Unit.NONE, decimals: int = DECIMALS) -> Number:
        """Returns the number at a path in result.json."""
        return number(self.get(*keys), unit, decimals)

    def measured(self, measure: Measure, *group: Any, statistic: str = VALUE) -> Number:
        """Returns a measure of a group with its interval.

        The interval of a value over all examples treats examples as independent, and ignores how
        clients differ. Therefore groups of few clients have no such interval. Private evaluations
        have no intervals, which would ignore the noise.

        Args:
            group: Path of the group in result.json, such as "domains" and its name.
            statistic: "value" for all examples, otherwise a statistic over clients.
        """
        over_clients = (*group, "over_clients", measure.name)
        is_value = statistic == VALUE
        keys = (*group, measure.name) if is_value else (*over_clients, statistic)
        has_enough = (self.get(*over_clients, "num_clients") or 0) >= MIN_CLIENTS
        ends = self.get(*group, "intervals", measure.name, statistic)
        if self.has_noisy_numbers or (is_value and not has_enough):
            ends = None
        interval = (ends[0], ends[1]) if ends else None
        return dataclasses.replace(self.number(*keys, unit=measure.unit), interval=interval)

    @property
    def is_private(self) -> bool:
        """Whether training was differentially private."""
        return bool(self.result.get("privacy"))

    @property
    def has_noisy_numbers(self) -> bool:
        """Whether the evaluation was differentially private."""
        return bool(self.get("privacy", "evaluation"))

    @property
    def split(self) -> str:
        """Split of the evaluated clients."""
        return str(self.result["split"])

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of the domains."""
        return tuple(self.result["domains"])

    @property
    def label(self) -> str:
        """Name of the algorithm in tables."""
        return str(self.about("algorithm", "label"))

    @property
    def quantities(self) -> tuple[ReportField, ...]:
        """The reported quantities of rounds and evaluations."""
        return tuple(
            ReportField(
                name=field["name"],
                label=field["label"],
                per_domain=field["per_domain"],
                unit=Unit[field["unit"].upper()],
                higher_is_better=field["higher_is_better"],
                role=Role[field["role"].upper()],
                is_drawn=field["is_drawn"],
            )
            for field in self.about("quantities")
        )

    def drawn(self, quantity: ReportField) -> list[Column]:
        """Returns the columns of metrics.csv to plot as curves of a quantity."""
        columns = [Column(quantity, d) for d in self.domains] if quantity.per_domain else []
        columns = columns or [Column(quantity)]
        return [column for column in columns if column.name in self.columns]


def number(value: Any, unit: Unit = Unit.NONE, decimals: int = DECIMALS) -> Number:
    """Returns a JSON value as a `Number`, which is undefined if the value is not a number."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Number(value if is_number else None, unit, decimals)


def metrics_first(measures: Mapping[str, Measure]) -> list[Measure]:
    """Returns the measures in the order of pages: metrics, then the loss."""
    return sorted(measures.values(), key=lambda measure: measure.name == "loss")


def weight_quantity(run: RunRecord) -> Optional[ReportField]:
    """Returns the quantity with the domains' weights; None if the run did not report it."""
    quantity = with_role(run.quantities, Role.DOMAIN_WEIGHT)
    return quantity if quantity is not None and run.drawn(quantity) else None


def read_run(folder: Path, where: str = "") -> RunRecord:
    """Reads the files of a complete run.

    Args:
        where: See `RunRecord`.
    """
    path = folder / RESULT
    if not path.is_file():
        raise UserError(f"{path}: expected the result of a complete run, found none")
    result = read_json(path)
    try:
        measures = {
            name: Measure(name, Unit[measure["unit"].upper()], bool(measure["higher_is_better"]))
            for name, measure in result[ABOUT]["measures"].items()
        }
        keys = {*measures, "num_examples", "over_clients"}
        sets = (result["overall"], *result["domains"].values())
        is_valid = all(keys <= {*one} for one in sets) and {*result} >= _KEYS
        is_valid = is_valid and bool(result["domains"])
    except (AttributeError, LookupError, TypeError):
        is_valid = False
    if not is_valid:
        raise UserError(f"{path}: expected the result of a run, found JSON without its keys")
    config = read_json(folder / "config.json")
    check_format(folder / "config.json", config.get("format"))
    if result["rounds"] != config.get("rounds"):
        # The run was extended: settings and columns belong to more rounds than the results.
        raise UserError(
            f"{path}: expected the result of a complete run of {config.get('rounds')} rounds, as "
            f"in config.json, found the result of {result['rounds']}: finish the run (--resume) "
            "first"
        )
    fingerprint = folder / "fingerprint.json"
    return RunRecord(
        result,
        config,
        read_json(fingerprint) if fingerprint.exists() else {},
        read_history(folder / "metrics.csv"),
        measures,
        where,
        read_resampled(folder / _RESAMPLED),
    )
