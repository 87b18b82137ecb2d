"""Sums, plain and secure: quantisation, clipping, and what is counted."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests.computations.harness import (
    EagerTraining,
    assert_all_close,
    assert_identical,
    random_client,
    run_rounds,
)
from tff_agnostic.computations.aggregation import (
    Bound,
    PlainSum,
    SecureBounds,
    SecureSum,
)
from tff_agnostic.computations.agnostic_fed_avg import agnostic_fed_avg
from tff_agnostic.computations.algorithm import AlgorithmParams
from tff_agnostic.computations.domain_weights import DomainWeightsParams
from tff_agnostic.computations.local_training import LocalTrainingParams
from tff_agnostic.computations.structures import ClientOutput
from tff_agnostic.models import logistic_regression

_BOUNDS = SecureBounds(max_examples=20, max_loss=10.0, max_delta=0.5, max_beta=2.0, bits=12)


class _One(NamedTuple):
    """The smallest output that an aggregation takes."""

    value: Any


def _algorithm():
    params = AlgorithmParams(
        LocalTrainingParams(learning_rate=0.5, batch_size=4),
        domain_weights=DomainWeightsParams(
            learning_rate=0.1, window_size=2, initial_counts=(10.0, 10.0, 10.0)
        ),
    )
    return agnostic_fed_avg(logistic_regression(4, 3), 3, params)


def _cohort(seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [random_client(rng, n, range(3)) for n in (9, 4, 14, 7, 1)]


def _client_outputs() -> list[ClientOutput]:
    training = EagerTraining(_algorithm())
    client_input = training.prepare(training.initialize())
    return [training.client_update(client_input, client) for client in _cohort()]


def _sum(aggregation: Any, outputs: Sequence[Any], bounds: Any) -> tuple[Any, Any]:
    """What the server has after encoding, summing and decoding."""
    encoded = [aggregation.encode(output, bounds) for output in outputs]
    summed = tf.nest.map_structure(lambda *values: tf.add_n(values), *encoded)
    return aggregation.decode(summed, bounds)


def _step(bound: Bound, bits: int) -> float:
    """Distance of neighbouring values that the class promises."""
    levels = 2 ** (bits - 1) - 1 if bound.signed else 2**bits - 1
    return bound.limit / levels


def _assert_within_quantization_error(actual, outputs, bounds, bits) -> None:
    """Compares a decoded sum with the exact one: at most c * step / 2 for each value."""
    exact = tf.nest.map_structure(
        lambda *values: np.sum([np.asarray(v, np.float64) for v in values], axis=0), *outputs
    )
    for value, expected, bound in zip(*map(tf.nest.flatten, (actual, exact, bounds))):
        if bound.integer:
            np.testing.assert_array_equal(value, expected)
        else:
            error = np.abs(np.asarray(value, np.float64) - expected)
            rounding = np.abs(expected) * np.finfo(np.float32).eps
            assert np.all(error <= len(outputs) * _step(bound, bits) / 2 + rounding)


@pytest.mark.parametrize("bits", [4, 8, 12, 16, 24])
def test_quantization_error_is_within_the_stated_bound(bits):
    secure_bounds = SecureBounds(
        max_examples=20, max_loss=10.0, max_delta=0.5, max_beta=2.0, bits=bits
    )
    bounds = _algorithm().output_bounds(secure_bounds)
    outputs = _client_outputs()
    decoded, metrics = _sum(SecureSum(secure_bounds), outputs, bounds)
    assert sum(int(count) for count in metrics["clipped"].values()) == 0
    _assert_within_quantization_error(decoded, outputs, bounds, bits)


def test_integers_and_zeros_are_exact():
    bounds = _algorithm().output_bounds(_BOUNDS)
    outputs = [tf.nest.map_structure(tf.zeros_like, o) for o in _client_outputs()]
    decoded, _ = _sum(SecureSum(_BOUNDS), outputs, bounds)
    assert_identical(decoded, outputs[0])


@pytest.mark.parametrize("bits", [2, 12, 32, 40])
@pytest.mark.parametrize("signed", [False, True])
def test_the_ends_of_the_range_are_exact(bits, signed):
    bound = Bound(3.0, signed=signed)
    summand = _One(tf.constant([3.0, -3.0 if signed else 0.0]))
    decoded, _ = _sum(SecureSum(SecureBounds(bits=bits)), [summand] * 4, _One(bound))
    np.testing.assert_array_equal(decoded.value, summand.value * 4)


@pytest.mark.parametrize("bits", [2, 12, 32, 40])
@pytest.mark.parametrize(
    "bound",
    [Bound(3.0), Bound(3.0, signed=True), Bound(1000, integer=True), Bound(1, integer=True)],
)
def test_what_is_summed_fits_the_bits_that_are_declared(bits, bound):
    """A secure-sum protocol takes the declared width as the modulus of one client's value."""
    aggregation = SecureSum(SecureBounds(bits=bits))
    largest = np.array([bound.limit], np.int64 if bound.integer else np.float32)
    encoded = aggregation.encode(_One(tf.constant(largest)), _One(bound))
    assert 0 <= int(encoded.values.value[0]) < 2 ** aggregation.bit_width(bound)


