"""A run in sentences: where it is better than an answer that looks at nothing, and where not.

Where classes were counted, that answer is the most frequent class of a domain, and what is compared
is accuracy. Elsewhere it is the mean of a domain's numbers, or the shares of its classes or words:
of the training examples where the baselines are `trivial` (`runs.baselines`), and what is compared
is the loss; otherwise of the examples that are evaluated (`metrics.constant_answers`). Where
neither is known, a sentence says so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_agnostic.base.errors import some_of
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.class_counts import ACCURACY, CLASS_COUNTS, constant_accuracies
from tff_agnostic.metrics.constant_answers import CONSTANTS, OVERALL
from tff_agnostic.metrics.formatting import cell, short_names, signed
from tff_agnostic.metrics.intervals import (
    LEAST_CLIENTS,
    Interval,
    combined,
    has_enough,
    share_interval,
)
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.run_record import RunRecord

_ALL = "all examples"
_NAMED = 3
_DECIMALS = 3
_NAME_WIDTH = 40
_LOSS = "loss"
_NEXT = (
    "Next: `./run compare` trains FedAvg, too, with several seeds, and says for whom this "
    "algorithm is better or worse."
)
_OF_TRIVIAL = "the mean of the numbers, or the shares of the classes or words"


@dataclasses.dataclass(frozen=True)
class Lead:
    """By how much a model's accuracy, or loss, is above that of a constant answer.

    Attributes:
        name: Of a domain, or of all examples.
        measure: What is compared.
        value: The model's.
        constant: That of the constant answer.
        interval: Of the difference, over other test clients; None if there is none.
    """

    name: str
    measure: Measure
    value: float
    constant: float
    interval: Interval

    @property
    def gain(self) -> float:
        """By how much the model is better; negative where it is worse."""
        return (1 if self.measure.higher_is_better else -1) * (self.value - self.constant)

    @property
    def told(self) -> int:
        """1 where the model is better, -1 where it is worse, 0 where that cannot be told."""
        if self.interval is None:
            return 0
        above = int(self.interval[0] > 0) - int(self.interval[1] < 0)
        return above if self.measure.higher_is_better else -above

    @property
    def text(self) -> str:
        """The two and the interval of the difference."""
        unit, percent = self.measure.unit, "%" if self.measure.unit is Unit.SHARE else ""
        own, constant = (cell(v, unit, _DECIMALS) for v in (self.value, self.constant))
        found = ""
        if self.interval is not None:
            numbers = (self.value - self.constant, *self.interval)
            difference, low, high = (signed(number, unit, _DECIMALS) for number in numbers)
            found = f", a difference of {difference} [{low}, {high}]"
        (short,) = short_names([self.name], _NAME_WIDTH)
        return f"{short}: {own}{percent} against {constant}{percent}{found}"


def run_verdict(run: RunRecord) -> list[str]:
    """Returns the sentences; none where a constant answer is always right."""
    counts: Mapping[str, Sequence[int]] = run.result.get(CLASS_COUNTS) or {}
    if ACCURACY in run.measures and counts:
        return _against_majority(run, counts)
    if run.trivial_losses:
        return _against_trivial(run)
    return _against_constants(run)


def _against_majority(run: RunRecord, counts: Mapping[str, Sequence[int]]) -> list[str]:
    of_all = {_ALL: np.sum([counts[name] for name in run.domains], axis=0).tolist()}
    constants = {**constant_accuracies(of_all), **constant_accuracies(counts)}
    leads = _leads(run, ACCURACY, constants)
    if not leads:
        return []
    overall, *domains = leads
    what = "always answering the most frequent class"
    lines = [_of_all(run.label, overall, what)]
    lines += _by_domain(run.label, domains, f"{what} of a domain")
    return [*lines, _scope(run, len(domains), "in points, "), _NEXT]


def _against_trivial(run: RunRecord) -> list[str]:
    leads = _leads(run, _LOSS, run.trivial_losses)
    what = f"the trivial predictor of a domain ({_OF_TRIVIAL} of its training examples)"
    return [*_by_domain(run.label, leads, what), _scope(run, len(leads)), _NEXT]


def _against_constants(run: RunRecord) -> list[str]:
    by_measure: Mapping[str, Mapping[str, float]] = run.result.get(CONSTANTS) or {}
    # Metrics are what people know.
    names = [*(name for name in run.measures if name != _LOSS), _LOSS]
    name = next((name for name in names if name in by_measure), None)
    constants = {} if name is None else dict(by_measure[name])
    if OVERALL in constants:
        constants = {_ALL: constants.pop(OVERALL), **constants}
    leads = [] if name is None else _leads(run, name, constants)
    if not leads:
        return [_not_known(run), *_of_private_evaluation(run), _NEXT]
    what = f"the best constant answer ({_OF_TRIVIAL})"
    of_all = [_of_all(run.label, lead, what) for lead in leads if lead.name == _ALL]
    domains = [lead for lead in leads if lead.name != _ALL]
    lines = [*of_all, *_by_domain(run.label, domains, "the best constant answer of a domain")]
    return [*lines, _scope(run, len(domains)), _NEXT]


def _not_known(run: RunRecord) -> str:
    """Returns why nothing is said of a constant answer, and what would tell it."""
    if (run.result.get("privacy") or {}).get("evaluation"):
        how = (
            "Its evaluations are private. With statistics=true they count classes with noise, and "
            "the largest of several noisy counts is too large to compare with"
        )
    elif run.is_private:
        how = "Its labels were not counted, and counts of private training's clients need noise"
    else:
        how = (
            "Its labels were not counted. With an algorithm that follows losses of domains, "
            "--lambda_baselines=trivial counts the labels of the training clients before the first "
            "round"
        )
    return (
        f"This run does not show whether {run.label} is better than a constant answer "
        f"({_OF_TRIVIAL}). {how}."
    )


def _of_private_evaluation(run: RunRecord) -> list[str]:
    """Returns why a private evaluation has no intervals for other test clients."""
    if not (run.result.get("privacy") or {}).get("evaluation"):
        return []
    return [
        f"How other {run.split} clients would do is not known: private evaluations do not resample "
        "clients, with statistics=true either, as that takes some 20 times the noise."
    ]


def _scope(run: RunRecord, count: int, units: str = "") -> str:
    """Returns what the intervals are over, of so many domains."""
    if run.resampled is None:
        return "There is no interval, as the test clients were not resampled: nothing can be told."
    many = f"; those of single domains hold for all {count} at once" if count else ""
    return (
        f"Intervals are of 95%, {units}for other {run.split} clients{many}; there is none where "
        f"these are worth fewer than {LEAST_CLIENTS} of equal size. There is one seed: another one "
        "may say something else."
    )


def _of_all(label: str, lead: Lead, what: str) -> str:
    how = {1: f"{label} is better than {what}", -1: f"{label} is worse than {what}"}
    text = how.get(lead.told, f"Whether {label} is better than {what} cannot be told")
    return f"{text}: {lead.measure.name} of {lead.text}."


def _by_domain(label: str, leads: Sequence[Lead], what: str) -> list[str]:
    count, lines = len(leads), []
    for told, text in (
        (-1, f"{label} is worse than {what} in"),
        (0, f"Whether {label} is better than {what} cannot be told in"),
        (1, f"{label} is better than {what} in"),
    ):
        # The worst first: those are what a reader looks for.
        found = sorted((lead for lead in leads if lead.told == told), key=lambda x: x.gain)
        if found:
            named = some_of([lead.text for lead in found], _NAMED)
            (measure,) = {lead.measure.name for lead in found}
            lines.append(f"{text} {len(found)} of {count} domains ({measure} of {named}).")
    return lines


def _leads(run: RunRecord, name: str, constants: Mapping[str, float]) -> list[Lead]:
    """Returns that of all examples, then those of the domains, of those that have a constant.

    Args:
        name: Of the measure.
        constants: What the constant answer attains.
    """
    sets: list[tuple[str, Any, int]] = [(_ALL, run.result["overall"], -1)]
    sets += [(n, run.result["domains"][n], i) for i, n in enumerate(run.domains)]
    known = [
        (of, found[name], place)
        for of, found, place in sets
        if of in constants and found[name] is not None and not math.isnan(found[name])
    ]
    tests = max(1, sum(place >= 0 for _, _, place in known))
    return [
        Lead(
            of,
            run.measures[name],
            value,
            constants[of],
            _interval(run, name, value, constants[of], place, 1 if place < 0 else tests),
        )
        for of, value, place in known
    ]


def _interval(
    run: RunRecord, name: str, value: float, constant: float, place: int, tests: int
) -> Interval:
    """Returns the interval of the difference from a number that stays as it is.

    Where all clients are right, or none is, resampling finds no spread: it is Wilson's of as many
    examples as there are clients.
    """
    if run.resampled is None or name not in run.resampled.values:
        return None
    clients = float(run.resampled.clients[place])
    if not has_enough(clients):
        return None
    drawn = run.resampled.values[name][:, place]
    magnitude = max(abs(value), abs(constant))
    spread = combined([value - constant], drawn[np.newaxis], clients, magnitude=magnitude)
    if spread.total > 0:
        return spread.interval(tests)
    if run.measures[name].unit is not Unit.SHARE:
        return None
    found = share_interval(value, clients, tests)
    return None if found is None else (found[0] - constant, found[1] - constant)
