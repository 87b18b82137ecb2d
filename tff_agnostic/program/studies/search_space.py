"""Search spaces and objectives of hyperparameter search."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Optional, Union

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.registry import Registry
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.evaluation_report import SUPERQUANTILE
from tff_agnostic.metrics.formatting import UNDEFINED, cell
from tff_agnostic.models.model import Measure, main_measure
from tff_agnostic.program.options.flags import Flag
from tff_agnostic.program.options.tasks import task_flags
from tff_agnostic.program.runs.heldout import split_options
from tff_agnostic.program.runs.options import run_flags

FORM = "LOW..HIGH, LOW..HIGH/STEP, log:LOW..HIGH or choice:A,B,..."
_CHOICE, _LOG, _DOTS = "choice:", "log:", ".."
# Separator of choices that contain commas.
_BAR = "|"
_NUMBERS = (int, float)
# Relative tolerance of the number of steps in a range, as decimal numbers are inexact.
_TOLERANCE = 1e-9
# Settings that all runs have and that may be searched, as they change neither a run's length nor
# its evaluation.
_RUN_SETTINGS = ("clients_per_round", "cohort_sampling", "max_examples")
_ENTRY = "[ROW:]SETTING=RANGE, separated by semicolons"
# Number of decimals that plain numbers have in tables.
DECIMALS = 4
OBJECTIVE_FORM = "[WEIGHT*]NAME[:MEASURE], joined by +"
DOMAIN_TERM = "domain"

Distribution = Union[CategoricalDistribution, FloatDistribution, IntDistribution]


@dataclasses.dataclass(frozen=True)
class Dimension:
    """A setting and its range.

    Attributes:
        text: The range as the user wrote it.
        distribution: The range as Optuna's distribution; choices are strings.
    """

    setting: Flag
    text: str
    distribution: Distribution

    @property
    def flag(self) -> str:
        """The flag of the setting."""
        return self.setting.name

    def draw(self, trial: Trial) -> None:
        """Samples a value for a trial, unless the trial has one already."""
        name, drawn = self.flag, self.distribution
        if isinstance(drawn, CategoricalDistribution):
            trial.suggest_categorical(name, drawn.choices)
        elif isinstance(drawn, IntDistribution):
            trial.suggest_int(name, drawn.low, drawn.high, step=drawn.step, log=drawn.log)
        else:
            trial.suggest_float(name, drawn.low, drawn.high, step=drawn.step, log=drawn.log)

    def value(self, sampled: Any) -> Any:
        """Converts Optuna's value to a value of the setting."""
        return self.setting.parsed(sampled)

    def extremes(self) -> list[Any]:
        """Returns the values that checks use: both ends of the range, or every choice."""
        if isinstance(self.distribution, CategoricalDistribution):
            return [self.value(choice) for choice in self.distribution.choices]
        return [self.value(self.distribution.low), self.value(self.distribution.high)]

    def sampled(self, value: Any) -> Optional[Any]:
        """Converts a value of the setting to Optuna's value; None if it is outside the range."""
        distribution = self.distribution
        if isinstance(distribution, CategoricalDistribution):
            return next((c for c in distribution.choices if self.value(c) == value), None)
        if value is None or not distribution.low <= value <= distribution.high:
            return None
        is_on_grid = distribution.step is None or _is_whole(
            (value - distribution.low) / distribution.step
        )
        return value if is_on_grid else None


def dimension(setting: Flag, text: str) -> Dimension:
    """Returns the dimension that a text describes; see `FORM`."""
    make = _choices if text.startswith(_CHOICE) else _range
    return Dimension(setting, text, make(setting, text))


def _choices(setting: Flag, text: str) -> Distribution:
    listed = text[len(_CHOICE) :]
    choices = [c.strip() for c in listed.split(_BAR if _BAR in listed else ",")]
    if setting.kind is tuple and _BAR not in listed:
        choices = [listed.strip()]
    # Two texts may represent the same value.
    values = [setting.parsed(choice) for choice in choices]
    if len(values) < 2 or any(values.index(v) < i for i, v in enumerate(values)):
        separator = _BAR if setting.kind is tuple else ","
        raise UserError(
            f"expected two or more different values, separated by {separator!r}, found {text!r}"
        )
    return CategoricalDistribution(choices)


def _range(setting: Flag, text: str) -> Distribution:
    is_log = text.startswith(_LOG)
    ends, slash, step_text = text[len(_LOG) * is_log :].partition("/")
    low_text, dots, high_text = ends.partition(_DOTS)
    if not dots:
        raise UserError(f"expected {FORM}, found {text!r}")
    if setting.kind not in _NUMBERS:
        raise UserError(f"expected {_CHOICE}A,B,... for a setting without numbers, found {text!r}")
    low, high = (setting.parsed(end.strip()) for end in (low_text, high_text))
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UserError(f"expected LOW..HIGH with LOW < HIGH, both finite, found {text!r}")
    if is_log and low <= 0:
        raise UserError(f"expected LOW > 0 in {_LOG}LOW..HIGH, found {text!r}")
    step = setting.parsed(step_text.strip()) if slash else None
    if step is not None and (is_log or not step > 0 or not _is_whole((high - low) / step)):
        raise UserError(
            f"expected LOW..HIGH/STEP without {_LOG} and with HIGH - LOW a multiple of STEP, "
            f"found {text!r}"
        )
    if setting.kind is int:
        return IntDistribution(low, high, log=is_log, step=1 if step is None else step)
    return FloatDistribution(low, high, log=is_log, step=step)


