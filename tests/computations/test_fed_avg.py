"""FedAvg on all domains, and on one."""

import functools
from typing import Any

import numpy as np
import pytest

from tests.algorithms.cases import build
from tests.computations.harness import (
    EagerTraining,
    assert_all_close,
    assert_identical,
    linear_model,
    make_client,
    random_client,
    run_rounds,
)
from tests.marks import usually
from tests.options import make_options
from tff_agnostic.algorithms import (
    ALGORITHMS,
    AgnosticFedAvgOptions,
    FedAvgOptions,
    Problem,
    build_fed_avg,
)
from tff_agnostic.algorithms.agnostic_fed_avg import agnostic_fed_avg
from tff_agnostic.algorithms.fed_avg import TargetOnlyOptions, fed_avg, fed_avg_target_only
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.later import tff
from tff_agnostic.boosting.alpha import EnsembleOptions
from tff_agnostic.models import Model, logistic_regression


def _uniform(model: Model, num_domains: int, **settings: Any) -> EagerTraining:
    problem = Problem.numbered(model, num_domains)
    return EagerTraining(fed_avg(problem, make_options(FedAvgOptions, **settings)))


def _target_only(target: str, num_domains: int, **settings: Any) -> EagerTraining:
    problem = Problem.numbered(logistic_regression(4, 3), num_domains)
    options = make_options(TargetOnlyOptions, target_domain=target, **settings)
    return EagerTraining(fed_avg_target_only(problem, options))


@pytest.mark.slow_cases("3")
@pytest.mark.parametrize("epochs", [1, 3])
def test_losses_precede_the_steps_of_epoch_1(epochs):
    """An example's loss is x w and w starts at 4; batches of one example, steps of 1.

    The first batch, x = 1, has the loss 4 and makes w = 3; the second one, x = 2, has the loss 6.
    """
    settings = {
        "client_learning_rate": 1.0,
        "client_epochs": epochs,
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


# An ensemble's rounds measure the sent predictors only.
_WITH_ONE_MODEL = [k for k, s in ALGORITHMS.items() if not issubclass(s.options, EnsembleOptions)]


@functools.cache
def _measured_before_steps(name: str, batch_size: int) -> Any:
    """Returns the measured losses of a round with a tiny learning rate."""
    rng = np.random.default_rng(5)
    cohort = [random_client(rng, n, range(3)) for n in (4, 2, 0, 1)]
    settings = {"client_learning_rate": 1e-12, "client_epochs": 1, "client_batch_size": batch_size}
    # FedAvg-Sub trains the complete cohort.
    training = EagerTraining(build(name, **settings, cohort_share=1.0))
    return training.next(training.initialize(), cohort)[1]["client_work"]["train"]


@pytest.mark.slow_cases("delta_fl", "q_ffl")
@pytest.mark.parametrize(
    "name", usually(["agnostic_fed_avg", "delta_fl", "q_ffl"], sorted(_WITH_ONE_MODEL))
)
def test_losses_do_not_depend_on_batches(name):
    """They equal the losses at w: FedAvg with each client in one batch."""
    measured, expected = _measured_before_steps(name, 3), _measured_before_steps("fed_avg", 100)
    assert_all_close(measured["loss"], expected["loss"])
    np.testing.assert_array_equal(measured["num_examples"], expected["num_examples"])
    assert sum(expected["num_examples"]) == 7


def test_target_only_trains_on_its_domain():
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
    # The losses of all domains are still measured.
    assert np.all(metrics[-1]["client_work"]["train"]["loss"] > 0)


@pytest.mark.parametrize("normalizer", ["client", "batch"])
def test_target_only_ignores_clients_without_its_domain(normalizer):
    training = _target_only("0", 2, client_batch_size=2, client_normalizer=normalizer)
    rng = np.random.default_rng(2)
    with_target, without = random_client(rng, 5, [0]), random_client(rng, 7, [1])
    state, metrics = training.next(training.initialize(), [with_target, without])
    expected, _ = training.next(training.initialize(), [with_target])
    assert_all_close(state.algorithm, expected.algorithm)
    assert metrics["clients"]["contributed"] == 1
    assert metrics["clients"]["zero_weight"] == 1


def test_round_without_target_domain_keeps_the_state():
    training = _target_only("0", 2, server_optimizer="adam", server_learning_rate=0.1)
    rng = np.random.default_rng(3)
    state, _ = training.next(training.initialize(), [random_client(rng, 5, [0])])
    after, metrics = training.next(state, [random_client(rng, 5, [1])])
    assert_identical(after.algorithm, state.algorithm)
    assert metrics["finalizer"]["update_norm"] == 0
    assert np.all(np.isfinite(metrics["domain_weights"]["share"]))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (None, "target_domain: expected one of south, north, found none"),
        ("nort", "target_domain: expected one of south, north, found 'nort'"),
        ("1", "target_domain: expected one of south, north, found '1'"),
    ],
)
def test_target_only_rejects_unknown_domains(target, message):
    problem = Problem(logistic_regression(2, 2), ("south", "north"))
    with pytest.raises(UserError, match=message):
        fed_avg_target_only(problem, make_options(TargetOnlyOptions, target_domain=target))


@pytest.mark.slow
def test_builder_returns_a_learning_process(tff_runtime):
    cohort = [random_client(np.random.default_rng(4), 6, range(2))]
    process = build_fed_avg(
        logistic_regression(4, 3), 2, make_options(FedAvgOptions, client_learning_rate=1.0)
    )
    assert isinstance(process, tff.learning.templates.LearningProcess)
    output = process.next(process.initialize(), cohort)
    share = np.mean(cohort[0]["domain_id"] == 1)
    np.testing.assert_allclose(
        output.metrics["domain_weights"]["share"], [1 - share, share], rtol=1e-6
    )
