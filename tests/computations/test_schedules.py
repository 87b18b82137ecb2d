"""Schedules of learning rates: their formulas, rounds with schedules, and tabulated functions."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support import golden
from tests.support.algorithms import build
from tests.support.clients import NUM_DOMAINS, cohorts
from tests.support.comparing import assert_all_close, assert_identical
from tests.support.options import make_options
from tests.support.rounds import run_rounds
from tff_agnostic.algorithms import FedAvgOptions, Problem
from tff_agnostic.algorithms.fed_avg import fed_avg
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations import (
    ClientTraining,
    PlainSum,
    Rate,
    ServerUpdate,
    tabulated,
    with_rate_columns,
)
from tff_agnostic.computations.schedules import (
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    InverseTime,
    Piecewise,
    Schedule,
)
from tff_agnostic.models import logistic_regression

_KERAS = tf.keras.optimizers.schedules
_RATE, _T, _F = 0.3, 4, 0.25
# Each schedule, and a function from the round to the expected rate. It is Keras' function except
# for the inverse square root, which Keras lacks.
_FORMULAS: list[tuple[Schedule, Any]] = [
    (InverseTime(_T), _KERAS.InverseTimeDecay(_RATE, _T, 1.0)),
    (Exponential(_T, _F), _KERAS.ExponentialDecay(_RATE, _T, _F)),
    (Cosine(_T, _F), _KERAS.CosineDecay(_RATE, _T, _F)),
    # Keras changes the value one step after the boundary.
    (Piecewise((_T,), (_F,)), _KERAS.PiecewiseConstantDecay([_T - 1], [_RATE, _RATE * _F])),
    (InverseSqrt(_T), lambda t: _RATE / np.sqrt(1 + t / _T)),
]
_COHORTS = cohorts(3)


@pytest.mark.parametrize(("schedule", "expected"), _FORMULAS)
def test_schedules_match_keras(schedule, expected):
    rate = Rate(_RATE, schedule)
    for t in range(10):
        actual = float(rate.at(tf.constant(t)))
        assert actual == pytest.approx(float(expected(t)), rel=1e-6), t


def test_exponential_schedule_does_not_drift_in_long_runs():
    rate = Rate(_RATE, Exponential(1, 0.999))
    for t in (1_000, 10_000):
        assert float(rate.at(tf.constant(t))) == pytest.approx(_RATE * 0.999**t, rel=3e-6)


# One algorithm from each module that uses a rate or has an optimizer state.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "side"), [("fed_prox", "client"), ("delta_fl", "server"), ("stochastic_afl", "server")]
)
def test_scheduled_round_equals_round_with_constant_rate(streaming_runtime, name, side):
    schedule = {
        f"{side}_schedule": "piecewise:rounds=3,factors=0.25",
        f"{side}_learning_rate": 0.5,
    }
    algorithm = build(name, **schedule)
    scheduled = streaming_runtime.training(algorithm, PlainSum())
    # A round with an empty cohort counts as a round of the schedule.
    rounds = [_COHORTS[0], [], *_COHORTS[1:]]
    state, _ = run_rounds(scheduled, rounds)
    expected = None
    for rate, cohorts_at_rate in ((0.5, rounds[:3]), (0.125, rounds[3:])):
        constant = streaming_runtime.training(
            build(name, **{f"{side}_learning_rate": rate}), PlainSum()
        )
        expected = constant.initialize() if expected is None else expected
        if side == "server":
            expected = expected._replace(algorithm=_at_rate(expected.algorithm, rate))
        expected, _ = run_rounds(constant, cohorts_at_rate, expected)
    actual = algorithm.main_model(state.algorithm)
    wanted = algorithm.main_model(expected.algorithm)
    assert_all_close(actual, wanted, rtol=1e-6, atol=1e-7)
    assert_all_close(
        algorithm.models(state.algorithm), algorithm.models(expected.algorithm), 1e-6, 1e-7
    )


def _at_rate(state: Any, rate: float) -> Any:
    """Returns the state with the given learning rate in the optimizer's state."""
    if isinstance(state, Mapping):
        changed = {key: _at_rate(value, rate) for key, value in state.items()}
        if "learning_rate" in changed:
            changed["learning_rate"] = np.float32(rate)
        return OrderedDict(changed)
    if hasattr(state, "_fields"):
        return type(state)(*(_at_rate(value, rate) for value in state))
    if isinstance(state, (list, tuple)):
        return type(state)(_at_rate(value, rate) for value in state)
    return state


