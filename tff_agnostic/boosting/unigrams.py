"""Unigram models by domain or by client, from counts of examples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from tff_agnostic.base.options import OptionError, Verbatim
from tff_agnostic.computations.evaluation import OutcomeCounts
from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.models.model import Model
from tff_agnostic.models.next_word import unigram_loss


@dataclasses.dataclass(frozen=True)
class GroupCounts:
    """Counts of outcomes by group: by domain, or by client.

    Attributes:
        counts: Counts of each group, int64 [outcomes], by the group's name.
        skipped: Number of clients of each group that was skipped because it has too few clients, by
            the group's name.
    """

    counts: Mapping[str, np.ndarray]
    skipped: Mapping[str, int]


def num_outcomes(model: Model) -> int:
    """Returns the number of outcomes of a task's model, which must be a distribution."""
    if model.loss is not unigram_loss:
        expected = (
            "a task of distributions, such as unigram; other tasks take runs as base predictors"
        )
        raise OptionError("task", expected, Verbatim("a different task"))
    return len(model.initial_weights.trainable[0])


def counts_by_domain(
    sums: OutcomeCounts, domain_names: Sequence[str], min_clients: int
) -> GroupCounts:
    """Returns the counts of each domain.

    Args:
        sums: Outcome counts, summed over the clients.
        domain_names: Names of the p domains.
        min_clients: Minimum number of clients of a domain.
    """
    counts = np.asarray(sums.counts).reshape(len(domain_names), -1)
    kept, skipped = {}, {}
    for name, outcome_counts, num_clients in zip(domain_names, counts, sums.clients):
        if num_clients and num_clients >= min_clients:
            kept[name] = outcome_counts
        else:
            skipped[name] = int(num_clients)
    return GroupCounts(kept, skipped)


def counts_by_client(clients: ClientDataset, outcomes: int) -> GroupCounts:
    """Returns the counts of each client; clients without examples are skipped."""
    counts = {
        client_id: np.bincount(clients.read(client_id)["y"], minlength=outcomes)
        for client_id in clients.client_ids
    }
    kept = {name: outcome_counts for name, outcome_counts in counts.items() if outcome_counts.sum()}
    return GroupCounts(kept, {name: 1 for name in counts if name not in kept})


def smoothed_scores(counts: np.ndarray, smoothing: float) -> np.ndarray:
    """Returns log((1 - s) n_i / n + s / outcomes), float32 [outcomes]: scores of a unigram model.

    Args:
        counts: Counts n_i of the outcomes; at least one must be positive.
        smoothing: s, in [0, 1]; with 0, outcomes without examples have the score minus infinity.
    """
    shares = counts / counts.sum()
    with np.errstate(divide="ignore"):
        return np.log((1 - smoothing) * shares + smoothing / len(counts)).astype(np.float32)
