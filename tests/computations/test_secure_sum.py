"""Plain and secure sums: quantisation and counts of clipped values."""

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests.support import golden
from tests.support.clients import cohort, random_client
from tests.support.comparing import assert_identical
from tests.support.options import make_options
from tests.support.rounds import EagerTraining
from tests.support.sums import decoded_sum, encoded
from tff_agnostic.algorithms import AgnosticFedAvgOptions, Problem
from tff_agnostic.algorithms.agnostic_fed_avg import agnostic_fed_avg
from tff_agnostic.computations import AGGREGATIONS, Bound, SecureSum, SecureSumOptions
from tff_agnostic.computations.client_output import TrainingOutput
from tff_agnostic.models import logistic_regression

_OPTIONS = make_options(
    SecureSumOptions,
    limit_examples=20,
    limit_loss=10.0,
    limit_update=0.5,
    limit_weight=2.0,
    secure_bits=12,
)


class _One(NamedTuple):
    """A client output with one value."""

    value: Any


class _Two(NamedTuple):
    first: Any
    second: Any


def _algorithm():
    options = make_options(
        AgnosticFedAvgOptions,
        client_learning_rate=0.5,
        client_batch_size=4,
        lambda_learning_rate=0.1,
        window=2,
    )
    problem = Problem.numbered(logistic_regression(4, 3), 3)
    return agnostic_fed_avg(problem, options, initial_counts=(10.0, 10.0, 10.0))


def _bounds(options: SecureSumOptions) -> TrainingOutput:
    return _algorithm().steps[0].bounds(options.limit)


_COHORT = cohort(sizes=(9, 4, 14, 7, 1))


@functools.cache
def _client_outputs() -> list[TrainingOutput]:
    training = EagerTraining(_algorithm())
    return [training.client_output(training.initialize(), client) for client in _COHORT]


def _assert_within_quantization_error(actual, outputs, bounds, bits) -> None:
    """Checks that each value is within c * step / 2 of the exact sum over c clients."""
    exact = tf.nest.map_structure(
        lambda *values: np.sum([np.asarray(v, np.float64) for v in values], axis=0), *outputs
    )
    for value, expected, bound in zip(*map(tf.nest.flatten, (actual, exact, bounds))):
        if bound.integer:
            np.testing.assert_array_equal(value, expected)
        else:
            # The documented distance between neighbouring quantised values.
            step = bound.limit / (2 ** (bits - 1) - 1 if bound.signed else 2**bits - 1)
            error = np.abs(np.asarray(value, np.float64) - expected)
            rounding = np.abs(expected) * np.finfo(np.float32).eps
            assert np.all(error <= len(outputs) * step / 2 + rounding)


@pytest.mark.parametrize("bits", [8, 24])
def test_quantization_error_is_within_its_bound(bits):
    options = dataclasses.replace(_OPTIONS, secure_bits=bits)
    bounds, outputs = _bounds(options), _client_outputs()
    decoded, metrics = decoded_sum(SecureSum(options), outputs, bounds)
    assert sum(int(count) for count in metrics["clipped"].values()) == 0
    _assert_within_quantization_error(decoded, outputs, bounds, bits)


def test_integers_and_zeros_are_exact():
    outputs = [tf.nest.map_structure(tf.zeros_like, o) for o in _client_outputs()]
    decoded, _ = decoded_sum(SecureSum(_OPTIONS), outputs, _bounds(_OPTIONS))
    assert_identical(decoded, outputs[0])


@pytest.mark.parametrize("bits", [2, 40])
@pytest.mark.parametrize("signed", [False, True])
def test_ends_of_the_range_are_exact(bits, signed):
    bound = Bound(3.0, signed=signed)
    summand = _One(tf.constant([3.0, -3.0 if signed else 0.0]))
    decoded, _ = decoded_sum(
        SecureSum(make_options(SecureSumOptions, secure_bits=bits)), [summand] * 4, _One(bound)
    )
    np.testing.assert_array_equal(decoded.value, summand.value * 4)


