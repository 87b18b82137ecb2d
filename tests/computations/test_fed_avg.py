"""FedAvg on all domains and on one target domain."""

from typing import Any

import numpy as np
import pytest

from tests.support.clients import make_client, random_client
from tests.support.comparing import assert_all_close, assert_identical
from tests.support.models import linear_model
from tests.support.options import make_options
from tests.support.rounds import EagerTraining, run_rounds
from tff_agnostic.algorithms import AgnosticFedAvgOptions, FedAvgOptions, Problem
from tff_agnostic.algorithms.agnostic_fed_avg import agnostic_fed_avg
from tff_agnostic.algorithms.fed_avg import TargetOnlyOptions, fed_avg, fed_avg_target_only
from tff_agnostic.base.errors import UserError
from tff_agnostic.models import Model, logistic_regression


def _uniform(model: Model, num_domains: int, **settings: Any) -> EagerTraining:
    problem = Problem.numbered(model, num_domains)
    return EagerTraining(fed_avg(problem, make_options(FedAvgOptions, **settings)))


def _target_only(target: str, num_domains: int, **settings: Any) -> EagerTraining:
    problem = Problem.numbered(logistic_regression(4, 3), num_domains)
    options = make_options(TargetOnlyOptions, target_domain=target, **settings)
    return EagerTraining(fed_avg_target_only(problem, options))


def test_losses_precede_the_first_epochs_steps():
    """An example's loss is x w, where w starts at 4. Batches of one example have steps of size 1.

    The first batch, x = 1, has the loss 4 and gives w = 3. The second batch, x = 2, has the loss 6.
    """
    settings = {
        "client_learning_rate": 1.0,
        "client_epochs": 2,
        "client_batch_size": 1,
        "client_normalizer": "batch",
        "client_shuffle": False,
    }
    model = linear_model(initial=4.0)
    training = _uniform(model, 3, **settings)
    _, metrics = training.next(training.initialize(), [make_client([1, 2], [0, 1])])
    np.testing.assert_allclose(metrics["client_work"]["train"]["loss"], [4, 6, 0])
    np.testing.assert_array_equal(metrics["client_work"]["train"]["num_examples"], [1, 1, 0])
    # AgnosticFedAvg measures the losses at w in a separate pass.
    problem = Problem.numbered(model, 3)
    training = EagerTraining(
        agnostic_fed_avg(problem, make_options(AgnosticFedAvgOptions, **settings))
    )
    _, metrics = training.next(training.initialize(), [make_client([1, 2], [0, 1])])
    np.testing.assert_allclose(metrics["client_work"]["train"]["loss"], [4, 8, 0])


def test_target_only_algorithm_trains_on_its_domain():
    model = logistic_regression(4, 3)
    rng = np.random.default_rng(1)
    cohort = [random_client(rng, n, range(3)) for n in (12, 9, 15)]
    only_target = [
        {key: column[client["domain_id"] == 2] for key, column in client.items()}
        for client in cohort
    ]
    target_only = _target_only("2", 3, client_batch_size=100)
    uniform = _uniform(model, 3, client_batch_size=100)
    state, metrics = run_rounds(target_only, [cohort] * 3)
    expected, _ = run_rounds(uniform, [only_target] * 3)
    assert_all_close(state.algorithm, expected.algorithm)
    np.testing.assert_array_equal(metrics[0]["domain_weights"]["share"], [0, 0, 1])
    # Clients still measure the losses of all domains.
    assert np.all(metrics[-1]["client_work"]["train"]["loss"] > 0)


def test_target_only_algorithm_ignores_clients_without_its_domain():
    settings = {"client_normalizer": "batch", "server_optimizer": "adam"}
    training = _target_only("0", 2, client_batch_size=2, server_learning_rate=0.1, **settings)
    rng = np.random.default_rng(2)
    with_target, without = random_client(rng, 5, [0]), random_client(rng, 7, [1])
    state, metrics = training.next(training.initialize(), [with_target, without])
    expected, _ = training.next(training.initialize(), [with_target])
    assert_all_close(state.algorithm, expected.algorithm)
    assert metrics["clients"]["contributed"] == 1
    assert metrics["clients"]["zero_weight"] == 1
    # A round without the domain keeps the state.
    after, metrics = training.next(state, [without])
    assert_identical(after.algorithm, state.algorithm)
    assert metrics["finalizer"]["update_norm"] == 0
    assert np.all(np.isfinite(metrics["domain_weights"]["share"]))


@pytest.mark.parametrize(("target", "actual"), [(None, "none"), ("nort", "'nort'"), ("1", "'1'")])
def test_target_only_algorithm_rejects_unknown_domains(target, actual):
    problem = Problem(logistic_regression(2, 2), ("south", "north"))
    message = f"target_domain: expected one of south, north, found {actual}"
    with pytest.raises(UserError, match=message):
        fed_avg_target_only(problem, make_options(TargetOnlyOptions, target_domain=target))
