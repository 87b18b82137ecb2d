"""The verdict of a run: its worst domain, and domains where a constant predictor is as good.

The constant predictor always answers the most frequent class of a domain; the comparison needs
counts of the classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tff_agnostic.base.errors import agreeing, counted
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.class_counts import ACCURACY, CLASS_COUNTS, constant_accuracies
from tff_agnostic.metrics.intervals import Interval, combined, has_enough, share_interval
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.claims import (
    ALL,
    Claim,
    domain_sentences,
    enough_clients_note,
    few_clients_reason,
    sentence,
    split_name,
    worst_sentences,
)
from tff_agnostic.program.reports.run_record import RunRecord, metrics_first

_MAJORITY = "always answering the most frequent class"


def run_verdict(run: RunRecord) -> list[str]:
    """Returns the sentences of the verdict."""
    worst, constants = _worst_claims(run), _majority_claims(run)
    domains = [claim for claim in constants if claim.group != ALL]
    overall = [sentence(claim) for claim in constants if claim.group == ALL]
    return [
        *worst_sentences(worst),
        *overall,
        *domain_sentences(domains),
        *_scope(run, [*worst, *constants]),
        _next_step(run, [*worst, *domains]),
    ]


def _worst_claims(run: RunRecord) -> list[Claim]:
    """Returns claims that compare each counted domain with all examples, in the first measure."""
    measure = metrics_first(run.measures)[0]
    excluded = run.result.get("not_counted") or ()
    overall = run.value("overall", measure.name)
    pairs = {n: (run.value("domains", n, measure.name), overall) for n in run.domains}
    comparable = {n: p for n, p in pairs.items() if n not in excluded and not np.isnan(p).any()}
    return _claims(run, measure, comparable, ALL) if len(comparable) > 1 else []


def _majority_claims(run: RunRecord) -> list[Claim]:
    """Returns claims that compare the model with a constant predictor; none without counts."""
    counts: Mapping[str, Sequence[int]] = run.result.get(CLASS_COUNTS) or {}
    if ACCURACY not in run.measures or not counts:
        return []
    measure = run.measures[ACCURACY]
    total = {ALL: np.sum([counts[name] for name in run.domains], axis=0).tolist()}
    constants = {**constant_accuracies(total), **constant_accuracies(counts)}
    paths = {n: ("overall",) if n == ALL else ("domains", n) for n in constants}
    pairs = {n: (run.value(*path, ACCURACY), constants[n]) for n, path in paths.items()}
    defined = {n: pair for n, pair in pairs.items() if not np.isnan(pair[0])}
    return _claims(run, measure, defined, _MAJORITY)


def _claims(
    run: RunRecord, measure: Measure, values: Mapping[str, tuple[float, float]], theirs: str
) -> list[Claim]:
    """Returns a claim for each domain, and for `ALL` if `values` has it.

    Args:
        values: Pairs of the model's value and the compared value, by domain.
        theirs: Name of the compared predictor, or `ALL` for the model on all examples.
    """
    places = {**{name: i for i, name in enumerate(run.domains)}, ALL: -1}
    tests = max(1, len(values) - (ALL in values))
    claims = []
    for group, (value, other) in values.items():
        place = places[group]
        interval = _interval(
            run, measure, value, other, place, 1 if group == ALL else tests, theirs == ALL
        )
        reason = ""
        if interval is None and run.resampled is not None:
            clients = float(run.resampled.clients[place])
            reason = "no interval: the value does not vary over clients"
            if not has_enough(clients):
                reason = few_clients_reason(run.split, clients)
        claims.append(Claim(run.label, theirs, group, measure, other, value, interval, reason))
    return claims


def _interval(
    run: RunRecord,
    measure: Measure,
    value: float,
    other: float,
    place: int,
    tests: int,
    is_paired: bool,
) -> Interval:
    """Returns the interval of the gain over another value.

    If the model is right for all clients, or for none, resampling finds no spread. The interval is
    then Wilson's for as many examples as there are clients.

    Args:
        place: Index of the domain; -1 for all examples.
        tests: Number of simultaneous intervals.
        is_paired: Whether `other` is the model's value on all examples, which is resampled as well.
    """
    if run.resampled is None or measure.name not in run.resampled.values:
        return None
    clients = float(run.resampled.clients[place])
    if not has_enough(clients):
        return None
    replicates = run.resampled.values[measure.name]
    by_domain = replicates[:, place]
    sign = 1 if measure.higher_is_better else -1
    # Require a spread in the domain itself: the spread over all examples does not suffice.
    if combined([value], by_domain[np.newaxis], clients).total > 0:
        drawn = by_domain - (replicates[:, -1] if is_paired else other)
        magnitude = max(abs(value), abs(other))
        gain = [sign * (value - other)]
        return combined(gain, drawn[np.newaxis], clients, magnitude=magnitude).interval(tests)
    wilson = share_interval(value, clients, tests) if measure.unit is Unit.SHARE else None
    if wilson is None:
        return None
    low, high = sorted(sign * (end - other) for end in wilson)
    return low, high


def _scope(run: RunRecord, claims: Sequence[Claim]) -> list[str]:
    """Returns sentences about the clients and seeds that the intervals cover."""
    split = split_name(run.split)
    if run.has_noisy_numbers:
        return [
            f"There are no intervals for other {split} clients: private evaluations do not "
            "resample clients, and the numbers have the noise of the evaluation. No difference "
            "is certain."
        ]
    if run.resampled is None:
        return ["There are no intervals, because the test clients were not resampled."]
    joint = "; those of the domains hold for all domains together" if claims else ""
    text = f"Intervals are of 95%, over other {split} clients{joint}."
    if claims and all(claim.interval is None for claim in claims):
        text = "There is no interval: no difference is certain."
    lines = [f"{text} There is one seed, so how much another seed would change is not known."]
    is_any_without = any(claim.interval is None for claim in claims)
    return [*lines, *([enough_clients_note()] if is_any_without else [])]


def _next_step(run: RunRecord, claims: Sequence[Claim]) -> str:
    """Returns advice on domains without an interval, and the advice to make a comparison."""
    without = len({claim.group for claim in claims if claim.why_no_interval})
    more = ""
    if without:
        more = (
            f"{counted(without, 'domain')} without an interval "
            f"{agreeing(without, 'needs', 'need')} more {split_name(run.split)} clients, or to be "
            "joined with similar ones. "
        )
    spent = " Each further run on the same clients spends privacy." if run.is_private else ""
    return (
        f"Next: {more}`./run compare` trains FedAvg as well, with several seeds, and shows for "
        f"which domains this method is better or worse.{spent}"
    )
