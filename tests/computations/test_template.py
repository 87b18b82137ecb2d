"""An algorithm's learning process in TFF: weights, communication, and keys of steps."""

import dataclasses

import pytest
import tensorflow_federated as tff

from tests.support.algorithms import build
from tests.support.comparing import assert_identical
from tests.support.options import make_options
from tests.support.rounds import communication
from tff_agnostic.algorithms import AgnosticFedAvgOptions, build_agnostic_fed_avg
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations import SecureSum
from tff_agnostic.computations.round import RoundStep
from tff_agnostic.computations.tff_process import build_process
from tff_agnostic.models import logistic_regression


@pytest.fixture(scope="module")
def process(tff_runtime):
    return build_agnostic_fed_avg(logistic_regression(4, 3), 2)


def test_weights_can_be_read_and_replaced(process):
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


def test_rejects_settings_for_other_domains():
    options = make_options(AgnosticFedAvgOptions, lambda_initial=(0.5, 0.5))
    with pytest.raises(UserError, match="expected 3 numbers, one per domain, found 2"):
        build_agnostic_fed_avg(logistic_regression(4, 3), 3, options)


# --- Steps have equal keys if their work and bounds are equal


def _key(step):
    return RoundStep(step, SecureSum()).key


def test_equal_work_and_bounds_share_a_key():
    model = logistic_regression(4, 3)
    (step,) = build("fed_avg", model=model).steps
    (again,) = build("fed_avg", model=model).steps
    assert _key(again) == _key(step)
    hash(_key(step))

    def wider(limits):
        bounds = step.bounds(limits)
        beta = dataclasses.replace(bounds.beta, limit=2 * bounds.beta.limit)
        return bounds._replace(beta=beta)

    # With other bounds, secure sums would quantise values differently.
    assert _key(dataclasses.replace(step, bounds=wider)) != _key(step)
