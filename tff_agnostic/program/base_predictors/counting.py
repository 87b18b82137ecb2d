"""Unigram models of domains or of clients, computed from the outcome counts of their examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.base.errors import UserError, counted
from tff_agnostic.base.registry import Registry
from tff_agnostic.boosting.unigrams import (
    GroupCounts,
    counts_by_client,
    counts_by_domain,
    num_outcomes,
    smoothed_scores,
)
from tff_agnostic.computations.evaluation import outcome_measurement
from tff_agnostic.data.clients import in_parts
from tff_agnostic.program.base_predictors.files import PredictorFile
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.tasks.task import DATA, Task

# Called with a task, a runtime and an aggregation. Returns the outcome counts of the training
# clients by group, and the number of examples beyond the limits of secure sums.
Count = Callable[[Task, Runtime, Aggregation], tuple[GroupCounts, int]]


def by_domain(task: Task, runtime: Runtime, aggregation: Aggregation) -> tuple[GroupCounts, int]:
    """Returns the outcome counts of each domain; the server sees only sums over clients."""
    measurement = outcome_measurement(task.model, task.num_domains, num_outcomes(task.model))
    clients = (task.train.read(client_id) for client_id in task.train.client_ids)
    measured = runtime.measurement(measurement, aggregation)(np.int32(0), in_parts(clients))
    counts = counts_by_domain(measured.output, task.domain_names, aggregation.min_clients)
    return counts, measured.clipped.get("examples", 0)


def by_client(task: Task, runtime: Runtime, aggregation: Aggregation) -> tuple[GroupCounts, int]:
    """Returns the outcome counts of each client, which the server sees."""
    del runtime
    if aggregation.min_clients > 0:
        raise UserError(
            "--aggregation: expected plain with --group_by=client, whose counts are not summed "
            f"over clients, found {aggregation.name}"
        )
    return counts_by_client(task.train, num_outcomes(task.model)), 0


GROUPINGS: Registry[Count] = Registry(
    "grouping of clients", {"domain": by_domain, "client": by_client}
)


def unigram_predictors(
    task: Task,
    runtime: Runtime,
    aggregation: Aggregation,
    group_by: str,
    smoothing: float,
) -> tuple[PredictorFile, Mapping[str, int]]:
    """Returns a predictor for each group, and the number of clients in each skipped group.

    Args:
        task: A task whose model predicts a distribution of outcomes, such as `unigram`.
        runtime: Runtime that executes the clients' counting.
        aggregation: Aggregation of the counts.
        group_by: Member of `GROUPINGS`.
        smoothing: See `smoothed_scores`.
    """
    groups, examples_cut = GROUPINGS[group_by](task, runtime, aggregation)
    if not groups.counts:
        raise UserError(
            "--secure_min_clients: expected groups of at least "
            f"{counted(aggregation.min_clients, 'client')}, found none"
        )
    scores = np.stack([smoothed_scores(counts, smoothing) for counts in groups.counts.values()])
    predictors = PredictorFile(
        names=tuple(groups.counts),
        arrays=(scores,),
        fingerprint={name: v for name, v in task.fingerprint.items() if name != DATA},
        about={
            "group_by": group_by,
            "smoothing_share": smoothing,
            "aggregation": aggregation.name,
            "examples": [int(counts.sum()) for counts in groups.counts.values()],
            "examples_cut": examples_cut,
        },
    )
    return predictors, groups.skipped
