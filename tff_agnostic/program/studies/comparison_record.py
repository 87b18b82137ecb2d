"""A comparison read back from its folder, and what one algorithm gains over another."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_json
from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.formatting import signed, with_percent
from tff_agnostic.models.model import Measure
from tff_agnostic.program.reports.page import (
    DECIMALS,
    Block,
    Line,
    Name,
    Number,
    Paragraph,
    Part,
    Section,
    Source,
    Table,
    in_line,
)
from tff_agnostic.program.reports.run_record import RunRecord, read_run
from tff_agnostic.program.studies.comparison import (
    COMPARISON_FILE,
    LABELS,
    OVERALL,
    REMARKS,
    WORST,
    Comparison,
    collect,
    trial_folder,
)
from tff_agnostic.program.studies.gains import Gain, gains
from tff_agnostic.program.studies.verdict import POOLED, baseline_row

COMPARE = "compare.json"
_NUM_CLIENTS = "num_clients"


@dataclasses.dataclass(frozen=True)
class ComparisonRecord:
    """What a comparison left.

    Attributes:
        comparison: Its trials.
        content: compare.json.
        runs: The trials of each row.
    """

    comparison: Comparison
    content: Mapping[str, Any]
    runs: Mapping[str, Sequence[RunRecord]]

    @property
    def source(self) -> Source:
        """Where its numbers are from."""
        return Source(COMPARE, self.content)

    @property
    def is_private(self) -> bool:
        """Whether any of the trials was trained with differential privacy."""
        return any(run.is_private for runs in self.runs.values() for run in runs)

    @property
    def algorithms(self) -> dict[str, str]:
        """The algorithm of each row; `POOLED` of one that is not federated."""
        results = {row: runs[0].result for row, runs in self.runs.items()}
        return {r: POOLED if of.get("pooled") else of["algorithm"] for r, of in results.items()}

    @property
    def first(self) -> RunRecord:
        """The first trial of the first row."""
        return next(iter(self.runs.values()))[0]


def read_comparison(folder: Path) -> ComparisonRecord:
    """Reads the files of a comparison in its folder."""
    path = folder / COMPARE
    return read_rows(path, read_json(path), "compare")


def read_rows(path: Path, content: Any, command: str) -> ComparisonRecord:
    """Returns the trials of rows, whose folders are beside a file of their results.

    Args:
        content: What it has of the rows, as `Comparison.to_json` has it.
        command: What wrote it.
    """
    folder = path.parent
    own = read_json(folder / COMPARISON_FILE)
    try:
        counts = {row: _num_trials(domains) for row, domains in content.items()}
    except (AttributeError, LookupError, StopIteration, TypeError):
        counts = {}
    if not counts or not all(counts.values()):
        raise UserError(f"{path}: expected rows of trials, found something else")
    folders = {row: [trial_folder(folder, row, k) for k in range(n)] for row, n in counts.items()}
    runs = {
        row: [read_run(t.path, f"{t.path.relative_to(folder)}/") for t in trials]
        for row, trials in folders.items()
    }
    first = next(iter(runs.values()))[0]
    fewest = {
        row: [int(run.result["worst_min_examples"]) for run in of] for row, of in runs.items()
    }
    over_clients = first.result["overall"]["over_clients"].values()
    statistics = dict.fromkeys(s for of in over_clients for s in of if s != _NUM_CLIENTS)
    trials = {
        row: collect(of, first.domains, first.measures, fewest[row], tuple(statistics))
        for row, of in folders.items()
    }
    comparison = Comparison(
        first.domains,
        first.measures,
        trials,
        {row: str(label) for row, label in own.get(LABELS, {}).items()},
        first.split,
        max(max(numbers) for numbers in fewest.values()),
        {row: str(text) for row, text in own.get(REMARKS, {}).items() if row in trials},
    )
    _check_same_trials(path, content, comparison, command)
    return ComparisonRecord(comparison, content, runs)


def _check_same_trials(
    path: Path, content: Mapping[str, Any], comparison: Comparison, command: str
) -> None:
    of_trials = comparison.to_json()
    for row, domains in of_trials.items():
        if _trials(content[row]) != _trials(domains):
            raise UserError(
                f"{path}: expected the results of the trials of {row} that are there, found "
                f"others: let {command} go on to its end (--resume) first"
            )
    wrong = next(_different(content, of_trials, ()), None)
    if wrong is not None:
        keys, expected, found = wrong
        raise UserError(
            f"{path}: {': '.join(keys):.200}: expected {expected}, which is worked out from the "
            f"trials that are there, found {found!r:.100}: {command} --resume writes the file again"
        )


def _different(
    found: Any, expected: Any, keys: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yields (keys, expected, found) of values that differ, of keys that both mappings have."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in expected:
            if key in found:
                yield from _different(found[key], expected[key], (*keys, key))
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for k, (one, other) in enumerate(zip(found, expected)):
            yield from _different(one, other, (*keys, str(k)))
    elif not _is_same(found, expected):
        yield keys, expected, found


def _is_same(found: Any, expected: Any) -> bool:
    if isinstance(found, (int, float)) and isinstance(expected, (int, float)):
        # Another NumPy may add up in another order.
        return math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-9)
    return bool(found == expected)


def _trials(domains: Mapping[str, Any]) -> dict[str, Any]:
    return {measure: of["trials"] for measure, of in domains[OVERALL].items()}


def _num_trials(domains: Mapping[str, Any]) -> int:
    return len(next(iter(_trials(domains).values())))


def majority(examples: Mapping[str, int]) -> Sequence[str]:
    """Returns the fewest domains that together have more than half of the examples.

    Args:
        examples: Of each domain.
    """
    total, reached, found = sum(examples.values()), 0, []
    for name in sorted(examples, key=lambda n: -examples[n]):
        if 2 * reached > total or not examples[name]:
            break
        found.append(name)
        reached += examples[name]
    return found


def price_section(record: ComparisonRecord) -> Section:
    """Returns gains over FedAvg, or over the first row where FedAvg is none of them."""
    comparison = record.comparison
    rows = list(comparison.trials)
    if len(rows) < 2:
        return Section("price", "The price", [])
    baseline = baseline_row(record.algorithms)
    label = Name(comparison.label(baseline))
    names = _majority(record)
    blocks: list[Block] = [
        Paragraph(
            [
                "By how much each row is better than ",
                label,
                "; negative numbers are what somebody pays. In brackets 95% confidence intervals "
                f"for {_over(record)}, each by itself, of differences between trials of the same "
                "seed.",
            ]
        )
    ]
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        listed = in_line(names[:3])
        blocks.append(
            Paragraph(
                [
                    "The majority: ",
                    *listed,
                    f"{more}, the fewest domains with more than half of the training examples.",
                ]
            )
        )
    for measure in comparison.measures.values():
        blocks.append(_table(record, measure, baseline, names))
    return Section("price", "The price", blocks)


def _over(record: ComparisonRecord) -> str:
    split = record.comparison.split
    if all(trials.resampled for trials in record.comparison.trials.values()):
        return f"other {split} clients and other seeds"
    return f"other seeds: the {split} clients are not in these intervals"


def _table(
    record: ComparisonRecord, measure: Measure, baseline: str, names: Sequence[str]
) -> Table:
    lines: list[Sequence[Line]] = []
    for row in record.comparison.trials:
        if row == baseline:
            continue
        found = gains(record.comparison, row, baseline, measure)
        of_domains = {d: found[d] for d in record.comparison.domain_names}
        lost = [d for d, gain in of_domains.items() if gain.mean < 0]
        paying = min(lost, key=lambda name: of_domains[name].mean, default="")
        of_majority = min((of_domains[d] for d in names), key=lambda gain: gain.mean, default=None)
        lines.append(
            [
                Name(record.comparison.label(row)),
                _shown(found[WORST], measure.unit),
                "-" if of_majority is None else _shown(of_majority, measure.unit),
                _shown(found[OVERALL], measure.unit),
                f"{len(lost)} of {len(of_domains)}",
                [Name(paying), " ", *_shown(of_domains[paying], measure.unit)] if lost else "-",
            ]
        )
    headings = [
        "",
        "worst domain",
        "majority (its worst off)" if len(names) > 1 else "majority",
        "all examples",
        "domains that lose",
        "who loses most",
    ]
    return Table(f"Gain in {with_percent(measure.name, measure.unit)}", headings, lines)


def _majority(record: ComparisonRecord) -> Sequence[str]:
    domains: Any = record.first.about.get("data", "train", "domains")
    if not domains:
        return ()
    return majority({name: domain["examples"] for name, domain in domains.items()})


def _shown(gain: Gain, unit: Unit) -> list[Part]:
    parts: list[Part] = [_signed(gain.mean, unit)]
    interval = gain.interval()
    if interval is not None:
        low, high = interval
        parts += [" [", _signed(low, unit), ", ", _signed(high, unit), "]"]
    return parts


def _signed(value: float, unit: Unit) -> Number:
    return Number(signed(value, unit, DECIMALS), None if value != value else value)
