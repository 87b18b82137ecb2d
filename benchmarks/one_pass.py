"""Compares AgnosticFedAvg, and TERM, with losses measured before and while clients train.

    .venv/bin/python -m benchmarks.one_pass --data_dir=FOLDER --output_dir=FOLDER --page=FILE.md

The data sets are the scoreboard's; those with missing files are skipped. The two methods of a pair
differ only in `--measure_losses`, and have the same seeds. A killed command resumes when it runs
again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from tabulate import tabulate

from benchmarks.scoreboard import DATA_SETS, DataSet
from tff_agnostic.algorithms.agnostic_fed_avg import AgnosticFedAvgOptions
from tff_agnostic.base.files import write_text
from tff_agnostic.metrics.formatting import cell, signed
from tff_agnostic.program import ComparedRuns, compare_runs
from tff_agnostic.program.runs.spec import RunSettings, resolve
from tff_agnostic.program.studies.comparison import OVERALL, WORST
from tff_agnostic.program.studies.gains import gain

_SMALL = ["digits", "adult", "hard_digits", "flights", "fashion_mnist", "speeches"]
_BEFORE, _WHILE = "before", "while"
_MANY_EPOCHS = 5
# Factor of the lambda learning rate in the second pair of methods.
_FASTER = 5.0
_DECIMALS = 3
_PLACES = ("task", "data_dir", "data")


class Pair(NamedTuple):
    """Settings that both methods of a pair have in addition to the data set's settings."""

    name: str
    settings: Mapping[str, Any]


class Methods(NamedTuple):
    """The compared methods on a data set.

    Attributes:
        pairs: Pairs of AgnosticFedAvg methods.
        rows: Settings of all methods, FedAvg and two per pair, keyed by the method's name.
    """

    pairs: list[Pair]
    rows: dict[str, RunSettings]


def methods(data: DataSet, read: Mapping[str, Any], is_small: bool) -> Methods:
    """Returns the compared methods on a data set.

    Args:
        read: Result of `DataSet.prepare`.
        is_small: Whether to add pairs with several local epochs, and of TERM.
    """
    options = {name: value for name, value in read.items() if name not in _PLACES}

    def settings(**changes: Any) -> RunSettings:
        shared = {**data.settings, **changes}
        places = read.get("data_dir"), read.get("data")
        return resolve(data.task, {}, options, *places, shared=shared)

    agnostic = settings(algorithm="agnostic_fed_avg")
    assert isinstance(agnostic.algorithm, AgnosticFedAvgOptions)
    rate, last = agnostic.algorithm.lambda_.learning_rate, agnostic.config.rounds
    pairs = [
        Pair(f"lambda rate {rate:g}", {}),
        Pair(f"lambda rate {_FASTER * rate:g}", {"lambda_learning_rate": _FASTER * rate}),
    ]
    if is_small:
        pairs.append(Pair(f"{_MANY_EPOCHS} epochs", {"client_epochs": _MANY_EPOCHS}))
        pairs.append(Pair("TERM", {"algorithm": "term"}))
    rows = {"FedAvg": settings(algorithm="fed_avg", evaluate_every=last)}
    for pair in pairs:
        for name, measured in ((_BEFORE, "before_training"), (_WHILE, "while_training")):
            fixed = {"algorithm": "agnostic_fed_avg", "evaluate_every": last}
            rows[f"{name} {pair.name}"] = settings(
                **{**fixed, "measure_losses": measured, **pair.settings}
            )
    return Methods(pairs, rows)


def table(pairs: Sequence[Pair], compared: ComparedRuns) -> str:
    """Returns a table with a line per pair of methods."""
    comparison = compared.comparison
    measure = comparison.main_measure

    def mean(row: str, domain: str) -> str:
        return cell(comparison.trials[row].mean(domain, measure.name), measure.unit, _DECIMALS)

    lines = [["FedAvg", mean("FedAvg", WORST), "", "", mean("FedAvg", OVERALL), ""]]
    for pair in pairs:
        before, after = f"{_BEFORE} {pair.name}", f"{_WHILE} {pair.name}"
        worst = gain(comparison, after, before, WORST, measure)
        ends = worst.interval()
        interval = (
            "no interval"
            if ends is None
            else " to ".join(signed(end, measure.unit, _DECIMALS) for end in ends)
        )
        lines.append(
            [
                pair.name,
                mean(before, WORST),
                mean(after, WORST),
                f"{signed(worst.mean, measure.unit, _DECIMALS)} ({interval})",
                mean(before, OVERALL),
                mean(after, OVERALL),
            ]
        )
    headers = [measure.name, "worst domain, before", "while", "difference (95% interval)"]
    headers += ["all, before", "while"]
    return tabulate(lines, headers=headers, tablefmt="github", disable_numparse=True)


def main(argv: Optional[Sequence[str]] = None) -> None:
    """Compares the methods on all data sets whose files exist, and writes a page of tables."""
    parser = argparse.ArgumentParser(prog="one_pass", description=__doc__)
    parser.add_argument("--data_dir", type=Path)
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--datasets", nargs="+", default=_SMALL, choices=list(DATA_SETS))
    parser.add_argument("--page", type=Path, help="file of the page [page.md in --output_dir]")
    parser.add_argument("--trials", type=int, default=5)
    values = parser.parse_args(argv)
    parts = []
    for name in values.datasets:
        data, folder = DATA_SETS[name], values.output_dir / name
        if lacking := data.lacks(values.data_dir):
            parts.append(f"## {name}\n\nIt was not run: it needs {', '.join(lacking)}.")
            continue
        read = data.prepare(values.data_dir, folder)
        # These pairs would take too long on the other data sets, where a run takes minutes.
        chosen = methods(data, read, is_small=name in _SMALL)
        compared = compare_runs(
            chosen.rows,
            folder / "runs",
            trials=values.trials,
            resume=True,
            show_progress=False,
        )
        parts.append(f"## {name}\n\n{data.title}.\n\n{table(chosen.pairs, compared)}")
        write_text(values.page or values.output_dir / "page.md", "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
