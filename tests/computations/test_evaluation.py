"""Federated evaluation equals NumPy's: sums by domain, distributions over clients, metrics."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.references.softmax import SOFTMAX
from tests.support.clients import empty_client, make_client, random_client, single
from tests.support.comparing import assert_all_close
from tests.support.models import random_weights
from tests.support.options import make_options
from tff_agnostic.computations import PlainSum, SecureSum, SecureSumOptions
from tff_agnostic.computations.domain_losses import domain_sums
from tff_agnostic.computations.evaluation import EvaluationOutput, evaluate_clients, measure_grids
from tff_agnostic.computations.histograms import quantile
from tff_agnostic.models import Metric, accuracy, logistic_regression, next_word_lstm
from tff_agnostic.models.model import Model, ModelWeights

_DOMAINS = 3
_SECURE = SecureSum(make_options(SecureSumOptions, limit_examples=300, limit_loss=20.0))


def _clients() -> list[dict[str, np.ndarray]]:
    """Returns 30 clients with two domains each; the first has more examples than a batch."""
    rng = np.random.default_rng(1)
    sizes = [280, *rng.integers(1, 30, size=29)]
    return [random_client(rng, int(n), rng.permutation(_DOMAINS)[:2]) for n in sizes]


def _nan_client() -> dict[str, np.ndarray]:
    return make_client(np.full([5, 4], np.nan), [0, 1, 2, 0, 1])


class _Measured(NamedTuple):
    """Domain, loss and correctness of each of a client's examples, from NumPy."""

    domain: np.ndarray
    loss: np.ndarray
    correct: np.ndarray


def _measure(client: dict[str, np.ndarray]) -> _Measured:
    w, x = [w.astype(np.float64) for w in random_weights().trainable], client["x"]
    correct = (x @ w[0] + w[1]).argmax(axis=1) == client["y"]
    return _Measured(client["domain_id"], SOFTMAX.losses(w, x, client["y"]), correct)


@pytest.fixture(scope="module")
def plain(tff_runtime):
    return tff_runtime.evaluation(logistic_regression(4, 3), _DOMAINS, PlainSum())


@pytest.fixture(scope="module")
def output(plain):
    return plain(random_weights(), [_clients()]).output


@pytest.fixture(scope="module")
def measured() -> Sequence[_Measured]:
    return [_measure(client) for client in _clients()]


def test_domain_sums_match_numpy(output, measured):
    domain = np.concatenate([m.domain for m in measured])
    loss = np.concatenate([m.loss for m in measured])
    correct = np.concatenate([m.correct for m in measured])
    for i in range(_DOMAINS):
        np.testing.assert_allclose(output.sums.losses[i], loss[domain == i].sum(), rtol=1e-5)
        assert output.sums.counts[i] == np.sum(domain == i)
        assert output.sums.metric_sums["accuracy"].numerator[i] == correct[domain == i].sum()
        assert output.sums.metric_sums["accuracy"].denominator[i] == np.sum(domain == i)


def _client_values(measured: Sequence[_Measured], measure: str, row: int) -> np.ndarray:
    """Returns each client's mean measure in domain `row`, or in all domains if `row` is p.

    Clients without examples of the domain are skipped.
    """
    values = []
    for client in measured:
        in_row = client.domain == row if row < _DOMAINS else np.ones(len(client.domain), bool)
        if np.any(in_row):
            values.append(np.mean(getattr(client, measure)[in_row]))
    return np.array(values)


@pytest.mark.parametrize(
    ("measure", "column", "relative_error", "absolute_error"),
    [("loss", "loss", 0.028, 0.0), ("accuracy", "correct", 0.0, 0.0026)],
)
def test_distributions_over_clients_match_numpy(
    output, measured, measure, column, relative_error, absolute_error
):
    distribution = output.over_clients[measure]
    grid = measure_grids(logistic_regression(4, 3))[measure]
    for row in range(_DOMAINS + 1):
        values = _client_values(measured, column, row)
        assert distribution.num_clients[row] == len(values)
        assert distribution.histogram[row].sum() == len(values)
        np.testing.assert_allclose(distribution.total[row], values.sum(), rtol=1e-5)
        for q in (0.1, 0.5, 0.9):
            exact = np.quantile(values, q)
            estimate = quantile(grid, distribution.histogram[row], q)
            assert abs(estimate - exact) <= relative_error * exact + absolute_error


@pytest.mark.parametrize(("measure", "column"), [("loss", "loss"), ("accuracy", "correct")])
def test_distributions_by_client_size_match_numpy(output, measured, measure, column):
    values = _client_values(measured, column, _DOMAINS)
    sizes = np.array([len(client.domain) for client in measured])
    bins = np.floor(np.log2(sizes)).astype(int)
    assert len(set(bins)) > 4
    actual = output.by_size[measure]
    np.testing.assert_array_equal(actual.num_clients, np.bincount(bins, minlength=24))
    expected = np.bincount(bins, weights=values, minlength=24)
    np.testing.assert_allclose(actual.total, expected, rtol=1e-5)


def test_empty_and_non_finite_clients_are_only_counted(plain, output):
    clients = [_nan_client(), *_clients(), empty_client(), empty_client()]
    spoiled = plain(random_weights(), [clients]).output
    assert dict(spoiled.clients) == {"evaluated": 30, "empty": 2, "non_finite": 1}
    assert_all_close(spoiled._replace(clients=()), output._replace(clients=()), rtol=1e-6)


@pytest.mark.parametrize("clients", [[], [_nan_client()]])
def test_sums_are_zero_without_finite_examples(plain, clients):
    output = plain(random_weights(), [clients]).output
    for value in tf.nest.flatten(output._replace(clients=())):
        np.testing.assert_array_equal(value, np.zeros_like(value))
    for name, grid in measure_grids(logistic_regression(4, 3)).items():
        assert math.isnan(quantile(grid, output.over_clients[name].histogram[0], 0.5))