@pytest.mark.slow
def test_flat_schedules_equal_constant_rates_exactly(streaming_runtime):
    flat = "piecewise:rounds=1,factors=1"
    models = []
    for settings in ({}, {"client_schedule": flat, "server_schedule": flat}):
        algorithm = build("fed_avg", **settings)
        training = streaming_runtime.training(algorithm, PlainSum())
        models.append(algorithm.models(run_rounds(training, _COHORTS)[0].algorithm))
    assert_identical(models[0], models[1])


@pytest.mark.slow
def test_q_ffl_with_client_rate_0_keeps_weights(streaming_runtime):
    """With rate 0, Delta_k is 0, and h_k / L is F_k^q, the limit of small rates."""
    algorithm = build("q_ffl", client_schedule="cosine:rounds=1,lowest=0")
    training = streaming_runtime.training(algorithm, PlainSum())
    before, _ = training.next(training.initialize(), _COHORTS[0])
    after, report = training.next(before, _COHORTS[1])
    assert_identical(after.algorithm.weights, before.algorithm.weights)
    assert report["clients"]["contributed"] == len(_COHORTS[1])
    assert report["clients"]["non_finite"] == 0


@pytest.mark.slow
def test_tff_rounds_report_the_rates(tff_runtime, streaming_runtime):
    server = tabulated(_KERAS.CosineDecay(0.5, 3), rounds=3)
    options = FedAvgOptions(
        client=ClientTraining(learning_rate=0.3, schedule=InverseSqrt(2)),
        server=ServerUpdate(learning_rate=server.first, schedule=server.schedule),
    )
    problem = Problem.numbered(logistic_regression(4, 3), NUM_DOMAINS, 7)
    algorithm = with_rate_columns(fed_avg(problem, options), options)
    actual = []
    for runtime in (tff_runtime, streaming_runtime):
        training = runtime.training(algorithm, PlainSum())
        state, reports = run_rounds(training, _COHORTS)
        rates = [[r["client_learning_rate"], r["server_learning_rate"]] for r in reports]
        actual.append((state.algorithm.weights, rates))
    assert_all_close(actual[0], actual[1], rtol=1e-6, atol=1e-7)
    expected = [[0.3 / np.sqrt(1 + t / 2), 0.25 * (1 + np.cos(np.pi * t / 3))] for t in range(3)]
    np.testing.assert_allclose(actual[1][1], expected, rtol=1e-6)


@golden.values
def test_rejects_invalid_schedules(case):
    return golden.refusal(make_options, FedAvgOptions, client_schedule=case)


def test_tabulated_function_gives_piecewise_schedule():
    rate = tabulated(lambda t: 0.1 if t < 2 else 0.05, rounds=4)
    assert rate == Rate(0.1, Piecewise((2,), (0.5,)))
    assert tabulated(lambda t: 0.25, rounds=5) == Rate(0.25, Constant())


@pytest.mark.parametrize(
    ("function", "rounds", "message"),
    [
        (lambda t: 0.1 - t, 5, "function: expected a positive number as its value, found -0.9 in"),
        (lambda t: "fast", 5, "function: expected a positive number as its value, found 'fast' in"),
        (lambda t: 0.1, 0, "rounds: expected 1 to 100000, found 0"),
    ],
)
def test_tabulated_rejects_invalid_values(function, rounds, message):
    with pytest.raises(UserError, match=rf"^{message}"):
        tabulated(function, rounds)
