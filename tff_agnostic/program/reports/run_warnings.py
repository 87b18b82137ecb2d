"""Warnings for readers of a run's page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tff_agnostic.base.errors import agreeing, counted
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.data.data_warnings import FEW_EXAMPLES, TRAINING_WARNINGS
from tff_agnostic.metrics.formatting import capitalized, cell
from tff_agnostic.privacy.accountant import WEAK_EPSILON
from tff_agnostic.program.reports.claims import split_name
from tff_agnostic.program.reports.document import names
from tff_agnostic.program.reports.run_record import RunRecord, weight_quantity
from tff_agnostic.tasks.task import TEST_SPLIT

# Minimum number of clients: with fewer, a single client may dominate a domain's number.
FEW_CLIENTS = 10
# A domain "took over" if it has more than this fraction of the weight in the last rounds.
_RUNAWAY_WEIGHT = 0.9
_SOME_ROUNDS = 0.1
_MAX_NAMES = 5
# Kinds of data warnings that this module replaces by its own.
_STATED_HERE = ("small_domains", "domains_without_examples")


def harm(run: RunRecord) -> list[str]:
    """Returns the most serious warnings, about neglected domains and losses out of range."""
    return [capitalized(r["text"]) for r in _remarks(run) if r["kind"] in TRAINING_WARNINGS]


def caveats(run: RunRecord) -> list[str]:
    """Returns all warnings of a run except those of `harm`."""
    return [*data_caveats(run), *_uncertain_worst(run), *training_caveats(run)]


def data_caveats(run: RunRecord) -> list[str]:
    """Returns the warnings about the data, which are equal for all runs on the data."""
    checks = (_split, _never_trained_on, _not_evaluated, _few, _data)
    return [line for check in checks for line in check(run)]


def training_caveats(run: RunRecord) -> list[str]:
    """Returns the warnings about the training."""
    checks = (_runaway_weight, _skipped, _non_finite, _clipped, _privacy)
    return [line for check in checks for line in check(run)]


def _split(run: RunRecord) -> Iterator[str]:
    if run.split != TEST_SPLIT:
        yield (
            f"The numbers are of the {split_name(run.split)} clients ({run.split}), not of the "
            "test clients: they serve to choose settings, and are too good as an estimate."
        )


def _never_trained_on(run: RunRecord) -> Iterator[str]:
    trained = run.about("data", "train", "domains")
    if trained is None:
        return
    untrained = [
        name
        for name in run.domains
        if not trained[name]["examples"] and run.get("domains", name, "num_examples")
    ]
    if untrained:
        yield (
            f"No training client has an example of {names(untrained, _MAX_NAMES)}: the model has "
            "learnt from other domains only."
        )


def _not_evaluated(run: RunRecord) -> Iterator[str]:
    missing = [n for n in run.domains if not run.get("domains", n, "num_examples")]
    if missing:
        yield (
            f"No {split_name(run.split)} client has an example of {names(missing, _MAX_NAMES)}: "
            "the model is not evaluated there."
        )


def _few(run: RunRecord) -> Iterator[str]:
    """Yields warnings about domains with few examples or clients."""
    split, clients = split_name(run.split), ("over_clients", "loss", "num_clients")
    trained = run.about("data", "train", "domains") or {}
    cases = [
        (
            FEW_EXAMPLES,
            "training examples",
            {name: domain["examples"] for name, domain in trained.items()},
            "The model and the weights there are learned from few examples.",
        ),
        (
            FEW_EXAMPLES,
            f"{split} examples",
            {name: run.get("domains", name, "num_examples") for name in run.domains},
            "Figures of few examples are uncertain: a domain can be the worst accidentally.",
        ),
        (
            FEW_CLIENTS,
            f"{split} clients",
            {name: run.get("domains", name, *clients) for name in run.domains},
            "Figures of few clients need not hold for other clients, whatever the intervals are.",
        ),
    ]
    for enough, unit, counts, consequence in cases:
        few = sorted((count, name) for name, count in counts.items() if count and count < enough)
        if few:
            listed = names([f"{name} ({count})" for count, name in few], _MAX_NAMES)
            verb = agreeing(len(few), "has", "have")
            yield (
                f"{len(few)} of {len(run.domains)} domains {verb} fewer than {enough} {unit}: "
                f"{listed}. {consequence}"
            )


def _runaway_weight(run: RunRecord) -> Iterator[str]:
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
        if last <= _RUNAWAY_WEIGHT:
            continue
        from_start = first > _RUNAWAY_WEIGHT
        event = "had nearly all weight from the start" if from_start else "took over"
        yield (
            f"{quantity.name}: one domain {event}. {names([column.domain or ''], 1)} had "
            f"{cell(last, Unit.SHARE, 3)}% of the weight in the mean of the last {count} rounds, "
            "so the others were hardly trained on."
        )


def _uncertain_worst(run: RunRecord) -> Iterator[str]:
    for measure in run.measures.values():
        worst = run.get("worst", measure.name, "domain")
        excluded = {worst, *(run.result.get("not_counted") or ())}
        ends = None if worst is None else run.measured(measure, "domains", worst).interval
        if ends is None:
            continue
        others = (run.measured(measure, "domains", n) for n in run.domains if n not in excluded)
        near = sum(
            other.interval[0] <= ends[1] and other.interval[1] >= ends[0]
            for other in others
            if other.interval is not None
        )
        if near:
            yield (
                f"Which domain is the worst in {measure.name} is not certain: the interval of "
                f"{names([worst], 1)} overlaps with that of {counted(near, 'other domain')}."
            )


def _skipped(run: RunRecord) -> Iterator[str]:
    skipped = run.about("rounds_skipped")
    if skipped:
        yield (
            f"{skipped} of {run.get('rounds')} rounds were skipped, since their sums were not "
            "finite: a learning rate is too high."
        )


def _non_finite(run: RunRecord) -> Iterator[str]:
    count = run.get("clients", "non_finite")
    if count:
        yield (
            f"{count} {split_name(run.split)} clients gave numbers that are not finite, and are in "
            "no result."
        )


def _clipped(run: RunRecord) -> Iterator[str]:
    clipped = run.result.get("clipped") or {}
    listed = ", ".join(f"{count} of {field}" for field, count in clipped.items() if count)
    if listed:
        yield (
            f"Values beyond the bounds of secure sums were clipped in the evaluation: {listed}. "
            "Such clients count less, and means over clients are cut; larger --limit_... avoid "
            "that."
        )
    counters = [q for q in run.quantities if q.unit is Unit.VALUES]
    counts = {q.name: float(np.nansum(run.columns.get(q.name, 0.0))) for q in counters}
    # The warning above already counts the clipped values of the last evaluation.
    if sum(counts.values()) > sum(clipped.values()):
        listed = ", ".join(f"{count:.0f} in {name}" for name, count in counts.items() if count)
        yield f"Values beyond the bounds of secure sums were clipped over the rounds: {listed}."


def _privacy(run: RunRecord) -> Iterator[str]:
    if not run.is_private:
        return
    epsilon = run.get("privacy", "epsilon")
    if epsilon is None:
        yield "Training is private in name only: without noise epsilon is infinite."
    elif epsilon > WEAK_EPSILON:
        yield f"Epsilon is {epsilon:.4g}: above {WEAK_EPSILON:.0f} it guarantees next to nothing."
    if run.config.get("noise_seed") is not None:
        yield "The noise is that of --noise_seed: anyone who knows it can remove it."


def _data(run: RunRecord) -> Iterator[str]:
    for remark in _remarks(run):
        if remark["kind"] not in (*_STATED_HERE, *TRAINING_WARNINGS):
            yield capitalized(remark["text"])


def _remarks(run: RunRecord) -> Sequence[Mapping[str, Any]]:
    return run.about("remarks") or ()
