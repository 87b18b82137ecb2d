"""A comparison in sentences: for whom better, worse, or not known; who pays; what to do next.

The picture of each domain's gain, with intervals, is made here, too, and a line for each domain
that a row gave up: it is worse off than with FedAvg, and its lambda is near 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Optional

import numpy as np

from tff_agnostic.base.later import matplotlib
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.domain_weights.ascent import LambdaOptions
from tff_agnostic.metrics.class_counts import ACCURACY, constant_line, not_above_constant
from tff_agnostic.metrics.formatting import cell, points, short_names, shown, signed
from tff_agnostic.metrics.intervals import LEAST_CLIENTS, Interval
from tff_agnostic.models.model import Measure
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
    draw_grid,
    legend_above,
    look,
    new_figure,
)
from tff_agnostic.program.runs.harm import last_lambda, mending, moves_lambda, without_say
from tff_agnostic.program.runs.options import RunConfig
from tff_agnostic.program.runs.spec import RunSpec
from tff_agnostic.program.studies.comparison import OVERALL, WORST, Comparison, Trials
from tff_agnostic.program.studies.gains import Gain, attained, gain, gains, worst_of
from tff_agnostic.program.studies.methods import BASELINE

# In place of the algorithm of a row that is not federated.
POOLED = "pooled"
_DECIMALS = 3
_NAMED = 3
_NAME_WIDTH = 40
# A difference counts as 0 if telling it takes more than this many times the data: the second number
# is for differences below `_LITTLE` of the measure.
_MANY, _MANY_FOR_LITTLE = 50, 10
_LITTLE = 0.01
# With fewer trials, an estimate of how many would be enough is rough.
_SURE_TRIALS = 5
# The flag of `compare` and `frontier` for more seeds.
TRIALS = "--trials"
# How the line begins that says what to do.
_NEXT = "Next: "
# By what a gain is told to be.
_BETTER, _WORSE, _UNKNOWN = "better off", "worse off", "cannot be told"
_MARKERS = {1: "^", -1: "v", 0: "o"}
_TOLD = {1: _BETTER, -1: _WORSE, 0: _UNKNOWN}


@dataclasses.dataclass(frozen=True)
class Sides:
    """What is compared.

    Attributes:
        ours: What the row is called.
        theirs: What the row that it is compared with is called.
        measure: What was measured.
        split: Whose clients: "test", or "heldout".
        trials: Trials of each row.
        worst: The domain that is worst with this row, in the mean over the trials.
        their_worst: The domain that is worst with the other row.
        clients: How many clients of each domain were evaluated, by name; empty if unknown.
        more_seeds: The flag that trains with more seeds.
    """

    ours: str
    theirs: str
    measure: Measure
    split: str
    trials: int
    worst: str
    their_worst: str
    clients: Mapping[str, int] = dataclasses.field(default_factory=dict)
    more_seeds: str = TRIALS


def verdict(sides: Sides, gains: Mapping[str, Gain], has_next: bool = True) -> list[str]:
    """Returns sentences: the worst domain, the domains, all examples, the intervals, what next.

    Args:
        gains: Of each domain, of `WORST` and of `OVERALL`; a domain without test examples has NaN.
        has_next: Whether to say what to do next.
    """
    domains = [g for n, g in gains.items() if n not in (WORST, OVERALL) and not math.isnan(g.mean)]
    return [
        _worst(sides, gains[WORST]),
        *_by_domain(sides, domains),
        _of_group(sides, gains[OVERALL], "all examples together"),
        *(_next(sides, gains[WORST]) if has_next else []),
        *_scope(sides, [gains[WORST], *domains], len(domains)),
    ]


def verdicts(
    comparison: Comparison, algorithms: Mapping[str, str], more_seeds: str = TRIALS
) -> list[str]:
    """Returns the sentences of each row beside FedAvg's, or the first one; none of a single row.

    What is equal for all rows is said once, at the end.

    Args:
        algorithms: Of each row.
        more_seeds: The flag that trains with more seeds.
    """
    baseline, measure = baseline_row(algorithms), comparison.main_measure
    rows = [row for row in comparison.trials if row != baseline]
    by_row = [
        [
            *verdict(
                _sides(comparison, row, baseline, measure, more_seeds),
                gains(comparison, row, baseline, measure),
            ),
            *_trivial(comparison, row),
        ]
        for row in rows
    ]
    if by_row:
        # The baseline may be no better than a constant answer, either.
        by_row[0] += _trivial(comparison, baseline)
    alike = [line for line in by_row[0] if all(line in of for of in by_row)] if by_row else []
    found: list[str] = []
    for line in (line for of in by_row for line in of if line not in alike):
        # Of a row's own lines others may have some as well; what to do next is said once.
        if not (line.startswith(_NEXT) and line in found):
            found.append(line)
    return [*found, *alike]


def _trivial(comparison: Comparison, row: str) -> list[str]:
    """Returns in which domains a row is not more often right than a constant answer, if any."""
    if ACCURACY not in comparison.measures:
        return []
    trials = comparison.trials[row]
    means = {name: trials.mean(name, ACCURACY) for name in comparison.domain_names}
    found = not_above_constant(trials.class_counts, means)
    if not found:
        return []
    line = constant_line(found, len(comparison.domain_names))
    return [f"{_short(comparison.label(row))}: {line}."]


def of_row(
    comparison: Comparison, row: str, baseline: str, measure: Measure, more_seeds: str = TRIALS
) -> list[str]:
    """Returns the sentences of one row beside another, but for what to do next."""
    sides = _sides(comparison, row, baseline, measure, more_seeds)
    return verdict(sides, gains(comparison, row, baseline, measure), has_next=False)


def baseline_row(algorithms: Mapping[str, str]) -> str:
    """Returns the row that others are compared with: FedAvg's, or the first one."""
    plain = (row for row, algorithm in algorithms.items() if algorithm == BASELINE)
    return next(plain, next(iter(algorithms)))


