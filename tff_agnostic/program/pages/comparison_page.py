"""The page of a comparison: what algorithms attain for whom, and what that costs."""

from collections.abc import Sequence

from tff_agnostic.program.pages.blocks import (
    Block,
    Line,
    Name,
    Number,
    Page,
    Paragraph,
    Part,
    Section,
    Table,
    Warnings,
    in_line,
)
from tff_agnostic.program.pages.caveats import data_caveats, training_caveats
from tff_agnostic.program.pages.comparison_price import BASELINE, price_section
from tff_agnostic.program.pages.comparison_record import ComparisonRecord
from tff_agnostic.program.pages.comparison_results import by_domain, over_clients, summaries
from tff_agnostic.program.pages.course import curves_of, weight_quantity
from tff_agnostic.program.pages.details import data_section, measure_facts, use_section
from tff_agnostic.program.pages.reproduction import (
    NOT_FLAGS,
    command_blocks,
    setting_value,
    versions_blocks,
)
from tff_agnostic.program.pages.server_view import server_section

# Rows whose weights are drawn.
_MAX_CURVES = 5
# Warnings of one row; those of its other trials are alike.
_MAX_OF_ROW = 3


def comparison_page(record: ComparisonRecord, command: Sequence[str]) -> Page:
    """Returns the page.

    Args:
        record: The comparison.
        command: The command that makes it again.
    """
    comparison, first = record.comparison, record.first
    names = [comparison.label(row) for row in comparison.trials]
    count = max(len(runs) for runs in record.runs.values())
    return Page(
        f"Comparison on {first.result['task']}",
        [
            *in_line(names),
            f": {count} trial{'s' * (count > 1)} each. Numbers are those of compare.json: means "
            "over the trials and, in parentheses, standard deviations.",
        ],
        [
            Section("summary", "In short", summaries(record)),
            _caveats(record),
            Section("rows", "What was compared", [_rows(record)]),
            use_section(comparison.domain_names),
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
        ],
    )


def _caveats(record: ComparisonRecord) -> Section:
    lines: list[Line] = list(data_caveats(record.first))
    for row, runs in record.runs.items():
        of_row: list[Line] = []
        for k, run in enumerate(runs):
            for line in training_caveats(run):
                parts = [line] if isinstance(line, (str, Name, Number)) else list(line)
                label = Name(record.comparison.label(row))
                of_row.append([label, f", trial {k + 1} (seed {run.result['seed']}): ", *parts])
        more = len(of_row) - _MAX_OF_ROW
        lines += of_row[:_MAX_OF_ROW]
        if more > 0:
            lines.append([Name(record.comparison.label(row)), f": {more} more of the kind."])
    if max(map(len, record.runs.values())) == 1:
        lines.append(
            "There is a single trial of each row: how much another seed would change is not known."
        )
    return Section("caveats", "What to know first", [Warnings(lines)] if lines else [])


def _rows(record: ComparisonRecord) -> Table:
    settings = {row: dict(runs[0].config) for row, runs in record.runs.items()}
    told_elsewhere = ("algorithm", "seed", *NOT_FLAGS)
    names = dict.fromkeys(n for of in settings.values() for n in of if n not in told_elsewhere)
    rows: list[Sequence[Line]] = []
    for row, runs in record.runs.items():
        own: list[Part] = []
        for name in names:
            if name in settings[row] and any(
                of.get(name) != settings[row][name] for of in settings.values()
            ):
                own += [", "] if own else []
                own += [f"--{name}=", setting_value(settings[row][name])]
        about = runs[0].about
        rows.append(
            [
                Name(record.comparison.label(row)),
                f"{runs[0].result['algorithm']}"
                + (f" ({about.get('algorithm', 'paper')})" if about.get("algorithm") else ""),
                ", ".join(str(run.result["seed"]) for run in runs),
                own or "-",
            ]
        )
    headings = ["", "algorithm", "seeds", "settings that not all have"]
    return Table("Every row trains on the same data", headings, rows)


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
