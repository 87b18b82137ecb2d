"""A run in sentences: where it is better than an answer that looks at nothing, and where not."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_agnostic.errors import some_of
from tff_agnostic.metrics.class_counts import ACCURACY, constant_accuracies
from tff_agnostic.metrics.formatting import cell, short_names
from tff_agnostic.metrics.intervals import Interval, share_interval
from tff_agnostic.metrics.resampling import LEAST_CLIENTS, combined, has_enough
from tff_agnostic.report_fields import Unit
from tff_agnostic.reports.run_record import RunRecord

_NAMED = 3
_DECIMALS = 3
_NAME_WIDTH = 40
_NEXT = (
    "Next: `./run compare` trains FedAvg, too, with several seeds, and says for whom this "
    "algorithm is better or worse."
)


@dataclasses.dataclass(frozen=True)
class Lead:
    """By how much a model's accuracy is above that of a constant answer.

    Attributes:
        name: Of a domain, or of all examples.
        accuracy: The model's.
        constant: That of always answering the most frequent class.
        interval: Of the difference, over other test clients; None if there is none.
    """

    name: str
    accuracy: float
    constant: float
    interval: Interval

    @property
    def told(self) -> int:
        """1 where the model is better, -1 where it is worse, 0 where that cannot be told."""
        if self.interval is None:
            return 0
        return int(self.interval[0] > 0) - int(self.interval[1] < 0)

    @property
    def text(self) -> str:
        """The two and the interval of the difference."""
        own, constant = (cell(v, Unit.SHARE, _DECIMALS) for v in (self.accuracy, self.constant))
        found = ""
        if self.interval is not None:
            low, high = (f"{100 * end:+.1f}" for end in self.interval)
            found = (
                f", a difference of {100 * (self.accuracy - self.constant):+.1f} [{low}, {high}]"
            )
        (short,) = short_names([self.name], _NAME_WIDTH)
        return f"{short}: {own}% against {constant}%{found}"


def run_verdict(run: RunRecord) -> list[str]:
    """Returns the sentences; none of a run whose classes were not counted."""
    leads = _leads(run)
    if not leads:
        return []
    overall, *domains = leads
    what = "always answering the most frequent class"
    lines = [_of_all(run.label, overall, what)]
    lines += _by_domain(run.label, domains, f"{what} of a domain")
    if run.resampled is None:
        lines.append(
            "There is no interval, as the test clients were not resampled: nothing can be told."
        )
    else:
        many = f"; those of single domains hold for all {len(domains)} at once" if domains else ""
        lines.append(
            f"Intervals are of 95%, in points, for other {run.split} clients{many}; there is none "
            f"where these are worth fewer than {LEAST_CLIENTS} of equal size. There is one seed: "
            "another one may say something else."
        )
    return [*lines, _NEXT]


def _of_all(label: str, lead: Lead, what: str) -> str:
    how = {1: f"{label} is better than {what}", -1: f"{label} is worse than {what}"}
    text = how.get(lead.told, f"Whether {label} is better than {what} cannot be told")
    return f"{text}: accuracy of {lead.text}."


def _by_domain(label: str, leads: Sequence[Lead], what: str) -> list[str]:
    count, lines = len(leads), []
    for told, text in (
        (-1, f"{label} is worse than {what} in"),
        (0, f"Whether {label} is better than {what} cannot be told in"),
        (1, f"{label} is better than {what} in"),
    ):
        # The worst first: those are what a reader looks for.
        found = sorted(
            (lead for lead in leads if lead.told == told), key=lambda x: x.accuracy - x.constant
        )
        if found:
            named = some_of([lead.text for lead in found], _NAMED)
            lines.append(f"{text} {len(found)} of {count} domains (accuracy of {named}).")
    return lines


def _leads(run: RunRecord) -> list[Lead]:
    """Returns that of all examples, then those of the domains that have several classes."""
    counts: Mapping[str, Sequence[int]] = run.result.get("class_counts") or {}
    if ACCURACY not in run.measures or not counts:
        return []
    of_all = {"all examples": np.sum([counts[name] for name in run.domains], axis=0).tolist()}
    constants = {**constant_accuracies(of_all), **constant_accuracies(counts)}
    sets: list[tuple[str, Any, int]] = [("all examples", run.result["overall"], -1)]
    sets += [(n, run.result["domains"][n], i) for i, n in enumerate(run.domains)]
    known = [
        (name, of[ACCURACY], place)
        for name, of, place in sets
        if name in constants and of[ACCURACY] is not None and not math.isnan(of[ACCURACY])
    ]
    tests = max(1, sum(place >= 0 for _, _, place in known))
    return [
        Lead(
            name,
            accuracy,
            constants[name],
            _interval(run, accuracy, constants[name], place, 1 if place < 0 else tests),
        )
        for name, accuracy, place in known
    ]


def _interval(run: RunRecord, accuracy: float, constant: float, place: int, tests: int) -> Interval:
    """Returns the interval of the difference from a number that stays as it is.

    Where all clients are right, or none is, resampling finds no spread: it is Wilson's of as many
    examples as there are clients.
    """
    if run.resampled is None or ACCURACY not in run.resampled.values:
        return None
    clients = float(run.resampled.clients[place])
    if not has_enough(clients):
        return None
    drawn = run.resampled.values[ACCURACY][:, place]
    if np.ptp(drawn) > 0:
        return combined([accuracy - constant], drawn[np.newaxis], clients).interval(tests)
    found = share_interval(accuracy, clients)
    return None if found is None else (found[0] - constant, found[1] - constant)
