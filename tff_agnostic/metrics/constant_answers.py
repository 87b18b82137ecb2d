"""Values of the best constant predictors, by measure and domain, from sums over clients.

For classes the predictor answers the most frequent class (accuracy) or the shares of the classes
(losses); for words their shares (a unigram) or the most frequent word; for numbers the mean. All
are of the evaluated examples, so no other constant predictor is better. A loss or metric is called
on a few labels to find its value for such an answer, as its name says nothing about it.

The sums are the frequency of each word, or the first two moments of numbers, in each domain.
Classes are counted with the model's answers in every evaluation; see `class_sums`. Labels do not
depend on a model: a run sums them once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np

from tff_agnostic.aggregations.aggregation import Aggregation, Bound, ClientLimits, SecurityProperty
from tff_agnostic.base.later import tf
from tff_agnostic.computations.algorithm import CommunicationStep, HashablePartial
from tff_agnostic.computations.class_sums import class_scores
from tff_agnostic.computations.clients import Clients
from tff_agnostic.computations.domain_losses import add_at
from tff_agnostic.computations.evaluation import Measurement
from tff_agnostic.metrics.class_counts import ACCURACY, constant_accuracies
from tff_agnostic.models.metrics import Metric, SentenceLoss, takes_scores
from tff_agnostic.models.model import Model

# Maximum number of summed values, which each client sends.
_MOST_NUMBERS = 50_000
CONSTANTS = "constant_answers"
OVERALL = "all"
_LOSS = "loss"
# Number of most frequent words on which a metric is called.
_MOST_WORDS = 20
# Maximum number of classes on which a loss is called.
_MOST_CLASSES = 1000
# Numbers on which a loss or a metric is identified.
_LABELS, _MEAN = (0.0, 1.0, 3.0, 7.0), 2.0
# Minimum variance, relative to the squared mean, that float32 sums of squares resolve.
_LEAST_VARIANCE = 1e-4

# Values by measure, then by domain, with `OVERALL` for all examples.
Constants = Mapping[str, Mapping[str, float]]


class WordSums(NamedTuple):
    """Sums of the labels of sentences, without padding.

    Attributes:
        words: Frequency of each id, int64 [p, ids].
        weights: Sum of 1 / number of words of the sentence, float32 [p, ids]: the weight of a word
            in the mean of the sentences' means.
    """

    words: tf.Tensor
    weights: tf.Tensor


class NumberSums(NamedTuple):
    """Sums of labels that are numbers, float32 [p].

    Attributes:
        total: Sum of the labels.
        squares: Sum of their squares.
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
    """Returns the measurement of `WordSums` or `NumberSums`.

    None if labels are neither, or too many, or unbounded numbers in secure sums.

    Args:
        num_domains: p.
        aggregation: Aggregation of the clients.
    """
    spec = model.example_spec["y"]
    if not isinstance(spec, tf.TensorSpec):
        return None
    num_ids = _num_ids(model)
    if isinstance(model.loss, SentenceLoss) and 0 < num_domains * num_ids <= _MOST_NUMBERS:
        work = HashablePartial(sum_words, num_domains=num_domains, num_ids=num_ids)
        longest = spec.shape[1]

        def bounds(limits: ClientLimits) -> Any:
            words = Bound(limits.examples * longest, integer=True)
            return WordSums(words, Bound(limits.examples))

    elif (
        spec.dtype.is_floating
        and len(spec.shape) == 1
        and SecurityProperty.SECURE_SUMS not in aggregation.guarantees
    ):
        work = HashablePartial(sum_numbers, num_domains=num_domains)

        def bounds(limits: ClientLimits) -> Any:
            return NumberSums(*2 * [Bound(limits.examples)])

    else:
        return None
    step = CommunicationStep("labels", lambda nothing: nothing, work, bounds)
    return Measurement(step, tf.TensorSpec([], tf.int32), model.client_data_spec())


def _num_ids(model: Model) -> int:
    """Returns the number of ids that the model scores; 0 if it is unknown."""
    shape = getattr(model.keras_model, "output_shape", None)
    return (shape[-1] or 0) if isinstance(shape, tuple) and len(shape) == 3 else 0


def constant_answers(model: Model, report: Any, labels: Any) -> Constants:
    """Returns the values of the best constant predictors, as far as sums are known.

    Args:
        report: The model's `EvaluationReport`.
        labels: `WordSums` or `NumberSums` of the same clients; None without them.
    """
    if labels is None:
        return class_baselines(model, report.classes.counts)
    names = tuple(report.domains)
    denominators = {
        name: np.array([_denominator(of, name) for of in report.domains.values()])
        for name in report.measures
    }
    if isinstance(labels, WordSums):
        return word_baselines(model, names, labels, denominators)
    return number_baselines(model, names, labels, denominators[_LOSS])


def _denominator(of_domain: Any, name: str) -> float:
    sums = of_domain.measures[name].sums
    return 0.0 if sums is None else float(sums.denominator)


def class_baselines(
    model: Model, counts: Mapping[str, Sequence[int]]
) -> dict[str, dict[str, float]]:
    """Returns the values for a model of classes; see `constant_accuracies`.

    Args:
        counts: Examples of each class, by domain.
    """
    if not counts:
        return {}
    sets = {**counts, OVERALL: np.sum(list(counts.values()), axis=0).tolist()}
    accuracies = constant_accuracies(sets)
    losses = {name: _entropy_loss(model, np.array(sets[name], float)) for name in accuracies}
    known = {name: loss for name, loss in losses.items() if loss is not None}
    return {ACCURACY: accuracies, **({_LOSS: known} if len(known) == len(losses) else {})}


