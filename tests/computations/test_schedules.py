"""Rates by round: their formulas, every algorithm's rounds by hand, and what is refused."""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.cases import CASES, build, cohorts
from tests.computations.harness import assert_all_close, assert_identical, run_rounds
from tests.marks import usually
from tests.options import make_options
from tff_agnostic.api import train
from tff_agnostic.computations import PlainSum, Rate, with_rate_columns
from tff_agnostic.computations.schedules import tabulated
from tff_agnostic.errors import UserError
from tff_agnostic.run.spec import resolve

_KERAS = tf.keras.optimizers.schedules
_RATE, _T, _F = 0.3, 4, 0.25
# By name, and the same schedule of Keras; None where it has none.
_FORMULAS: dict[str, Any] = {
    "inverse_time": _KERAS.InverseTimeDecay(_RATE, _T, 1.0),
    "exponential": _KERAS.ExponentialDecay(_RATE, _T, _F),
    "cosine": _KERAS.CosineDecay(_RATE, _T, _F),
    # Keras keeps a value up to its boundary, and so changes it a step later.
    "piecewise": _KERAS.PiecewiseConstantDecay([_T - 1], [_RATE, _RATE * _F]),
    "inverse_sqrt": lambda t: _RATE / np.sqrt(1 + t / _T),
}
_COHORTS = cohorts(3)


@pytest.mark.parametrize("name", _FORMULAS)
def test_formulas_are_those_of_keras(name):
    rate = Rate(_RATE, name, (_T,), (_F,))
    for t in range(10):
        found = float(rate.at(tf.constant(t)))
        assert found == pytest.approx(float(_FORMULAS[name](t)), rel=1e-6), t


def test_an_exponential_does_not_drift_in_long_runs():
    rate = Rate(_RATE, "exponential", (1,), (0.999,))
    for t in (1_000, 10_000):
        assert float(rate.at(tf.constant(t))) == pytest.approx(_RATE * 0.999**t, rel=3e-6)


def _with_schedule(name: str) -> list[tuple[str, str]]:
    fields = {field.name for field in dataclasses.fields(CASES[name].options)}
    return [(name, w) for w in ("client", "server") if f"{w}_schedule" in fields]


_ALL = [pair for name in CASES for pair in _with_schedule(name)]
# Of every file that reads a rate or keeps a state of its own one.
_USUAL = [
    ("fed_prox", "client"),
    ("q_ffl", "client"),
    ("delta_fl", "server"),
    ("stochastic_afl", "server"),
]


@pytest.mark.nightly_cases("q_ffl-client")
@pytest.mark.slow
@pytest.mark.parametrize(("name", "whose"), usually(_USUAL, _ALL))
def test_rounds_of_a_schedule_are_rounds_of_its_rates(streaming_runtime, name, whose):
    """Of every algorithm that has such a rate: round t is one of the constant rate of round t."""
    schedule = {
        f"{whose}_schedule": "piecewise",
        f"{whose}_schedule_rounds": (1, 2),
        f"{whose}_schedule_factors": (0.5, 0.125),
        f"{whose}_learning_rate": 0.5,
    }
    algorithm = build(name, **schedule)
    scheduled = streaming_runtime.training(algorithm, PlainSum())
    # An empty round in the middle counts as a round.
    rounds = [_COHORTS[0], [], _COHORTS[1]]
    state, _ = run_rounds(scheduled, rounds)
    expected = None
    for rate, cohort in zip((0.5, 0.25, 0.0625), rounds):
        constant = streaming_runtime.training(
            build(name, **{f"{whose}_learning_rate": rate}), PlainSum()
        )
        expected = constant.initialize() if expected is None else expected
        if whose == "server":
            expected = expected._replace(algorithm=_at_rate(expected.algorithm, rate))
        expected, _ = constant.next(expected, cohort)
    found = algorithm.main_model(state.algorithm)
    wanted = algorithm.main_model(expected.algorithm)
    assert_all_close(found, wanted, rtol=1e-6, atol=1e-7)
    assert_all_close(
        algorithm.models(state.algorithm), algorithm.models(expected.algorithm), 1e-6, 1e-7
    )


def _at_rate(state: Any, rate: float) -> Any:
    """The state with another rate, which the optimizer's state has."""
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


# TensorFlow multiplies q-FFL's constants with one another before anything else.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "whose"),
    usually(
        [("fed_prox", "client"), ("fed_avg", "server")],
        [pair for pair in _ALL if pair != ("q_ffl", "client")],
    ),
)
def test_a_schedule_that_does_not_fall_is_the_constant_to_the_bit(streaming_runtime, name, whose):
    flat = {
        f"{whose}_schedule": "piecewise",
        f"{whose}_schedule_rounds": (1,),
        f"{whose}_schedule_factors": (1.0,),
    }
    models = []
    for settings in ({}, flat):
        algorithm = build(name, **settings)
        training = streaming_runtime.training(algorithm, PlainSum())
        models.append(algorithm.models(run_rounds(training, _COHORTS)[0].algorithm))
    assert_identical(models[0], models[1])