def _sides(
    comparison: Comparison, row: str, baseline: str, measure: Measure, more_seeds: str
) -> Sides:
    trials = comparison.trials[row]
    return Sides(
        _short(comparison.label(row)),
        _short(comparison.label(baseline)),
        measure,
        comparison.split,
        len(trials.histories),
        worst_of(trials, comparison.domain_names, measure),
        worst_of(comparison.trials[baseline], comparison.domain_names, measure),
        trials.num_clients,
        more_seeds,
    )


def _worst(sides: Sides, gain: Gain) -> str:
    """Returns the sentence on the worst domain, which names each row's own."""
    if sides.worst == sides.their_worst:
        return _of_group(sides, gain, f"the worst domain ({_short(sides.worst)})")
    after, before = (f" ({_short(name)})" for name in (sides.worst, sides.their_worst))
    return _of_group(sides, gain, "the worst domain", after, before)


def _of_group(sides: Sides, gain: Gain, whom: str, after: str = "", before: str = "") -> str:
    measure = sides.measure
    ours, theirs = _value(gain.after, measure) + after, _value(gain.before, measure) + before
    values = f"{measure.name} {ours} against {theirs}"
    by, sign = f"a gain of {_gain(gain, measure)}", gain.told()
    if sign:
        how = "better" if sign > 0 else "worse"
        end = _ends(gain.interval(), measure)
        return f"{sides.ours} is {how} than {sides.theirs} for {whom}: {values}, {by} {end}."
    why = _ends(gain.interval(), measure) or f"({why_no_interval(gain, sides.split, sides.trials)})"
    return (
        f"Whether {sides.ours} is better or worse than {sides.theirs} for {whom} cannot be told: "
        f"{values}, {by} {why}."
    )


