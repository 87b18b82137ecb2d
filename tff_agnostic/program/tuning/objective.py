"""What a search is to make good: a number of an evaluation, by its name, or a mix of several."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Callable, Optional

from tff_agnostic.errors import UserError
from tff_agnostic.models.measures import Measure
from tff_agnostic.program.reporting.cells import cell
from tff_agnostic.program.reporting.evaluation_report import EvaluationReport
from tff_agnostic.program.reporting.measured import SUPERQUANTILE
from tff_agnostic.quantities import Unit
from tff_agnostic.registry import Registry

# Of plain numbers in tables.
DECIMALS = 4
FORM = "[WEIGHT*]NAME[:MEASURE], joined by +"
OF_A_DOMAIN = "domain"


def _over_clients(statistic: str) -> Callable[[EvaluationReport, str], float]:
    return lambda report, measure: report.overall.measures[measure].over_clients()[statistic]


# (evaluation, measure) -> the number.
STATISTICS: Registry[Callable[[EvaluationReport, str], float]] = Registry(
    "objective",
    {
        "worst": lambda report, measure: report.worst(measure),
        "superquantile": _over_clients(SUPERQUANTILE),
        "overall": lambda report, measure: report.overall.measures[measure].value,
        "client_mean": _over_clients("mean"),
    },
)


@dataclasses.dataclass(frozen=True)
class Term:
    """A number of an evaluation.

    Attributes:
        weight: Its share of the objective; those of all terms sum to 1.
        statistic: Which number; a member of `STATISTICS`, or `OF_A_DOMAIN`.
        measure: Of which measure.
        domain: Whose, if it is one domain's.
    """

    weight: float
    statistic: str
    measure: Measure
    domain: Optional[str] = None

    @property
    def name(self) -> str:
        """The number as a text: "worst:accuracy", or "domain(es-AR):accuracy"."""
        of = f"({self.domain})" if self.domain is not None else ""
        return f"{self.statistic}{of}:{self.measure.name}"

    def __call__(self, report: EvaluationReport) -> float:
        """Returns the number; NaN if it is undefined."""
        if self.domain is not None:
            return report.domains[self.domain].measures[self.measure.name].value
        return STATISTICS[self.statistic](report, self.measure.name)


@dataclasses.dataclass(frozen=True)
class Objective:
    """A weighted mean of numbers of an evaluation.

    Attributes:
        terms: The numbers, one or more; measures of all of them are better in one direction.
    """

    terms: tuple[Term, ...]

    @property
    def higher_is_better(self) -> bool:
        """Which direction is good."""
        return self.terms[0].measure.higher_is_better

    @property
    def unit(self) -> Unit:
        """What the number is; `NONE` where it is a mix of different ones."""
        units = {term.measure.unit for term in self.terms}
        return units.pop() if len(units) == 1 else Unit.NONE

    @property
    def name(self) -> str:
        """The whole of it as a text: "0.7*worst:accuracy+0.3*overall:accuracy"."""
        shares = len(self.terms) > 1
        return "+".join(
            f"{f'{term.weight:.4g}*' if shares else ''}{term.name}" for term in self.terms
        )

    def text(self, value: float) -> str:
        """Returns a value as people read it, such as "84.21%"."""
        return f"{cell(value, self.unit, DECIMALS)}{'%' if self.unit is Unit.SHARE else ''}"

    def __call__(self, report: EvaluationReport) -> float:
        """Returns the objective; NaN if one of its numbers is undefined."""
        return sum(term.weight * term(report) for term in self.terms)


def parse_objective(
    text: str, measures: Mapping[str, Measure], domains: Sequence[str] = ()
) -> Objective:
    """Returns the objective that a text names; see `FORM`.

    A name without a measure is of the first metric, or of the loss where there is none. Weights
    are divided by their sum.

    Args:
        text: "worst", "superquantile:loss", "domain(es-AR)" or "0.7*worst+0.3*overall", say.
        measures: What an evaluation reports, the loss first.
        domains: Names of the domains.

    Raises:
        UserError: If the text has another form, or names what no evaluation reports.
    """
    loss, *metrics = measures
    terms = []
    for found in _terms(text, domains):
        name, domain = found["name"], found["domain"]
        measure = (found["measure"] or (metrics or [loss])[0]).strip()
        if domain is None:
            _check_statistic(name.strip(), domains)
        if measure not in measures:
            raise UserError(
                f"--objective: expected a measure that runs report, one of {', '.join(measures)}, "
                f"found {measure!r}"
            )
        statistic = OF_A_DOMAIN if domain is not None else name.strip()
        weight = _weight(found["weight"], text)
        terms.append(Term(weight, statistic, measures[measure], domain))
    total = sum(term.weight for term in terms)
    if len({term.measure.higher_is_better for term in terms}) > 1:
        raise UserError(
            "--objective: expected measures that are better in one direction, found "
            f"{', '.join(dict.fromkeys(term.measure.name for term in terms))} in {text!r}"
        )
    return Objective(tuple(dataclasses.replace(t, weight=t.weight / total) for t in terms))


def _terms(text: str, domains: Sequence[str]) -> list[re.Match[str]]:
    """Returns what a text is made of."""
    # A domain's name may have any sign, and is looked for as it is.
    known = "|".join(map(re.escape, domains)) or "(?!)"
    term = re.compile(
        r"\s*(?:(?P<weight>[^*+(]+)\*\s*)?"
        rf"(?:{OF_A_DOMAIN}\((?P<domain>{known})\)|(?P<name>[^*:+]+))"
        r"\s*(?::(?P<measure>[^*+]+))?(?P<more>\+|$)"
    )
    found, start = [], 0
    while True:
        match = term.match(text, start)
        if match is None:
            raise UserError(f"--objective: expected {FORM}, found {text!r}")
        found.append(match)
        start = match.end()
        if not match["more"]:
            return found


def _check_statistic(name: str, domains: Sequence[str]) -> None:
    if name.split("(")[0].strip() == OF_A_DOMAIN:
        raise UserError(
            f"--objective: expected {OF_A_DOMAIN}(NAME) of one of {', '.join(domains)}, "
            f"found {name!r}"
        )
    STATISTICS.given("--objective", name)


def _weight(text: object, objective: str) -> float:
    if text is None:
        return 1.0
    try:
        weight = float(str(text))
    except ValueError:
        weight = -1.0
    if not 0 < weight < float("inf"):
        raise UserError(f"--objective: expected positive weights, found {text!r} in {objective!r}")
    return weight
