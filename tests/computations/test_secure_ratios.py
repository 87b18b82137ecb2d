"""Secure sums scale down clients beyond their bounds, and keep the clients' ratios.

The server divides sums: updates by weights, losses by counts, metrics' numerators by denominators.
If each value were clipped separately, a client could gain weight by sending larger values.
"""

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests.support.options import make_options
from tests.support.sums import decoded_sum
from tff_agnostic.computations import SecureSum, SecureSumOptions
from tff_agnostic.computations.client_output import ClientCounts, TrainingOutput, training_bounds
from tff_agnostic.computations.domain_losses import MetricSums
from tff_agnostic.models import logistic_regression

_OPTIONS = make_options(
    SecureSumOptions,
    limit_examples=20,
    limit_loss=10.0,
    limit_update=0.5,
    limit_weight=2.0,
    secure_bits=40,
)
_BOUNDS = training_bounds(logistic_regression(4, 3), 1.0)(_OPTIONS.limit)
_MAX_BETA, _MAX_UPDATE, _MAX_LOSSES, _MAX_COUNT = 2.0, 1.0, 200.0, 20
_FLOAT32 = 1e-6


class _Values(NamedTuple):
    """The values of a client's output that form ratios, or their sums; `measured` are counts."""

    update: np.ndarray
    beta: float
    losses: np.ndarray
    counts: np.ndarray
    correct: np.ndarray
    measured: np.ndarray


def _client(
    beta: float = 0.5,
    ratio: Any = 0.1,
    counts: Any = (4, 3, 5),
    mean_loss: Any = 1.5,
    share_correct: float = 0.5,
) -> _Values:
    """Returns a client's output with the given ratios; by default an honest client's."""
    n = np.array(counts)
    return _Values(beta * np.full(15, ratio), beta, n * mean_loss, n, share_correct * n, n)


def _summed(*clients: _Values) -> _Values:
    """Returns the decoded sums of a cohort."""

    def real(values: Any) -> tf.Tensor:
        return tf.constant(values, tf.float32)

    outputs = [
        TrainingOutput(
            weighted_delta=[real(k.update[:12].reshape(4, 3)), real(k.update[12:])],
            beta=real(k.beta),
            extra=(),
            domain_losses=real(k.losses),
            domain_counts=tf.constant(k.counts, tf.int64),
            metric_sums=OrderedDict(accuracy=MetricSums(real(k.correct), real(k.measured))),
            clients=ClientCounts(*map(tf.constant, np.array([1, 0, 0, 0], np.int64))),
        )
        for k in clients
    ]
    decoded, _ = decoded_sum(SecureSum(_OPTIONS), outputs, _BOUNDS)
    update = np.concatenate([np.ravel(d) for d in decoded.weighted_delta])
    sums = (decoded.domain_losses, decoded.domain_counts, *decoded.metric_sums["accuracy"])
    return _Values(update, float(decoded.beta), *(np.asarray(v, np.float64) for v in sums))


def _assert_ratio(numerator: Any, denominator: Any, ratio: Any) -> None:
    """Compares a decoded ratio without dividing, as a scaled client's values can be nearly 0."""
    expected = np.asarray(ratio) * denominator
    # The maximum error of numerator and denominator by quantisation, and float32's.
    step = 1.1 * _MAX_LOSSES / 2**40
    error = step * (1 + np.abs(ratio)) + _FLOAT32 * (np.abs(expected) + np.abs(numerator))
    assert np.all(np.abs(numerator - expected) <= error)


