"""report.html of a comparison."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Optional

from tff_agnostic.base.errors import agreeing, counted
from tff_agnostic.metrics.formatting import sentence
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.distributions import worst_first
from tff_agnostic.program.reports.page import (
    Block,
    Bullets,
    Fold,
    Line,
    Link,
    Name,
    Page,
    Paragraph,
    Part,
    Picture,
    Section,
    Table,
    Warnings,
    in_line,
    parts_of,
)
from tff_agnostic.program.reports.run_page import (
    NOT_FLAGS,
    command_blocks,
    data_section,
    measure_facts,
    server_section,
    setting_value,
    use_section,
    versions_blocks,
)
from tff_agnostic.program.reports.run_page import REPORT as REPORT_FILE
from tff_agnostic.program.reports.run_record import (
    RunRecord,
    data_caveats,
    harm,
    metrics_first,
    training_caveats,
    weight_quantity,
)
from tff_agnostic.program.reports.run_sections import curves_of
from tff_agnostic.program.studies.comparison import DIFFERENCE, OVER_CLIENTS, OVERALL, WORST
from tff_agnostic.program.studies.comparison_record import ComparisonRecord, price_section
from tff_agnostic.program.studies.comparison_report import (
    ALIKE,
    alike_notes,
    caption,
    client_figures,
    domain_series,
    figure,
)
from tff_agnostic.program.studies.gains import alike, gains
from tff_agnostic.program.studies.methods import BASELINE
from tff_agnostic.program.studies.verdict import baseline_row, verdict_figure, verdicts

# Rows whose weights are drawn.
_MAX_CURVES = 5
# Warnings of one row; those of its other trials are alike.
_MAX_OF_ROW = 3
# Rows whose domains are drawn before and after.
_MAX_PICTURES = 3
# Columns of a table that fit on a printed page.
_MAX_COLUMNS = 5
_SUMMARIES = {WORST: "worst domain", OVERALL: "all examples", DIFFERENCE: "best - worst"}


def comparison_page(
    record: ComparisonRecord,
    command: Sequence[str],
    given_up: Sequence[str] = (),
    title: Optional[str] = None,
) -> Page:
    """Returns the page.

    Args:
        title: Its heading; what was compared if None.
        given_up: A line for each domain that a row gave up; see `harmed`.
    """
    comparison, first = record.comparison, record.first
    names = [comparison.label(row) for row in comparison.trials]
    count = max(len(runs) for runs in record.runs.values())
    return Page(
        title or usual_title(record),
        [
            *in_line(names),
            f": {counted(count, 'trial')} each. Numbers are those of compare.json: means over the "
            "trials and, in parentheses, standard deviations.",
        ],
        [
            Section("verdict", "The verdict", _verdict(record)),
            Section("summary", "In short", [*_harm(record, given_up), *summaries(record)]),
            _caveats(record),
            Section("rows", "What was compared", _rows(record)),
            data_section(first, record.is_private),
            Section("measures", "What was measured", [measure_facts(first)]),
            Section("domains", "Results by domain", by_domain(record)),
            price_section(record),
            Section("clients", "The tail of the clients", over_clients(record)),
            Section("weights", "What domains weighed", _weights(record)),
            _server(record),
            Section(
                "again",
                "How to make it again",
                [
                    *command_blocks(command, record.is_private),
                    *versions_blocks(first),
                ],
            ),
            use_section(comparison.domain_names),
        ],
    )


def usual_title(record: ComparisonRecord) -> str:
    """Returns what the page of a comparison is called where nobody says."""
    return f"Comparison on {record.first.result['task']}"


def _verdict(record: ComparisonRecord) -> list[Block]:
    """Returns the sentences, and a picture for each of the first rows."""
    comparison, baseline = record.comparison, baseline_row(record.algorithms)
    lines = verdicts(comparison, record.algorithms)
    if not lines:
        return []
    measure = comparison.main_measure
    rows = [row for row in comparison.trials if row != baseline]
    pictures = [
        Picture(
            functools.partial(
                verdict_figure,
                comparison,
                row,
                baseline,
                measure,
                gains(comparison, row, baseline, measure),
            ),
            f"{measure.name} of {comparison.label(baseline)} and of {comparison.label(row)} in "
            "each domain, and what it gains there; error bars are 95% intervals, of the gains "
            "such that they hold for all domains at once",
        )
        for row in rows[:_MAX_PICTURES]
    ]
    return [Bullets(lines), *pictures]


def _harm(record: ComparisonRecord, given_up: Sequence[str]) -> list[Block]:
    lines: list[Line] = [f"{line}." for line in given_up]
    lines += _of_rows(record, harm)
    return [Warnings(lines)] if lines else []


def _of_rows(
    record: ComparisonRecord, lines_of: Callable[[RunRecord], Sequence[Line]]
) -> list[Line]:
    """Returns what is said of the trials of each row, of each row some."""
    lines: list[Line] = []
    for row, runs in record.runs.items():
        of_row: list[Line] = []
        for k, run in enumerate(runs):
            for line in lines_of(run):
                label = Name(record.comparison.label(row))
                where = f", trial {k + 1} (seed {run.result['seed']}): "
                of_row.append([label, where, *parts_of(line)])
        more = len(of_row) - _MAX_OF_ROW
        lines += of_row[:_MAX_OF_ROW]
        if more > 0:
            lines.append([Name(record.comparison.label(row)), f": {more} more of the kind."])
    return lines


def _caveats(record: ComparisonRecord) -> Section:
    of_rows = record.comparison.remarks.items()
    lines: list[Line] = [
        [Name(record.comparison.label(row)), f": {text}."] for row, text in of_rows
    ]
    lines += [*data_caveats(record.first), *_of_rows(record, training_caveats)]
    if max(map(len, record.runs.values())) == 1:
        lines.append(
            "There is a single trial of each row: how much another seed would change is not known."
        )
    return Section("caveats", "What to know first", [Warnings(lines)] if lines else [])


def _rows(record: ComparisonRecord) -> list[Block]:
    settings = {row: dict(runs[0].config) for row, runs in record.runs.items()}
    told_elsewhere = ("algorithm", "seed", *NOT_FLAGS)
    names = dict.fromkeys(n for of in settings.values() for n in of if n not in told_elsewhere)
    # What rows have alike hides what differs.
    folded: dict[tuple[str, ...], list[str]] = {}
    different = []
    for name in names:
        having = tuple(row for row, of in settings.items() if name in of)
        if any(settings[row][name] != settings[having[0]][name] for row in having):
            different.append(name)
        else:
            folded.setdefault(having, []).append(name)
    rows: list[Sequence[Line]] = []
    for row, runs in record.runs.items():
        about = runs[0].about
        rows.append(
            [
                Name(record.comparison.label(row)),
                f"{runs[0].result['algorithm']}"
                + (f" ({about.get('algorithm', 'paper')})" if about.get("algorithm") else ""),
                _seeds(runs),
                _flags(settings[row], different) or "-",
            ]
        )
    alike: list[Line] = [
        [*_having(record, having), *_flags(settings[having[0]], of), "."]
        for having, of in folded.items()
    ]
    headings = ["", "algorithm", "seeds (each a page)", "settings that differ"]
    table = Table("Every row trains on the same data", headings, rows)
    return [table, *([Fold("Settings that do not differ", alike)] if alike else [])]


def _seeds(runs: Sequence[RunRecord]) -> list[Part]:
    """Returns the seeds of a row, with a link to the page of each run."""
    parts: list[Part] = []
    for run in runs:
        parts += [", "] if parts else []
        parts.append(Link(str(run.result["seed"]), f"{run.where}{REPORT_FILE}"))
    return parts


def _having(record: ComparisonRecord, rows: Sequence[str]) -> list[Part]:
    if len(rows) == len(record.runs):
        return ["All rows have "]
    names = in_line([record.comparison.label(row) for row in rows])
    return [*names, f" alone {agreeing(len(rows), 'has', 'have')} "]


def _flags(settings: Mapping[str, Any], names: Sequence[str]) -> list[Part]:
    parts: list[Part] = []
    for name in names:
        if name in settings:
            parts += [", "] if parts else []
            parts += [f"--{name}=", setting_value(settings[name])]
    return parts


def _weights(record: ComparisonRecord) -> list[Block]:
    quantities = {row: weight_quantity(runs[0]) for row, runs in record.runs.items()}
    # What FedAvg has is the data's, and tells nothing of an algorithm.
    of_data = {
        quantity.name
        for row, quantity in quantities.items()
        if quantity is not None and record.runs[row][0].result["algorithm"] == BASELINE
    }
    blocks: list[Block] = []
    for row, runs in record.runs.items():
        quantity = quantities[row]
        if quantity is None or quantity.name in of_data or not quantity.is_drawn:
            continue
        if len(blocks) < 2 * _MAX_CURVES:
            label = Name(record.comparison.label(row))
            blocks += [Paragraph([label, ", first trial:"]), curves_of(runs[0], quantity)]
    return blocks


def _server(record: ComparisonRecord) -> Section:
    """Returns what the server saw, once for all rows of which the same is true."""
    alike: dict[str, tuple[list[str], Sequence[Block]]] = {}
    for row, runs in record.runs.items():
        blocks = server_section(runs[0]).blocks
        names, _ = alike.setdefault(repr(blocks), ([], blocks))
        names.append(record.comparison.label(row))
    found: list[Block] = []
    for names, blocks in alike.values():
        if len(alike) > 1:
            found.append(Paragraph([*in_line(names), ":"]))
        found += blocks
    return Section("server", "What the server saw", found)


def summaries(record: ComparisonRecord) -> list[Block]:
    """Returns a table of each measure: the worst domain, all examples, the worst of the clients."""
    comparison = record.comparison
    headings = ["", *_SUMMARIES.values(), "worst tenth of clients"]
    blocks: list[Block] = []
    for measure in metrics_first(comparison.measures):
        same = {summary: _same(record, measure, summary) for summary in _SUMMARIES}
        rows: list[Sequence[Line]] = [
            [
                Name(comparison.label(row)),
                *(_mean(record, measure, row, of, same=same[of]) for of in _SUMMARIES),
                _mean(record, measure, row, OVER_CLIENTS, "superquantile"),
            ]
            for row in comparison.trials
        ]
        blocks.append(Table(caption(measure, comparison.split), headings, rows))
    return [*blocks, *(Paragraph(sentence(note)) for note in alike_notes(comparison))]


def by_domain(record: ComparisonRecord) -> list[Block]:
    """Returns tables and a figure of each measure; the first row's worst domain comes first."""
    comparison = record.comparison
    blocks: list[Block] = []
    for measure in metrics_first(comparison.measures):
        names = worst_first(domain_series(comparison, measure.name), measure.higher_is_better)
        blocks += _tables(
            record,
            caption(measure, comparison.split),
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
    for measure in metrics_first(comparison.measures):
        reported = (name for of in comparison.trials.values() for name in of.over_clients)
        statistics = dict.fromkeys(reported)
        if not statistics:
            continue
        what = f"{caption(measure, comparison.split)}, over clients, each counted once"
        lines = [(name, (OVER_CLIENTS, name)) for name in statistics]
        blocks += _tables(record, what, lines, measure)
        if draw := client_figures(comparison).get(measure.name):
            blocks.append(
                Picture(
                    draw,
                    f"{measure.name} in all trials of each row: the share of the clients with a "
                    "value up to that, and the mean of the clients by their number of examples, "
                    "with one standard deviation over the trials",
                )
            )
    return blocks


def _tables(
    record: ComparisonRecord,
    what: str,
    lines: Sequence[tuple[Part, Sequence[str]]],
    measure: Measure,
) -> list[Block]:
    """Returns a measure with a column for each row of the comparison, of few columns each."""
    all_rows = list(record.comparison.trials)
    same = {tuple(keys): _same(record, measure, *keys) for _, keys in lines}
    parts = [all_rows[i : i + _MAX_COLUMNS] for i in range(0, len(all_rows), _MAX_COLUMNS)]
    return [
        Table(
            what if len(parts) == 1 else f"{what} (part {k + 1} of {len(parts)})",
            ["", *(Name(record.comparison.label(row)) for row in rows)],
            [
                [
                    title,
                    *(_mean(record, measure, row, *keys, same=same[tuple(keys)]) for row in rows),
                ]
                for title, keys in lines
            ],
        )
        for k, rows in enumerate(parts)
    ]


def _mean(
    record: ComparisonRecord, measure: Measure, row: str, *keys: str, same: Collection[str] = ()
) -> Line:
    parts = record.source.mean(row, *keys, measure.name, unit=measure.unit)
    return [*parts, ALIKE] if row in same else parts


def _same(record: ComparisonRecord, measure: Measure, *keys: str) -> Collection[str]:
    """Returns the rows whose number is to be marked; see `alike`."""
    if len(keys) > 1 or keys[0] == DIFFERENCE:
        return ()
    return alike(record.comparison, keys[0], measure)
