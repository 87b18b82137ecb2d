"""What a run leaves out of its data, and of which domains it can say little."""

from typing import Any, Optional

import numpy as np

from tff_agnostic.computations.kept_out import DomainLossOptions
from tff_agnostic.data.clients import (
    ClientDataset,
    FirstExamples,
    client_domain_counts,
    known_counts,
)
from tff_agnostic.data.remarks import (
    FEW_EXAMPLES,
    Remark,
    domains_without,
    examples_beyond,
    examples_kept_out,
    small_domains,
)
from tff_agnostic.program.config import RunConfig
from tff_agnostic.tasks.task import Task

# Clients that are read for this, where what they hold is not known otherwise.
_MAX_READS = 200


def data_remarks(task: Task, config: RunConfig, kept_out: float = 0.0) -> list[Remark]:
    """Returns what is to be known of a run's data before its first round.

    Args:
        task: The run's task; `RunSpec.load_task` has limited its clients to --max_examples.
        config: The run's settings.
        kept_out: Share of each client's examples that is not trained on; see `share_kept_out`.

    Raises:
        UserError: If a client that is read for this is damaged.
    """
    found = list(task.remarks())
    clients = task.train.clients if isinstance(task.train, FirstExamples) else task.train
    counts = _counts(clients, task.num_domains)
    if counts is not None:
        found += examples_beyond(counts.sum(axis=1), config.max_examples, "train")
        found += examples_kept_out(counts.sum(axis=1), kept_out, config.max_examples)
        found += _of_domains(counts, task, "train", FEW_EXAMPLES)
    counts = _counts(task.test, task.num_domains)
    if counts is not None:
        found += _of_domains(counts, task, task.test_split, FEW_EXAMPLES)
    return found


def share_kept_out(algorithm: Any) -> float:
    """Returns the share of examples that an algorithm measures on only, from its settings."""
    return algorithm.domain_loss_share if isinstance(algorithm, DomainLossOptions) else 0.0


def _counts(clients: ClientDataset, num_domains: int) -> Optional[np.ndarray]:
    if known_counts(clients) is None and len(clients.client_ids) > _MAX_READS:
        return None
    return client_domain_counts(clients, num_domains)


def _of_domains(counts: np.ndarray, task: Task, split: str, fewest: int) -> list[Remark]:
    examples = dict(zip(task.domain_names, counts.sum(axis=0).tolist()))
    return [*domains_without(examples, split), *small_domains(examples, split, fewest)]