@pytest.mark.parametrize("seed", range(15))
def test_client_keeps_ratios_and_gains_no_weight(seed):
    """The client's values have any sizes, below and far above the bounds."""
    rng = np.random.default_rng(seed)
    client = _client(
        beta=float(10 ** rng.uniform(-5, 9)),
        ratio=rng.normal(size=15) * 10 ** rng.uniform(-5, 6),
        counts=np.int64(10 ** rng.uniform(0, 6, size=3)) * rng.integers(2, size=3),
        mean_loss=10 ** rng.uniform(-5, 6, size=3),
        share_correct=rng.uniform(),
    )
    summed, present = _summed(client), client.counts > 0
    _assert_ratio(summed.update, summed.beta, client.update / client.beta)
    for sums, values, counts in (
        (summed.losses, client.losses, summed.counts),
        (summed.correct, client.correct, summed.measured),
    ):
        _assert_ratio(sums[present], counts[present], values[present] / client.counts[present])
        assert not np.any(sums[~present]) and not np.any(counts[~present])
    # The sums exceed neither the client's values nor the bounds.
    limits = _Values(
        np.full(15, _MAX_UPDATE), _MAX_BETA, np.full(3, _MAX_LOSSES), *[np.full(3, _MAX_COUNT)] * 3
    )
    for actual, value, limit in zip(summed, client, limits):
        most = np.minimum(np.abs(value), limit)
        assert np.all(np.abs(actual) <= most * (1 + _FLOAT32) + 1e-9)


def test_client_within_bounds_is_unchanged():
    honest = _client(beta=2.0, counts=(20, 0, 20), mean_loss=10.0, share_correct=1.0)
    for actual, expected in zip(_summed(honest), honest):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-9)


def test_domains_and_updates_are_bounded_separately():
    summed = _summed(_client(counts=(4, 9000, 5), mean_loss=np.array([1.5, 1e6, 1.5])))
    np.testing.assert_allclose(summed.losses[[0, 2]], [6.0, 7.5], rtol=1e-6)
    np.testing.assert_array_equal(summed.counts[[0, 2]], [4, 5])
    np.testing.assert_allclose(summed.correct[[0, 2]], [2.0, 2.5], rtol=1e-6)
    np.testing.assert_allclose(summed.beta, 0.5, rtol=1e-6)
    summed = _summed(_client(beta=1e6))
    np.testing.assert_allclose(summed.losses, [6.0, 4.5, 7.5], rtol=1e-6)


@pytest.mark.parametrize(
    "adversary",
    [
        _client(beta=1e-3, ratio=-1e5),
        _client(counts=(0, 1, 0), mean_loss=1e6),
        _client(beta=1e9, ratio=1e3, counts=(10**6, 1, 77), mean_loss=20.0),
    ],
    ids=["tiny weight, huge update", "one example with a huge loss", "everything at once"],
)
def test_adversary_weighs_as_much_as_client_at_bounds(adversary):
    honest = [_client()] * 7
    summed, others = _summed(*honest, adversary), _summed(*honest)

    ratios = adversary.update / adversary.beta
    factor = min(1.0, _MAX_BETA / adversary.beta, _MAX_UPDATE / np.abs(adversary.update).max())
    weight = factor * adversary.beta
    expected = (0.1 * others.beta + ratios * weight) / (others.beta + weight)
    np.testing.assert_allclose(summed.update / summed.beta, expected, rtol=1e-4, atol=1e-6)

    for i in np.flatnonzero(adversary.counts):
        mean_loss = adversary.losses[i] / adversary.counts[i]
        # Examples count until their number or their summed losses would exceed the bound.
        counted = int(min(adversary.counts[i], _MAX_COUNT, _MAX_LOSSES / mean_loss * (1 + 1e-9)))
        expected = (others.losses[i] + mean_loss * counted) / (others.counts[i] + counted)
        np.testing.assert_allclose(summed.losses[i] / summed.counts[i], expected, rtol=1e-5)


def test_negative_weight_keeps_others_weight():
    honest = _client()
    summed = _summed(honest, honest._replace(beta=-1e9, losses=-honest.losses))
    np.testing.assert_allclose(summed.beta, honest.beta, rtol=1e-6)
    np.testing.assert_allclose(summed.losses, honest.losses, rtol=1e-6)
