"""Evaluates weights on a task's test clients, a bounded part of their data at a time."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from tff_agnostic.data.clients import ClientDataset
from tff_agnostic.models.functional import Examples, ModelWeights
from tff_agnostic.program.evaluation_report import EvaluationReport, evaluation_report
from tff_agnostic.runtimes.runtime import Evaluation
from tff_agnostic.tasks.task import Task

_MAX_CLIENTS = 1000
_MAX_BYTES = 64 * 2**20
# Keeps the draw of clients apart from others that use the run's seed.
_STREAM = 11


class Evaluator:
    """Evaluates on the test clients of a task.

    Args:
        task: The task.
        evaluate: A runtime's evaluation of the task's model.
        sample: How many clients evaluations between rounds use, the same in all; all if None.
        seed: Seeds the draw of these clients.
    """

    def __init__(
        self, task: Task, evaluate: Evaluation, sample: Optional[int] = None, seed: int = 0
    ) -> None:
        self._task = task
        self._evaluate = evaluate
        self._sample = _sample(task.test.client_ids, sample, seed)

    def __call__(self, weights: ModelWeights, on_all: bool) -> EvaluationReport:
        """Returns the report of `weights`.

        Args:
            weights: The model's weights.
            on_all: Whether to use all test clients, or the sample.

        Raises:
            UserError: If a client is malformed.
        """
        test = self._task.test
        ids = test.client_ids if on_all else self._sample
        summed: Any = None
        for clients in _parts(test.read(client_id) for client_id in ids):
            part = self._evaluate(weights, clients)
            summed = part if summed is None else tf.nest.map_structure(np.add, summed, part)
        return evaluation_report(self._task.model, self._task.domain_names, summed)


def check_readable(clients: ClientDataset, max_clients: int) -> None:
    """Reads up to `max_clients` clients, evenly spaced, for the errors that reading them raises.

    A client that cannot be read is better found before hours of training than after them.

    Raises:
        UserError: If a client is malformed.
    """
    ids = clients.client_ids
    for i in np.unique(np.linspace(0, len(ids) - 1, min(len(ids), max_clients)).astype(int)):
        clients.read(ids[i])


def _sample(client_ids: Sequence[str], size: Optional[int], seed: int) -> Sequence[str]:
    if size is None or size >= len(client_ids):
        return client_ids
    rng = np.random.default_rng([seed, _STREAM])
    return [client_ids[i] for i in np.sort(rng.choice(len(client_ids), size, replace=False))]


def _parts(clients: Iterable[Examples]) -> Iterator[list[Examples]]:
    part: list[Examples] = []
    num_bytes = 0
    for examples in clients:
        part.append(examples)
        num_bytes += sum(np.asarray(column).nbytes for column in tf.nest.flatten(examples))
        if len(part) == _MAX_CLIENTS or num_bytes >= _MAX_BYTES:
            yield part
            part, num_bytes = [], 0
    if part:
        yield part
