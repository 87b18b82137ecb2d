"""Claims about differences between a method and another method or a constant predictor.

All sentences of verdicts are built here from claims, so that equal results have equal sentences in
all reports. A difference is significant if its 95% interval excludes 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Optional

from tff_agnostic.base.report_fields import Unit
from tff_agnostic.data.store_format import TEST
from tff_agnostic.metrics.formatting import cell, points, short_names, signed
from tff_agnostic.metrics.intervals import MIN_CLIENTS, Interval
from tff_agnostic.models.model import Measure

# Group of a claim about all examples.
ALL = "all examples"
_DECIMALS = 3
# Maximum number of domains named in a sentence.
_MAX_NAMED = 3
_NAME_WIDTH = 40


@dataclasses.dataclass(frozen=True)
class Claim:
    """A difference of a measure between two methods in one group of examples.

    Attributes:
        ours: Name of the method that the claim is about.
        theirs: Name of the method or constant predictor with which `ours` is compared.
        group: Name of the group: a domain, `ALL` or the worst domain.
        before: Value of the baseline method, which `theirs` names.
        after: Value of the method `ours`.
        interval: Interval of the gain, positive if `ours` is better; None without an interval.
        why_no_interval: Reason for a missing interval.
        group_before: Name of the domain to which `before` belongs, if the two values are of
            different domains.
        group_after: Name of the domain to which `after` belongs.
    """

    ours: str
    theirs: str
    group: str
    measure: Measure
    before: float
    after: float
    interval: Interval
    why_no_interval: str = ""
    group_before: str = ""
    group_after: str = ""

    @property
    def gain(self) -> float:
        """The difference, positive if the method `ours` is better."""
        return (1 if self.measure.higher_is_better else -1) * (self.after - self.before)

    @property
    def direction(self) -> Optional[int]:
        """1 if the method `ours` is significantly better, -1 if it is worse, 0 if neither.

        None without an interval.
        """
        if self.interval is None:
            return None
        return int(self.interval[0] > 0) - int(self.interval[1] < 0)

    @property
    def where(self) -> str:
        """The group with a preposition, such as "in NAME"."""
        return f"on {ALL}" if self.group == ALL else f"in {self.group}"

    @property
    def values(self) -> str:
        """The two values, such as "accuracy 60.0% (b) against 61.5% (a)"."""
        after, before = self._value_texts
        return f"{self.measure.name} {after} against {before}"

    @property
    def named_values(self) -> str:
        """The two values with their methods, such as "q-FFL has accuracy 60.0%, FedAvg 61.5%"."""
        after, before = self._value_texts
        return f"{self.ours} has {self.measure.name} {after}, {self.theirs} {before}"

    @property
    def _value_texts(self) -> tuple[str, str]:
        return (
            value_text(self.after, self.measure) + _in_brackets(self.group_after),
            value_text(self.before, self.measure) + _in_brackets(self.group_before),
        )

    @property
    def difference(self) -> str:
        """The difference `after` - `before`, such as "-1.5 points"."""
        unit = self.measure.unit
        return f"{signed(self.after - self.before, unit, _DECIMALS)}{points(unit)}"

    @property
    def certainty(self) -> str:
        """The interval, such as "95% interval -10.3 to +28.6", or the reason for having none."""
        if self.interval is None:
            return self.why_no_interval or "no interval"
        ends = self.interval if self.measure.higher_is_better else [-e for e in self.interval[::-1]]
        low, high = (signed(end, self.measure.unit, _DECIMALS) for end in ends)
        return f"95% interval {low} to {high}"

    @property
    def qualified_certainty(self) -> str:
        """The certainty, after "not significant" if the difference is not significant."""
        return f"{'not significant, ' * (self.direction == 0)}{self.certainty}"

    @property
    def change(self) -> str:
        """The group with its values, their difference and its certainty, as text."""
        before, after = (value_text(v, self.measure) for v in (self.before, self.after))
        return (
            f"{short(self.group)}: {after} against {before}, {self.difference} "
            f"({self.qualified_certainty})"
        )


def sentence(claim: Claim) -> str:
    """Returns the sentence of one claim."""
    if claim.direction is None:
        reason = f" (not certain: {claim.why_no_interval})" if claim.why_no_interval else ""
        return f"{claim.named_values} {claim.where}: {claim.difference}{reason}."
    if claim.direction == 0:
        return (
            f"No significant difference between {claim.ours} and {claim.theirs} {claim.where} "
            f"({claim.certainty}): {claim.values}, {claim.difference}."
        )
    better = "better" if claim.direction > 0 else "worse"
    return (
        f"{claim.ours} is {better} than {claim.theirs} {claim.where}: {claim.values}, "
        f"{claim.difference} ({claim.certainty})."
    )


def worst_sentences(claims: Sequence[Claim]) -> list[str]:
    """Returns sentences about the worst domain, and about the worst domain with an interval.

    Args:
        claims: A claim per domain, which compares the domain with all examples.
    """
    ordered = sorted(claims, key=lambda claim: claim.gain)
    measured = [claim for claim in ordered if claim.interval is not None]
    worst = {"The worst domain": ordered[:1]}
    if measured[:1] != ordered[:1]:
        worst["Of the domains with an interval the worst"] = measured[:1]
    return [
        f"{start} is {short(claim.group)}: {claim.measure.name} "
        f"{value_text(claim.after, claim.measure)} against "
        f"{value_text(claim.before, claim.measure)} on {ALL}, {claim.difference} "
        f"({claim.qualified_certainty})."
        for start, listed in worst.items()
        for claim in listed
    ]


def gain_text(claim: Claim) -> str:
    """Returns a difference with its interval, such as "+3.0 points (95% interval +1.0 to +5.0)"."""
    return f"{claim.difference} ({claim.certainty})"


def objective_sentence(claim: Claim, clients: str) -> str:
    """Returns the sentence of a claim about an objective, whose name includes the group."""
    return f"On the {clients}, {claim.named_values}: {gain_text(claim)}."


def domain_sentences(claims: Sequence[Claim], worse: str = "") -> list[str]:
    """Returns sentences about domains: the worse ones, then the better ones, then the others.

    The domains with the largest changes are always named.

    Args:
        worse: Beginning of the sentence about domains that are worse off; empty for claims against
            a constant predictor.
    """
    if not claims:
        return []
    ours, theirs, count = claims[0].ours, claims[0].theirs, len(claims)
    by_direction: dict[Optional[int], list[Claim]] = {-1: [], 1: [], 0: [], None: []}
    for claim in sorted(claims, key=lambda claim: claim.gain):
        by_direction[claim.direction].append(claim)
    by_direction[1].reverse()
    lines = []
    for direction, start, better in ((-1, worse, "worse"), (1, "", "better")):
        listed = by_direction[direction]
        if listed:
            named = _listed([claim.change for claim in listed])
            lines.append(
                f"{start}{ours} is {better} than {theirs} in {len(listed)} of {count} domains "
                f"({claims[0].measure.name} of {named})."
            )
    num_measured = count - len(by_direction[None])
    if not num_measured and any(claim.why_no_interval for claim in claims):
        lines.append("No domain has an interval: no difference of a domain is certain.")
    if worse and num_measured and not by_direction[-1]:
        which = "domain" if num_measured == count else "domain with an interval"
        lines.append(f"No {which} is significantly worse off with {ours}.")
    if by_direction[0]:
        named = _listed([short(claim.group) for claim in by_direction[0]])
        lines.append(
            f"No significant difference in {len(by_direction[0])} of {count} domains between "
            f"{ours} and {theirs} ({named})."
        )
    without = by_direction[None]
    reasons = [f"{short(c.group)}: {c.why_no_interval}" for c in without if c.why_no_interval]
    if reasons:
        lines.append(f"No interval in {len(without)} of {count} domains ({_listed(reasons)}).")
    return [*lines, *_largest_changes(claims, by_direction)]


def _largest_changes(
    claims: Sequence[Claim], by_direction: Mapping[Optional[int], Sequence[Claim]]
) -> list[str]:
    """Returns the sentence about the largest changes, unless another sentence names them."""
    named = [*by_direction[-1][:_MAX_NAMED], *by_direction[1][:_MAX_NAMED]]
    ordered = sorted((c for c in claims if c.gain), key=lambda claim: claim.gain)
    losses, gains = (
        [c for c in ordered if c.gain < 0][:1],
        [c for c in ordered if c.gain > 0][-1:],
    )
    texts = [
        f"largest change for the {what}: {c.change}"
        for what, some in (("worse", losses), ("better", gains))
        for c in some
        if c not in named
    ]
    line = "; ".join(texts)
    return [f"{line[0].upper()}{line[1:]}."] if texts else []


def majority_sentence(worse: Mapping[str, tuple[float, float]], count: int) -> str:
    """Returns the text about domains where a model is no better than a constant predictor.

    Args:
        worse: Accuracy of the model, and of a predictor that always gives the most frequent class,
            by domain.
        count: Number of all domains.
    """
    listed = [
        f"{short(n)}: {100 * ours:.1f}% against {100 * constant:.1f}%"
        for n, (ours, constant) in worse.items()
    ]
    return (
        "accuracy is not above that of always answering the most frequent class in "
        f"{len(worse)} of {count} domains ({_listed(listed)})"
    )


def few_clients_reason(split: str, clients: float) -> str:
    """Returns the reason why a group with few effective clients has no interval."""
    return f"too few {split_name(split)} clients for an interval (worth {clients:.1f})"


def enough_clients_note() -> str:
    """Returns the explanation of `few_clients_reason`."""
    return (
        f"An interval needs clients that are worth at least {MIN_CLIENTS} of equal size; the "
        "number in brackets estimates how many they are worth."
    )


def split_name(split: str) -> str:
    """Returns the word that sentences use for a split's clients: test or validation."""
    return split if split == TEST else {"heldout": "validation"}.get(split, split)


def value_text(value: float, measure: Measure) -> str:
    """Returns a value with its unit, such as "81.3%"."""
    text = cell(value, measure.unit, _DECIMALS)
    return f"{text}%" if measure.unit is Unit.SHARE and not math.isnan(value) else text


def short(name: str) -> str:
    """Returns a name, shortened to one line of limited length."""
    return short_names([name], _NAME_WIDTH)[0]


def _in_brackets(name: str) -> str:
    return f" ({short(name)})" if name else ""


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - _MAX_NAMED
    return "; ".join([*texts[:_MAX_NAMED], *([f"{more} more"] if more > 0 else [])])
