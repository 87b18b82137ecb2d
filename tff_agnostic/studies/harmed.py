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
from tff_agnostic.studies.arms import BASELINE
from tff_agnostic.studies.comparison import Comparison, Trials


def harmed(comparison: Comparison, runs: Mapping[str, RunSpec]) -> list[str]:
    """Returns a line for each domain that a row serves worse than FedAvg's row, at a lambda near 0.

    Worse is by more than the standard deviation over the trials, the larger of the two, in the
    first metric that the task has, or in its loss.

    Args:
        comparison: The trials.
        runs: A run of each row.
    """
    rows = comparison.trials
    plain = next((row for row in rows if _is_plain(runs[row].config)), None)
    if plain is None:
        return []
    loss, *metrics = comparison.measures.values()
    measure = metrics[0] if metrics else loss
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
    trials, baseline = comparison.trials[row], comparison.trials[plain]
    lambda_ = _mean_lambda(trials, comparison.domain_names)
    if lambda_ is None:
        return []
    lines = []
    for name, weight in without_say(lambda_, comparison.domain_names, options).items():
        ours, theirs = (t.values[name][measure.name] for t in (trials, baseline))
        if loses(ours, theirs, measure.higher_is_better):
            found, before = (cell(float(np.mean(v)), measure.unit, 3) for v in (ours, theirs))
            lines.append(
                f"{comparison.label(row)} gave up {name}: {measure.name} {found}, "
                f"{comparison.label(plain)} {before}, and lambda {weight:.2g} in the mean of the "
                f"last rounds: {mending(options)}"
            )
    return lines


def loses(ours: np.ndarray, theirs: np.ndarray, higher_is_better: bool) -> bool:
    """Returns whether trials are worse by more than their spread, [trials] each."""
    sign = 1.0 if higher_is_better else -1.0
    spread = max(float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in (ours, theirs))
    return bool(sign * (np.mean(theirs) - np.mean(ours)) > spread)


def _mean_lambda(trials: Trials, domain_names: tuple[str, ...]) -> Optional[np.ndarray]:
    found = [last_lambda(history, domain_names) for history in trials.histories]
    known = [lambda_ for lambda_ in found if lambda_ is not None]
    return np.mean(known, axis=0) if known else None
