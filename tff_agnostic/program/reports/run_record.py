"""A run read back from its folder, and what a reader is warned of."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from tff_agnostic.base.errors import UserError, agreeing, counted
from tff_agnostic.base.files import read_json
from tff_agnostic.base.report_fields import ReportField, Role, Unit
from tff_agnostic.data.data_warnings import FEW_EXAMPLES, OF_TRAINING
from tff_agnostic.domain_weights.excess import TRAINING, TRIVIAL
from tff_agnostic.metrics.formatting import capitalized, cell
from tff_agnostic.metrics.intervals import Resampled, read_resampled
from tff_agnostic.metrics.metrics_file import Column, read_history
from tff_agnostic.models.model import Measure
from tff_agnostic.privacy.accountant import WEAK_EPSILON
from tff_agnostic.program.options.tasks import check_format
from tff_agnostic.program.reports.page import Line, Name, Part, Section, Source, Warnings
from tff_agnostic.tasks.task import TEST_SPLIT

RESULT = "result.json"
# Under this key result.json says what the run was, beside its numbers.
ABOUT = "about"
_RESAMPLED = "resampled.npz"
# Of excess losses, where the run made them itself.
_BASELINES = Path("baselines") / "baselines.json"
# A domain's number that rests on fewer clients is one of them.
FEW_CLIENTS = 10
# A domain that weighs more in the mean of the last rounds leaves the others nothing.
RUN_AWAY = 0.9
_SOME_ROUNDS = 0.1
_MAX_NAMES = 5
# Remarks of the data that these pages tell with their own numbers.
_TOLD_HERE = ("small_domains", "domains_without_examples")


@dataclasses.dataclass(frozen=True)
class RunRecord:
    """What a run left.

    Attributes:
        result: result.json.
        config: config.json.
        fingerprint: fingerprint.json; empty if there is none.
        columns: metrics.csv, by column name.
        measures: What was measured, by name.
        where: What stands before the names of its files, where a page is about several runs.
        resampled: Its values with other test clients; None where clients were not resampled.
        trivial_losses: The loss of the trivial predictor of domains, on their training examples, by
            name; empty where its baselines were others.
    """

    result: Mapping[str, Any]
    config: Mapping[str, Any]
    fingerprint: Mapping[str, Any]
    columns: Mapping[str, np.ndarray]
    measures: Mapping[str, Measure]
    where: str = ""
    resampled: Optional[Resampled] = None
    trivial_losses: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def source(self) -> Source:
        """Where its numbers are from."""
        return Source(f"{self.where}{RESULT}", self.result)

    @property
    def about(self) -> Source:
        """Description of the run in result.json."""
        return self.source.below(ABOUT)

    @property
    def is_private(self) -> bool:
        """Whether it was trained with differential privacy."""
        return bool(self.result.get("privacy"))

    @property
    def split(self) -> str:
        """Whose clients were evaluated."""
        return str(self.result["split"])

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of the domains."""
        return tuple(self.result["domains"])

    @property
    def label(self) -> str:
        """What tables call the algorithm."""
        return str(self.about.get("algorithm", "label"))

    @property
    def quantities(self) -> tuple[ReportField, ...]:
        """What its rounds and evaluations reported."""
        return tuple(
            ReportField(
                name=found["name"],
                label=found["label"],
                per_domain=found["per_domain"],
                unit=Unit[found["unit"].upper()],
                higher_is_better=found["higher_is_better"],
                role=Role[found["role"].upper()],
                is_drawn=found["is_drawn"],
            )
            for found in self.about.get("quantities")
        )

    def drawn(self, quantity: ReportField) -> list[Column]:
        """Returns the columns of a quantity that become curves, of those that are there."""
        columns = [Column(quantity, d) for d in self.domains] if quantity.per_domain else []
        columns = columns or [Column(quantity)]
        return [column for column in columns if column.name in self.columns]


def metrics_first(measures: Mapping[str, Measure]) -> list[Measure]:
    """Returns measures as pages have them: what people know before the loss."""
    return sorted(measures.values(), key=lambda measure: measure.name == "loss")


def weight_quantity(run: RunRecord) -> Optional[ReportField]:
    """Returns what domains weigh in a run; None if nothing is known of it."""
    of_role = (q for q in run.quantities if q.role is Role.DOMAIN_WEIGHT)
    quantity = next(of_role, None)
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
        # Settings and columns would be of one run, and the numbers of a shorter one.
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
    """Returns what the baselines of a run say of trivial predictors.

    A trial of a comparison finds them beside the rows: in the file that has the run's numbers.
    """
    found = _domains_of(folder / _BASELINES)
    numbers, losses = config.get("lambda_baselines"), config.get("lambda_baseline_losses", TRAINING)
    parents = folder.resolve().parents
    if not found and numbers and len(parents) > 1:
        beside = parents[1] / _BASELINES.parent
        for path in sorted(beside.glob(f"**/{_BASELINES.name}")):
            domains = _domains_of(path)
            if [of.get(losses) for of in domains.values()] == numbers:
                found = domains
    trivial = {n: of.get(TRAINING) for n, of in found.items() if of.get("source") == TRIVIAL}
    return {n: float(loss) for n, loss in trivial.items() if isinstance(loss, (int, float))}


