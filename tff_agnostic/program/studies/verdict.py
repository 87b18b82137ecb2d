"""The verdict of a comparison: claims about two methods, affected domains, and next steps.

The figure of a verdict shows the gain in each domain. `neglected` finds the domains that a method
sacrifices: they are worse off than with FedAvg, and their lambda is near 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_agnostic.base.later import matplotlib
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.class_counts import ACCURACY, no_better_than_majority
from tff_agnostic.metrics.formatting import short_names, shown
from tff_agnostic.metrics.intervals import MIN_CLIENTS
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.claims import (
    ALL,
    Claim,
    domain_sentences,
    enough_clients_note,
    few_clients_reason,
    majority_sentence,
    sentence,
    short,
    split_name,
    value_text,
)
from tff_agnostic.program.reports.distributions import (
    MAX_DOMAINS,
    Estimate,
    Series,
    domains_height,
    draw_domains,
    worst_first,
)
from tff_agnostic.program.reports.figures import (
    ERROR_BAR,
    LEGEND_ROW,
    WIDTH,
    draw_grid,
    legend_above,
    look,
    new_figure,
    plain_text,
)
from tff_agnostic.program.runs.harm import (
    lambda_advice,
    last_lambda,
    moves_lambda,
    weightless_domains,
)
from tff_agnostic.program.runs.spec import RunSettings
from tff_agnostic.program.studies.comparison import OVERALL, WORST, Comparison
from tff_agnostic.program.studies.gains import Gain, attained, gain, gains, worst_domain

_NAME_WIDTH = 24
# A difference counts as 0 if more than this many times as much data would be needed to show it; the
# second number is for differences below `_LITTLE` of the measure: a point of a share, or 1% of a
# value.
_MANY, _MANY_FOR_LITTLE = 50, 10
_LITTLE = 0.01
# Minimum number of trials: with fewer, their spread is too uncertain to estimate how many are
# needed.
_MIN_TRIALS = 5
_MORE_TRIALS = 10
# Flag of `compare` and `frontier` for more seeds.
TRIALS = "--trials"
_NEXT = "Next: "
_MARKERS = {1: "^", -1: "v", 0: "o", None: "o"}
# Names of a gain's directions; None without an interval.
_DIRECTIONS = {1: "better", -1: "worse", 0: "no significant difference", None: "no interval"}


@dataclasses.dataclass(frozen=True)
class ClaimContext:
    """Two compared methods.

    Attributes:
        worst: Worst domain of the method, in the mean over the trials.
        their_worst: Worst domain of the other method.
        more_seeds: The flag for more seeds.
    """

    ours: str
    theirs: str
    measure: Measure
    split: str
    worst: str
    their_worst: str
    more_seeds: str = TRIALS

    def claim(self, gain: Gain, group: str, tests: int = 1) -> Claim:
        """Returns the claim of a gain; see `gain_claim`."""
        return gain_claim(gain, self.ours, self.theirs, group, self.measure, self.split, tests)

    def worst_claim(self, gain: Gain) -> Claim:
        """Returns the claim about the worst domains of both methods, with their names."""
        if self.worst == self.their_worst:
            return self.claim(gain, f"the worst domain ({short(self.worst)})")
        claim = self.claim(gain, "the worst domain")
        return dataclasses.replace(claim, group_before=self.their_worst, group_after=self.worst)


def gain_claim(
    gain: Gain, ours: str, theirs: str, group: str, measure: Measure, split: str, tests: int = 1
) -> Claim:
    """Returns the claim of a gain, with the reason if it has no interval.

    Args:
        tests: Number of simultaneous intervals.
    """
    interval = gain.interval(tests)
    reason = "" if interval else why_no_interval(gain, split)
    return Claim(ours, theirs, group, measure, gain.before, gain.after, interval, reason)


def verdict(
    context: ClaimContext, all_gains: Mapping[str, Gain], has_next: bool = True
) -> list[str]:
    """Returns the sentences that compare a method with another one.

    Args:
        all_gains: Gain of each domain, of `WORST` and of `OVERALL`; NaN without test examples.
        has_next: Whether to include advice on next steps.
    """
    worst, overall = all_gains[WORST], all_gains[OVERALL]
    domains = [
        g for n, g in all_gains.items() if n not in (WORST, OVERALL) and not math.isnan(g.mean)
    ]
    claims = [context.claim(g, g.name, len(domains)) for g in domains]
    return [
        sentence(context.worst_claim(worst)),
        *(domain_sentences(claims, "Who pays: ") if len(claims) > 1 else []),
        sentence(context.claim(overall, ALL)),
        *(_next(context, worst) if has_next else []),
        *_scope(context, [worst, *domains, overall], domains),
    ]


def verdicts(comparison: Comparison, more_seeds: str = TRIALS) -> list[str]:
    """Returns the sentences that compare each method with FedAvg, or with the first method.

    Sentences that are equal for all methods are stated once, at the end. Empty for one method.
    """
    baseline, measure = comparison.baseline, comparison.main_measure
    rows = [row for row in comparison.trials if row != baseline]
    if not rows:
        return []
    by_row = [
        verdict(
            _context(comparison, row, baseline, measure, more_seeds),
            gains(comparison, row, baseline, measure),
        )
        for row in rows
    ]
    others = by_row[1:]
    shared = [line for line in by_row[0] if others and all(line in lines for lines in others)]
    lines = [line for row_lines in by_row for line in row_lines if line not in shared]
    # Compare the constant predictor with every method, including the baseline.
    constants = [line for row in (baseline, *rows) for line in _majority(comparison, row)]
    return [*dict.fromkeys([*lines, *constants, *shared])]


def row_sentences(
    comparison: Comparison, row: str, baseline: str, more_seeds: str = TRIALS
) -> list[str]:
    """Returns the sentences that compare two methods, without advice."""
    measure = comparison.main_measure
    context = _context(comparison, row, baseline, measure, more_seeds)
    return verdict(context, gains(comparison, row, baseline, measure), has_next=False)


def worst_sentence(comparison: Comparison, row: str, baseline: str) -> str:
    """Returns the sentence that compares two methods in their worst domains."""
    measure = comparison.main_measure
    context = _context(comparison, row, baseline, measure, TRIALS)
    return sentence(context.worst_claim(gain(comparison, row, baseline, WORST, measure)))


def why_no_interval(gain: Gain, split: str) -> str:
    """Returns the reason why a gain has no interval."""
    if gain.has_too_few_clients:
        return few_clients_reason(split, gain.clients)
    if gain.trials < 2 and not gain.has_clients:
        return "no interval: one trial, and the clients were not resampled"
    if gain.spread is None:
        return "no interval: the trials have different seeds"
    if gain.has_too_few_trials:
        return f"{gain.trials} trials are too few for an interval"
    places = {1: "for all clients", 2: "in both trials"}
    return f"no interval: the difference is the same {places.get(gain.trials, 'in all trials')}"


def shortfall(gain: Gain, split: str, more_seeds: str = TRIALS) -> str:
    """Returns a text about the data that would show a difference; empty if that is unknown.

    Args:
        more_seeds: The flag for more seeds.
    """
    clients = f"{split_name(split)} clients"
    if gain.has_too_few_clients:
        return (
            f"an interval needs {clients} that are worth at least {MIN_CLIENTS} of equal size, "
            f"and there are {gain.clients:.1f}: add some, or join similar domains"
        )
    if gain.trials < 2:
        return f"one seed says nothing about others: {more_seeds}=3 or more"
    if gain.spread is None:
        return ""
    needed = gain.spread.needed()
    whole = gain.largest if math.isfinite(gain.largest) else abs(gain.before)
    is_little = abs(gain.mean) < _LITTLE * whole
    if gain.trials < _MIN_TRIALS and not is_little:
        return (
            f"{gain.trials} trials are too few to estimate how many would show a difference: "
            f"{more_seeds}={_MORE_TRIALS} first"
        )
    limit = _MANY_FOR_LITTLE if is_little else _MANY
    if needed.both is None or needed.both > limit:
        return (
            f"showing a difference this small takes more than {limit} times the data: treat it as 0"
        )
    if needed.seeds is not None and not (gain.has_clients and needed.clients is not None):
        enough = math.ceil(gain.trials * needed.seeds)
        return f"about {more_seeds}={enough} would show a difference of this size"
    if needed.clients is not None:
        return f"about {_two_digits(needed.clients)} times the {clients} would show it"
    return f"about {_two_digits(needed.both)} times the {clients} and trials would show it"


def _majority(comparison: Comparison, row: str) -> list[str]:
    """Returns the sentence about domains where a method is no better than a constant predictor."""
    if ACCURACY not in comparison.measures:
        return []
    trials = comparison.trials[row]
    means = {name: trials.mean(name, ACCURACY) for name in comparison.domain_names}
    worse = no_better_than_majority(trials.class_counts, means)
    if not worse:
        return []
    text = majority_sentence(worse, len(comparison.domain_names))
    return [f"{short(comparison.label(row))}: {text}."]


def _context(
    comparison: Comparison, row: str, baseline: str, measure: Measure, more_seeds: str
) -> ClaimContext:
    names = comparison.domain_names
    return ClaimContext(
        short(comparison.label(row)),
        short(comparison.label(baseline)),
        measure,
        comparison.split,
        worst_domain(comparison.trials[row], names, measure),
        worst_domain(comparison.trials[baseline], names, measure),
        more_seeds,
    )


def _scope(context: ClaimContext, all_gains: Sequence[Gain], domains: Sequence[Gain]) -> list[str]:
    """Returns sentences about the clients and seeds that the intervals cover."""
    defined = [gain for gain in all_gains if gain.interval() is not None]
    few = any(gain.has_too_few_clients for gain in all_gains)
    note = [enough_clients_note()] if few else []
    if not defined:
        return note
    clients = f"{split_name(context.split)} clients"
    over = [clients] if defined[0].has_clients else []
    if defined[0].has_seeds:
        over.append(f"seeds ({defined[0].trials} {context.more_seeds.lstrip('-')})")
    text = f"Intervals are of 95%, over other {' and other '.join(over)}"
    if len(domains) > 1 and any(gain.interval() for gain in domains):
        text += f"; those of single domains hold for all {len(domains)} together"
    if not defined[0].has_clients:
        text += f". They do not cover other {clients}"
    if not defined[0].has_seeds:
        text += f". They do not cover other seeds: there is one ({context.more_seeds}=3)"
    return [f"{text}.", *note]


def _next(context: ClaimContext, worst: Gain) -> list[str]:
    steps = []
    if worst.direction() == 0:
        text = shortfall(worst, context.split, context.more_seeds)
        steps += [text] if text else []
    if worst.direction() < 1 and not worst.has_too_few_clients:
        steps.append(
            "`./run frontier` shows whether any weights of the domains could help; if the worst "
            "domain is hard with any weight, --lambda_baselines follows excess losses"
        )
    return [f"{_NEXT}{'; '.join(steps)}."] if steps else []


def _two_digits(number: float) -> str:
    return f"{float(f'{number:.2g}'):g}"


def neglected(comparison: Comparison, runs: Mapping[str, RunSettings]) -> list[str]:
    """Returns a line for each domain that a method serves worse than FedAvg, at a lambda near 0.

    Without an interval, the line states the values and the reason.
    """
    plain, names, measure = comparison.baseline, comparison.domain_names, comparison.main_measure
    lines: list[str] = []
    if not comparison.is_plain(plain):
        return lines
    for row, trials in comparison.trials.items():
        options = runs[row].algorithm
        each = [last_lambda(h, names) for h in trials.histories if moves_lambda(options)]
        defined = [lambda_ for lambda_ in each if lambda_ is not None]
        weights = weightless_domains(np.mean(defined, axis=0), names, options) if defined else {}
        for name, weight in weights.items():
            change, label = gain(comparison, row, plain, name, measure), comparison.label(row)
            after, before = (value_text(v, measure) for v in (change.after, change.before))
            values = (
                f"{measure.name} {after}, {comparison.label(plain)} {before}, and lambda "
                f"{weight:.2g} in the mean of the last rounds: {lambda_advice(options)}"
            )
            if change.direction() < 0:
                lines.append(f"{label} neglects {name}: {values}")
            elif change.mean < 0 and change.interval() is None:
                reason = why_no_interval(change, comparison.split)
                lines.append(f"{label} may neglect {name} ({reason}): {values}")
    return lines


def verdict_figure(
    comparison: Comparison, row: str, baseline: str, measure: Measure, gains: Mapping[str, Gain]
) -> matplotlib.figure.Figure:
    """Returns a figure of two methods' values in each domain, with the gains below.

    The baseline's worst domain is on top. Error bars are 95% intervals; those of gains are
    simultaneous.
    """
    names, split = comparison.domain_names, split_name(comparison.split)
    labels = short_names([comparison.label(name) for name in (baseline, row)], _NAME_WIDTH)
    series = []
    for label, name in zip(labels, (baseline, row)):
        values = {d: attained(comparison.trials[name], names, d, measure) for d in names}
        estimates = {d: Estimate(mean, *(interval or ())) for d, (mean, interval) in values.items()}
        series.append(Series(label, estimates))
    heights = [domains_height(len(names), 2), domains_height(len(names), 1)]
    figure = new_figure(WIDTH, sum(heights) + 3 * LEGEND_ROW)
    before, gained = figure.subplots(2, 1, height_ratios=heights)
    text, higher = f"{measure.name} on the {split} clients", measure.higher_is_better
    draw_domains(before, series, text, measure.unit, higher, comparison.not_counted)
    ordered = worst_first(series, higher)[:MAX_DOMAINS]
    _draw_gains(gained, [gains[name] for name in ordered], len(names), measure)
    legend_above(figure, before, gained, ncols=2)
    return figure


def _draw_gains(
    axes: matplotlib.axes.Axes, gains: list[Gain], count: int, measure: Measure
) -> None:
    directions = [gain.direction(count) if gain.interval(count) else None for gain in gains]
    for direction, text in _DIRECTIONS.items():
        places = [k for k, other in enumerate(directions) if other == direction]
        if not places:
            continue
        means = np.array([shown(gains[k].mean, measure.unit) for k in places])
        lengths = [_lengths(gains[k], count, measure.unit) for k in places]
        color = look(2 if direction > 0 else 3).color if direction else ERROR_BAR
        style: dict[str, Any] = {"marker": _MARKERS[direction], "color": color, "linestyle": ""}
        style["fillstyle"] = "none" if direction is None else "full"
        axes.errorbar(
            means, places, xerr=np.array(lengths).T, capsize=2, linewidth=1, label=text, **style
        )
    axes.axvline(0.0, color=ERROR_BAR, linewidth=1)
    names = short_names([gain.name for gain in gains], _NAME_WIDTH)
    axes.set_yticks(range(len(gains)), list(map(plain_text, names)), fontsize="small")
    axes.set_ylim(len(gains) - 0.5, -0.5)
    in_points = ", points" if measure.unit is Unit.SHARE else ""
    axes.set_xlabel(f"gain in {measure.name}{in_points}")
    draw_grid(axes, "x")


def _lengths(gain: Gain, count: int, unit: Unit) -> tuple[float, float]:
    """Returns the lengths of a gain's error bar to both sides; NaN without an interval."""
    interval = gain.interval(count)
    if interval is None:
        return math.nan, math.nan
    low, high = (shown(end, unit) for end in interval)
    return shown(gain.mean, unit) - low, high - shown(gain.mean, unit)