def shown_values(params: Mapping[str, Any]) -> str:
    """Returns sampled values as a string: "client_learning_rate=0.1234, window=5"."""
    return ", ".join(f"{name}={shown_value(value)}" for name, value in params.items())


def shown_value(value: Any) -> str:
    """Returns a sampled value as a string; a dash for None."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return UNDEFINED if value is None else f"{value:.4g}" if is_number else str(value)


def _is_whole(number: float) -> bool:
    return abs(number - round(number)) <= _TOLERANCE * max(1.0, abs(number))


def parse_search(
    text: str, settings: Registry[Flag], methods: Mapping[str, Collection[str]]
) -> dict[str, dict[str, Dimension]]:
    """Returns the dimensions of each method by flag, as --search describes them.

    "client_learning_rate=log:0.01..1;q_ffl:q=0.1..5" varies one setting of every method, and one
    setting of q_ffl only. A method's own range of a setting replaces the shared range.

    Args:
        methods: Flags of the settings of each method, by its name.
    """
    shared: dict[str, Dimension] = {}
    separate: dict[str, dict[str, Dimension]] = {name: {} for name in methods}
    for name, flag, where in _entries(text):
        if name and name not in methods:
            raise UserError(f"--search: expected one of {', '.join(methods)}, found {name!r}")
        dimensions = separate[name] if name else shared
        if flag in dimensions:
            raise UserError(f"--search: expected {flag} once, found it twice")
        try:
            dimensions[flag] = dimension(settings[flag], where)
        except UserError as e:
            # An error about a value already names the flag.
            message = str(e).removeprefix(f"--{flag}: ")
            raise UserError(f"--search: {flag}: {message}") from None
        if name and flag not in methods[name]:
            raise UserError(f"--search: {name}:{flag} has no effect: {name} has no {flag}")
        if not any(flag in has for has in methods.values()):
            raise UserError(f"--search: {flag} has no effect: none of {', '.join(methods)} has it")
    if not shared and not any(separate.values()):
        raise UserError(f"--search: expected {_ENTRY}, with a range of {FORM}, found none")
    for name, dimensions in separate.items():
        usual = {f: d for f, d in shared.items() if f in methods[name] and f not in dimensions}
        separate[name] = {**usual, **dimensions}
        if not separate[name]:
            raise UserError(
                f"--search: expected a setting of {name}, found none: every method with a budget "
                "needs something to search"
            )
    return separate


def searchable(task: str, options: Optional[Mapping[str, Flag]] = None) -> Registry[Flag]:
    """Returns the searchable settings by flag: those of training, and options of the task.

    Files, and options that select the evaluated clients, are excluded.

    Args:
        options: All options of runs by flag, including options of users' algorithms; None if there
            are no users' algorithms.
    """
    actual = {
        name: setting
        for name, setting in (run_flags() if options is None else options).items()
        if (setting.users or name in _RUN_SETTINGS) and not setting.is_path
    }
    return Registry("setting to search", {**actual, **task_settings(task)})


def task_settings(task: str) -> dict[str, Flag]:
    """Returns the options of a task that may be searched, by flag."""
    fixed = split_options(task)
    return {
        flag: option
        for flag, option in task_flags().items()
        if ("task", task) in option.users and flag not in fixed and not option.is_path
    }


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    for item in filter(None, map(str.strip, text.split(";"))):
        head, equals, where = item.partition("=")
        name, colon, flag = head.rpartition(":")
        if not equals or not flag.strip() or (colon and not name.strip()):
            raise UserError(f"--search: expected {_ENTRY}, found {item!r}")
        yield name.strip(), flag.strip(), where.strip()


# Statistics of an evaluation over all domains.
STATISTICS = ("worst", SUPERQUANTILE, "overall", "client_mean")


@dataclasses.dataclass(frozen=True)
class Term:
    """A number of an evaluation, with its weight in an objective.

    Attributes:
        weight: Weight in the objective; the weights of all terms sum to 1.
        statistic: A member of `STATISTICS`, or `DOMAIN_TERM`.
        domain: Name of the domain; None for numbers of all domains.
    """

    weight: float
    statistic: str
    measure: Measure
    domain: Optional[str] = None

    @property
    def name(self) -> str:
        """The number as a string: "worst:accuracy", or "domain(es-AR):accuracy"."""
        domain = f"({self.domain})" if self.domain is not None else ""
        return f"{self.statistic}{domain}:{self.measure.name}"

    def value_in(self, result: Mapping[str, Any]) -> Optional[float]:
        """Returns the number from an evaluation in JSON; None if it is not finite."""
        name, overall = self.measure.name, result["overall"]
        if self.domain is not None:
            return result["domains"][self.domain][name]
        if self.statistic == "worst":
            return result["worst"].get(name, {}).get("value")
        if self.statistic == "overall":
            return overall[name]
        key = SUPERQUANTILE if self.statistic == SUPERQUANTILE else "mean"
        return overall["over_clients"].get(name, {}).get(key)


@dataclasses.dataclass(frozen=True)
class Objective:
    """A weighted mean of numbers of an evaluation.

    Attributes:
        terms: The weighted numbers, at least one. Higher values are better for all of their
            measures, or for none.
    """

    terms: tuple[Term, ...]

    @property
    def higher_is_better(self) -> bool:
        """Whether larger values are better."""
        return self.terms[0].measure.higher_is_better

    @property
    def unit(self) -> Unit:
        """Unit of the objective; `NONE` if the terms have different units."""
        units = {term.measure.unit for term in self.terms}
        return units.pop() if len(units) == 1 else Unit.NONE

    @property
    def name(self) -> str:
        """The objective as a string: "0.7*worst:accuracy+0.3*overall:accuracy"."""
        shares = len(self.terms) > 1
        return "+".join(
            f"{f'{term.weight:.4g}*' if shares else ''}{term.name}" for term in self.terms
        )

    def text(self, value: float) -> str:
        """Returns a human-readable value, such as "84.21%"."""
        return f"{cell(value, self.unit, DECIMALS)}{'%' if self.unit is Unit.SHARE else ''}"

    def value_in(self, result: Mapping[str, Any]) -> Optional[float]:
        """Returns the objective's value for an evaluation in JSON; None if it is not finite."""
        values = [term.value_in(result) for term in self.terms]
        defined = [value for value in values if value is not None]
        if len(defined) < len(values):
            return None
        return sum(term.weight * value for term, value in zip(self.terms, defined))