@pytest.mark.slow
def test_clients_of_q_ffl_whose_rate_has_become_0_count_and_change_nothing(streaming_runtime):
    """Delta_k is 0 then, and h_k / L is F_k^q, the limit of small rates."""
    stops = {
        "client_schedule": "cosine",
        "client_schedule_rounds": (1,),
        "client_schedule_factors": (0.0,),
    }
    training = streaming_runtime.training(build("q_ffl", **stops), PlainSum())
    before, _ = training.next(training.initialize(), _COHORTS[0])
    after, report = training.next(before, _COHORTS[1])
    assert_identical(after.algorithm.weights, before.algorithm.weights)
    assert report["clients"]["contributed"] == len(_COHORTS[1])
    assert report["clients"]["non_finite"] == 0


def test_a_function_that_decides_in_python_is_one_line_where_rounds_are_traced(streaming_runtime):
    decides = {"client_schedule": lambda t: 0.1 if t < 2 else 0.05}
    training = streaming_runtime.training(build("fed_avg", **decides), PlainSum())
    with pytest.raises(UserError, match=r"^schedule: expected a function of TensorFlow's"):
        training.next(training.initialize(), _COHORTS[0])
    found = tabulated({"client_schedule": decides["client_schedule"]}, 4)
    assert found["client_schedule_rounds"] == (2,)


@pytest.mark.slow
def test_tff_runs_the_same_rounds_and_reports_the_rates(tff_runtime, streaming_runtime):
    settings = {
        "client_schedule": "inverse_sqrt",
        "client_schedule_rounds": (2,),
        "server_schedule": _KERAS.CosineDecay(0.5, 3),
    }
    spec = CASES["fed_avg"]
    algorithm = with_rate_columns(
        build("fed_avg", **settings), make_options(spec.options, **settings)
    )
    found = []
    for runtime in (tff_runtime, streaming_runtime):
        training = runtime.training(algorithm, PlainSum())
        state, reports = run_rounds(training, _COHORTS)
        rates = [[r["client_learning_rate"], r["server_learning_rate"]] for r in reports]
        found.append((state.algorithm.weights, rates))
    assert_all_close(found[0], found[1], rtol=1e-6, atol=1e-7)
    options = make_options(spec.options, **settings)
    expected = [
        [options.client_learning_rate / np.sqrt(1 + t / 2), 0.25 * (1 + np.cos(np.pi * t / 3))]
        for t in range(3)
    ]
    np.testing.assert_allclose(found[1][1], expected, rtol=1e-6)


@pytest.mark.nightly
def test_a_run_with_a_function_is_kept_as_a_table_and_goes_on(tmp_path):
    shared = {"algorithm": "fed_avg", "evaluate_every": 4, "show_progress": False}
    schedule = {"client_schedule": _KERAS.ExponentialDecay(0.5, 2, 0.25)}
    whole = train("toy_regression", rounds=4, **shared, **schedule, output_dir=tmp_path / "whole")
    rates = whole.history()["client_learning_rate"]
    np.testing.assert_allclose(rates, [0.5, 0.25, 0.125, 0.0625], rtol=1e-6)
    named = {
        "client_learning_rate": 0.5,
        "client_schedule": "exponential",
        "client_schedule_rounds": [2],
        "client_schedule_factors": [0.25],
    }
    folder = tmp_path / "in two parts"
    train("toy_regression", rounds=2, **shared, **named, output_dir=folder)
    resumed = train(rounds=4, resume=True, output_dir=folder, show_progress=False)
    for column in ("client_learning_rate", "update_norm"):
        np.testing.assert_allclose(
            resumed.history()[column], whole.history()[column], rtol=1e-5, err_msg=column
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"client_schedule_rounds": (5,)},
            "--client_schedule_rounds has no effect with --client_schedule=constant",
        ),
        (
            {"client_schedule": "inverse_time", "client_schedule_factors": (0.5,)},
            "--client_schedule_factors has no effect with --client_schedule=inverse_time",
        ),
        (
            {"client_schedule": "piecewise", "client_schedule_rounds": (3, 2)},
            "--client_schedule_rounds: expected positive numbers that rise, found 3,2",
        ),
        (
            {"client_schedule": "cosine", "client_schedule_rounds": (3, 5)},
            "--client_schedule_rounds: expected one number with --client_schedule=cosine",
        ),
        (
            {"server_schedule": "piecewise", "server_schedule_rounds": (3, 5)},
            "--server_schedule_factors: expected 2, one for each T, found 1",
        ),
        (
            {"server_schedule": "exponential", "server_schedule_factors": (0.0,)},
            "--server_schedule_factors: expected a positive number, found 0",
        ),
        (
            {"client_schedule": lambda t: 0.1, "client_learning_rate": 0.2},
            "--client_learning_rate: expected none beside a client_schedule that is a function",
        ),
        (
            {"client_schedule": lambda t: 0.1 - t},
            "--client_schedule: expected a function whose value is a positive number, found -0.9 "
            "in round 1",
        ),
    ],
)
def test_what_cannot_be_is_one_line(given, message):
    with pytest.raises(UserError) as error:
        resolve("digits", {"algorithm": "fed_avg", "rounds": 5, **given}, {})
    assert str(error.value).startswith(message)


def test_a_function_that_never_changes_is_a_constant():
    found = tabulated({"client_schedule": lambda t: 0.25, "rounds": 5}, 5)
    assert found == {"client_schedule": "constant", "client_learning_rate": 0.25, "rounds": 5}