def _entropy_loss(model: Model, counts: np.ndarray) -> Optional[float]:
    """Returns the mean loss of answering with the classes' shares; None for other losses."""
    is_logits = takes_scores(model.loss)
    if is_logits is None or len(counts) > _MOST_CLASSES:
        return None
    (held,) = np.nonzero(counts)
    shares = (counts / counts.sum())[held]
    scores = class_scores(model)
    if scores is not None and scores.from_logits is not None:
        # One output, the second class's.
        if len(counts) != 2 or len(held) != 2:
            return None
        answer = np.array([np.log(shares[1] / shares[0]) if is_logits else shares[1]])
    else:
        answer = np.full(len(counts), -1e9 if is_logits else 0.0)
        answer[held] = np.log(shares) if is_logits else shares
    answers = np.tile(answer.astype(np.float32), [len(held), 1])
    losses = model.loss(tf.constant(held, tf.int32), tf.constant(answers))
    value = float(shares @ np.asarray(losses, np.float64))
    return value if math.isfinite(value) else None


def _rows_of(names: Sequence[str]) -> dict[str, list[int]]:
    """Returns the rows of sums for each domain, and for all domains together."""
    return {**{name: [i] for i, name in enumerate(names)}, OVERALL: list(range(len(names)))}


def word_baselines(
    model: Model, names: Sequence[str], sums: WordSums, denominators: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """Returns the values for a model of sentences.

    Args:
        names: Names of the domains.
        denominators: Denominator of each measure, [p]; the sentences for the loss.
    """
    words, weights = (np.asarray(of, np.float64) for of in sums)
    sets = _rows_of(names)
    found: dict[str, dict[str, float]] = {}
    loss = model.loss
    assert isinstance(loss, SentenceLoss)
    for name, rows in sets.items():
        counts = words[rows].sum(axis=0)
        if not counts.any():
            continue
        weighted = weights[rows].sum(axis=0)
        if loss.expected_length is not None:
            weighted = counts / loss.expected_length
        sentences = float(np.sum(np.asarray(denominators[_LOSS])[rows]))
        found.setdefault(_LOSS, {})[name] = entropy(weighted) * weighted.sum() / sentences
        for metric in model.metrics:
            below = float(np.sum(np.asarray(denominators[metric.name])[rows]))
            value = _of_metric(metric, counts, below)
            if value is not None:
                found.setdefault(metric.name, {})[name] = value
    return found


def _of_metric(metric: Metric, counts: np.ndarray, denominator: float) -> Optional[float]:
    """Returns the metric of the words' shares, or of the most frequent word that may be right.

    Shares are the best answer if lower values are better, as for perplexity.
    """
    order = np.argsort(-counts, kind="stable")[:_MOST_WORDS]
    order = order[counts[order] > 0]
    labels = tf.constant(order[:, np.newaxis], tf.int32)
    if metric.higher_is_better:
        scores = np.zeros([len(order), 1, len(counts)], np.float32)
        scores[np.arange(len(order)), 0, order] = 1.0
        right, _ = metric.per_example(labels, tf.constant(scores))
        best = np.max(np.asarray(right) * counts[order], initial=0.0)
        ratio = best / denominator if denominator else math.nan
    else:
        (held,) = np.nonzero(counts)
        scores = np.full([1, 1, len(counts)], -1e9, np.float32)
        shares = counts[held] / counts.sum()
        scores[0, 0, held] = np.log(shares)
        # The metric is the entropy of its words if it is on the most frequent ones.
        tried = np.asarray(metric.per_example(labels, tf.tile(scores, [len(order), 1, 1]))[0])
        if not np.allclose(tried, -scores[0, 0, order], rtol=1e-3):
            return None
        ratio = entropy(counts)
    value = float(np.asarray(metric.value(tf.constant(ratio, tf.float64))))
    return value if math.isfinite(value) else None


def number_baselines(
    model: Model, names: Sequence[str], sums: NumberSums, counts: Any
) -> dict[str, dict[str, float]]:
    """Returns the values for a model of numbers, for mean squared errors and their roots.

    Args:
        names: Names of the domains.
        counts: Number of labels, [p].
    """
    total, squares, number = (np.asarray(of, np.float64) for of in (*sums, counts))
    sets = _rows_of(names)
    variances = {}
    for name, rows in sets.items():
        n = number[rows].sum()
        if n:
            mean = total[rows].sum() / n
            variance = squares[rows].sum() / n - mean**2
            if variance > _LEAST_VARIANCE * mean**2:
                variances[name] = float(variance)
    found = {}
    for name, power in _powers(model).items():
        if variances:
            found[name] = {of: variance**power for of, variance in variances.items()}
    return found


def _powers(model: Model) -> dict[str, float]:
    """Returns the exponent of each measure that is a power of the mean squared error."""
    labels = tf.constant(_LABELS)
    guess = tf.fill([len(_LABELS), 1], _MEAN)
    errors = np.square(np.array(_LABELS) - _MEAN)

    def of_metric(metric: Metric) -> float:
        above, below = (np.asarray(of, np.float64) for of in metric.per_example(labels, guess))
        return float(np.asarray(metric.value(tf.constant(above.sum() / below.sum(), tf.float64))))

    values = {_LOSS: float(np.mean(np.asarray(model.loss(labels, guess), np.float64)))}
    values.update({metric.name: of_metric(metric) for metric in model.metrics})
    powers = {1.0: errors.mean(), 0.5: math.sqrt(errors.mean())}
    return {
        name: power
        for name, value in values.items()
        for power, expected in powers.items()
        if math.isclose(value, expected, rel_tol=1e-4)
    }


def entropy(counts: np.ndarray) -> float:
    """Returns - sum_c q_c log q_c with the shares q of counts, in nats."""
    shares = counts[counts > 0] / counts.sum()
    # One value alone has -0.
    return float(abs(np.sum(shares * np.log(shares))))
