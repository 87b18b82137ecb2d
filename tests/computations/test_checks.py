"""Mistakes in an algorithm's functions raise one line that names the step and the field."""

import dataclasses
from typing import Any, Callable

import pytest
import tensorflow as tf

from tests.algorithms.cases import build, cohort
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations import Algorithm, PlainSum, SecureSum

Change = Callable[[Any], Any]


def _algorithm(answer: Change = lambda a: a, bounds: Change = lambda b: b) -> Algorithm:
    """Returns FedAvg with another answer of clients, or other bounds."""
    algorithm = build("fed_avg")
    (step,) = algorithm.steps

    def client_work(broadcast: Any, clients: Any) -> Any:
        return answer(step.client_work(broadcast, clients))

    changed = dataclasses.replace(
        step, client_work=client_work, bounds=lambda limits: bounds(step.bounds(limits))
    )
    return dataclasses.replace(algorithm, steps=(changed,))


def _with_float64_weights() -> Algorithm:
    algorithm = build("fed_avg")

    def finish(state: Any, *sums: Any) -> Any:
        after = algorithm.finish(state, *sums)
        weights = tf.nest.map_structure(lambda w: tf.cast(w, tf.float64), after.weights)
        return after._replace(weights=weights)

    return dataclasses.replace(algorithm, finish=finish)


def _replaced(**values: Change) -> Change:
    return lambda answer: answer._replace(
        **{field: change(getattr(answer, field)) for field, change in values.items()}
    )


# An algorithm, and the beginning and the end of the message; more in `binaries/test_refusals.py`.
_MISTAKES = {
    "no bound of one weight": (
        _algorithm(bounds=_replaced(weighted_delta=lambda b: b[:1])),
        "step 'training', weighted_delta: expected a bound of each of 2 values",
        "1",
    ),
    "float64": (
        _algorithm(_replaced(beta=lambda v: tf.cast(v, tf.float64))),
        "step 'training', beta: expected float32 or int64 tensors",
        "float64",
    ),
    "bool": (
        _algorithm(_replaced(beta=lambda v: v > 0)),
        "step 'training', beta: expected float32 or int64 tensors",
        "bool",
    ),
    "real values with an integer bound": (
        _algorithm(_replaced(domain_counts=lambda v: tf.cast(v, tf.float32))),
        "step 'training', domain_counts: expected integer=False",
        "True",
    ),
    "a state of another dtype": (
        _with_float64_weights(),
        "expected finish to return a state of the shapes and dtypes",
        "float32(4, 3) for value 0, found float64(4, 3)",
    ),
}


@pytest.mark.nightly_cases(but=["streaming_runtime-plain-a state of another dtype"])
@pytest.mark.parametrize(
    ("runtime", "aggregation", "mistake"),
    [
        *(("streaming_runtime", PlainSum(), mistake) for mistake in _MISTAKES),
        ("streaming_runtime", SecureSum(), "no bound of one weight"),
        ("tff_runtime", PlainSum(), "float64"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_mistake_raises_one_line(request, runtime, aggregation, mistake):
    algorithm, beginning, end = _MISTAKES[mistake]
    with pytest.raises(UserError) as error:
        training = request.getfixturevalue(runtime).training(algorithm, aggregation)
        training.next(training.initialize(), cohort())
    message = str(error.value)
    assert message.startswith(beginning) and message.endswith(end)
    assert "\n" not in message
