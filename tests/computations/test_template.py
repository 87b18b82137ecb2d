"""An algorithm's learning process in TFF: weights, communication, and keys of steps."""

import dataclasses

import tensorflow_federated as tff

from tests.support.algorithms import build
from tests.support.comparing import assert_identical
from tests.support.rounds import communication
from tff_agnostic.algorithms import build_agnostic_fed_avg
from tff_agnostic.computations import SecureSum
from tff_agnostic.computations.round import RoundStep
from tff_agnostic.computations.tff_process import build_process
from tff_agnostic.models import logistic_regression


def test_weights_can_be_read_and_replaced(tff_runtime):
    process = build_agnostic_fed_avg(logistic_regression(4, 3), 2)
    state = process.initialize()
    weights = process.get_model_weights(state)
    assert_identical(weights, state.algorithm.weights)
    other = tff.learning.models.ModelWeights([w + 1 for w in weights.trainable], [])
    replaced = process.set_model_weights(state, other)
    assert_identical(process.get_model_weights(replaced), other)
    assert_identical(
        replaced._replace(algorithm=replaced.algorithm._replace(weights=weights)), state
    )


def test_each_step_is_one_broadcast_and_sum():
    uri = "federated_secure_sum_bitwidth"
    process = build_process(build("above_mean"), SecureSum())
    assert list(process.steps) == ["survey", "training"]
    for exchange in process.steps.values():
        assert communication(exchange) == {"federated_broadcast": 1, uri: 1}
    assert communication(process.learning_process.next) == {"federated_broadcast": 2, uri: 2}


def test_equal_work_and_bounds_share_a_key():
    def key(step):
        return RoundStep(step, SecureSum()).key

    model = logistic_regression(4, 3)
    (step,), (again,) = (build("fed_avg", model=model).steps for _ in range(2))
    assert key(again) == key(step)
    hash(key(step))

    def wider(limits):
        bounds = step.bounds(limits)
        beta = dataclasses.replace(bounds.beta, limit=2 * bounds.beta.limit)
        return bounds._replace(beta=beta)

    # With other bounds, secure sums would quantise values differently.
    assert key(dataclasses.replace(step, bounds=wider)) != key(step)
