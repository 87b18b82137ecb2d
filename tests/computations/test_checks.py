"""Mistakes in an algorithm's functions: one line that names the step and the field."""

import dataclasses
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tests.algorithms.cases import build, cohort
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations import Algorithm, Bound, PlainSum, SecureSum
from tff_agnostic.computations.client_output import TrainingOutput

Change = Callable[[Any], Any]


def _algorithm(answer: Change = lambda a: a, bounds: Change = lambda b: b) -> Algorithm:
    """FedAvg with something wrong in what clients send, or in the bounds of it."""
    algorithm = build("fed_avg")
    (step,) = algorithm.steps

    def client_work(broadcast: Any, clients: Any) -> Any:
        return answer(step.client_work(broadcast, clients))

    changed = dataclasses.replace(
        step, client_work=client_work, bounds=lambda limits: bounds(step.bounds(limits))
    )
    return dataclasses.replace(algorithm, steps=(changed,))


def _with_state(change: Change) -> Algorithm:
    """FedAvg whose rounds leave another state than they found."""
    algorithm = build("fed_avg")

    def finish(state: Any, *sums: Any) -> Any:
        return change(algorithm.finish(state, *sums))

    return dataclasses.replace(algorithm, finish=finish)


class _WithMood(NamedTuple):
    """Bounds with one field more than clients answer with."""

    weighted_delta: Any
    beta: Any
    extra: Any
    domain_losses: Any
    domain_counts: Any
    metric_sums: Any
    clients: Any
    trained_counts: Any
    mood: Any


class _FewerFields(NamedTuple):
    """Bounds without those of metrics and clients."""

    weighted_delta: Any
    beta: Any
    extra: Any
    domain_losses: Any
    domain_counts: Any


class _OtherState(NamedTuple):
    weights: Any


def _replaced(**values: Callable[[Any], Any]) -> Change:
    return lambda answer: answer._replace(
        **{field: change(getattr(answer, field)) for field, change in values.items()}
    )


_MISTAKES = {
    "bounds miss fields": (
        _algorithm(bounds=lambda b: _FewerFields(*b[:5])),
        "step 'training': expected bounds of weighted_delta, beta, extra, domain_losses, "
        "domain_counts, metric_sums, clients, trained_counts, as clients send, found "
        "weighted_delta, beta, extra, domain_losses, domain_counts: only one of them has clients, "
        "metric_sums, trained_counts",
    ),
    "bounds of a field that is not there": (
        _algorithm(bounds=lambda b: _WithMood(*b, mood=Bound(1.0))),
        "only one of them has mood",
    ),
    "no bound of one weight": (
        _algorithm(bounds=_replaced(weighted_delta=lambda b: b[:1])),
        "step 'training', weighted_delta: expected a bound of each of 2 values, found 1",
    ),
    "a number for a bound": (
        _algorithm(bounds=_replaced(beta=lambda b: b.limit)),
        "step 'training', beta: expected a Bound, found float",
    ),
    "float64": (
        _algorithm(_replaced(beta=lambda v: tf.cast(v, tf.float64))),
        "step 'training', beta: expected float32 or int64 tensors, which can be summed, found "
        "float64",
    ),
    "bool": (
        _algorithm(_replaced(beta=lambda v: v > 0)),
        "step 'training', beta: expected float32 or int64 tensors, which can be summed, found bool",
    ),
    "int32": (
        _algorithm(_replaced(domain_counts=lambda v: tf.cast(v, tf.int32))),
        "step 'training', domain_counts: expected float32 or int64 tensors",
    ),
    "real values with the bound of whole ones": (
        _algorithm(_replaced(domain_counts=lambda v: tf.cast(v, tf.float32))),
        "step 'training', domain_counts: expected integer=False in the bound of float32 values,"
        " found True",
    ),
    "no named tuple": (
        _algorithm(TrainingOutput._asdict),
        "step 'training': expected clients to send a named tuple, found dict",
    ),
    "a state of another structure": (
        _with_state(lambda state: _OtherState(state.weights)),
        "expected finish to return a state of the structure that initialize returned, found another"
        " one: AveragingState(weights, optimizer_state, memory) before, _OtherState(weights) after",
    ),
    "a state of another shape": (
        _with_state(
            lambda state: state._replace(
                weights=state.weights._replace(
                    trainable=[state.weights.trainable[0][1:], state.weights.trainable[1]]
                )
            )
        ),
        "found another one of value 0: float32(4, 3) before, float32(3, 3) after",
    ),
    "a state of another dtype": (
        _with_state(
            lambda state: state._replace(
                weights=tf.nest.map_structure(lambda w: tf.cast(w, tf.float64), state.weights)
            )
        ),
        "found another one of value 0: float32(4, 3) before, float64(4, 3) after",
    ),
}


# One of each kind: in the bounds, in what clients answer, and in the state.
_OF_EACH_KIND = ("no bound of one weight", "float64", "a state of another shape")


@pytest.mark.nightly_cases(but=["streaming_runtime-plain-a state of another dtype"])
@pytest.mark.parametrize(
    ("runtime", "aggregation", "mistake"),
    [
        *(("streaming_runtime", PlainSum(), mistake) for mistake in _MISTAKES),
        *(("streaming_runtime", SecureSum(), mistake) for mistake in _OF_EACH_KIND),
        *(("tff_runtime", PlainSum(), mistake) for mistake in _OF_EACH_KIND),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_mistake_is_one_line(request, runtime, aggregation, mistake):
    algorithm, expected = _MISTAKES[mistake]
    with pytest.raises(UserError) as error:
        training = request.getfixturevalue(runtime).training(algorithm, aggregation)
        training.next(training.initialize(), cohort())
    message = str(error.value)
    assert expected in message
    assert "\n" not in message


@pytest.mark.slow
def test_without_a_mistake_nothing_is_said(streaming_runtime):
    training = streaming_runtime.training(_algorithm(), SecureSum())
    state, _ = training.next(training.initialize(), cohort())
    assert np.all(np.isfinite(state.algorithm.weights.trainable[0]))
