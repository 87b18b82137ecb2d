"""Clients in parts that need not much memory."""

from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from tff_agnostic.models.functional import Examples

_MAX_CLIENTS = 1000
_MAX_BYTES = 64 * 2**20


def in_parts(clients: Iterable[Examples]) -> Iterator[list[Examples]]:
    """Returns clients in parts of so many that they need not much memory."""
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
