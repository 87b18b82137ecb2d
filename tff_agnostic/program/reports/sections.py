"""Sections that pages of runs and of studies share: data, measures, commands, versions."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

from tff_agnostic.base.report_fields import Unit
from tff_agnostic.metrics.formatting import with_percent
from tff_agnostic.program.reports.claims import split_name
from tff_agnostic.program.reports.document import (
    Block,
    Cell,
    Number,
    Sentences,
    Table,
    names,
    text,
)
from tff_agnostic.program.reports.run_record import RunRecord, metrics_first, number

# Keys of config.json that are not settings.
NOT_FLAGS = ("format", "execution")
TAIL = "CVaR (worst 10% of clients)"
_MAX_CLASSES = 20
# Matches the folders of paths in an argument such as "--arms=mine=/home/me/a.py:q=1;...".
_FOLDERS = re.compile(r"(?<![^=,;:])/(?:[^/,;:=]+/)*(?=[^/,;:=])")


def data_blocks(run: RunRecord, is_private: bool) -> list[Block]:
    """Returns clients and examples of each domain ("Training Data", "Evaluation Data").

    Args:
        run: A run on the data.
        is_private: Whether any model on the page was trained with differential privacy.
    """
    splits = {"train": "training", "evaluated": split_name(run.split)}
    counts = {split: run.about("data", split, "domains") for split in splits}
    totals = {
        split: sum(domain["examples"] for domain in domains.values()) if domains else None
        for split, domains in counts.items()
    }

    def domain_cells(split: str, name: str) -> list[Cell]:
        domain, total = (counts[split] or {}).get(name, {}), totals[split]
        share = domain["examples"] / total if total else None
        numbers: list[Cell] = [number(domain.get(key)) for key in ("clients", "examples")]
        return [*numbers, Number(share, Unit.SHARE, 3)]

    rows: list[Sequence[Cell]] = [
        [name, *(part for split in splits for part in domain_cells(split, name))]
        for name in run.domains
    ]
    in_all: list[Cell] = ["in all"]
    for split in splits:
        in_all += [number(run.about("data", split, "clients")), number(totals[split]), ""]
    headings = ["domain"]
    for what in splits.values():
        headings += [f"{what} clients", f"{what} examples", "share, %"]
    notes = [
        f"Examples of the {what} clients {_why_missing(run, split)}."
        for split, what in splits.items()
        if counts[split] is None
    ]
    notes.append("A client may have examples of several domains.")
    if is_private and any(counts.values()):
        notes.append("These counts are exact: no epsilon covers them.")
    return [Table("Clients and examples of each domain", headings, [*rows, in_all], notes)]


def _why_missing(run: RunRecord, split: str) -> str:
    """Returns the reason why the page has no counts of a split's examples."""
    guarantee = run.has_noisy_numbers if split == "evaluated" else run.is_private
    if guarantee:
        return "are not shown: the run is private"
    return "were not counted: all of them would have to be read"


def measure_facts(run: RunRecord) -> Table:
    """Returns a description of each measure."""
    rows: list[Sequence[Cell]] = [
        (measure.name, with_percent(f"{measure.better} is better", measure.unit, "in percent"))
        for measure in metrics_first(run.measures)
    ]
    share = run.result["superquantile_share"]
    rows.append((TAIL, f"the mean of the worst {share:.0%} of the clients, each counted once"))
    classes = run.about("model", "classes")
    if classes:
        rows.append(("Classes", f"{len(classes)}: {names(list(map(str, classes)), _MAX_CLASSES)}"))
    return Table("", (), rows)


def command_blocks(command: Optional[Sequence[str]], is_private: bool) -> list[Block]:
    """Returns a command, and the conditions under which it gives equal numbers.

    Args:
        command: Arguments of the command; None if they are unknown.
        is_private: Whether the noise of the training is secret.
    """
    if not command:
        return text("The command is not known here; all settings are below.")
    but = ", except for the noise and the cohorts of private training, which are secret"
    conditions = (
        "Files are named without their folders. Equal settings, data and versions give equal "
        f"numbers{but if is_private else ''}."
    )
    return [Sentences([shlex.join(command)], "command"), *text(conditions)]


def typed_blocks(command: str) -> list[Block]:
    """Returns the command that the user typed, without the folders of files."""
    parts = [_FOLDERS.sub("", part) for part in shlex.split(command)]
    return [
        Sentences([shlex.join(parts)], "command"),
        Sentences(["Files are named without their folders."]),
    ]


def versions_blocks(run: RunRecord) -> list[Block]:
    """Returns the versions of the software; nothing if they were not recorded."""
    return facts("Versions:", run.about("versions") or {})


def facts(title: str, values: Mapping[str, Any]) -> list[Block]:
    """Returns named values as a list; no block if there are no values."""
    if not values:
        return []
    rows: list[Sequence[Cell]] = [(name, setting_value(value)) for name, value in values.items()]
    return [Table(title, (), rows)]


def setting_value(value: Any) -> str:
    """Returns the value of a setting as text, with file names instead of paths."""
    if value is None:
        return "not given"
    if isinstance(value, list):
        return ",".join(str(_without_folder(item)) for item in value)
    return _without_folder(value) if isinstance(value, str) else json.dumps(value)


def _without_folder(value: Any) -> Any:
    # Readers of a page need not know the folders of its author.
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value
