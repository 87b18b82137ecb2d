"""A round equals values by hand and values from the paper's authors' implementation."""

import numpy as np
import pytest
import tensorflow as tf

from tests.computations import reference
from tests.support.clients import make_client, single
from tests.support.models import linear_model
from tests.support.options import make_options
from tests.support.rounds import EagerTraining
from tff_agnostic.algorithms import AgnosticFedAvgOptions, Problem
from tff_agnostic.algorithms.agnostic_fed_avg import agnostic_fed_avg
from tff_agnostic.computations import PlainSum
from tff_agnostic.computations.local_training import ClientTraining, local_sgd
from tff_agnostic.models.model import ModelWeights

# An example's loss is x * w, so the order of examples does not matter and shuffling stays on.
_CLIENT_0 = make_client([1, 2, 4, 3, 6, 1], [1, 0, 0, 0, 2, 2])
_CLIENT_1 = make_client([8, 10, 5], [1, 3, 1])
_LAMBDA_0 = (0.1, 0.2, 0.3, 0.4)
_N_0 = (1.0, 2.0, 3.0, 4.0)
_ALGORITHM = agnostic_fed_avg(
    Problem.numbered(linear_model(initial=4.0), 4),
    make_options(
        AgnosticFedAvgOptions,
        client_learning_rate=1.0,
        client_epochs=1,
        client_batch_size=3,
        server_learning_rate=0.1,
        lambda_learning_rate=0.01,
        window=2,
        lambda_initial=_LAMBDA_0,
        lambda_absent="zero",
    ),
    initial_counts=_N_0,
)


def _assert_golden(state, metrics) -> None:
    weights, _, domains = state.algorithm
    np.testing.assert_allclose(weights.trainable[0], [3.5555556], rtol=1e-6)
    np.testing.assert_allclose(
        domains.lambda_, [0.08702461, 0.18604803, 0.2663479, 0.46057943], rtol=1e-6
    )
    np.testing.assert_array_equal(domains.window, [[1, 2, 3, 4], [3, 3, 2, 1]])
    assert state.round_num == 1
    # At w = 4, the mean losses are 36/3, 56/3, 28/2 and 40/1.
    np.testing.assert_allclose(
        metrics["client_work"]["train"]["loss"], [12, 56 / 3, 14, 40], rtol=1e-6
    )
    np.testing.assert_array_equal(metrics["client_work"]["train"]["num_examples"], [3, 3, 2, 1])
    np.testing.assert_allclose(metrics["domain_weights"]["alpha"], [0.1] * 4, rtol=1e-6)
    np.testing.assert_array_equal(metrics["domain_weights"]["lambda"], np.asarray(domains.lambda_))
    assert metrics["clients"]["contributed"] == 2
    np.testing.assert_allclose(metrics["finalizer"]["update_norm"], 4 - 3.5555556, rtol=1e-5)


@pytest.fixture(scope="module")
def training():
    return EagerTraining(_ALGORITHM)


def test_eager_round_equals_golden_values(training):
    _assert_golden(*training.next(training.initialize(), [_CLIENT_0, _CLIENT_1]))


@pytest.mark.slow
def test_tff_round_equals_golden_values(tff_runtime):
    training = tff_runtime.training(_ALGORITHM, PlainSum())
    _assert_golden(*training.next(training.initialize(), [_CLIENT_0, _CLIENT_1]))


def test_reference_round_equals_golden_values():
    server = reference.Server(
        model=reference.LINEAR,
        w=[np.array([4.0])],
        lambda_=np.array(_LAMBDA_0),
        window=[np.array(_N_0)] * 2,
        gamma_lambda=0.01,
        client_params=reference.ClientParams(gamma_w=1.0, E=1, B=3),
        optimizer=reference.Sgd(0.1),
    )
    server.round([reference.Client(c["x"], c["y"], c["domain_id"]) for c in (_CLIENT_0, _CLIENT_1)])
    np.testing.assert_allclose(server.w[0], [3.5555556], rtol=1e-6)
    np.testing.assert_allclose(
        server.lambda_, [0.08702461, 0.18604803, 0.2663479, 0.46057943], rtol=1e-6
    )
    np.testing.assert_array_equal(server.window, [[1, 2, 3, 4], [3, 3, 2, 1]])


@pytest.mark.parametrize(
    ("client", "beta", "delta"), [(_CLIENT_0, 0.6, 2.8333335), (_CLIENT_1, 0.3, 7.666667)]
)
def test_client_deltas_equal_golden_values(training, client, beta, delta):
    output = training.client_output(training.initialize(), client)
    np.testing.assert_allclose(output.beta, beta, rtol=1e-6)
    np.testing.assert_allclose(output.weighted_delta[0] / output.beta, [delta], rtol=1e-6)


_BY_BATCH = ClientTraining(learning_rate=1.0, batch_size=4, normalizer="batch", shuffle=False)


# Alpha differs between domains, so that indexing mistakes fail.
@pytest.mark.parametrize(
    ("client", "options", "alpha", "beta", "delta"),
    [
        (_CLIENT_0, ClientTraining(1.0, batch_size=3), _LAMBDA_0, 0.5, 6.4),
        (_CLIENT_1, ClientTraining(1.0, batch_size=3), _LAMBDA_0, 0.2, 33),
        # One epoch changes w by 0.5 * sum(x) / 6 = 17 / 12.
        (_CLIENT_0, ClientTraining(0.5, epochs=5, batch_size=2), [1] * 4, 6.0, 5 * 17 / 12),
        # The batches are x=[1,2,4,3] with domains [1,0,0,0], and x=[6,1] with domain 2.
        (_CLIENT_0, _BY_BATCH, _LAMBDA_0, 0.5, (0.2 * 1 + 0.1 * (2 + 4 + 3)) / 0.5 + (6 + 1) / 2),
    ],
)
def test_local_training_equals_steps_by_hand(client, options, alpha, beta, delta):
    trained, _ = local_sgd(
        linear_model(),
        options,
        ModelWeights([np.array([4.0], np.float32)], []),
        single(client, tf.constant(0, tf.int64)),
        alpha=np.array(alpha, np.float32),
        beta=np.float32(beta),
    )
    np.testing.assert_allclose(4.0 - trained[0], [delta], rtol=1e-5)