def _by_domain(sides: Sides, domains: Sequence[Gain]) -> list[str]:
    count = len(domains)
    if count < 2:
        return []
    by_sign: dict[int, list[Gain]] = {1: [], -1: [], 0: []}
    unmeasured = [d for d in domains if d.interval(count) is None and d.mean]
    for domain in domains:
        if domain not in unmeasured:
            by_sign[domain.told(count)].append(domain)
    measured, named, lines = count - len(unmeasured), [], []
    for sign, text in ((1, "Better off"), (-1, "Worse off")):
        listed = sorted(by_sign[sign], key=lambda domain: -abs(domain.mean))
        if listed:
            more = f", and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
            names = ", ".join(_change(domain, sides.measure, count) for domain in listed[:_NAMED])
            lines.append(f"{text}: {len(listed)} of {count} domains ({names}{more}).")
            named += listed[:_NAMED]
    if measured and not by_sign[-1]:
        which = "domain" if measured == count else "measurable domain"
        lines.append(f"No {which} is shown to be worse off.")
    if by_sign[0] and len(by_sign[0]) == count:
        lines.append(f"No single domain of the {count} shows a difference that can be told from 0.")
    elif by_sign[0]:
        lines.append(f"In {len(by_sign[0])} of {count} domains no difference can be told from 0.")
    if unmeasured:
        more = f"; and {len(unmeasured) - _NAMED} more" if len(unmeasured) > _NAMED else ""
        why = "; ".join(
            f"{_short(domain.name)}: {why_no_interval(domain, sides.split, sides.trials)}"
            for domain in unmeasured[:_NAMED]
        )
        lines.append(f"Not measurable: {len(unmeasured)} of {count} domains ({why}{more}).")
    largest = max(domains, key=lambda domain: abs(domain.mean))
    if largest not in named and largest.mean:
        lines.append(_largest_change(sides, largest, count))
    return lines


def _largest_change(sides: Sides, gain: Gain, count: int) -> str:
    ends = _ends(gain.interval(count), sides.measure, bare=True)
    how = f"not told from 0, {ends}" if ends else "not measurable"
    before, after = (_value(value, sides.measure) for value in (gain.before, gain.after))
    return (
        f"The largest change is that of {_short(gain.name)}: {sides.measure.name} {before} to "
        f"{after}, {_gain(gain, sides.measure)} ({how})."
    )


def _change(of: Gain, measure: Measure, count: int) -> str:
    end = _ends(of.interval(count), measure, bare=True)
    return f"{_short(of.name)}: {_gain(of, measure)} {end}"


def _scope(sides: Sides, shown: Sequence[Gain], count: int) -> list[str]:
    """Returns what the intervals are over."""
    known = [of for of in shown if of.interval() is not None]
    if not known:
        return []
    over = []
    if known[0].has_clients:
        over.append(f"{sides.split} clients")
    if known[0].has_seeds:
        over.append(f"seeds ({sides.trials} {sides.more_seeds.lstrip('-')})")
    text = f"Intervals are of 95%, for other {' and other '.join(over)}"
    if count > 1:
        text += f"; those of single domains hold for all {count} at once"
    if not known[0].has_clients:
        text += f". The {sides.split} clients are not in them: others may say something else"
    if not known[0].has_seeds:
        text += f". There is one seed: another one may say something else ({sides.more_seeds}=3)"
    return [f"{text}."]


def _next(sides: Sides, worst: Gain) -> list[str]:
    """Returns what could be done next."""
    steps = []
    if worst.told() == 0:
        steps += _more_data(sides, worst)
    if worst.told() < 1:
        steps.append(
            "`./run frontier` tells whether any weights of the domains could help; where the worst "
            "domain is hard whatever its weight, --lambda_baselines follows excess losses"
        )
    return [f"{_NEXT}{'; '.join(steps)}."] if steps else []


