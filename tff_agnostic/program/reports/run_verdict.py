"""The verdict of a run: claims about its model and constant predictors.

With counted classes the constant predictor always answers the most frequent class of a domain, and
the measure is accuracy. Otherwise it answers the mean of a domain's numbers, or the shares of its
classes or words: of the training examples with `trivial` baselines (`runs.baselines`), where the
measure is the loss, else of the evaluated examples (`metrics.constant_answers`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.class_counts import ACCURACY, CLASS_COUNTS, constant_accuracies
from tff_agnostic.metrics.constant_answers import CONSTANTS, OVERALL
from tff_agnostic.metrics.intervals import Interval, combined, has_enough, share_interval
from tff_agnostic.program.reports.claims import (
    ALL,
    Claim,
    domain_sentences,
    enough_clients_note,
    few_clients_reason,
    sentence,
    split_name,
)
from tff_agnostic.program.reports.run_record import RunRecord

_LOSS = "loss"
_NEXT = (
    "Next: `./run compare` trains FedAvg as well, with several seeds, and shows for which domains "
    "this method is better or worse."
)
_CONSTANT = "the mean of the numbers, or the shares of the classes or words"
_MAJORITY = "always answering the most frequent class"


def run_verdict(run: RunRecord) -> list[str]:
    """Returns the sentences; none if a constant predictor is always right."""
    counts: Mapping[str, Sequence[int]] = run.result.get(CLASS_COUNTS) or {}
    if ACCURACY in run.measures and counts:
        overall = {ALL: np.sum([counts[name] for name in run.domains], axis=0).tolist()}
        constants = {**constant_accuracies(overall), **constant_accuracies(counts)}
        claims = _claims(run, ACCURACY, constants, _MAJORITY)
        return _sentences(run, claims) if claims else []
    if run.trivial_losses:
        trivial = f"the trivial predictor ({_CONSTANT} of the training examples)"
        return _sentences(run, _claims(run, _LOSS, run.trivial_losses, trivial))
    by_measure: Mapping[str, Mapping[str, float]] = run.result.get(CONSTANTS) or {}
    # Readers know metrics better than losses.
    ordered = [*(name for name in run.measures if name != _LOSS), _LOSS]
    measure = next((name for name in ordered if name in by_measure), None)
    if measure is None:
        return [_unknown_constant(run), *_private_evaluation(run), _NEXT]
    constants = {ALL if n == OVERALL else n: v for n, v in by_measure[measure].items()}
    return _sentences(run, _claims(run, measure, constants, f"the best constant ({_CONSTANT})"))


def _sentences(run: RunRecord, claims: Sequence[Claim]) -> list[str]:
    domains = [claim for claim in claims if claim.group != ALL]
    overall = [sentence(claim) for claim in claims if claim.group == ALL]
    return [*overall, *domain_sentences(domains), *_scope(run, domains), _NEXT]


def _scope(run: RunRecord, domains: Sequence[Claim]) -> list[str]:
    """Returns what the intervals cover."""
    if run.resampled is None:
        return ["There are no intervals, because the test clients were not resampled."]
    split = split_name(run.split)
    joint = f"; those of single domains hold for all {len(domains)} together" if domains else ""
    lines = [
        f"Intervals are of 95%, over other {split} clients{joint}. There is one seed, so how much "
        "another seed would change is not known."
    ]
    is_any_without = any(claim.interval is None for claim in domains)
    return [*lines, *([enough_clients_note()] if is_any_without else [])]


def _unknown_constant(run: RunRecord) -> str:
    if (run.result.get("privacy") or {}).get("evaluation"):
        reason = (
            "Its evaluations are private. With statistics=true they count classes with noise, and "
            "the largest of several noisy counts is too large for a comparison"
        )
    elif run.is_private:
        reason = "Its labels were not counted, as counts of private training's clients need noise"
    else:
        reason = (
            "Its labels were not counted. With an algorithm that follows losses of domains, "
            "--lambda_baselines=trivial counts the labels of the training clients before the first "
            "round"
        )
    return (
        f"This run does not show whether {run.label} is better than a constant predictor "
        f"({_CONSTANT}). {reason}."
    )


def _private_evaluation(run: RunRecord) -> list[str]:
    """Returns the reason for missing intervals of a private evaluation."""
    if not (run.result.get("privacy") or {}).get("evaluation"):
        return []
    return [
        f"There are no intervals for other {split_name(run.split)} clients: private evaluations do "
        "not resample clients, not with statistics=true either, as that needs some 20 times the "
        "noise."
    ]


def _claims(run: RunRecord, name: str, constants: Mapping[str, float], theirs: str) -> list[Claim]:
    """Returns the claims about all examples and about the domains with a known constant.

    Args:
        name: Name of the measure.
        constants: Value of the constant predictor by domain, and of all examples.
        theirs: Name of the constant predictor.
    """
    sets: list[tuple[str, Any, int]] = [(ALL, run.result["overall"], -1)]
    sets += [(n, run.result["domains"][n], i) for i, n in enumerate(run.domains)]
    known = [
        (group, of[name], place)
        for group, of, place in sets
        if group in constants and of[name] is not None and not math.isnan(of[name])
    ]
    tests = max(1, sum(place >= 0 for _, _, place in known))
    claims = []
    for group, value, place in known:
        constant, measure = constants[group], run.measures[name]
        interval = _interval(run, name, value, constant, place, 1 if place < 0 else tests)
        claim = Claim(run.label, theirs, group, measure, constant, value, interval)
        if interval is None and run.resampled is not None:
            clients = float(run.resampled.clients[place])
            reason = "no interval: the value does not vary over clients"
            if not has_enough(clients):
                reason = few_clients_reason(run.split, clients)
            claim = dataclasses.replace(claim, why_no_interval=reason)
        claims.append(claim)
    return claims


def _interval(
    run: RunRecord, name: str, value: float, constant: float, place: int, tests: int
) -> Interval:
    """Returns the interval of the gain over a constant.

    If all clients are right, or none is, resampling finds no spread: the interval is Wilson's of as
    many examples as there are clients.
    """
    if run.resampled is None or name not in run.resampled.values:
        return None
    clients = float(run.resampled.clients[place])
    if not has_enough(clients):
        return None
    replicates = run.resampled.values[name][:, place]
    sign = 1 if run.measures[name].higher_is_better else -1
    magnitude = max(abs(value), abs(constant))
    change = sign * (value - constant)
    spread = combined([change], replicates[np.newaxis], clients, magnitude=magnitude)
    if spread.total > 0:
        return spread.interval(tests)
    if run.measures[name].unit is not Unit.SHARE:
        return None
    wilson = share_interval(value, clients, tests)
    if wilson is None:
        return None
    low, high = sorted(sign * (end - constant) for end in wilson)
    return low, high
