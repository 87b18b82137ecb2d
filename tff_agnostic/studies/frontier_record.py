"""A frontier read back from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tff_agnostic.errors import UserError
from tff_agnostic.files import read_json
from tff_agnostic.studies.comparison_record import read_rows
from tff_agnostic.studies.frontier import TRAINING_MIXTURE, Frontier, Mixture

FRONTIER = "frontier.json"


def read_frontier(folder: Path) -> tuple[Mapping[str, Any], Frontier]:
    """Returns what a frontier left in its folder: frontier.json with the task, and what it shows.

    The lines on which mixtures lie are those of the file; of a release that wrote none, panels have
    the weight of the domain as their axis.
    """
    path = folder / FRONTIER
    content = read_json(path)
    try:
        rows, measure, command = content["results"], content["measure"], str(content["command"])
        found = {name: (of["label"], of["lambda"], of) for name, of in content["mixtures"].items()}
    except (AttributeError, LookupError, TypeError) as e:
        raise UserError(
            f"{path}: expected a frontier, found something else: frontier --resume writes the file "
            "again"
        ) from e
    record = read_rows(path, rows, "frontier")
    comparison, names = record.comparison, record.comparison.domain_names
    try:
        mixtures = [
            Mixture(
                name,
                str(label),
                tuple(float(lambda_[domain]) for domain in names),
                names.index(of["line"]) if of.get("line") is not None else None,
                float(of.get("way", 0.0)),
            )
            for name, (label, lambda_, of) in found.items()
        ]
        frontier = Frontier(comparison, mixtures, comparison.measures[measure])
        known = TRAINING_MIXTURE in found and {*found} <= {*comparison.trials}
    except (LookupError, TypeError, ValueError):
        known = False
    if not known:
        raise UserError(f"{path}: expected mixtures of {', '.join(names)}, found something else")
    return {**content, "command": command, "task": record.first.result["task"]}, frontier
