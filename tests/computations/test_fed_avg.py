"""FedAvg, uniform and target-only."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.computations import reference
from tests.computations.harness import (
    EagerTraining,
    assert_all_close,
    linear_model,
    make_client,
    random_client,
    run_rounds,
)
from tff_agnostic.computations.agnostic_fed_avg import agnostic_fed_avg
from tff_agnostic.computations.algorithm import AlgorithmParams
from tff_agnostic.computations.fed_avg import build_fed_avg, fed_avg, fed_avg_target_only
from tff_agnostic.computations.local_training import LocalTrainingParams
from tff_agnostic.errors import UserError
from tff_agnostic.models import logistic_regression


def test_uniform_weighs_clients_by_their_examples():
    params = AlgorithmParams(LocalTrainingParams(learning_rate=1.0, batch_size=10))
    training = EagerTraining(fed_avg(linear_model(initial=0.0), 2, params))
    cohort = [make_client([1, 1, 1], [0, 0, 1]), make_client([5], [1])]
    state, metrics = training.next(training.initialize(), cohort)
    # Steps by the mean gradient of each client, 1 and 5, weighted 3 to 1.
    np.testing.assert_allclose(state.weights.trainable[0], [-(3 * 1 + 1 * 5) / 4], rtol=1e-6)
    # The mixture that was minimised: two examples in each domain.
    np.testing.assert_allclose(metrics["domain_weights"]["lambda"], [0.5, 0.5])
    np.testing.assert_array_equal(metrics["domain_weights"]["alpha"], [1, 1])


@pytest.mark.parametrize("normalizer", ["client", "batch"])
def test_uniform_against_the_reference_with_a_constant_scale(normalizer):
    local = LocalTrainingParams(0.3, epochs=2, batch_size=4, normalizer=normalizer, shuffle=False)
    training = EagerTraining(fed_avg(logistic_regression(4, 3), 3, AlgorithmParams(local)))
    client_params = reference.ClientParams(0.3, E=2, B=4, normalizer=normalizer)
    rng = np.random.default_rng(0)
    w = [np.zeros([4, 3]), np.zeros([3])]
    state = training.initialize()
    for _ in range(10):
        cohort = [random_client(rng, n, range(3)) for n in (6, 11, 1)]
        results = [
            reference.client(
                reference.SOFTMAX_REGRESSION,
                reference.Client(c["x"], c["y"], c["domain_id"]),
                w,
                np.ones(3),
                client_params,
            )
            for c in cohort
        ]
        total = sum(len(c["y"]) for c in cohort)
        w = [sum(len(c["y"]) * r.w[m] for c, r in zip(cohort, results)) / total for m in (0, 1)]
        state, _ = training.next(state, cohort)
        for actual, expected in zip(state.weights.trainable, w):
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("epochs", [1, 3])
def test_losses_are_those_before_each_batchs_step_in_the_first_epoch(epochs):
    """An example's loss is x w and w starts at 4; batches of one example, steps of 1.

    The first batch, x = 1, has the loss 4 and makes w = 3; the second one, x = 2, has the loss 6.
    """
    local = LocalTrainingParams(1.0, epochs=epochs, batch_size=1, normalizer="batch", shuffle=False)
    training = EagerTraining(fed_avg(linear_model(initial=4.0), 3, AlgorithmParams(local)))
    _, metrics = training.next(training.initialize(), [make_client([1, 2], [0, 1])])
    np.testing.assert_allclose(metrics["client_work"]["train"]["loss"], [4, 6, 0])
    np.testing.assert_array_equal(metrics["client_work"]["train"]["num_examples"], [1, 1, 0])
    # AgnosticFedAvg needs the losses at w, which a pass of its own gives.
    training = EagerTraining(agnostic_fed_avg(linear_model(initial=4.0), 3, AlgorithmParams(local)))
    _, metrics = training.next(training.initialize(), [make_client([1, 2], [0, 1])])
    np.testing.assert_allclose(metrics["client_work"]["train"]["loss"], [4, 8, 0])


def test_losses_are_measured_for_every_example_whatever_the_batches():
    """With a learning rate of almost nothing, they are those at w, in every algorithm."""
    rng = np.random.default_rng(5)
    cohort = [random_client(rng, n, range(3)) for n in (7, 4, 0, 1)]
    found = []
    for batch_size in (1, 3, 100):
        local = LocalTrainingParams(1e-12, epochs=2, batch_size=batch_size)
        params = AlgorithmParams(local, target_domain=1)
        for algorithm in (fed_avg, fed_avg_target_only, agnostic_fed_avg):
            training = EagerTraining(algorithm(logistic_regression(4, 3), 3, params))
            found.append(training.next(training.initialize(), cohort)[1]["client_work"]["train"])
    for measured in found[1:]:
        assert_all_close(measured["loss"], found[0]["loss"])
        np.testing.assert_array_equal(measured["num_examples"], found[0]["num_examples"])
    assert sum(found[0]["num_examples"]) == 12


def test_target_only_trains_on_its_domain_only():
    params = AlgorithmParams(LocalTrainingParams(batch_size=100), target_domain=2)
    model = logistic_regression(4, 3)
    rng = np.random.default_rng(1)
    cohort = [random_client(rng, n, range(3)) for n in (12, 9, 15)]
    only_target = [
        {key: column[client["domain_id"] == 2] for key, column in client.items()}
        for client in cohort
    ]
    target_only = EagerTraining(fed_avg_target_only(model, 3, params))
    uniform = EagerTraining(fed_avg(model, 3, params))
    state, metrics = run_rounds(target_only, [cohort] * 3)
    expected, _ = run_rounds(uniform, [only_target] * 3)
    assert_all_close(state.weights, expected.weights)
    np.testing.assert_array_equal(metrics[0]["domain_weights"]["lambda"], [0, 0, 1])
    # The losses of all domains are still measured.
    assert np.all(metrics[-1]["client_work"]["train"]["loss"] > 0)


@pytest.mark.parametrize("normalizer", ["client", "batch"])
def test_target_only_ignores_a_client_without_the_target_domain(normalizer):
    local = LocalTrainingParams(batch_size=2, normalizer=normalizer)
    params = AlgorithmParams(local, target_domain=0)
    training = EagerTraining(fed_avg_target_only(logistic_regression(4, 3), 2, params))
    rng = np.random.default_rng(2)
    with_target, without = random_client(rng, 5, [0]), random_client(rng, 7, [1])
    state, metrics = training.next(training.initialize(), [with_target, without])
    expected, _ = training.next(training.initialize(), [with_target])
    assert_all_close(state.weights, expected.weights)
    assert metrics["clients"]["contributed"] == 1
    assert metrics["clients"]["zero_weight"] == 1


def test_a_round_without_the_target_domain_leaves_weights_and_optimizer():
    params = AlgorithmParams(
        LocalTrainingParams(),
        server_optimizer=tff.learning.optimizers.build_adam(0.1),
        target_domain=0,
    )
    training = EagerTraining(fed_avg_target_only(logistic_regression(4, 3), 2, params))
    rng = np.random.default_rng(3)
    state, _ = training.next(training.initialize(), [random_client(rng, 5, [0])])
    after, metrics = training.next(state, [random_client(rng, 5, [1])])
    assert_all_close(after.weights, state.weights, rtol=0, atol=0)
    assert_all_close(after.optimizer_state, state.optimizer_state, rtol=0, atol=0)
    assert metrics["finalizer"]["update_norm"] == 0
    assert np.all(np.isfinite(metrics["domain_weights"]["lambda"]))


@pytest.mark.parametrize("target", [None, -1, 3])
def test_target_only_needs_a_domain_in_range(target):
    params = AlgorithmParams(target_domain=target)
    with pytest.raises(UserError, match=f"from 0 to 2, found {target}"):
        fed_avg_target_only(logistic_regression(2, 2), 3, params)


def test_the_builder_makes_a_learning_process_of_either_kind(tff_runtime):
    local = LocalTrainingParams(learning_rate=1.0)
    rng = np.random.default_rng(4)
    cohort = [random_client(rng, 6, range(2), num_features=4)]
    mixtures = []
    for target in (None, 1):
        params = AlgorithmParams(local, target_domain=target)
        process = build_fed_avg(logistic_regression(4, 3), 2, params)
        assert isinstance(process, tff.learning.templates.LearningProcess)
        output = process.next(process.initialize(), cohort)
        mixtures.append(output.metrics["domain_weights"]["lambda"])
    share = np.mean(cohort[0]["domain_id"] == 1)
    np.testing.assert_allclose(mixtures[0], [1 - share, share], rtol=1e-6)
    np.testing.assert_array_equal(mixtures[1], [0, 1])
