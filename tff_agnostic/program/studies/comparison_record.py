"""A comparison read back from its folder."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import read_json
from tff_agnostic.program.reports.run_record import RunRecord, read_run
from tff_agnostic.program.studies.comparison import (
    COMPARISON_FILE,
    LABELS,
    OVERALL,
    REMARKS,
    Comparison,
    collect,
    trial_folder,
)
from tff_agnostic.program.studies.verdict import POOLED

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
