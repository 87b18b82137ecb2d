"""What the rows of a comparison attain: in short, domain by domain, and over clients."""

import functools
from collections.abc import Sequence

from tff_agnostic.models.measures import Measure
from tff_agnostic.program.comparing.comparison import OVER_CLIENTS
from tff_agnostic.program.comparing.comparison_figure import figure
from tff_agnostic.program.comparing.trial_results import DIFFERENCE, OVERALL, WORST
from tff_agnostic.program.pages.blocks import Block, Line, Name, Part, Picture, Table
from tff_agnostic.program.pages.client_curves import client_curves
from tff_agnostic.program.pages.comparison_record import ComparisonRecord
from tff_agnostic.program.reporting.cells import with_percent

# Columns of a table that fit on a printed page.
_MAX_COLUMNS = 5
_SUMMARIES = {WORST: "worst domain", OVERALL: "all examples", DIFFERENCE: "best - worst"}


def summaries(record: ComparisonRecord) -> list[Block]:
    """Returns a table of each measure: the worst domain, all examples, the worst of the clients."""
    comparison = record.comparison
    headings = ["", *_SUMMARIES.values(), "worst tenth of clients"]
    blocks: list[Block] = []
    for measure in comparison.measures.values():
        rows: list[Sequence[Line]] = [
            [
                Name(comparison.label(row)),
                *(_mean(record, measure, row, summary) for summary in _SUMMARIES),
                _mean(record, measure, row, OVER_CLIENTS, "superquantile"),
            ]
            for row in comparison.trials
        ]
        blocks.append(Table(_caption(measure, comparison.split), headings, rows))
    return blocks


def by_domain(record: ComparisonRecord) -> list[Block]:
    """Returns tables and a figure of each measure; the first row's worst domain comes first."""
    comparison = record.comparison
    blocks: list[Block] = []
    for measure in comparison.measures.values():
        first = next(iter(comparison.trials))
        sign = 1.0 if measure.higher_is_better else -1.0
        means = {
            n: sign * comparison.trials[first].mean(n, measure.name)
            for n in comparison.domain_names
        }
        names = sorted(means, key=lambda n: (means[n] != means[n], means[n]))
        blocks += _tables(
            record,
            _caption(measure, comparison.split),
            [
                *((Name(name), (name,)) for name in names),
                *((title, (summary,)) for summary, title in _SUMMARIES.items()),
            ],
            measure,
        )
        blocks.append(
            Picture(
                functools.partial(figure, comparison, measure.name),
                f"{measure.name} of the worst domain over the rounds, and of every domain at the "
                "end, sorted by the first row, the worst on top; bands and error bars are one "
                "standard deviation over the trials",
            )
        )
    return blocks


def over_clients(record: ComparisonRecord) -> list[Block]:
    """Returns the statistics of the clients' values, and figures of them all."""
    comparison = record.comparison
    blocks: list[Block] = []
    for measure in comparison.measures.values():
        reported = (name for of in comparison.trials.values() for name in of.over_clients)
        statistics = dict.fromkeys(reported)
        if not statistics:
            continue
        caption = f"{_caption(measure, comparison.split)}, over clients, each counted once"
        lines = [(name, (OVER_CLIENTS, name)) for name in statistics]
        blocks += _tables(record, caption, lines, measure)
        values = {
            comparison.label(row): runs[0].result["client_values"][measure.name]
            for row, runs in record.runs.items()
            if measure.name in (runs[0].result.get("client_values") or {})
        }
        if values:
            facts = record.first.measures[measure.name]
            blocks.append(
                Picture(
                    functools.partial(client_curves, facts, values, comparison.split),
                    f"{measure.name} in the first trial of each row: the share of the clients with "
                    "a value up to that, and the mean of the clients by their number of examples",
                )
            )
    return blocks


def _tables(
    record: ComparisonRecord,
    caption: str,
    lines: Sequence[tuple[Part, Sequence[str]]],
    measure: Measure,
) -> list[Block]:
    """Returns a measure with a column for each row of the comparison, of few columns each."""
    all_rows = list(record.comparison.trials)
    parts = [all_rows[i : i + _MAX_COLUMNS] for i in range(0, len(all_rows), _MAX_COLUMNS)]
    return [
        Table(
            caption if len(parts) == 1 else f"{caption} (part {k + 1} of {len(parts)})",
            ["", *(Name(record.comparison.label(row)) for row in rows)],
            [
                [title, *(_mean(record, measure, row, *keys) for row in rows)]
                for title, keys in lines
            ],
        )
        for k, rows in enumerate(parts)
    ]


def _mean(record: ComparisonRecord, measure: Measure, row: str, *keys: str) -> Line:
    source = record.source.below(row, *keys, measure.name)
    mean = source.number("mean", unit=measure.unit)
    std = source.number("std", unit=measure.unit)
    return mean if std.value is None else [mean, " (", std, ")"]


def _caption(measure: Measure, split: str) -> str:
    better = "higher" if measure.higher_is_better else "lower"
    return f"{with_percent(measure.name, measure.unit)} on the {split} clients ({better} is better)"