def _more_data(sides: Sides, worst: Gain) -> list[str]:
    if worst.has_too_few_clients:
        return [
            f"an interval needs {sides.split} clients of {_short(sides.worst)} that are worth "
            f"{LEAST_CLIENTS} of equal size; those that are there are worth {worst.clients:.1f}"
        ]
    if worst.spread is None:
        return []
    needed = worst.spread.needed()
    there = sides.clients.get(sides.worst)
    most = _MANY_FOR_LITTLE if _is_little(worst, sides.measure) else _MANY
    if needed.both is not None and needed.both > most:
        return [
            f"to tell a difference of this size takes more than {most} times the data: treat it "
            "as 0"
        ]
    rough = f" (a rough estimate from {sides.trials} trials)" if sides.trials < _SURE_TRIALS else ""
    if needed.clients is not None and (needed.seeds is None or worst.has_clients):
        total = "" if there is None else f": about {_round(there * needed.clients)}, not {there}"
        times = f"{needed.clients:.1f} times as many {sides.split} clients of "
        return [f"{times}{_short(sides.worst)} would tell a difference of this size{total}{rough}"]
    if needed.seeds is not None:
        trials = math.ceil(sides.trials * needed.seeds)
        return [f"{sides.more_seeds}={trials} would tell a difference of this size{rough}"]
    if needed.both is not None:
        return [
            f"{needed.both:.1f} times as many {sides.split} clients and trials would tell a "
            f"difference of this size{rough}"
        ]
    if sides.trials < 2:
        return [f"more seeds: one tells nothing of others ({sides.more_seeds}=3)"]
    return []


def _is_little(gain: Gain, measure: Measure) -> bool:
    """Whether a gain is below a hundredth of the measure: a point of a share, or 1% of a value."""
    whole = 1.0 if measure.unit is Unit.SHARE else abs(gain.before)
    return abs(gain.mean) < _LITTLE * whole


def why_no_interval(of: Gain, split: str, num_trials: int) -> str:
    """Returns why a gain has no interval.

    Args:
        split: Whose clients were evaluated.
        num_trials: Of each row.
    """
    if of.has_too_few_clients:
        return (
            f"no interval: the {split} clients are worth {of.clients:.1f} of equal size, and an "
            f"interval needs {LEAST_CLIENTS}"
        )
    if num_trials < 2 and not of.has_clients:
        return "no interval: one trial, and the clients were not resampled"
    if of.spread is None:
        return "no interval: the trials have different seeds"
    if of.has_too_few_trials:
        return f"no interval: of {num_trials} trials it would hold every gain that there can be"
    return "no interval: the difference is the same in all trials"


def _ends(interval: Interval, measure: Measure, bare: bool = False) -> str:
    if interval is None:
        return ""
    low, high = (signed(end, measure.unit, _DECIMALS) for end in interval)
    return f"[{low}, {high}]" if bare else f"(95% interval {low} to {high})"


def _value(value: float, measure: Measure) -> str:
    text = cell(value, measure.unit, _DECIMALS)
    return f"{text}%" if measure.unit is Unit.SHARE and not math.isnan(value) else text


def _gain(gain: Gain, measure: Measure) -> str:
    """Returns a gain: it has a plus where the row is better, whichever direction is good."""
    return f"{signed(gain.mean, measure.unit, _DECIMALS)}{points(measure.unit)}"


def _round(number: float) -> str:
    """Returns a number of clients with two digits that count: it is an estimate."""
    return f"{int(float(f'{math.ceil(number):.2g}')):,}"


def _short(name: str) -> str:
    return short_names([name], _NAME_WIDTH)[0]


def harmed(comparison: Comparison, runs: Mapping[str, RunSpec]) -> list[str]:
    """Returns a line for each domain that a row serves worse than FedAvg's row, at a lambda near 0.

    Worse is what the verdict tells to be worse (`gains.Gain.told`), in what it is about. Where no
    interval is possible, the line says what was seen, and that it cannot be told.

    Args:
        runs: A run of each row.
    """
    rows = comparison.trials
    plain = next((row for row in rows if _is_plain(runs[row].config)), None)
    if plain is None:
        return []
    measure = comparison.main_measure
    return [
        line
        for row in rows
        if moves_lambda(runs[row].algorithm)
        for line in _of_row(comparison, row, plain, measure, runs[row].algorithm)
    ]


def _is_plain(config: RunConfig) -> bool:
    return config.algorithm == BASELINE and not config.pooled


