"""Unigram models of groups of clients, from counts of the training examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Callable

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation
from tff_agnostic.base_predictors.files import PredictorFile
from tff_agnostic.computations.evaluation import OutcomeCounts, measurement_of_outcomes
from tff_agnostic.data.clients import in_parts
from tff_agnostic.errors import UserError, counted
from tff_agnostic.models.next_word import unigram_loss
from tff_agnostic.registry import Registry
from tff_agnostic.runtimes.runtime import Runtime
from tff_agnostic.tasks.task import DATA, Task


@dataclasses.dataclass(frozen=True)
class GroupCounts:
    """Counts of outcomes by group.

    Attributes:
        counts: Of each group by its name, int64 [outcomes].
        left_out: How many clients each group has that has too few for its own model.
        examples_cut: How many examples secure sums left out, of clients with more than they count.
    """

    counts: Mapping[str, np.ndarray]
    left_out: Mapping[str, int]
    examples_cut: int = 0


# (task, runtime, aggregation) -> counts of the training clients.
Count = Callable[[Task, Runtime, Aggregation], GroupCounts]


def by_domain(task: Task, runtime: Runtime, aggregation: Aggregation) -> GroupCounts:
    """Returns the counts of each domain, as sums over the clients that the server sees.

    Domains of fewer clients than the aggregation asks for are left out.
    """
    num_outcomes, p = outcomes_of(task), task.num_domains
    measure = runtime.measurement(measurement_of_outcomes(task.model, p, num_outcomes), aggregation)
    clients = (task.train.read(client_id) for client_id in task.train.client_ids)
    measured = measure(np.int32(0), in_parts(clients))
    summed: OutcomeCounts = measured.output
    counts = np.asarray(summed.counts).reshape(p, num_outcomes)
    found, left_out = {}, {}
    for name, of_domain, num_clients in zip(task.domain_names, counts, summed.clients):
        if num_clients and num_clients >= aggregation.min_clients:
            found[name] = of_domain
        else:
            left_out[name] = int(num_clients)
    return GroupCounts(found, left_out, measured.clipped.get("examples", 0))


def by_client(task: Task, runtime: Runtime, aggregation: Aggregation) -> GroupCounts:
    """Returns the counts of each client."""
    del runtime
    if aggregation.min_clients > 0:
        raise UserError(
            "--group_by=client has no sums over clients: expected --aggregation=plain, or "
            "--group_by=domain"
        )
    num_outcomes = outcomes_of(task)
    counts = {
        client_id: np.bincount(task.train.read(client_id)["y"], minlength=num_outcomes)
        for client_id in task.train.client_ids
    }
    empty = {name: 1 for name, of_client in counts.items() if not of_client.sum()}
    return GroupCounts({n: c for n, c in counts.items() if n not in empty}, empty)


GROUPINGS: Registry[Count] = Registry(
    "grouping of clients", {"domain": by_domain, "client": by_client}
)


def outcomes_of(task: Task) -> int:
    """Returns the number of outcomes of a task of distributions."""
    if task.model.loss is not unigram_loss:
        raise UserError(
            "--task: expected one of distributions, such as unigram: of other tasks, base "
            "predictors are runs of train"
        )
    return len(task.model.initial_weights.trainable[0])


def unigram_predictors(
    task: Task,
    runtime: Runtime,
    aggregation: Aggregation,
    group_by: str,
    smoothing: float,
) -> tuple[PredictorFile, Mapping[str, int]]:
    """Returns a predictor of each group, and how many clients groups have that are left out.

    Args:
        task: A task of distributions.
        runtime: Where clients count.
        aggregation: How they are summed.
        group_by: Member of `GROUPINGS`.
        smoothing: See `smoothed_scores`.
    """
    found = GROUPINGS[group_by](task, runtime, aggregation)
    if not found.counts:
        raise UserError(
            "--secure_min_clients: expected groups of at least "
            f"{counted(aggregation.min_clients, 'client')}, found none"
        )
    scores = np.stack([smoothed_scores(counts, smoothing) for counts in found.counts.values()])
    predictors = PredictorFile(
        names=tuple(found.counts),
        arrays=(scores,),
        fingerprint={name: v for name, v in task.fingerprint.items() if name != DATA},
        about={
            "group_by": group_by,
            "smoothing_share": smoothing,
            "aggregation": aggregation.name,
            "examples": [int(counts.sum()) for counts in found.counts.values()],
            "examples_cut": found.examples_cut,
        },
    )
    return predictors, found.left_out


def smoothed_scores(counts: np.ndarray, smoothing: float) -> np.ndarray:
    """Returns log((1 - s) n_i / n + s / outcomes), float32 [outcomes]: scores of a unigram model.

    Args:
        counts: n_i, at least one positive.
        smoothing: s, in [0, 1]; with 0, what is not among the examples has minus infinity.
    """
    shares = counts / counts.sum()
    with np.errstate(divide="ignore"):
        return np.log((1 - smoothing) * shares + smoothing / len(counts)).astype(np.float32)
