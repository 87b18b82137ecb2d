"""The best constant answers, compared with what losses and metrics give answers one by one."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tff_agnostic.base.text_ids import TokenIds
from tff_agnostic.computations.clients import Clients, arrays_of_client
from tff_agnostic.metrics.constant_answers import (
    NumberSums,
    WordSums,
    class_baselines,
    number_baselines,
    sum_numbers,
    sum_words,
    word_baselines,
)
from tff_agnostic.models import binary_accuracy, logistic_regression
from tff_agnostic.models.metrics import (
    ColumnLoss,
    SentenceLoss,
    mean_absolute_error,
    root_mean_squared_error,
    text_metrics,
)
from tff_agnostic.models.model import Model, ModelWeights

_IDS, _LENGTH, _DOMAINS = 9, 5, 2
_NAMES = ("a", "b")


def _model(labels: Any, loss: Any, metrics: Any) -> Model:
    return Model(
        initial_weights=ModelWeights([], []),
        example_spec={"x": labels, "y": labels},
        predict=lambda weights, x, training, seed: x,
        loss=loss,
        metrics=metrics,
    )


@pytest.mark.parametrize("expected_length", [None, 4.0])
def test_words(expected_length):
    rng = np.random.default_rng(0)
    labels = rng.choice(_IDS, p=rng.dirichlet(np.ones(_IDS)), size=[40, _LENGTH])
    # The last sentences are short ones; the first word is there.
    labels[:, 0] = np.maximum(labels[:, 0], 1)
    labels[30:, 3:] = 0
    domains = rng.integers(_DOMAINS, size=len(labels))
    client = {
        "x": labels.astype(np.int32),
        "y": labels.astype(np.int32),
        "domain_id": domains.astype(np.int32),
    }
    clients = Clients.from_arrays(arrays_of_client(client))
    sums = sum_words(tf.constant(0), clients, num_domains=_DOMAINS, num_ids=_IDS)
    sums = WordSums(*map(np.asarray, sums))
    counts = np.zeros([_DOMAINS, _IDS], int)
    at, words = domains[np.nonzero(labels)[0]], labels[labels > 0]
    np.add.at(counts, (at, words), 1)
    np.testing.assert_array_equal(sums.words, counts)

    ids = TokenIds(_IDS - 4)
    spec = tf.TensorSpec([None, _LENGTH], tf.int32)
    loss, metrics = SentenceLoss(expected_length), text_metrics(ids, _LENGTH)
    model = _model(spec, loss, metrics)

    def of_answer(scores: Any, rows: Any) -> Any:
        """Each measure of one answer to every word, as an evaluation sums it."""
        given = tf.constant(labels[rows], tf.int32)
        answers = tf.tile(tf.constant(scores, tf.float32)[None, None], [*given.shape, 1])
        yield "loss", float(np.mean(loss(given, answers))), len(given)
        for metric in metrics:
            above, below = map(np.sum, metric.per_example(given, answers))
            yield metric.name, float(metric.value(tf.constant(above / below))), below

    everywhere = np.arange(len(labels))
    sets = {"a": domains == 0, "b": domains == 1, "all": everywhere >= 0}
    denominators: dict[str, list[float]] = {}
    for name in _NAMES:
        for measure, _, below in of_answer(np.zeros(_IDS), sets[name]):
            denominators.setdefault(measure, []).append(below)
    found = word_baselines(model, _NAMES, sums, denominators)
    for name, rows in sets.items():
        own = labels[rows]
        shares = np.bincount(own[own > 0], minlength=_IDS) / (own > 0).sum()
        answers = [np.log(shares + 1e-12), *np.log(rng.dirichlet(np.ones(_IDS), size=30) + 1e-12)]
        answers += list(50.0 * np.eye(_IDS))
        tried = [dict((m, v) for m, v, _ in of_answer(scores, rows)) for scores in answers]
        assert found["perplexity"][name] == pytest.approx(tried[0]["perplexity"], rel=1e-4)
        for metric in metrics[1:]:
            best = max(of[metric.name] for of in tried)
            assert found[metric.name][name] == pytest.approx(best)
        # Nothing is better; with a fixed length, shares of words attain it.
        assert found["loss"][name] <= min(of["loss"] for of in tried) * (1 + 1e-5)
        weights = (own > 0) / np.maximum(1, (own > 0).sum(axis=1, keepdims=True))
        if expected_length is None:
            shares = np.bincount(own.ravel(), weights.ravel(), _IDS) / weights.sum()
        (_, attained, _), *_ = of_answer(np.log(shares + 1e-12), rows)
        assert found["loss"][name] == pytest.approx(attained, rel=1e-4)


def test_numbers():
    rng = np.random.default_rng(0)
    labels = rng.normal(5.0, 2.0, size=50).astype(np.float32)
    domains = rng.integers(_DOMAINS, size=50).astype(np.int32)
    client = {"x": labels[:, None], "y": labels, "domain_id": domains}
    sums = sum_numbers(
        tf.constant(0), Clients.from_arrays(arrays_of_client(client)), num_domains=_DOMAINS
    )
    sums = NumberSums(*map(np.asarray, sums))
    squared = ColumnLoss(tf.keras.losses.MeanSquaredError(reduction="none"))
    metrics = (root_mean_squared_error(8.0), mean_absolute_error(8.0))
    model = _model(tf.TensorSpec([None], tf.float32), squared, metrics)
    found = number_baselines(model, _NAMES, sums, np.bincount(domains))
    # Of the absolute error it would be the median, of which sums tell nothing.
    assert set(found) == {"loss", "root_mean_squared_error"}
    for name, of in {"a": labels[domains == 0], "b": labels[domains == 1], "all": labels}.items():
        assert found["loss"][name] == pytest.approx(np.var(of), rel=1e-4)
        assert found["root_mean_squared_error"][name] == pytest.approx(np.std(of), rel=1e-4)
    absolute = ColumnLoss(tf.keras.losses.MeanAbsoluteError(reduction="none"))
    other = dataclasses.replace(model, loss=absolute, metrics=metrics[1:])
    assert not number_baselines(other, _NAMES, sums, np.bincount(domains))


def test_classes():
    counts = {"a": [30, 10, 0], "b": [0, 0, 7]}
    found = class_baselines(logistic_regression(4, 3), counts)

    def entropy(*shares):
        return -sum(share * np.log(share) for share in shares)

    # A domain of one class has none.
    assert found["accuracy"] == {"a": 0.75, "all": 30 / 47}
    expected = {"a": entropy(0.75, 0.25), "all": entropy(30 / 47, 10 / 47, 7 / 47)}
    assert found["loss"] == pytest.approx(expected, rel=1e-5)
    binary = ColumnLoss(tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction="none"))
    spec = tf.TensorSpec([None], tf.int32)
    model = _model(spec, binary, (binary_accuracy(True),))
    assert class_baselines(model, {"a": [3, 1]})["loss"]["a"] == pytest.approx(entropy(0.75, 0.25))
    # Of a loss that does not say what outputs are, nothing is known.
    hinge = dataclasses.replace(model, loss=lambda labels, outputs: tf.zeros(tf.shape(labels)))
    assert set(class_baselines(hinge, {"a": [3, 1]})) == {"accuracy"}
