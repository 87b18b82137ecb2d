"""A run read back from its folder."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_json
from tff_agnostic.base.report_fields import ReportField, Role, Unit
from tff_agnostic.domain_weights.excess import TRAINING, TRIVIAL
from tff_agnostic.metrics.evaluation_report import VALUE
from tff_agnostic.metrics.intervals import Resampled, read_resampled
from tff_agnostic.metrics.metrics_file import Column, read_history
from tff_agnostic.models.model import Measure
from tff_agnostic.program.options.tasks import check_format
from tff_agnostic.program.reports.document import DECIMALS, Number

RESULT = "result.json"
# Key of result.json with the description of the run.
ABOUT = "about"
_RESAMPLED = "resampled.npz"
_BASELINES = Path("baselines") / "baselines.json"


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """The results of a run.

    Attributes:
        result: Content of result.json.
        config: Content of config.json.
        fingerprint: Content of fingerprint.json; empty without the file.
        columns: Columns of metrics.csv by name.
        measures: The measures by name.
        where: Folder of the run with a slash, relative to the page; empty for the page's own run.
        resampled: Values with other samples of test clients; None if clients were not resampled.
        trivial_losses: Loss of the trivial predictor of each domain, on its training examples;
            empty if the run had other baselines.
    """

    result: Mapping[str, Any]
    config: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    columns: Mapping[str, np.ndarray]
    measures: Mapping[str, Measure]
    where: str = ""
    resampled: Optional[Resampled] = None
    trivial_losses: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def get(self, *keys: Any) -> Any:
        """Returns the value at a path in result.json; None if it is missing."""
        value: Any = self.result
        for key in keys:
            try:
                value = value[key]
            except (LookupError, TypeError):
                return None
        return value

    def about(self, *keys: Any) -> Any:
        """Returns a value of the run's description; None if it is missing."""
        return self.get(ABOUT, *keys)

    def number(self, *keys: Any, unit: Unit = Unit.NONE, decimals: int = DECIMALS) -> Number:
        """Returns the number at a path in result.json."""
        return number(self.get(*keys), unit, decimals)

    def measured(self, measure: Measure, *group: Any, statistic: str = VALUE) -> Number:
        """Returns a measure of a group with its interval.

        Args:
            group: Path of the group in result.json, such as "domains" and its name.
            statistic: "value" for all examples, otherwise a statistic over clients.
        """
        own = () if statistic == VALUE else ("over_clients",)
        keys = (*group, *own, measure.name, *(() if statistic == VALUE else (statistic,)))
        ends = self.get(*group, "intervals", measure.name, statistic)
        interval = (ends[0], ends[1]) if ends else None
        return dataclasses.replace(self.number(*keys, unit=measure.unit), interval=interval)

    @property
    def is_private(self) -> bool:
        """Whether training was differentially private."""
        return bool(self.result.get("privacy"))

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
        """Returns the present columns of a quantity that become curves."""
        columns = [Column(quantity, d) for d in self.domains] if quantity.per_domain else []
        columns = columns or [Column(quantity)]
        return [column for column in columns if column.name in self.columns]


def number(value: Any, unit: Unit = Unit.NONE, decimals: int = DECIMALS) -> Number:
    """Returns a JSON value as a number, which is undefined if the value is not one."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return Number(value if is_number else None, unit, decimals)


def metrics_first(measures: Mapping[str, Measure]) -> list[Measure]:
    """Returns the measures in the order of pages: metrics, then the loss."""
    return sorted(measures.values(), key=lambda measure: measure.name == "loss")


def weight_quantity(run: RunRecord) -> Optional[ReportField]:
    """Returns the quantity with the domains' weights; None if the run did not report it."""
    quantity = next((q for q in run.quantities if q.role is Role.DOMAIN_WEIGHT), None)
    return quantity if quantity is not None and run.drawn(quantity) else None


def read_run(folder: Path, where: str = "") -> RunRecord:
    """Reads the files of a complete run.

    Args:
        folder: The run's folder.
        where: See `RunRecord`.
    """
    path = folder / RESULT
    if not path.is_file():
        raise UserError(f"{path}: expected the result of a complete run, found none")
    result = read_json(path)
    try:
        facts = {
            name: Measure(name, Unit[of["unit"].upper()], bool(of["higher_is_better"]))
            for name, of in result[ABOUT]["measures"].items()
        }
        sets = (result["overall"], *result["domains"].values())
        known = all({*facts, "num_examples", "over_clients"} <= {*one} for one in sets)
        known = known and {"algorithm", "task", "rounds", "seed"} <= {*result}
    except (AttributeError, LookupError, TypeError):
        known = False
    if not known:
        raise UserError(f"{path}: expected the result of a run, found something else")
    try:
        _check_values(path, result, facts)
    except (AttributeError, LookupError, TypeError) as e:
        raise UserError(f"{path}: expected the result of a run, found something else") from e
    config = read_json(folder / "config.json")
    check_format(folder / "config.json", config.get("format"))
    if result["rounds"] != config.get("rounds"):
        # The settings and columns are of a longer run than the numbers.
        raise UserError(
            f"{path}: expected the result of a complete run of {config.get('rounds')} rounds, as "
            f"config.json says, found that of {result['rounds']}: let it go on to its end "
            "(--resume) first"
        )
    fingerprint = folder / "fingerprint.json"
    return RunRecord(
        result,
        config,
        read_json(fingerprint) if fingerprint.exists() else {},
        read_history(folder / "metrics.csv"),
        facts,
        where,
        next(iter(read_resampled([folder / _RESAMPLED])), None),
        _trivial_losses(folder, config),
    )


