"""Secure sums scale down clients beyond their bounds, and keep the clients' ratios.

The server divides sums: updates by weights, losses by counts, metrics' numerators by denominators.
If each value were clipped separately, a client could gain weight by sending larger values.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import pytest
import tensorflow as tf

from tests.support.options import make_options
from tests.support.sums import decoded_sum
from tff_agnostic.computations import SecureSum, SecureSumOptions
from tff_agnostic.computations.client_output import ClientCounts, TrainingOutput, training_bounds
from tff_agnostic.computations.domain_losses import MetricSums
from tff_agnostic.models import logistic_regression

_DOMAINS = 3
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
# Relative slack for rounded quotients of floats.
_SLACK = 1 + 1e-9


class _Answer(NamedTuple):
    """The values of a client's output that form ratios, in float64 and integers."""

    update: np.ndarray
    beta: float
    losses: np.ndarray
    counts: np.ndarray
    correct: np.ndarray

    def as_output(self) -> TrainingOutput:
        def real(values: Any) -> tf.Tensor:
            return tf.constant(values, tf.float32)

        accuracy = MetricSums(real(self.correct), real(self.counts))
        return TrainingOutput(
            weighted_delta=[real(self.update[:12].reshape(4, 3)), real(self.update[12:])],
            beta=real(self.beta),
            extra=(),
            domain_losses=real(self.losses),
            domain_counts=tf.constant(self.counts, tf.int64),
            metric_sums=OrderedDict(accuracy=accuracy),
            clients=ClientCounts(*map(tf.constant, np.array([1, 0, 0, 0], np.int64))),
        )


class _Sums(NamedTuple):
    """The decoded sums of a cohort."""

    update: np.ndarray
    beta: float
    losses: np.ndarray
    counts: np.ndarray
    correct: np.ndarray
    measured: np.ndarray


def _answer(
    rng: Any = None,
    beta: float = 0.5,
    ratio: Optional[np.ndarray] = None,
    counts: Sequence[int] = (4, 3, 5),
    mean_loss: Any = 1.5,
    share_correct: float = 0.5,
) -> _Answer:
    """Returns a client's output with the given ratios; by default an honest client's."""
    rng = np.random.default_rng(0) if rng is None else rng
    ratio = rng.uniform(-0.4, 0.4, 15) if ratio is None else ratio
    n = np.array(counts)
    return _Answer(beta * ratio, beta, n * mean_loss, n, share_correct * n)


def _summed(*answers: _Answer) -> _Sums:
    decoded, _ = decoded_sum(SecureSum(_OPTIONS), [a.as_output() for a in answers], _BOUNDS)
    accuracy = decoded.metric_sums["accuracy"]
    parts = [np.ravel(d).astype(np.float64) for d in decoded.weighted_delta]
    return _Sums(
        np.concatenate(parts),
        float(decoded.beta),
        np.asarray(decoded.domain_losses, np.float64),
        np.asarray(decoded.domain_counts),
        np.asarray(accuracy.numerator, np.float64),
        np.asarray(accuracy.denominator, np.float64),
    )


_RNG = np.random.default_rng(3)
_ADVERSARIES = {
    "a huge update of a huge weight": _answer(beta=3e4, ratio=_RNG.normal(size=15) * 100),
    "a tiny weight with a huge update": _answer(beta=1e-3, ratio=_RNG.normal(size=15) * 1e5),
    "a huge loss in one domain": _answer(mean_loss=np.array([1.0, 1e4, 1.0])),
    "one example with a loss of a million": _answer(counts=(0, 1, 0), mean_loss=1e6),
    "many examples of all domains": _answer(counts=(10_000, 70_001, 123_457), mean_loss=2.0),
    "counts just above the bound": _answer(counts=(21, 20, 39), mean_loss=9.9),
    "everything at once": _answer(
        beta=1e9, ratio=_RNG.normal(size=15) * 1e3, counts=(10**6, 1, 77), mean_loss=1e6
    ),
}


@pytest.fixture(params=list(_ADVERSARIES))
def adversary(request) -> _Answer:
    return _ADVERSARIES[request.param]


def _assert_ratio(numerator: Any, denominator: Any, ratio: Any, rounding: float) -> None:
    """Compares a decoded ratio without dividing, as a scaled client's values can be nearly 0.

    `rounding` is the maximum error of numerator and denominator by quantisation.
    """
    expected = np.asarray(ratio) * denominator
    error = rounding * (1 + np.abs(ratio)) + _FLOAT32 * (np.abs(expected) + np.abs(numerator))
    assert np.all(np.abs(numerator - expected) <= error)


def _assert_keeps_its_ratios(answer: _Answer) -> None:
    summed = _summed(answer)
    step = 1.1 * _MAX_LOSSES / 2**40
    _assert_ratio(summed.update, summed.beta, answer.update / answer.beta, step)
    present = answer.counts > 0
    mean_loss = answer.losses[present] / answer.counts[present]
    _assert_ratio(summed.losses[present], summed.counts[present], mean_loss, step)
    share_correct = answer.correct[present] / answer.counts[present]
    _assert_ratio(summed.correct[present], summed.measured[present], share_correct, step)
    for absent in (summed.losses, summed.counts, summed.correct, summed.measured):
        assert np.all(absent[~present] == 0)


