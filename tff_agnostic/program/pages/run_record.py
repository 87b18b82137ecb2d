"""A run as its folder tells of it: result.json, config.json, metrics.csv and fingerprint.json."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.errors import UserError
from tff_agnostic.files import read_json
from tff_agnostic.privacy.earlier_account import right_result
from tff_agnostic.program.pages.blocks import Source
from tff_agnostic.program.reporting.column import Column
from tff_agnostic.program.reporting.history import read_history
from tff_agnostic.quantities import Quantity, Role, Unit

RESULT = "result.json"
# Under this key result.json says what the run was, beside its numbers.
ABOUT = "about"
# What release 0.1.0, which evaluated nothing else, does not say.
_SPLIT = "test"


@dataclasses.dataclass(frozen=True)
class MeasureFacts:
    """What is to be known of a measure.

    Attributes:
        name: Its name.
        unit: What its numbers are.
        higher_is_better: Which direction is good.
    """

    name: str
    unit: Unit
    higher_is_better: bool

    @property
    def better(self) -> str:
        """Which direction is good, in a word."""
        return "higher" if self.higher_is_better else "lower"


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """What a run left.

    Attributes:
        result: result.json; of an earlier release whose epsilon was too small, with the right one.
        config: config.json.
        fingerprint: fingerprint.json; empty if there is none.
        columns: metrics.csv, by column name.
        measures: What was measured, by name.
        where: What stands before the names of its files, where a page is about several runs.
    """

    result: Mapping[str, Any]
    config: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    columns: Mapping[str, np.ndarray]
    measures: Mapping[str, MeasureFacts]
    where: str = ""

    @property
    def source(self) -> Source:
        """Where its numbers are from."""
        return Source(f"{self.where}{RESULT}", self.result)

    @property
    def about(self) -> Source:
        """What result.json says beside them; nothing of an earlier release's run."""
        return self.source.below(ABOUT)

    @property
    def is_private(self) -> bool:
        """Whether it was trained with differential privacy."""
        return bool(self.result.get("privacy"))

    @property
    def split(self) -> str:
        """Whose clients were evaluated."""
        return str(self.result.get("split", _SPLIT))

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of the domains."""
        return tuple(self.result["domains"])

    @property
    def label(self) -> str:
        """What tables call the algorithm."""
        return str(self.about.get("algorithm", "label") or self.result["algorithm"])

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """What its rounds and evaluations reported."""
        return tuple(
            Quantity(
                name=found["name"],
                label=found["label"],
                per_domain=found["per_domain"],
                unit=Unit[found["unit"].upper()],
                higher_is_better=found["higher_is_better"],
                role=Role[found["role"].upper()],
                is_drawn=found["is_drawn"],
            )
            for found in self.about.get("quantities") or ()
        )

    def drawn(self, quantity: Quantity) -> list[Column]:
        """Returns the columns of a quantity that become curves, of those that are there."""
        columns = [Column(quantity, d) for d in self.domains] if quantity.per_domain else []
        columns = columns or [Column(quantity)]
        return [column for column in columns if column.name in self.columns]


def read_run(
    folder: Path, measures: Optional[Mapping[str, Any]] = None, where: str = ""
) -> RunRecord:
    """Returns what a run left in its folder.

    Args:
        folder: The folder.
        measures: What is measured, as it stands in result.json since runs say so themselves.
        where: See `RunRecord`.

    Raises:
        UserError: If a file is missing or damaged, the run goes on after that result, or nobody
            says what is measured.
    """
    path = folder / RESULT
    if not path.is_file():
        raise UserError(f"{path}: expected the result of a complete run, found none")
    result = read_json(path)
    try:
        facts = {
            name: MeasureFacts(name, Unit[of["unit"].upper()], bool(of["higher_is_better"]))
            for name, of in (measures or result[ABOUT]["measures"]).items()
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
    if result["rounds"] != config.get("rounds"):
        # Settings and columns would be of one run, and the numbers of a shorter one.
        raise UserError(
            f"{path}: expected the result of a complete run of {config.get('rounds')} rounds, as "
            f"config.json says, found that of {result['rounds']}: let it go on to its end "
            "(--resume) first"
        )
    fingerprint = folder / "fingerprint.json"
    return RunRecord(
        right_result(config, result),
        config,
        read_json(fingerprint) if fingerprint.exists() else {},
        read_history(folder / "metrics.csv"),
        facts,
        where,
    )


def _check_values(path: Path, result: Mapping[str, Any], facts: Mapping[str, MeasureFacts]) -> None:
    """Checks that what a page shows are numbers that a run can have, and domains that it has.

    Raises:
        UserError: Naming the first that is none, by its place in the file.
    """
    # Noise may bring numbers below 0, or above 1.
    is_exact = "evaluation" not in (result.get("privacy") or {})
    numbers = _Numbers(path)
    domains = result["domains"]
    for name in ("rounds", "seed"):
        numbers.check(result[name], name, least=0)
    for where, of in (("overall", result["overall"]), *domains.items()):
        least = 0 if is_exact else None
        numbers.check(of["num_examples"], f"{where}: num_examples", least)
        for name, fact in facts.items():
            is_share = is_exact and fact.unit is Unit.SHARE
            numbers.check(of[name], f"{where}: {name}", *((0, 1) if is_share else ()))
        for name in ("over_clients", "intervals"):
            numbers.check_all(of.get(name), f"{where}: {name}")
    numbers.check_all(result.get("difference"), "difference")
    numbers.check_all(result.get("domain_weights"), "domain_weights", least=0)
    numbers.check_all(result.get("clients"), "clients", least=0)
    numbers.check(result.get("worst_min_examples"), "worst_min_examples", least=1)
    for name in ("superquantile_share", "interval_level"):
        numbers.check(result.get(name), name, 0, 1)
    _check_client_values(numbers, result.get("client_values") or {}, 0 if is_exact else None)
    private = result.get("privacy") or {}
    numbers.check(private.get("epsilon"), "privacy: epsilon", least=0)
    numbers.check(private.get("delta"), "privacy: delta", 0, 1)
    worst = [of.get("domain") for of in (result.get("worst") or {}).values()]
    for name in (*worst, *(result.get("not_counted") or ())):
        if name is not None and name not in domains:
            raise UserError(
                f"{path}: expected domains that it has the numbers of, found {name!r:.100}"
            )


def _check_client_values(
    numbers: "_Numbers", values: Mapping[str, Any], least: Optional[float]
) -> None:
    for measure, of in values.items():
        for part, counts in (("histogram", ("clients",)), ("by_size", ("examples", "clients"))):
            for name, found in of[part].items():
                where = f"client_values: {measure}: {part}: {name}"
                numbers.check_all(found, where, least if name in counts else None)


@dataclasses.dataclass(frozen=True)
class _Numbers:
    """Checks of what stands in a file.

    Attributes:
        path: The file.
    """

    path: Path

    def check(
        self, value: Any, where: str, least: Optional[float] = None, most: Optional[float] = None
    ) -> None:
        """Raises a `UserError` unless a value is null, or a number from `least` to `most`."""
        if value is None:
            return
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        is_right = is_number and (least is None or value >= least)
        if not is_right or (most is not None and value > most):
            limits = "" if least is None else f" of at least {least}"
            limits += "" if most is None else f" and at most {most}"
            raise UserError(
                f"{self.path}: {where:.100}: expected a number{limits}, found {value!r:.100}"
            )

    def check_all(self, value: Any, where: str, least: Optional[float] = None) -> None:
        """Checks every number in mappings and lists of them; see `check`."""
        if isinstance(value, Mapping):
            for name, of in value.items():
                self.check_all(of, f"{where}: {name}", least)
        elif isinstance(value, list):
            for of in value:
                self.check_all(of, where, least)
        else:
            self.check(value, where, least)
