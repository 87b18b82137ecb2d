"""A frontier as a table, a page, JSON and CSV."""

import csv
import io
import math
from typing import Any, Optional

from tabulate import tabulate

from tff_agnostic.files import finite_or_none
from tff_agnostic.program.comparing.comparison_report import (
    in_table,
    mean_and_spread,
    notes,
    title_of,
)
from tff_agnostic.program.comparing.trial_results import DIFFERENCE, OVERALL, SUMMARIES, WORST
from tff_agnostic.program.frontier.frontier import Frontier
from tff_agnostic.program.frontier.verdict import End
from tff_agnostic.program.reporting.cells import UNDEFINED, with_percent

RULE = (
    "A mixture helps if it is better than the training mixture, in the mean of the worst domain "
    "over the seeds, by more than the standard deviation over the seeds, the larger one of the "
    "two. An algorithm found it if it is better than the best mixture, or worse by no more than "
    "the best mixture's standard deviation."
)
# With more domains than this, a table has the worst one only.
_MAX_DOMAIN_COLUMNS = 5


def table(frontier: Frontier, table_format: str) -> str:
    """Returns a row for each mixture and each algorithm, with the mean and standard deviation.

    With many domains it has the worst domain's measure and name, and not every domain's.

    Args:
        frontier: The frontier.
        table_format: A format of tabulate; "github" is Markdown.
    """
    comparison, is_markdown = frontier.comparison, table_format == "github"
    domains = comparison.domain_names
    has_all = len(domains) <= _MAX_DOMAIN_COLUMNS
    columns = [WORST, *(domains if has_all else ()), OVERALL, DIFFERENCE]
    headers = [
        "trained with",
        *(n.strip("()") if n in SUMMARIES else in_table(n, table_format) for n in columns),
    ]
    if not has_all:
        headers.insert(2, "worst domain")
    rows = []
    for row in comparison.trials:
        trials = comparison.trials[row]
        cells = [mean_and_spread(trials, name, frontier.measure) for name in columns]
        label = in_table(comparison.label(row), table_format)
        if row == frontier.best.name:
            label += " (best)"
            cells[0] = f"**{cells[0]}**" if is_markdown else cells[0]
        if not has_all:
            cells.insert(1, in_table(_worst_domain(frontier, row) or UNDEFINED, table_format))
        rows.append([label, *cells])
    return tabulate(rows, headers=headers, tablefmt=table_format, disable_numparse=True)


def markdown(frontier: Frontier, title: str, command: str, image: str) -> str:
    """Returns the page of a frontier.

    Args:
        frontier: The frontier.
        title: Its heading.
        command: What made it.
        image: Where its figure is.
    """
    measure, comparison = frontier.measure, frontier.comparison
    direction = "higher" if measure.higher_is_better else "lower"
    parts = [
        f"# {title}",
        f"`{command}`",
        frontier.sentence,
        f"![What is attainable]({image})",
        f"{RULE} {chosen_on(frontier)}",
        *(f"{line[0].upper()}{line[1:]}." for line in notes(comparison)),
        f"{with_percent(title_of(measure.name), measure.unit, 'percent')} on the "
        f"{comparison.split} clients, {direction} is better; mean and standard deviation over "
        f"{_num_trials(frontier)} seeds:",
        table(frontier, "github"),
    ]
    return "\n\n".join(parts) + "\n"


def chosen_on(frontier: Frontier) -> str:
    """Returns a sentence that says whose numbers the best mixture was chosen by."""
    return (
        f"The best mixture was chosen by the numbers that are shown, those of the "
        f"{frontier.comparison.split} clients: of several that are alike it is the luckiest."
    )


def to_json(frontier: Frontier, command: str) -> dict[str, Any]:
    """Returns all of a frontier: the verdict, the mixtures, and every trial's measures."""
    verdict, comparison = frontier.verdict, frontier.comparison
    return {
        "command": command,
        "sentence": frontier.sentence,
        "outcome": verdict.outcome.value,
        "measure": frontier.measure.name,
        "higher_is_better": frontier.measure.higher_is_better,
        "split": comparison.split,
        "worst_min_examples": comparison.worst_min_examples,
        "not_counted": list(comparison.not_counted),
        "worst_domain": {
            "training_mixture": _end_json(verdict.training_end),
            "best": {"mixture": frontier.best.name, **_end_json(verdict.best_end)},
            "gain": finite_or_none(verdict.gain),
            "algorithms": {
                row: {
                    **_end_json(end),
                    "missed_by": finite_or_none(verdict.gaps[row]),
                    "found": row in verdict.found_by,
                }
                for row, end in verdict.ends.items()
            },
        },
        "mixtures": {
            mixture.name: {
                "label": mixture.label,
                "lambda": dict(zip(comparison.domain_names, mixture.weights)),
            }
            for mixture in frontier.mixtures
        },
        "results": comparison.to_json(),
    }


def to_csv(frontier: Frontier) -> str:
    """Returns a line for each mixture and algorithm: lambda, and the mean and standard deviation.

    Algorithms have no lambda, and what is not known is empty. Lines end as RFC 4180 has it.
    """
    comparison, measure = frontier.comparison, frontier.measure.name
    weights = {mixture.name: mixture.weights for mixture in frontier.mixtures}
    domains = comparison.domain_names
    measured = (*domains, WORST, OVERALL, DIFFERENCE)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(
        [
            *("row", "label", "kind"),
            *(f"lambda/{name}" for name in domains),
            *(f"{measure}/{name}" for name in measured),
            *(f"{measure} std/{name}" for name in measured),
        ]
    )
    for row, trials in comparison.trials.items():
        writer.writerow(
            [
                *(row, comparison.label(row), "mixture" if row in weights else "algorithm"),
                *weights.get(row, [None] * len(domains)),
                *(finite_or_none(trials.mean(name, measure)) for name in measured),
                *(finite_or_none(trials.std(name, measure)) for name in measured),
            ]
        )
    return text.getvalue()


def _worst_domain(frontier: Frontier, row: str) -> Optional[str]:
    """Returns the domain with the worst mean, of those that are counted in every trial."""
    comparison = frontier.comparison
    counted = [name for name in comparison.domain_names if name not in comparison.not_counted]
    known = [name for name in counted if not math.isnan(frontier.mean(row, name))]
    choose = min if frontier.measure.higher_is_better else max
    return choose(known, key=lambda name: frontier.mean(row, name)) if known else None


def _num_trials(frontier: Frontier) -> int:
    return len(next(iter(frontier.comparison.trials.values())).histories)


def _end_json(end: End) -> dict[str, Any]:
    return {"mean": finite_or_none(end.mean), "std": finite_or_none(end.spread)}