def parse_objective(
    text: str,
    measures: Mapping[str, Measure],
    domains: Sequence[str] = (),
    more: Collection[str] = (),
) -> Objective:
    """Returns a parsed objective; see `OBJECTIVE_FORM`.

    A name without a measure means the first metric, or the loss if there are no metrics. Weights
    are divided by their sum.

    Args:
        text: The objective, such as "worst", "superquantile:loss", "domain(es-AR)" or
            "0.7*worst+0.3*overall".
        measures: Measures of an evaluation, the loss first.
        more: Further statistics that the objective may name, such as "regret".
    """
    terms = []
    for match in _terms(text, domains):
        name, domain = match["name"], match["domain"]
        measure = (match["measure"] or main_measure(measures)).strip()
        if domain is None and name.strip() not in more:
            _check_statistic(name.strip(), domains, more)
        if measure not in measures:
            raise UserError(
                f"--objective: expected a measure that runs report, one of {', '.join(measures)}, "
                f"found {measure!r}"
            )
        statistic = DOMAIN_TERM if domain is not None else name.strip()
        weight = _weight(match["weight"], text)
        terms.append(Term(weight, statistic, measures[measure], domain))
    total = sum(term.weight for term in terms)
    if len({term.measure.higher_is_better for term in terms}) > 1:
        raise UserError(
            "--objective: expected measures that are better in one direction, found "
            f"{', '.join(dict.fromkeys(term.measure.name for term in terms))} in {text!r}"
        )
    return Objective(tuple(dataclasses.replace(t, weight=t.weight / total) for t in terms))


def _terms(text: str, domains: Sequence[str]) -> list[re.Match[str]]:
    # A domain's name may have any characters.
    defined = "|".join(map(re.escape, domains)) or "(?!)"
    term = re.compile(
        r"\s*(?:(?P<weight>[^*+(]+)\*\s*)?"
        rf"(?:{DOMAIN_TERM}\((?P<domain>{defined})\)|(?P<name>[^*:+]+))"
        r"\s*(?::(?P<measure>[^*+]+))?(?P<more>\+|$)"
    )
    terms = list(term.finditer(text))
    if not terms or "".join(match[0] for match in terms) != text or terms[-1]["more"]:
        raise UserError(f"--objective: expected {OBJECTIVE_FORM}, found {text!r}")
    return terms


def _check_statistic(name: str, domains: Sequence[str], more: Collection[str]) -> None:
    if name.split("(")[0].strip() == DOMAIN_TERM:
        raise UserError(
            f"--objective: expected {DOMAIN_TERM}(NAME) of one of {', '.join(domains)}, "
            f"found {name!r}"
        )
    Registry("objective", dict.fromkeys([*STATISTICS, *more])).given("--objective", name)


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