@pytest.mark.parametrize("bits", [2, 40])
@pytest.mark.parametrize("bound", [Bound(3.0), Bound(3.0, signed=True), Bound(1000, integer=True)])
def test_encoded_values_fit_the_declared_bits(bits, bound):
    """Secure-sum protocols derive the modulus from the declared bit width of a client's value."""
    aggregation = SecureSum(make_options(SecureSumOptions, secure_bits=bits))
    largest = np.array([bound.limit], np.int64 if bound.integer else np.float32)
    submitted = encoded(aggregation, _One(tf.constant(largest)), _One(bound))
    assert 0 <= int(submitted.values.value[0]) < 2 ** aggregation.bit_width(bound)


def test_excess_values_are_counted_and_scaled():
    bounds, outputs = _bounds(_OPTIONS), _client_outputs()
    first = outputs[0]
    spoiled = first._replace(
        weighted_delta=[first.weighted_delta[0] * 0 - 7.0, first.weighted_delta[1]],
        beta=tf.constant(2.5),
        domain_losses=tf.constant([210.0, -3.0, 80.0]),
        domain_counts=tf.constant([21, 3, 400], tf.int64),
    )
    decoded, report = decoded_sum(
        SecureSum(_OPTIONS), [spoiled, *outputs[1:]], bounds, [5, 0, 7, 0, 1]
    )
    assert {name: int(count) for name, count in report["clipped"].items()} == {
        "weighted_delta": 12,
        "beta": 1,
        "domain_losses": 2,
        "domain_counts": 2,
        "metric_sums": 0,
        "clients": 0,
        "examples": 13,
    }
    # The update's largest value is 7 times its bound, so update and weight are divided by 7. The
    # counts 21 and 400 become 20, and their losses keep the ratio to the counts. A negative loss
    # becomes 0.
    scaled = spoiled._replace(
        weighted_delta=[d / 7 for d in spoiled.weighted_delta],
        beta=tf.constant(2.5 / 7),
        domain_losses=tf.constant([200.0, 0.0, 4.0]),
        domain_counts=tf.constant([20, 3, 20], tf.int64),
    )
    _assert_within_quantization_error(decoded, [scaled, *outputs[1:]], bounds, _OPTIONS.secure_bits)


def test_values_without_ratio_are_clipped():
    bounds = _Two(Bound(3.0), Bound(1.0, signed=True))
    summand = _Two(tf.constant([7.0, 1.5]), tf.constant([0.25, -4.0]))
    decoded, _ = decoded_sum(
        SecureSum(make_options(SecureSumOptions, secure_bits=32)), [summand] * 2, bounds
    )
    np.testing.assert_allclose(decoded.first, [6.0, 3.0], rtol=1e-6)
    np.testing.assert_allclose(decoded.second, [0.5, -2.0], rtol=1e-6)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_equal_settings_give_equal_aggregations(name):
    """Equal aggregations let trials with other seeds share traces."""
    spec = AGGREGATIONS[name]
    first, second = spec.build(spec.options()), spec.build(spec.options())
    assert first == second and hash(first) == hash(second)
    assert first.name == name


# --- Tests of secure sums in the TFF runtime


@pytest.mark.slow
def test_secure_round_reports_clipping_and_non_finite_clients(tff_runtime):
    options = make_options(
        SecureSumOptions, limit_examples=8, limit_loss=10.0, limit_update=1e-3, secure_bits=32
    )
    training = tff_runtime.training(_algorithm(), SecureSum(options))
    spoiled = random_client(np.random.default_rng(1), 5, range(3))
    spoiled["x"][0, 0] = np.nan
    state, metrics = training.next(training.initialize(), [*_COHORT, spoiled])
    assert metrics["clients"]["non_finite"] == 1
    clipped = metrics["aggregator"]["clipped"]
    assert clipped["weighted_delta"] > 0
    assert clipped["clients"] == 0
    # The clients with 9 and 14 examples use only 8, so no count exceeds its bound.
    assert clipped["examples"] == 1 + 6
    assert clipped["domain_counts"] == 0
    assert all(np.all(np.isfinite(w)) for w in state.algorithm.weights.trainable)


@golden.values
def test_rejects_invalid_options(case):
    return golden.refusal(make_options, SecureSumOptions, **case)
