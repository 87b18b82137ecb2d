"""A comparison as its folder tells of it: compare.json, and what the trials left."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.errors import UserError
from tff_agnostic.files import read_json
from tff_agnostic.models.measures import Measure
from tff_agnostic.program.comparing.comparison import Comparison
from tff_agnostic.program.comparing.comparison_folder import COMPARISON_FILE, LABELS, trial_folder
from tff_agnostic.program.comparing.trial_results import OVERALL, collect
from tff_agnostic.program.pages.blocks import Source
from tff_agnostic.program.pages.run_record import RunRecord, read_run

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
    def first(self) -> RunRecord:
        """The first trial of the first row."""
        return next(iter(self.runs.values()))[0]


def read_comparison(folder: Path, measures: Optional[Mapping[str, Any]] = None) -> ComparisonRecord:
    """Returns what a comparison left in its folder.

    Args:
        folder: The folder.
        measures: What was measured, where the trials do not say so; see `read_run`.

    Raises:
        UserError: If a file is missing or damaged, or trials have gone on since compare.json was
            written.
    """
    content, own = read_json(folder / COMPARE), read_json(folder / COMPARISON_FILE)
    try:
        counts = {row: _num_trials(domains) for row, domains in content.items()}
    except (AttributeError, LookupError, StopIteration, TypeError):
        counts = {}
    if not counts or not all(counts.values()):
        raise UserError(f"{folder / COMPARE}: expected rows of trials, found something else")
    folders = {row: [trial_folder(folder, row, k) for k in range(n)] for row, n in counts.items()}
    runs = {
        row: [read_run(t.path, measures, f"{t.path.relative_to(folder)}/") for t in trials]
        for row, trials in folders.items()
    }
    first = next(iter(runs.values()))[0]
    measured = {
        m.name: Measure(m.name, m.unit, m.higher_is_better, None) for m in first.measures.values()
    }
    fewest = {
        row: [int(r.result.get("worst_min_examples", 1)) for r in of] for row, of in runs.items()
    }
    over_clients = first.result["overall"]["over_clients"].values()
    statistics = dict.fromkeys(s for of in over_clients for s in of if s != _NUM_CLIENTS)
    trials = {
        row: collect(of, first.domains, measured, fewest[row], tuple(statistics))
        for row, of in folders.items()
    }
    comparison = Comparison(
        first.domains,
        measured,
        trials,
        {row: str(label) for row, label in (own.get(LABELS) or {}).items()},
        first.split,
        max(max(numbers) for numbers in fewest.values()),
    )
    _check_same_trials(folder, content, comparison)
    return ComparisonRecord(comparison, content, runs)


def _check_same_trials(folder: Path, content: Mapping[str, Any], comparison: Comparison) -> None:
    for row, domains in comparison.to_json().items():
        if _trials(content[row]) != _trials(domains):
            raise UserError(
                f"{folder / COMPARE}: expected the results of the trials of {row} that are there, "
                "found others: let the comparison go on to its end (--resume) first"
            )
    wrong = next(_different(content, comparison.to_json(), ()), None)
    if wrong is not None:
        keys, expected, found = wrong
        raise UserError(
            f"{folder / COMPARE}: {': '.join(keys):.200}: expected {expected}, which is worked out "
            f"from the trials that are there, found {found!r:.100}: compare --resume writes the "
            "file again"
        )


def _different(
    found: Any, expected: Any, keys: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yields (keys, expected, found) of values that differ; what only one of them has does not.

    An earlier release wrote less.
    """
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
