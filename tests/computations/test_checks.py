"""Mistakes in an algorithm's functions raise one-line errors that name the step and field."""

import dataclasses
from typing import Any, NamedTuple

import pytest
import tensorflow as tf

from tests.support import golden
from tests.support.algorithms import build
from tests.support.clients import cohort
from tff_agnostic.aggregations.aggregation import Bound
from tff_agnostic.computations import Algorithm, PlainSum
from tff_agnostic.computations.round import check_bounds, check_state


class _Output(NamedTuple):
    deltas: Any
    counts: Any


class _Deltas(NamedTuple):
    deltas: Any


_OUTPUT = _Output([tf.ones([4, 3]), tf.ones([3])], tf.ones([3], tf.int64))
_BOUNDS = _Output([Bound(1.0)] * 2, Bound(9, integer=True))


@pytest.mark.parametrize(
    ("output", "bounds", "message"),
    [
        (_OUTPUT._asdict(), _BOUNDS, ": expected clients to send a named tuple"),
        (_OUTPUT, _Deltas(_BOUNDS.deltas), ": expected bounds of deltas, counts"),
        (_OUTPUT, _BOUNDS._replace(deltas=[Bound(1.0)]), ", deltas: expected a bound of each of 2"),
        (_OUTPUT, _BOUNDS._replace(counts=9.0), ", counts: expected a Bound"),
        (_OUTPUT._replace(counts=tf.ones([3]) > 0), _BOUNDS, ", counts: expected float32 or int64"),
        (_OUTPUT._replace(counts=tf.ones([3])), _BOUNDS, ", counts: expected integer=False"),
    ],
)
def test_rejects_output_without_matching_bounds(output, bounds, message):
    actual = golden.refusal(check_bounds, "training", output, bounds)
    assert actual.startswith(f"step 'training'{message}")


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (_Deltas(_OUTPUT.deltas), "structure"),
        (_OUTPUT._replace(deltas=[tf.ones([3, 3]), _OUTPUT.deltas[1]]), "shapes and dtypes"),
    ],
)
def test_rejects_state_with_other_structure(after, message):
    check_state(_OUTPUT, _OUTPUT)
    actual = golden.refusal(check_state, _OUTPUT, after)
    assert actual.startswith(f"expected finish to return a state of the {message}")


def _without_a_bound() -> Algorithm:
    algorithm = build("fed_avg")
    (step,) = algorithm.steps

    def bounds(limits: Any) -> Any:
        defined = step.bounds(limits)
        return defined._replace(weighted_delta=defined.weighted_delta[:1])

    return dataclasses.replace(algorithm, steps=(dataclasses.replace(step, bounds=bounds),))


def _with_float64_weights() -> Algorithm:
    algorithm = build("fed_avg")

    def finish(state: Any, *sums: Any) -> Any:
        after = algorithm.finish(state, *sums)
        weights = tf.nest.map_structure(lambda w: tf.cast(w, tf.float64), after.weights)
        return after._replace(weights=weights)

    return dataclasses.replace(algorithm, finish=finish)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (_without_a_bound, "weighted_delta: expected a bound of each"),
        (_with_float64_weights, "expected finish to return a state"),
    ],
)
def test_each_round_checks_bounds_and_states(streaming_runtime, broken, message):
    def train() -> None:
        training = streaming_runtime.training(broken(), PlainSum())
        training.next(training.initialize(), cohort())

    assert message in golden.refusal(train)
