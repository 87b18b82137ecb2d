"""What a private evaluation asks of clients, and what is made of its noisy sums.

Everything that one evaluation sends is one release. Its groups are the sums over domains, and how
measures are spread over clients; nothing is asked of how they depend on a client's size.
"""

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tff_agnostic.aggregations.limits import Bound, ClientLimits
from tff_agnostic.computations.evaluation import (
    ClientDistribution,
    EvaluationOutput,
    Measurement,
    evaluation_bounds,
    measurement_of_model,
)
from tff_agnostic.models.functional import Model

_OF_CLIENTS = "over_clients"


def private_measurement(model: Model, num_domains: int, says_of_clients: bool) -> Measurement:
    """Returns the evaluation of one model's weights with the bounds of a private sum.

    Args:
        model: The model.
        num_domains: p.
        says_of_clients: Whether it asks how measures are spread over clients.
    """
    usual = measurement_of_model(model, num_domains)

    def bounds(limits: ClientLimits) -> EvaluationOutput:
        return private_evaluation_bounds(model, num_domains, limits, says_of_clients)

    return dataclasses.replace(usual, exchange=dataclasses.replace(usual.exchange, bounds=bounds))


def private_evaluation_bounds(
    model: Model, num_domains: int, limits: ClientLimits, says_of_clients: bool
) -> EvaluationOutput:
    """Returns the bounds of what one client contributes; see `private_measurement`.

    Values with a public sum of 0 are not sent. A client counts in the rows of its domains and in
    the row of all: a vector of at most p + 1 ones, of norm sqrt(p + 1).
    """
    usual, rows = evaluation_bounds(model, limits), math.sqrt(num_domains + 1)

    def of_rows(bound: Bound, is_denominator: bool = False) -> Bound:
        if not says_of_clients:
            return not_sent(bound)
        return dataclasses.replace(bound, max_norm=bound.limit * rows, denominator=is_denominator)

    def not_sent(bound: Bound) -> Bound:
        return dataclasses.replace(bound, public_sum=0.0)

    return EvaluationOutput(
        sums=usual.sums,
        over_clients=OrderedDict(
            (
                name,
                ClientDistribution(
                    of_rows(of.num_clients, is_denominator=True),
                    of_rows(of.total),
                    of_rows(of.histogram),
                ),
            )
            for name, of in usual.over_clients.items()
        ),
        by_size=OrderedDict(
            (name, type(of)(*map(not_sent, of))) for name, of in usual.by_size.items()
        ),
        clients=OrderedDict(
            (name, dataclasses.replace(bound, one_of="clients"))
            for name, bound in usual.clients.items()
        ),
    )


def evaluation_shares(groups: Sequence[str], clients_share: float) -> tuple[float, ...]:
    """Returns w_g of each group of a private evaluation.

    Args:
        groups: The names of its groups.
        clients_share: What those have together that tell how measures are spread over clients, each
            the same; the others have the rest.
    """
    kinds = [group.startswith(_OF_CLIENTS) for group in groups]
    num_spread = sum(kinds)
    if not num_spread:
        return tuple(1.0 / len(kinds) for _ in kinds)
    each = {
        True: clients_share / num_spread,
        False: (1.0 - clients_share) / (len(kinds) - num_spread),
    }
    return tuple(each[kind] for kind in kinds)


def consistent(output: EvaluationOutput, limits: EvaluationOutput) -> EvaluationOutput:
    """Returns noisy sums in which what is said of clients could be so; costs no privacy.

    Totals are between 0 and the clients times their largest value. Histograms hold no negative
    numbers, and as many clients as there are: the numbers of clients up to each bin are replaced by
    the middle between the largest one before and the least one after, which rise.

    Args:
        output: Noisy sums.
        limits: The bound of each value.
    """
    over_clients = OrderedDict(
        (name, _consistent(of, limits.over_clients[name]))
        for name, of in output.over_clients.items()
    )
    return output._replace(over_clients=over_clients)


def _consistent(of: ClientDistribution, limits: Any) -> ClientDistribution:
    num_clients = tf.maximum(of.num_clients, 0)
    most = tf.cast(num_clients, tf.float64) * limits.total.limit
    total = tf.clip_by_value(tf.cast(of.total, tf.float64), 0.0, most)
    counts = _counts(tf.convert_to_tensor(of.histogram), num_clients[:, tf.newaxis])
    return ClientDistribution(num_clients, tf.cast(total, tf.float32), counts)


def _counts(histograms: tf.Tensor, num_clients: tf.Tensor) -> tf.Tensor:
    reached = tf.cumsum(histograms, axis=1)
    before = _largest_so_far(reached)
    after = -_largest_so_far(-reached[:, ::-1])[:, ::-1]
    middle = tf.cast(tf.round(tf.cast(before + after, tf.float64) / 2), tf.int64)
    rising = tf.clip_by_value(middle[:, :-1], 0, num_clients)
    rising = tf.concat([tf.zeros_like(num_clients), rising, num_clients], axis=1)
    return rising[:, 1:] - rising[:, :-1]


def _largest_so_far(values: tf.Tensor) -> tf.Tensor:
    """Returns the largest value up to each column; of a power of two more of them in each step."""
    step, width = 1, values.shape[1]
    while step < width:
        later = tf.maximum(values[:, step:], values[:, :-step])
        values = tf.concat([values[:, :step], later], axis=1)
        step *= 2
    return values
