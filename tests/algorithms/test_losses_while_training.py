"""AgnosticFedAvg and TERM in one pass, where clients measure losses during their first epoch.

The reference is Algorithm 1 with line 3 moved into the first epoch. With one batch per client, the
algorithms with a separate pass are a second reference.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.computations import reference
from tests.support.clients import make_client, random_client
from tests.support.comparing import assert_all_close, assert_identical
from tests.support.models import linear_model
from tests.support.options import make_options
from tests.support.rounds import EagerTraining
from tff_agnostic.aggregations.secure_sum import SecureSum, SecureSumOptions
from tff_agnostic.algorithms import ALGORITHMS, Problem
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations import PlainSum
from tff_agnostic.models import logistic_regression

_DOMAINS = 3
_COUNTS = (8.0, 4.0, 2.0)
_TRAINING = {"client_learning_rate": 0.4, "client_batch_size": 4, "client_shuffle": False}
_ONE_PASS = {"measure_losses": "while_training"}


def _algorithm(name: str, model: Any = None, **settings: Any) -> Any:
    problem = Problem.numbered(model or logistic_regression(4, 3), _DOMAINS)
    spec = ALGORITHMS[name]
    return spec.build(problem, make_options(spec.options, **{**_TRAINING, **settings}))


def _cohorts(rounds: int, largest: int, seed: int = 0) -> list[list[dict[str, np.ndarray]]]:
    """Returns cohorts of three clients with 0 to `largest` examples."""
    rng = np.random.default_rng(seed)
    return [
        [random_client(rng, int(n), range(_DOMAINS)) for n in rng.integers(largest + 1, size=3)]
        for _ in range(rounds)
    ]


def _server(epochs: int, normalizer: str) -> reference.Server:
    return reference.Server(
        model=reference.SOFTMAX_REGRESSION,
        w=[np.zeros([4, 3]), np.zeros([3])],
        lambda_=np.full(_DOMAINS, 1 / _DOMAINS),
        window=[np.array(_COUNTS)] * 2,
        gamma_lambda=0.5,
        client_params=reference.ClientParams(0.4, epochs, 4, normalizer, is_one_pass=True),
        optimizer=reference.Sgd(),
    )


def _one_pass(epochs: int, normalizer: str) -> Any:
    problem = Problem.numbered(logistic_regression(4, 3), _DOMAINS)
    settings = {
        "client_epochs": epochs,
        "client_normalizer": normalizer,
        "lambda_learning_rate": 0.5,
        "lambda_absent": "zero",
        "window": 2,
    }
    spec = ALGORITHMS["agnostic_fed_avg"]
    options = make_options(spec.options, **{**_TRAINING, **_ONE_PASS, **settings})
    return spec.build(problem, options, initial_counts=_COUNTS)


def _assert_follows_reference(training: Any, server: reference.Server, rounds: int = 8) -> None:
    state = training.initialize()
    for cohort in _cohorts(rounds, largest=11):
        server.round(
            [reference.Client(c["x"].astype(float), c["y"], c["domain_id"]) for c in cohort]
        )
        state, _ = training.next(state, cohort)
        np.testing.assert_allclose(state.algorithm.memory.lambda_, server.lambda_, 2e-4, 2e-5)
        assert_all_close(state.algorithm.weights.trainable, server.w, 2e-4, 2e-5)


@pytest.mark.parametrize(("epochs", "normalizer"), [(1, "client"), (3, "batch")])
def test_one_pass_matches_the_transcription(epochs, normalizer):
    training = EagerTraining(_one_pass(epochs, normalizer))
    _assert_follows_reference(training, _server(epochs, normalizer))


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["cohort_runtime", "tff_runtime"])
def test_one_pass_matches_in_every_runtime(request, runtime):
    training = request.getfixturevalue(runtime).training(_one_pass(2, "batch"), PlainSum())
    _assert_follows_reference(training, _server(2, "batch"))


@pytest.mark.slow_cases("agnostic_fed_avg")
@pytest.mark.parametrize("name", ["agnostic_fed_avg", "term"])
def test_single_batch_losses_equal_losses_at_w(name):
    """With one batch per client, no step precedes the measured losses."""
    both = [
        EagerTraining(_algorithm(name, client_batch_size=12, **settings))
        for settings in ({}, _ONE_PASS)
    ]
    states = [training.initialize() for training in both]
    for cohort in _cohorts(rounds=4, largest=12, seed=1):
        results = [training.next(s, cohort) for training, s in zip(both, states)]
        states = [state for state, _ in results]
        at_w, one_pass = [state.algorithm for state in states]
        np.testing.assert_array_equal(at_w.weights.trainable[0], one_pass.weights.trainable[0])
        assert_identical(one_pass.memory, at_w.memory)


def test_term_weighs_clients_by_first_epochs_losses():
    """An example's loss is x w, so a step with a batch of one subtracts rate x from w."""
    model, tilt, rate = linear_model(initial=2.0), 0.7, 0.1
    algorithm = _algorithm(
        "term",
        model,
        tilt=tilt,
        client_learning_rate=rate,
        client_batch_size=1,
        client_normalizer="batch",
        **_ONE_PASS,
    )
    training = EagerTraining(algorithm)
    xs = [np.array([1.0, 3.0]), np.array([2.0])]
    cohort = [make_client(x, np.zeros(len(x))) for x in xs]
    state, _ = training.next(training.initialize(), cohort)
    # The first round is FedAvg, which weights the clients' steps by their numbers of examples.
    after = [2.0 - rate * x.sum() for x in xs]
    w = (2 * after[0] + after[1]) / 3
    np.testing.assert_allclose(state.algorithm.weights.trainable[0], [w], rtol=1e-6)
    state, _ = training.next(state, cohort)
    # F_1 = (1 w + 3 (w - rate 1)) / 2, F_2 = 2 w
    losses = [(w + 3 * (w - rate)) / 2, 2 * w]
    weights = np.array([2, 1]) * np.exp(tilt * np.array(losses))
    steps = [rate * x.sum() for x in xs]
    expected = w - np.dot(weights, steps) / weights.sum()
    np.testing.assert_allclose(state.algorithm.weights.trainable[0], [expected], rtol=1e-5)


@pytest.mark.slow
def test_secure_one_pass_matches_the_transcription(streaming_runtime):
    limits = {"limit_examples": 16, "limit_loss": 8.0, "limit_update": 4.0, "secure_bits": 40}
    aggregation = SecureSum(make_options(SecureSumOptions, **limits))
    training = streaming_runtime.training(_one_pass(1, "batch"), aggregation)
    _assert_follows_reference(training, _server(1, "batch"), rounds=3)


def test_one_pass_rejects_held_out_examples():
    with pytest.raises(UserError, match=r"^--measure_losses: expected before_training with"):
        make_options(ALGORITHMS["agnostic_fed_avg"].options, measured_share=0.2, **_ONE_PASS)


@pytest.mark.parametrize("name", ["q_ffl", "delta_fl", "stochastic_afl"])
def test_other_algorithms_lack_the_option_measure_losses(name):
    fields = {field.name for field in dataclasses.fields(ALGORITHMS[name].options)}
    assert "measure_losses" not in fields
