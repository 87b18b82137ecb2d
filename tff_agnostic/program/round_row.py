"""The columns of metrics.csv: names for everything that a round reports."""

import math
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from tff_agnostic.computations.algorithm import Metrics, ServerState
from tff_agnostic.program.evaluation_report import EvaluationReport
from tff_agnostic.tasks.task import Task


def train_values(task: Task, metrics: Metrics, state: ServerState) -> dict[str, Any]:
    """Returns what one round of training reports, by column name.

    A measure of a domain has the name MEASURE/DOMAIN. The loss of a domain that had no examples in
    the round is left out: the 0 that the algorithm uses would mislead a reader.
    """
    values: dict[str, Any] = {}
    train = metrics["client_work"]["train"]
    for name, vector in train.items():
        for i, domain in enumerate(task.domain_names):
            absent = name != "num_examples" and train["num_examples"][i] == 0
            values[f"train/{name}/{domain}"] = None if absent else vector[i]
    for name, vector in metrics["domain_weights"].items():
        values.update((f"{name}/{d}", vector[i]) for i, d in enumerate(task.domain_names))
    values.update((f"clients/{name}", count) for name, count in metrics["clients"].items())
    values["update_norm"] = metrics["finalizer"]["update_norm"]
    for name, count in metrics["aggregator"].get("clipped", {}).items():
        values[f"clipped/{name}"] = count
    for name, (weight, index) in task.tracked_weights.items():
        values[name] = np.ravel(state.weights.trainable[weight])[index]
    return values


def test_values(task: Task, report: Optional[EvaluationReport]) -> dict[str, Any]:
    """Returns what an evaluation reports, by column name; None everywhere without one."""
    names = ["loss", *(metric.name for metric in task.model.metrics)]
    values: dict[str, Any] = {}
    for name in names:
        for domain in task.domain_names:
            values[f"test/{name}/{domain}"] = (
                _defined(report.domains[domain].measures[name].value) if report else None
            )
        values[f"test/{name}"] = report.overall.measures[name].value if report else None
        values[f"test/worst {name}"] = report.worst(name) if report else None
    return values


def _defined(value: float) -> Optional[float]:
    # What has no examples has no value: an empty cell, not a NaN.
    return None if math.isnan(value) else value


def split_column(column: str) -> tuple[str, Optional[str]]:
    """Returns what a column measures, and its domain if it is about one.

    "test/loss/a/b" is ("test/loss", "a/b"): names of measures have no slash, those of domains may.
    """
    parts = column.split("/")
    length = {"train": 2, "test": 2, "lambda": 1, "alpha": 1}.get(parts[0], len(parts))
    if len(parts) <= length:
        return column, None
    return "/".join(parts[:length]), "/".join(parts[length:])


def without_evaluation(row: Mapping[str, str]) -> dict[str, str]:
    """Returns the row of a round as if there had been no evaluation after it."""
    return {name: "" if name.startswith("test/") else value for name, value in row.items()}


def worst_in_round(task: Task, metrics: Metrics) -> tuple[str, float, float]:
    """Returns the domain with the largest training loss of a round, its loss and its lambda."""
    losses = np.asarray(metrics["client_work"]["train"]["loss"])
    worst = int(np.argmax(losses))
    return (
        task.domain_names[worst],
        float(losses[worst]),
        float(metrics["domain_weights"]["lambda"][worst]),
    )
