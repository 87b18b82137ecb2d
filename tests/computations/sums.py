"""Eager sums of client outputs through an aggregation, without TFF."""

from collections.abc import Sequence
from typing import Any, Optional

import tensorflow as tf

from tff_agnostic.aggregations.aggregation import Aggregation, ClientFacts


def encoded(
    aggregation: Aggregation, output: Any, bounds: Any, examples_cut: int = 0, state: Any = None
) -> Any:
    """Returns a client's encoded output.

    Args:
        aggregation: Encodes the output.
        output: Output of the client's work.
        bounds: Bounds in the output's structure.
        examples_cut: Number of the client's skipped examples.
        state: The aggregation's state; None for its initial state.
    """
    state = aggregation.initialize(bounds) if state is None else state
    facts = ClientFacts(tf.constant(7, tf.int64), tf.constant(examples_cut, tf.int64))
    return aggregation.encode(aggregation.client_params(state), output, bounds, facts)


def decoded_sum(
    aggregation: Aggregation,
    outputs: Sequence[Any],
    bounds: Any,
    examples_cut: Optional[Sequence[int]] = None,
) -> tuple[Any, Any]:
    """Returns the server's sum of client outputs, and the aggregation's report."""
    cuts = [0] * len(outputs) if examples_cut is None else examples_cut
    submitted = [encoded(aggregation, o, bounds, cut) for o, cut in zip(outputs, cuts)]
    summed = tf.nest.map_structure(lambda *values: tf.add_n(values), *submitted)
    _, decoded, report = aggregation.decode(aggregation.initialize(bounds), summed, bounds)
    return decoded, report