def _domains_of(path: Path) -> dict[str, Any]:
    domains = read_json(path).get("domains") if path.is_file() else None
    return domains if isinstance(domains, dict) else {}


def _check_values(path: Path, result: Mapping[str, Any], facts: Mapping[str, Measure]) -> None:
    """Checks that what a page shows are numbers that a run can have, and domains that it has."""
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
    numbers: _Numbers, values: Mapping[str, Any], least: Optional[float]
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


def caveats_section(run: RunRecord) -> Section:
    """Returns the warnings of a run ("Caveats and Recommendations"); none if there are none."""
    lines = caveats(run)
    return Section("caveats", "What to know first", [Warnings(lines)] if lines else [])


def caveats(run: RunRecord) -> list[Line]:
    """Returns the warnings of a run, each a sentence or two, but those of `harm`."""
    return [*data_caveats(run), *_unsure_worst(run), *training_caveats(run)]


def harm(run: RunRecord) -> list[Line]:
    """Returns what is to be said before anything else: domains given up, losses out of range."""
    return [capitalized(r["text"]) for r in _remarks(run) if r["kind"] in OF_TRAINING]


def data_caveats(run: RunRecord) -> list[Line]:
    """Returns those of its data, which all runs on it share."""
    checks = (
        *(_split, _never_trained_on, _learnt_of_few),
        *(_not_evaluated, _small, _few_clients, _data),
    )
    return [line for check in checks for line in check(run)]


def training_caveats(run: RunRecord) -> list[Line]:
    """Returns those of what it did with them."""
    checks = (_runaway_weight, _skipped, _non_finite, _clipped, _privacy)
    return [line for check in checks for line in check(run)]


def _split(run: RunRecord) -> Iterator[Line]:
    if run.split != TEST_SPLIT:
        yield (
            f"The numbers are of the {run.split} clients, not of the test clients: they are for "
            "choosing settings, and look too good as a proof."
        )


def _never_trained_on(run: RunRecord) -> Iterator[Line]:
    trained = run.about.get("data", "train", "domains")
    if trained is None:
        return
    names = [
        name
        for name in run.domains
        if not trained[name]["examples"] and run.source.get("domains", name, "num_examples")
    ]
    if names:
        yield [
            "No training client has an example of ",
            *_listed(names),
            ": what the model does there it has learnt from other domains.",
        ]


def _learnt_of_few(run: RunRecord) -> Iterator[Line]:
    return _few(
        run,
        run.about.below("data", "train", "domains"),
        ["examples"],
        FEW_EXAMPLES,
        "training examples",
        "What the model does there, and what they weigh, is learnt of few.",
    )


def _not_evaluated(run: RunRecord) -> Iterator[Line]:
    names = [n for n in run.domains if not run.source.get("domains", n, "num_examples")]
    if names:
        yield [
            f"No {run.split} client has an example of ",
            *_listed(names),
            ": nothing is known of how good the model is there.",
        ]


def _small(run: RunRecord) -> Iterator[Line]:
    return _few(
        run,
        run.source.below("domains"),
        ["num_examples"],
        FEW_EXAMPLES,
        f"{run.split} examples",
        "Their numbers are uncertain, and the worst domain may be one of them by chance.",
    )


def _few_clients(run: RunRecord) -> Iterator[Line]:
    return _few(
        run,
        run.source.below("domains"),
        ["over_clients", "loss", "num_clients"],
        FEW_CLIENTS,
        f"{run.split} clients",
        "What holds of them need not hold of others, whatever the brackets say.",
        ("rests on", "rest on"),
    )


def _few(
    run: RunRecord,
    domains: Source,
    keys: Sequence[str],
    enough: int,
    what: str,
    so: str,
    verbs: tuple[str, str] = ("has", "have"),
) -> Iterator[Line]:
    counts = {name: domains.number(name, *keys) for name in run.domains}
    few = [(n.value, name) for name, n in counts.items() if n.value and n.value < enough]
    if few:
        names = [name for _, name in sorted(few, key=lambda one: one[0])]
        listed = _listed(names, [counts[name] for name in names])
        do = agreeing(len(names), *verbs)
        few_of = f"{len(names)} of {len(counts)} domains {do} fewer than {enough} {what}: "
        yield [few_of, *listed, f". {so}"]