def _trivial_losses(folder: Path, config: Mapping[str, Any]) -> dict[str, float]:
    """Returns the losses of trivial predictors among the baselines of a run.

    The baselines of a comparison's trial are in the comparison's folder: those with the numbers of
    the trial's settings.
    """
    domains = _baselines(folder / _BASELINES)
    numbers, losses = config.get("lambda_baselines"), config.get("lambda_baseline_losses", TRAINING)
    parents = folder.resolve().parents
    if not domains and numbers and len(parents) > 1:
        for path in sorted((parents[1] / _BASELINES.parent).glob(f"**/{_BASELINES.name}")):
            shared = _baselines(path)
            if [domain.get(losses) for domain in shared.values()] == numbers:
                domains = shared
    trivial = {n: d.get(TRAINING) for n, d in domains.items() if d.get("source") == TRIVIAL}
    return {n: float(loss) for n, loss in trivial.items() if isinstance(loss, (int, float))}


def _baselines(path: Path) -> dict[str, Any]:
    domains = read_json(path).get("domains") if path.is_file() else None
    return domains if isinstance(domains, dict) else {}


def _check_values(path: Path, result: Mapping[str, Any], facts: Mapping[str, Measure]) -> None:
    """Checks that the numbers of a page are within their ranges and its domains are known."""
    private = result.get("privacy") or {}
    # Noise may make numbers negative, or shares exceed 1.
    is_exact = "evaluation" not in private
    minimum = 0 if is_exact else None
    check, domains = functools.partial(_check_numbers, path), result["domains"]
    for name in ("rounds", "seed"):
        check(result[name], name, least=0)
    for where, of in (("overall", result["overall"]), *domains.items()):
        check(of["num_examples"], f"{where}: num_examples", minimum)
        for name, fact in facts.items():
            is_share = is_exact and fact.unit is Unit.SHARE
            check(of[name], f"{where}: {name}", *((0, 1) if is_share else ()))
        for name in ("over_clients", "intervals"):
            check(of.get(name), f"{where}: {name}", has_lists=True)
    check(result.get("difference"), "difference")
    for name in ("domain_weights", "clients"):
        check(result.get(name), name, least=0)
    check(result.get("worst_min_examples"), "worst_min_examples", least=1)
    for name in ("superquantile_share", "interval_level"):
        check(result.get(name), name, 0, 1)
    for measure, of in (result.get("client_values") or {}).items():
        for part, counts in (("histogram", ("clients",)), ("by_size", ("examples", "clients"))):
            for name, values in of[part].items():
                where = f"client_values: {measure}: {part}: {name}"
                check(values, where, minimum if name in counts else None, has_lists=True)
    check(private.get("epsilon"), "privacy: epsilon", least=0)
    check(private.get("delta"), "privacy: delta", 0, 1)
    worst = [of.get("domain") for of in (result.get("worst") or {}).values()]
    for name in (*worst, *(result.get("not_counted") or ())):
        if name is not None and name not in domains:
            raise UserError(
                f"{path}: expected domains that it has the numbers of, found {name!r:.100}"
            )


def _check_numbers(
    path: Path,
    value: Any,
    where: str,
    least: Optional[float] = None,
    most: Optional[float] = None,
    has_lists: bool = False,
) -> None:
    """Raises a `UserError` unless all values are null or numbers from `least` to `most`."""
    if isinstance(value, Mapping):
        for name, of in value.items():
            _check_numbers(path, of, f"{where}: {name}", least, most, has_lists)
        return
    if value is None:
        return
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(value, list) and has_lists:
        for of in value:
            _check_numbers(path, of, where, least, most)
        return
    is_valid = is_number and (least is None or value >= least) and (most is None or value <= most)
    if not is_valid:
        limits = "" if least is None else f" of at least {least}"
        limits += "" if most is None else f" and at most {most}"
        raise UserError(f"{path}: {where:.100}: expected a number{limits}, found {value!r:.100}")