def _assert_weighs_no_more(answer: _Answer) -> None:
    """Checks that a client's sums exceed neither its own values nor the bounds."""
    summed = _summed(answer)
    slack = 1 + _FLOAT32
    assert summed.beta <= min(_MAX_BETA, answer.beta) * slack + 1e-11
    assert np.all(np.abs(summed.update) <= _MAX_UPDATE * slack)
    assert np.all(np.abs(summed.update) <= np.abs(answer.update) * slack + 1e-9)
    assert np.all(summed.losses <= np.minimum(_MAX_LOSSES, answer.losses) * slack + 1e-9)
    assert np.all(summed.counts <= np.minimum(_MAX_COUNT, answer.counts))
    assert np.all(summed.measured <= np.minimum(_MAX_COUNT, answer.counts) * slack)


def test_client_keeps_ratios_and_gains_no_weight(adversary):
    _assert_keeps_its_ratios(adversary)
    _assert_weighs_no_more(adversary)


@pytest.mark.parametrize("seed", range(12))
def test_random_client_keeps_ratios_and_gains_no_weight(seed):
    rng = np.random.default_rng(seed)

    def size(low: float, high: float) -> float:
        return float(10 ** rng.uniform(low, high))

    answer = _answer(
        rng,
        beta=size(-5, 8),
        ratio=rng.normal(size=15) * size(-5, 6),
        counts=[int(size(0, 6)) * rng.integers(2) for _ in range(_DOMAINS)],
        mean_loss=np.array([size(-5, 6) for _ in range(_DOMAINS)]),
        share_correct=rng.uniform(),
    )
    _assert_keeps_its_ratios(answer)
    _assert_weighs_no_more(answer)


def test_client_within_bounds_is_unchanged():
    honest = _answer(beta=2.0, counts=(20, 0, 20), mean_loss=10.0, share_correct=1.0)
    summed = _summed(honest)
    np.testing.assert_allclose(summed.update, honest.update, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(summed.beta, 2.0, rtol=1e-6)
    np.testing.assert_allclose(summed.losses, [200, 0, 200], rtol=1e-6)
    np.testing.assert_array_equal(summed.counts, [20, 0, 20])
    np.testing.assert_allclose(summed.correct, [20, 0, 20], rtol=1e-6)


def test_domains_and_updates_are_bounded_separately():
    summed = _summed(_answer(counts=(4, 9000, 5), mean_loss=np.array([1.5, 1e6, 1.5])))
    np.testing.assert_allclose(summed.losses[[0, 2]], [6.0, 7.5], rtol=1e-6)
    np.testing.assert_array_equal(summed.counts[[0, 2]], [4, 5])
    np.testing.assert_allclose(summed.correct[[0, 2]], [2.0, 2.5], rtol=1e-6)
    np.testing.assert_allclose(summed.beta, 0.5, rtol=1e-6)
    summed = _summed(_answer(beta=1e6, counts=(4, 3, 5)))
    np.testing.assert_allclose(summed.losses, [6.0, 4.5, 7.5], rtol=1e-6)


def test_adversary_weighs_as_much_as_client_at_bounds(adversary):
    honest = [_answer(ratio=np.full(15, 0.1)) for _ in range(7)]
    summed, others = _summed(*honest, adversary), _summed(*honest)

    ratios = adversary.update / adversary.beta
    factor = min(1.0, _MAX_BETA / adversary.beta, _MAX_UPDATE / np.abs(adversary.update).max())
    weight = factor * adversary.beta
    expected = (0.1 * others.beta + ratios * weight) / (others.beta + weight)
    np.testing.assert_allclose(summed.update / summed.beta, expected, rtol=1e-4, atol=1e-6)

    for i in np.flatnonzero(adversary.counts):
        mean_loss = adversary.losses[i] / adversary.counts[i]
        # Examples count until their number or their summed losses would exceed the bound.
        counted = int(min(adversary.counts[i], _MAX_COUNT, _MAX_LOSSES / mean_loss * _SLACK))
        expected = (others.losses[i] + mean_loss * counted) / (others.counts[i] + counted)
        np.testing.assert_allclose(summed.losses[i] / summed.counts[i], expected, rtol=1e-5)


def test_huge_loss_of_one_example_is_not_counted():
    summed = _summed(_ADVERSARIES["one example with a loss of a million"])
    np.testing.assert_array_equal(summed.losses, [0, 0, 0])
    np.testing.assert_array_equal(summed.counts, [0, 0, 0])


def test_negative_weight_keeps_others_weight():
    honest = _answer()
    spoiled = honest._replace(beta=-1e9, losses=-honest.losses)
    summed = _summed(honest, spoiled)
    np.testing.assert_allclose(summed.beta, honest.beta, rtol=1e-6)
    np.testing.assert_allclose(summed.losses, honest.losses, rtol=1e-6)