def test_clipped_values_are_counted_by_field():
    bounds = _algorithm().output_bounds(_BOUNDS)
    outputs = _client_outputs()
    spoiled = outputs[0]._replace(
        weighted_delta=[outputs[0].weighted_delta[0] * 0 - 7.0, outputs[0].weighted_delta[1]],
        beta=tf.constant(2.5),
        domain_counts=tf.constant([21, 3, 400], tf.int64),
    )
    decoded, metrics = _sum(SecureSum(_BOUNDS), [spoiled, *outputs[1:]], bounds)
    assert {name: int(count) for name, count in metrics["clipped"].items()} == {
        "weighted_delta": 12,
        "beta": 1,
        "domain_losses": 0,
        "domain_counts": 2,
        "metric_sums": 0,
        "clients": 0,
    }
    # What was too large counts as the bound: -7 as -(max_beta * max_delta), 21 and 400 as 20.
    clipped = spoiled._replace(
        weighted_delta=[outputs[0].weighted_delta[0] * 0 - 1.0, outputs[0].weighted_delta[1]],
        beta=tf.constant(2.0),
        domain_counts=tf.constant([20, 3, 20], tf.int64),
    )
    _assert_within_quantization_error(decoded, [clipped, *outputs[1:]], bounds, _BOUNDS.bits)


def test_a_negative_loss_is_clipped_to_zero_and_counted():
    bounds = _algorithm().output_bounds(_BOUNDS)
    spoiled = _client_outputs()[0]._replace(domain_losses=tf.constant([-1.0, 2.0, 3.0]))
    decoded, metrics = _sum(SecureSum(_BOUNDS), [spoiled], bounds)
    assert metrics["clipped"]["domain_losses"] == 1
    np.testing.assert_allclose(decoded.domain_losses, [0.0, 2.0, 3.0], atol=0.05)


def test_plain_sum_is_the_sum():
    outputs = _client_outputs()
    bounds = _algorithm().output_bounds(_BOUNDS)
    decoded, metrics = _sum(PlainSum(), outputs, bounds)
    assert_identical(decoded, tf.nest.map_structure(lambda *v: tf.add_n(v), *outputs))
    assert metrics == OrderedDict()


# In the TFF runtime


def test_a_secure_run_follows_the_plain_one(tff_runtime):
    bounds = SecureBounds(max_examples=20, max_loss=10.0, max_delta=2.0, bits=32)
    cohorts = [_cohort(seed) for seed in range(5)]
    plain, plain_metrics = run_rounds(tff_runtime.training(_algorithm(), PlainSum()), cohorts)
    secure, metrics = run_rounds(tff_runtime.training(_algorithm(), SecureSum(bounds)), cohorts)
    assert_all_close(secure, plain, rtol=1e-5, atol=1e-6)
    for secure_round, plain_round in zip(metrics, plain_metrics):
        clipped = secure_round["aggregator"].pop("clipped")
        assert sum(clipped.values()) == 0
        assert_all_close(secure_round, plain_round, rtol=1e-5, atol=1e-6)


def test_clipping_and_clients_that_are_not_finite_show_in_a_secure_round(tff_runtime):
    bounds = SecureBounds(max_examples=8, max_loss=10.0, max_delta=1e-3, bits=32)
    training = tff_runtime.training(_algorithm(), SecureSum(bounds))
    spoiled = random_client(np.random.default_rng(1), 5, range(3))
    spoiled["x"][0, 0] = np.nan
    state, metrics = training.next(training.initialize(), [*_cohort(), spoiled])
    assert metrics["clients"]["non_finite"] == 1
    assert metrics["aggregator"]["clipped"]["weighted_delta"] > 0
    assert metrics["aggregator"]["clipped"]["clients"] == 0
    assert all(np.all(np.isfinite(w)) for w in state.weights.trainable)


def test_an_empty_secure_cohort_changes_nothing(tff_runtime):
    training = tff_runtime.training(_algorithm(), SecureSum(_BOUNDS))
    state = training.initialize()
    next_state, _ = training.next(state, [])
    assert_identical(next_state._replace(round_num=state.round_num), state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_examples": 0}, "max_examples: expected a positive number, found 0"),
        ({"max_loss": -1.0}, "max_loss"),
        ({"max_delta": float("nan")}, "max_delta"),
        ({"max_beta": float("inf")}, "max_beta"),
        ({"bits": 1}, "bits: expected 2 to 40, found 1"),
        ({"bits": 41}, "found 41"),
    ],
)
def test_bounds_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SecureBounds(**options)
