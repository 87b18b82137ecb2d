"""What labels alone tell of the best answer that looks at no input: sums over clients.

Of sentences it is how often each word occurs in each domain, of numbers their first two moments.
Classes are counted with the model's answers, in every evaluation; see `class_sums`. Labels do not
depend on a model: these sums are made once in a run.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from tff_agnostic.aggregations.aggregation import (
    Aggregation,
    Bound,
    ClientLimits,
    SecurityProperty,
)
from tff_agnostic.computations.algorithm import CommunicationStep, HashablePartial
from tff_agnostic.computations.clients import Clients
from tff_agnostic.computations.domain_losses import add_at
from tff_agnostic.computations.evaluation import Measurement
from tff_agnostic.later import tf
from tff_agnostic.models.losses import SentenceLoss
from tff_agnostic.models.model import Model

# More numbers than that cost a client too much.
_MOST_NUMBERS = 50_000


class WordSums(NamedTuple):
    """Of the labels of sentences, without padding.

    Attributes:
        words: How often each id occurs, int64 [p, ids].
        weights: The sum of 1 / words of its sentence over these, float32 [p, ids]: what a word
            counts in the mean of the sentences' means.
    """

    words: tf.Tensor
    weights: tf.Tensor


class NumberSums(NamedTuple):
    """Of labels that are numbers, float32 [p].

    Attributes:
        total: Their sum.
        squares: The sum of their squares.
    """

    total: tf.Tensor
    squares: tf.Tensor


def sum_words(nothing: tf.Tensor, clients: Clients, *, num_domains: int, num_ids: int) -> WordSums:
    """Client work: counts the words of each client's labels, which are in [0, ids)."""
    del nothing
    positions = tf.range(clients.capacity)
    batch, is_there = clients.take(positions), clients.has(positions)
    labels = tf.cast(batch["y"], tf.int32)
    is_word = tf.not_equal(labels, 0) & is_there[..., tf.newaxis]
    places = batch["domain_id"][..., tf.newaxis] * num_ids + labels
    length = tf.reduce_sum(tf.cast(is_word, tf.float32), axis=-1, keepdims=True)
    weights = tf.where(is_word, tf.math.divide_no_nan(tf.ones_like(length), length), 0.0)
    leading = tf.shape(clients.num_examples)
    flat = tf.concat([leading, [-1]], axis=0)
    shape = tf.concat([leading, [num_domains * num_ids]], axis=0)
    tables = tf.concat([leading, [num_domains, num_ids]], axis=0)

    def summed(values: tf.Tensor) -> tf.Tensor:
        zeros = tf.zeros(shape, values.dtype)
        found = add_at(zeros, tf.reshape(places, flat), tf.reshape(values, flat))
        return tf.reshape(found, tables)

    return WordSums(summed(tf.cast(is_word, tf.int64)), summed(weights))


def sum_numbers(nothing: tf.Tensor, clients: Clients, *, num_domains: int) -> NumberSums:
    """Client work: sums each client's labels and their squares."""
    del nothing
    positions = tf.range(clients.capacity)
    batch, is_there = clients.take(positions), clients.has(positions)
    labels = tf.reshape(tf.cast(batch["y"], tf.float32), tf.shape(batch["domain_id"]))
    labels = tf.where(is_there, labels, tf.zeros_like(labels))
    zeros = tf.zeros(tf.concat([tf.shape(clients.num_examples), [num_domains]], axis=0))
    total, squares = (add_at(zeros, batch["domain_id"], of) for of in (labels, labels**2))
    return NumberSums(total, squares)


def measurement_of_labels(
    model: Model, num_domains: int, aggregation: Aggregation
) -> Optional[Measurement]:
    """Returns what sums labels; its sums are `WordSums` or `NumberSums`.

    None if labels are neither, or too many; or numbers, which have no bound, in secure sums.

    Args:
        num_domains: p.
        aggregation: How clients are summed.
    """
    spec = model.example_spec["y"]
    if not isinstance(spec, tf.TensorSpec):
        return None
    num_ids = _num_ids(model)
    if isinstance(model.loss, SentenceLoss) and 0 < num_domains * num_ids <= _MOST_NUMBERS:
        work = HashablePartial(sum_words, num_domains=num_domains, num_ids=num_ids)
        longest = spec.shape[1]

        def bounds(limits: ClientLimits) -> Any:
            words = Bound(limits.max_examples * longest, integer=True)
            return WordSums(words, Bound(limits.max_examples))

    elif (
        spec.dtype.is_floating
        and len(spec.shape) == 1
        and SecurityProperty.SECURE_SUMS not in aggregation.guarantees
    ):
        work = HashablePartial(sum_numbers, num_domains=num_domains)

        def bounds(limits: ClientLimits) -> Any:
            return NumberSums(*2 * [Bound(limits.max_examples)])

    else:
        return None
    step = CommunicationStep("labels", lambda nothing: nothing, work, bounds)
    return Measurement(step, tf.TensorSpec([], tf.int32), model.client_data_spec())


def _num_ids(model: Model) -> int:
    """Returns how many ids the model scores; 0 if it does not say."""
    shape = getattr(model.keras_model, "output_shape", None)
    return (shape[-1] or 0) if isinstance(shape, tuple) and len(shape) == 3 else 0