def _runaway_weight(run: RunRecord) -> Iterator[Line]:
    quantity = weight_quantity(run)
    if quantity is None or len(run.domains) < 2:
        return
    for column in run.drawn(quantity):
        values = run.columns[column.name]
        values = values[np.isfinite(values)]
        count = max(1, round(_SOME_ROUNDS * len(values)))
        first, last = (
            float(np.mean(v)) if len(v) else 0.0 for v in (values[:count], values[-count:])
        )
        if last <= RUN_AWAY:
            continue
        what = "had nearly all weight from the start" if first > RUN_AWAY else "took over"
        yield [
            f"{quantity.name}: one domain {what}. ",
            Name(column.domain or ""),
            f" weighed {cell(last, Unit.SHARE, 3)}% in the mean of the last {count} rounds; the "
            "others were hardly trained on.",
        ]


def _unsure_worst(run: RunRecord) -> Iterator[Line]:
    for measure in run.measures.values():
        worst = run.source.get("worst", measure.name, "domain")
        ends = run.source.get("domains", worst, "intervals", measure.name, "value")
        if worst is None or not ends:
            continue
        left_out = {worst, *(run.result.get("not_counted") or ())}
        others = {
            n: run.source.get("domains", n, "intervals", measure.name, "value")
            for n in run.domains
            if n not in left_out
        }
        near = [
            n
            for n, of in others.items()
            if of and (of[0] <= ends[1] if measure.higher_is_better else of[1] >= ends[0])
        ]
        if near:
            yield [
                f"Which domain is the worst in {measure.name} is not certain: the interval of ",
                Name(worst),
                f" overlaps with that of {counted(len(near), 'other domain')}.",
            ]


def _skipped(run: RunRecord) -> Iterator[Line]:
    skipped = run.about.number("rounds_skipped")
    if skipped.value:
        yield [
            skipped,
            " of ",
            run.source.number("rounds"),
            " rounds were skipped, since their sums were not finite: a learning rate is too high.",
        ]


def _non_finite(run: RunRecord) -> Iterator[Line]:
    number = run.source.number("clients", "non_finite")
    if number.value:
        yield [
            number,
            f" {run.split} clients gave numbers that are not finite, and are in no result.",
        ]


def _clipped(run: RunRecord) -> Iterator[Line]:
    clipped = run.result.get("clipped") or {}
    parts: list[Part] = []
    for field, count in clipped.items():
        if count:
            parts += [run.source.number("clipped", field), f" of {field}", ", "]
    if parts:
        yield [
            "Values beyond the bounds of secure sums were clipped in the evaluation: ",
            *parts[:-1],
            ". Such clients count less, and means over clients are cut; larger --limit_... "
            "avoid that.",
        ]
    counters = [q for q in run.quantities if q.unit is Unit.VALUES]
    found = {q.name: float(np.nansum(run.columns.get(q.name, 0.0))) for q in counters}
    # What the last evaluation clipped has been told.
    if sum(found.values()) > sum(clipped.values()):
        listed = ", ".join(f"{count:.0f} in {name}" for name, count in found.items() if count)
        yield f"Values beyond the bounds of secure sums were clipped over the rounds: {listed}."


def _privacy(run: RunRecord) -> Iterator[Line]:
    private = run.source.below("privacy")
    if not run.is_private:
        return
    epsilon = private.number("epsilon")
    if epsilon.value is None:
        yield "Training was private in name only: without noise epsilon is infinite."
    elif epsilon.value > WEAK_EPSILON:
        yield ["Epsilon is ", epsilon, f": above {WEAK_EPSILON:.0f} it promises next to nothing."]
    if run.config.get("noise_seed") is not None:
        yield "The noise was that of --noise_seed: anyone who knows it can remove it."


def _data(run: RunRecord) -> Iterator[Line]:
    for remark in _remarks(run):
        if remark["kind"] not in (*_TOLD_HERE, *OF_TRAINING):
            yield capitalized(remark["text"])


def _remarks(run: RunRecord) -> Sequence[Mapping[str, Any]]:
    return run.about.get("remarks") or ()


def _listed(names: Sequence[str], numbers: Sequence[Part] = ()) -> list[Part]:
    parts: list[Part] = []
    for i, name in enumerate(names[:_MAX_NAMES]):
        parts += [", "] if i else []
        parts += [Name(name), *([" (", numbers[i], ")"] if numbers else [])]
    more = len(names) - _MAX_NAMES
    return [*parts, f" and {more} more"] if more > 0 else parts
