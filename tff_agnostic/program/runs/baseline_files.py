"""Reads the baselines of excess losses from a file of baseline runs, or from any run's folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tff_agnostic.base.errors import UserError, some_of
from tff_agnostic.base.files import read_json
from tff_agnostic.computations.domain_losses import HoldoutOptions
from tff_agnostic.domain_weights.ascent import LambdaOptions
from tff_agnostic.domain_weights.excess import HELDOUT, OWN, TRAINING, TRIVIAL
from tff_agnostic.metrics.metrics_file import read_history
from tff_agnostic.tasks.task import HELDOUT_SPLIT

BASELINES = "baselines"
FILE_NAME = f"{BASELINES}.json"
_FORMAT = 1
_FLAG = "--lambda_baselines"
_MAX_NAMES = 5
# A run's training loss is the mean over the last rounds, which are this fraction of all rounds.
_LAST_ROUNDS = 0.1
# Column groups of metrics.csv with the domains' training losses, the most exact group first.
_TRAINING_PARTS = ("train", "kept_out", "first_epoch")


def with_known_baselines(task: str, algorithm: Any, privacy: str) -> tuple[Any, tuple[str, ...]]:
    """Replaces the path in an algorithm's settings by the baselines in that file or run.

    Baselines that require training or counting first stay `OWN` or `TRIVIAL`; `runs.baselines` then
    computes them.

    Args:
        privacy: Privacy of the run. Private runs reject baselines from their clients' data.

    Returns:
        The settings, and the names of the domains in the file or run, in order; no names if the
        settings contain no path.
    """
    baselines = algorithm.lambda_.baselines if isinstance(algorithm, LambdaOptions) else None
    if not isinstance(baselines, str):
        return algorithm, ()
    if privacy != "none":
        raise UserError(
            f"{_FLAG}: expected numbers with --privacy={privacy}, found {baselines!r}: the privacy "
            "account does not cover baselines from losses or counts of the clients"
        )
    kept_out = isinstance(algorithm, HoldoutOptions) and algorithm.measured_share > 0
    if kept_out and baselines != TRIVIAL and algorithm.lambda_.baseline_losses == TRAINING:
        raise UserError(
            "--lambda_baseline_losses: expected heldout with --measured_share, which measures "
            "losses on examples that are not trained on, found training"
        )
    if baselines in (OWN, TRIVIAL):
        return algorithm, ()
    numbers = read_baselines(Path(baselines), task, algorithm.lambda_.baseline_losses)
    return algorithm.with_baselines(numbers.values()), tuple(numbers)


def check_domain_baselines(names: Sequence[str], domain_names: Sequence[str]) -> None:
    """Checks that the baselines of a file or a run are for a task's domains, in order."""
    if names and tuple(names) != tuple(domain_names):
        raise UserError(
            f"{_FLAG}: expected baselines of the domains {some_of(domain_names, _MAX_NAMES)}, "
            f"found baselines of {some_of(names, _MAX_NAMES)}"
        )


def read_baselines(path: Path, task: str, losses: str) -> dict[str, float]:
    """Returns the baseline of each domain, by name.

    Args:
        path: A file of baselines, a folder with one, or the folder of a run.
        losses: Kind of losses to read, "training" or "heldout".
    """
    if path.is_dir() and (path / FILE_NAME).is_file():
        path /= FILE_NAME
    if path.is_file():
        content = read_json(path)
        numbers = _file_losses(path, content, losses)
    elif (path / "config.json").is_file() and (path / "result.json").is_file():
        content = read_json(path / "result.json")
        numbers = _run_losses(path, content, losses)
    else:
        raise UserError(
            f"{_FLAG}: expected numbers, {OWN}, {TRIVIAL}, a {FILE_NAME} or the folder of a "
            f"complete run, found {str(path)!r}"
        )
    if content.get("task") != task:
        raise UserError(
            f"{_FLAG}: {path}: expected baselines of --task={task}, found baselines of "
            f"{content.get('task')}"
        )
    for name, number in numbers.items():
        if not (isinstance(number, (int, float)) and math.isfinite(number)):
            raise UserError(f"{_FLAG}: {path}: expected a {losses} loss of {name}, found {number}")
    return {name: float(number) for name, number in numbers.items()}


def _file_losses(path: Path, content: Mapping[str, Any], losses: str) -> dict[str, Any]:
    domains = content.get("domains")
    if content.get("format") != _FORMAT or not isinstance(domains, dict):
        raise UserError(f"{_FLAG}: {path}: expected baselines of format {_FORMAT}")
    return {name: numbers.get(losses) for name, numbers in domains.items()}


def _run_losses(path: Path, result: Mapping[str, Any], losses: str) -> dict[str, Any]:
    domains: Mapping[str, Any] = result["domains"]
    if losses == HELDOUT:
        if result.get("split") != HELDOUT_SPLIT:
            raise UserError(
                f"{_FLAG}: {path}: expected a run that was evaluated on {HELDOUT_SPLIT} clients "
                f"with --lambda_baseline_losses={HELDOUT}, found a run that was evaluated on "
                f"{result.get('split')} clients"
            )
        return {name: numbers["loss"] for name, numbers in domains.items()}
    columns = read_history(path / "metrics.csv")
    return {name: _last_training_loss(columns, name) for name in domains}


def _last_training_loss(columns: Mapping[str, np.ndarray], name: str) -> float:
    """Returns a domain's mean training loss in the last rounds; NaN if the run reported none.

    Algorithms that ignore domains report the losses in the first epoch of local training.
    """
    reported = (columns.get(f"{part}/loss/{name}") for part in _TRAINING_PARTS)
    return next((_last_mean(values) for values in reported if values is not None), math.nan)


def _last_mean(values: np.ndarray) -> float:
    last = values[-max(1, round(_LAST_ROUNDS * len(values))) :]
    losses = last[~np.isnan(last)]
    return float(losses.mean()) if len(losses) else math.nan


def file_content(task: str, domains: Mapping[str, Any], settings: Mapping[str, Any]) -> Any:
    """Returns the content of a file of baselines.

    Args:
        domains: Losses of each domain and their source, by name.
        settings: Settings of the baseline runs.
    """
    return {"format": _FORMAT, "task": task, "domains": domains, "settings": settings}