@pytest.mark.slow
def test_secure_evaluation_matches_plain_evaluation(tff_runtime, output):
    evaluate = tff_runtime.evaluation(logistic_regression(4, 3), _DOMAINS, _SECURE)
    secure = evaluate(random_weights(), [[_nan_client(), *_clients(), empty_client()]]).output
    assert dict(secure.clients) == {"evaluated": 30, "empty": 1, "non_finite": 1}
    assert_all_close(secure._replace(clients=()), output._replace(clients=()), rtol=1e-5, atol=1e-4)
    # Secure sums do not round histograms and counts, which are integers.
    for measure in ("loss", "accuracy"):
        np.testing.assert_array_equal(
            secure.over_clients[measure].histogram, output.over_clients[measure].histogram
        )
        np.testing.assert_array_equal(
            secure.by_size[measure].num_clients, output.by_size[measure].num_clients
        )


@pytest.mark.slow
def test_values_by_client_size_are_clipped(streaming_runtime, output):
    low = SecureSum(make_options(SecureSumOptions, limit_examples=300, limit_loss=0.5))
    evaluated = streaming_runtime.evaluation(logistic_regression(4, 3), _DOMAINS, low)(
        random_weights(), [_clients()]
    )
    assert evaluated.clipped["by_size"] > 0
    by_size = evaluated.output.by_size["loss"]
    np.testing.assert_array_equal(by_size.num_clients, output.by_size["loss"].num_clients)
    assert np.all(by_size.total <= 0.5 * by_size.num_clients + 1e-6)


def _evaluate_one(model: Model, weights: ModelWeights, client: Any) -> EvaluationOutput:
    return evaluate_clients(weights, single(client), model=model, num_domains=_DOMAINS)


def _squared_error() -> Metric:
    def per_example(labels: Any, predictions: Any) -> Any:
        error = tf.square(predictions[:, 0] - tf.cast(labels, tf.float32))
        return error, tf.ones_like(error)

    return Metric("squared_error", per_example, max_numerator=100.0, upper=None)


def _labelled_only() -> Metric:
    """Returns the accuracy on examples of class 1, which is undefined for many clients."""

    def per_example(labels: Any, predictions: Any) -> Any:
        counted = tf.cast(tf.equal(labels, 1), tf.float32)
        correct, _ = accuracy().per_example(labels, predictions)
        return correct * counted, counted

    return Metric("recall_of_1", per_example)


def _model_with(*metrics: Metric) -> Model:
    base = logistic_regression(4, 3)
    return Model(
        base.initial_weights, base.example_spec, base.predict, base.loss, metrics=tuple(metrics)
    )


def test_unbounded_metric_uses_log_grid():
    model = _model_with(_squared_error())
    client = _clients()[3]
    output = _evaluate_one(model, random_weights(), client)
    scores = client["x"] @ random_weights().trainable[0] + random_weights().trainable[1]
    exact = np.mean((scores[:, 0] - client["y"]) ** 2)
    histogram = np.asarray(output.over_clients["squared_error"].histogram)[_DOMAINS]
    estimate = quantile(measure_grids(model)["squared_error"], histogram, 0.5)
    assert abs(estimate - exact) <= 0.028 * exact


def test_undefined_metric_excludes_client_from_distribution():
    model = _model_with(_labelled_only())
    client = make_client(np.ones([4, 4]), [0, 0, 1, 1], y=[0, 2, 1, 1])
    output = _evaluate_one(model, random_weights(), client)
    np.testing.assert_array_equal(output.over_clients["recall_of_1"].num_clients, [0, 1, 0, 1])
    np.testing.assert_array_equal(output.over_clients["loss"].num_clients, [1, 1, 0, 1])
    # A client's size bin depends on all its examples, even if the metric ignores some of them.
    assert np.flatnonzero(output.by_size["recall_of_1"].num_clients).tolist() == [2]
    nowhere = _evaluate_one(model, random_weights(), make_client(np.ones([2, 4]), [0, 0], y=[0, 2]))
    assert not np.any(nowhere.by_size["recall_of_1"].num_clients)
    assert np.flatnonzero(nowhere.by_size["loss"].num_clients).tolist() == [1]


def test_metric_defines_its_grid():
    fine = Metric("fine", accuracy().per_example, upper=20.0, num_bins=1001)
    grid = measure_grids(_model_with(fine))["fine"]
    np.testing.assert_allclose(grid.centers()[[0, 1, -1]], [0, 0.02, 20])


def test_text_metrics_do_not_depend_on_batches():
    model = next_word_lstm(vocabulary_size=5, embedding=3, units=4, sequence_length=3)
    rng = np.random.default_rng(0)
    x, y = rng.integers(9, size=[2, 11, 3]).astype(np.int32)
    client = {"x": x, "y": y, "domain_id": rng.integers(_DOMAINS, size=11).astype(np.int32)}
    outputs = []
    for batch_size in (4, 256):
        sums = domain_sums(
            model, _DOMAINS, model.initial_weights, single(client), batch_size=batch_size
        )
        outputs.append(sums)
    for output in outputs[1:]:
        assert_all_close(output, outputs[0], rtol=1e-5)
    words = np.array([np.sum(y[client["domain_id"] == i] > 0) for i in range(_DOMAINS)])
    np.testing.assert_array_equal(outputs[0].metric_sums["perplexity"].denominator, words)
    evaluated = _evaluate_one(model, model.initial_weights, client).sums
    assert_all_close(evaluated, outputs[0], rtol=1e-5)