def _of_row(
    comparison: Comparison, row: str, plain: str, measure: Measure, options: LambdaOptions
) -> list[str]:
    trials = comparison.trials[row]
    lambda_ = _mean_lambda(trials, comparison.domain_names)
    if lambda_ is None:
        return []
    lines = []
    for name, weight in without_say(lambda_, comparison.domain_names, options).items():
        of = gain(comparison, row, plain, name, measure)
        found, before = (cell(value, measure.unit, 3) for value in (of.after, of.before))
        seen = (
            f"{measure.name} {found}, {comparison.label(plain)} {before}, and lambda {weight:.2g} "
            "in the mean of the last rounds"
        )
        if of.told() < 0:
            lines.append(f"{comparison.label(row)} gave up {name}: {seen}: {mending(options)}")
        elif of.mean < 0 and of.interval() is None:
            why = why_no_interval(of, comparison.split, len(trials.histories))
            lines.append(
                f"whether {comparison.label(row)} gave up {name} cannot be told ({why}): {seen}: "
                f"{mending(options)}"
            )
    return lines


def _mean_lambda(trials: Trials, domain_names: tuple[str, ...]) -> Optional[np.ndarray]:
    found = [last_lambda(history, domain_names) for history in trials.histories]
    known = [lambda_ for lambda_ in found if lambda_ is not None]
    return np.mean(known, axis=0) if known else None


def verdict_figure(
    comparison: Comparison, row: str, baseline: str, measure: Measure, gains: Mapping[str, Gain]
) -> matplotlib.figure.Figure:
    """Returns the figure.

    On the left what both rows attain in each domain, the baseline's worst on top; on the right what
    the row gains there. Error bars are 95% intervals, on the right such that they hold together.

    Args:
        gains: Of each domain.
    """
    labels = short_names([comparison.label(name) for name in (baseline, row)], _NAME_WIDTH)
    series = [
        Series(label, {d: _estimate(comparison, name, d, measure) for d in comparison.domain_names})
        for label, name in zip(labels, (baseline, row))
    ]
    figure = new_figure(9.8, max(3.2, domains_height(len(comparison.domain_names), 2)) + 0.25)
    before, gained = figure.subplots(1, 2, width_ratios=(1.25, 1.0))
    text = f"{measure.name} on the {comparison.split} clients"
    draw_domains(
        before, series, text, measure.unit, measure.higher_is_better, comparison.not_counted
    )
    names = worst_first(series, measure.higher_is_better)[:MAX_DOMAINS]
    _draw_gains(gained, [gains[name] for name in names], len(comparison.domain_names), measure)
    legend_above(figure, before, gained, ncols=5)
    return figure


def _draw_gains(
    axes: matplotlib.axes.Axes, gains: list[Gain], count: int, measure: Measure
) -> None:
    for told, text in _TOLD.items():
        places = [k for k, of in enumerate(gains) if of.told(count) == told]
        if not places:
            continue
        means = np.array([shown(gains[k].mean, measure.unit) for k in places])
        ends = [gains[k].interval(count) for k in places]
        axes.errorbar(
            means,
            places,
            xerr=np.array(
                [_lengths(gains[k].mean, e, measure.unit) for k, e in zip(places, ends)]
            ).T,
            linestyle="",
            linewidth=1,
            capsize=2,
            color=ERROR_BAR if told == 0 else look(2 if told > 0 else 3).color,
            marker=_MARKERS[told],
            label=text,
        )
    axes.axvline(0.0, color=ERROR_BAR, linewidth=1)
    axes.set_yticks(range(len(gains)), [""] * len(gains))
    axes.set_ylim(len(gains) - 0.5, -0.5)
    in_points = ", points" if measure.unit is Unit.SHARE else ""
    axes.set_xlabel(f"gain in {measure.name}{in_points}")
    draw_grid(axes, "x")


def _lengths(mean: float, interval: Interval, unit: Unit) -> tuple[float, float]:
    if interval is None:
        return math.nan, math.nan
    low, high = (shown(end, unit) for end in interval)
    return shown(mean, unit) - low, high - shown(mean, unit)


def _estimate(comparison: Comparison, row: str, domain: str, measure: Measure) -> Estimate:
    trials, names = comparison.trials[row], comparison.domain_names
    mean, interval = attained(trials, names, domain, measure)
    low, high = interval or (math.nan, math.nan)
    return Estimate(mean, low, high)
