"""The answer of a frontier in one sentence."""

import math
from collections.abc import Mapping, Sequence

from tff_agnostic.models.measures import Measure
from tff_agnostic.program.frontier.verdict import End, Outcome, Verdict
from tff_agnostic.program.reporting.cells import cell
from tff_agnostic.quantities import Unit

_DECIMALS = 3


def sentence(
    verdict: Verdict,
    best: str,
    num_mixtures: int,
    algorithms: Mapping[str, str],
    measure: Measure,
    split: str,
) -> str:
    """Returns one sentence: does any mixture help the worst domain, and was it found?

    Args:
        verdict: What the trials say.
        best: What the best mixture is called.
        num_mixtures: How many were trained on.
        algorithms: What each algorithm of the verdict is called, by its name.
        measure: What was measured.
        split: Whose clients were evaluated.
    """
    if verdict.outcome is Outcome.UNKNOWN:
        return (
            f"Nothing is known of the worst domain: no domain has enough {split} examples in every "
            "trial."
        )
    unit, training_end = measure.unit, shown_end(verdict.training_end, measure.unit)
    worst = f"{measure.name.replace('_', ' ')} of the worst domain on the {split} clients"
    if verdict.gain == 0:
        ends = f"{training_end} with the training mixture, the best of {num_mixtures}"
    else:
        ends = (
            f"{shown_end(verdict.best_end, unit)} with the best of {num_mixtures} mixtures "
            f"({best}), against {training_end} with the training mixture"
        )
    algorithm_ends = (_ended(verdict, name, algorithms[name], unit) for name in verdict.ends)
    noise = " (one seed: the noise is not known)" if _is_one_trial(verdict) else ""
    answer = _answer(verdict, algorithms)
    return f"{'; '.join([f'{answer}: {worst} is {ends}', *algorithm_ends])}{noise}."


def shown_end(end: End, unit: Unit) -> str:
    """Returns where trials ended, as text: "81.3% (5.2)"."""
    spread = "" if math.isnan(end.spread) else f" ({cell(end.spread, unit, _DECIMALS)})"
    return f"{cell(end.mean, unit, _DECIMALS)}{'%' if unit is Unit.SHARE else ''}{spread}"


def shown_difference(difference: float, unit: Unit) -> str:
    """Returns a positive difference as text: "4.2 points"."""
    return f"{cell(difference, unit, _DECIMALS)}{' points' if unit is Unit.SHARE else ''}"


def _answer(verdict: Verdict, algorithms: Mapping[str, str]) -> str:
    if verdict.outcome is Outcome.FOUND:
        return f"A mixture helps, and {_list([algorithms[n] for n in verdict.found_by])} found it"
    if verdict.outcome is Outcome.MISSED:
        return "A mixture helps, and it was missed"
    beyond = "" if verdict.gain == 0 else " by more than the standard deviation over the seeds"
    better = [algorithms[name] for name in verdict.ends if _is_above(verdict, name)]
    if better:
        # What lambda led to is a mixture's doing, too: one between those of the grid, maybe.
        be = "is" if len(better) == 1 else "are"
        return (
            f"No mixture of this grid helps{beyond}, but {_list(better)} {be} better than all of "
            "them, and a finer grid (--grid_points) may have one that does"
        )
    return f"No mixture helps{beyond}"


def _is_above(verdict: Verdict, name: str) -> bool:
    """Whether an algorithm is better than the best mixture by more than the noise of either."""
    return verdict.gaps[name] < -max(verdict.best_end.noise, verdict.ends[name].noise)


def _ended(verdict: Verdict, name: str, label: str, unit: Unit) -> str:
    gap = verdict.gaps[name]
    ended = f"{label} ended at {shown_end(verdict.ends[name], unit)}"
    difference = shown_difference(abs(gap), unit)
    if gap < -verdict.best_end.noise:
        return f"{ended}, better than any mixture by {difference}"
    if math.isnan(gap) or name in verdict.found_by:
        return ended
    if verdict.outcome is Outcome.NONE_HELPS:
        return f"{ended}, worse than the best by {difference}"
    return f"{ended} and missed it by {difference}"


def _is_one_trial(verdict: Verdict) -> bool:
    return math.isnan(verdict.best_end.spread) and math.isnan(verdict.training_end.spread)


def _list(items: Sequence[str]) -> str:
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last
