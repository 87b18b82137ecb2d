"""Which domains a row of a comparison gave up: worse than with FedAvg, and lambda near 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

import numpy as np

from tff_agnostic.domain_weights.ascent import LambdaOptions
from tff_agnostic.metrics.formatting import cell
from tff_agnostic.models.model import Measure
from tff_agnostic.run.harm import last_lambda, mending, moves_lambda, without_say
from tff_agnostic.run.options import RunConfig
from tff_agnostic.run.spec import RunSpec
from tff_agnostic.studies.comparison import Comparison, Trials
from tff_agnostic.studies.gains import gain
from tff_agnostic.studies.methods import BASELINE
from tff_agnostic.studies.verdict import main_measure, why_no_interval


def harmed(comparison: Comparison, runs: Mapping[str, RunSpec]) -> list[str]:
    """Returns a line for each domain that a row serves worse than FedAvg's row, at a lambda near 0.

    Worse is what the verdict tells to be worse (`gains.Gain.told`), in what it is about. Where no
    interval is possible, the line says what was seen, and that it cannot be told.

    Args:
        comparison: The trials.
        runs: A run of each row.
    """
    rows = comparison.trials
    plain = next((row for row in rows if _is_plain(runs[row].config)), None)
    if plain is None:
        return []
    measure = main_measure(comparison)
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
