"""Metrics of a round as scalars, the form in which the platform's servers take them.

A metric that is a scalar has one, under its own name. One with an entry per domain has a scalar of
each, NAME/0 to NAME/(p - 1), and NAME/overall of all domains where that follows from them. One with
entries per domain and something else, such as a histogram, is in the checkpoint only.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from tff_agnostic.deployment.naming import METRICS, Leaf, node_name
from tff_agnostic.quantities import Quantities, Quantity, Unit

OVERALL = "overall"


class Overall(NamedTuple):
    """How a value of all domains follows from those of the single ones.

    Attributes:
        metric: Path of the metric, which has an entry per domain.
        weights: Path of the numbers of examples that weight the entries of a mean; None of a sum.
    """

    metric: str
    weights: Optional[str]


def overall_metrics(quantities: Quantities, scope: str = "") -> Iterator[Overall]:
    """Yields the metrics that have a value of all domains.

    Numbers of examples are added up. What is a mean over the examples of a domain has the mean over
    all examples: that of the entries, weighted by the first numbers of examples that are reported
    beside it. What is no mean, such as a perplexity or a weight of a domain, has none.
    """
    counts = None
    for key, quantity in quantities.items():
        if isinstance(quantity, Quantity) and quantity.per_domain and _counts_examples(quantity):
            counts = counts or f"{scope}{key}"
    for key, quantity in quantities.items():
        if isinstance(quantity, Mapping):
            yield from overall_metrics(quantity, f"{scope}{key}/")
        elif quantity.per_domain and _counts_examples(quantity):
            yield Overall(f"{scope}{key}", None)
        elif quantity.of_present_domains and quantity.unit is not Unit.FACTOR and counts:
            yield Overall(f"{scope}{key}", counts)


def scalar_outputs(
    metrics: Sequence[Leaf], values: Sequence[tf.Tensor], quantities: Quantities
) -> dict[str, tf.Tensor]:
    """Returns the scalars of a round's metrics, by name; nodes of these names are made.

    Args:
        metrics: The metrics.
        values: Their values, of known shapes.
        quantities: Describes them.
    """
    by_path = {leaf.path: value for leaf, value in zip(metrics, values)}
    scalars: dict[str, tf.Tensor] = {}
    for leaf in metrics:
        if leaf.shape.rank > 1:
            continue
        name = leaf.named(METRICS).name
        for index in itertools.product(*map(range, leaf.shape.as_list())):
            at = "/".join(map(str, (name, *index)))
            scalars[at] = by_path[leaf.path][index] if index else by_path[leaf.path]
    for metric, weights in overall_metrics(quantities):
        of_domains = None if weights is None else by_path[weights]
        scalars[f"{METRICS}/{node_name(metric)}/{OVERALL}"] = overall_value(
            by_path[metric], of_domains
        )
    return {name: tf.identity(value, name=name) for name, value in scalars.items()}


def overall_value(values: tf.Tensor, counts: Optional[tf.Tensor]) -> tf.Tensor:
    """Returns the sum of `values` [p], or their mean, weighted by `counts` [p] if there are any.

    Domains without examples have no part in it, whatever their value; without any it is 0.
    """
    if counts is None:
        return tf.reduce_sum(values)
    weights = tf.cast(counts, values.dtype)
    weighted = tf.where(weights > 0, values * weights, tf.zeros_like(values))
    return tf.math.divide_no_nan(tf.reduce_sum(weighted), tf.reduce_sum(weights))


def _counts_examples(quantity: Any) -> bool:
    return quantity.unit is Unit.EXAMPLES
