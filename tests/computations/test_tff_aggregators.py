"""TFF's models and aggregators in the package's builders; rounds equal TFF's own FedAvg."""

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.support import tff_models
from tests.support.algorithms import build
from tests.support.clients import random_client
from tests.support.comparing import assert_identical, flat
from tests.support.options import make_options
from tff_agnostic import aggregations
from tff_agnostic.aggregations.aggregation import LimitedOptions
from tff_agnostic.aggregations.registry import UPDATE_AGGREGATORS, DpAggregator, named
from tff_agnostic.algorithms import (
    ALGORITHMS,
    AgnosticFedAvgOptions,
    FedAvgOptions,
    Problem,
    build_fed_avg,
)
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.options import Options
from tff_agnostic.computations import PlainSum, security_report
from tff_agnostic.computations.tff_bridge.models import restore_keras_classes
from tff_agnostic.computations.tff_process import build_process
from tff_agnostic.computations.verification import check_process

_BATCH, _RATE, _ROUNDS, _DOMAINS = 4, 0.3, 5, 2
_OPTIONS = make_options(
    FedAvgOptions,
    client_learning_rate=_RATE,
    client_epochs=2,
    client_batch_size=_BATCH,
    client_normalizer="batch",
    client_shuffle=False,
)


def _cohort(round_num: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(round_num)
    sizes = tff_models.FEATURES, tff_models.CLASSES
    return [random_client(rng, n, range(_DOMAINS), *sizes) for n in (9, 4, 1, 13)]


def _datasets(cohort: list[dict[str, np.ndarray]]) -> list[tf.data.Dataset]:
    """Returns two epochs of each client's batches."""
    return [
        tf.data.Dataset.from_tensor_slices((client["x"], client["y"])).batch(_BATCH).repeat(2)
        for client in cohort
    ]


def _weights(process: Any, data: Any) -> list[np.ndarray]:
    """Returns the trainable weights after `_ROUNDS` rounds."""
    state = process.initialize()
    for round_num in range(_ROUNDS):
        state = process.next(state, data(_cohort(round_num))).state
    return list(process.get_model_weights(state).trainable)


def _assert_equal(actual: Any, expected: Any, start: Any) -> None:
    for a, b, w in zip(actual, expected, start):
        assert np.max(np.abs(b - w)) > 1e-2, "nothing was learnt"
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


_AGGREGATORS = {"default": None, "robust": tff.learning.robust_aggregator}


@pytest.fixture(autouse=True)
def _restore_keras():
    """Undoes TFF's change of Keras classes, which would break the models of other tests."""
    yield
    restore_keras_classes()


@pytest.mark.nightly_cases("robust")
@pytest.mark.slow
@pytest.mark.parametrize("name", _AGGREGATORS)
def test_fed_avg_equals_tffs(tff_runtime, name):
    model, make = tff_models.from_keras(), _AGGREGATORS[name]
    theirs = tff.learning.algorithms.build_weighted_fed_avg(
        model, tff.learning.optimizers.build_sgdm(_RATE), model_aggregator=make and make()
    )
    aggregation = _named(name) if make else PlainSum()
    ours = build_fed_avg(model, _DOMAINS, _OPTIONS, aggregation)
    expected = _weights(theirs, _datasets)
    _assert_equal(_weights(ours, lambda cohort: cohort), expected, model.initial_weights[0])


@pytest.mark.slow
def test_models_with_variables_train_as_in_tff(tff_runtime):
    build = tff_models.HandWritten
    theirs = tff.learning.algorithms.build_weighted_fed_avg(
        build, tff.learning.optimizers.build_sgdm(_RATE)
    )
    ours = build_fed_avg(build, _DOMAINS, _OPTIONS)
    expected = _weights(theirs, _datasets)
    start = ours.get_model_weights(ours.initialize()).trainable
    _assert_equal(_weights(ours, lambda cohort: cohort), expected, start)


def _named(name: str) -> Any:
    """Returns TFF's aggregator with the given name, for four clients per round."""
    kind = UPDATE_AGGREGATORS[name].kind
    aggregator: Any = DpAggregator(0.001) if kind is DpAggregator else kind()
    return named(aggregator, LimitedOptions(), Options(), 4.0)


def _agnostic(aggregation: Any = PlainSum()) -> Any:
    problem = Problem.numbered(_softmax(), _DOMAINS)
    options = make_options(
        AgnosticFedAvgOptions,
        client_learning_rate=_RATE,
        client_batch_size=_BATCH,
        lambda_learning_rate=0.1,
        window=2,
    )
    return build_process(ALGORITHMS["agnostic_fed_avg"].build(problem, options), aggregation)


@functools.cache
def _under(name: str) -> Any:
    """Returns AgnosticFedAvg's process with an aggregator; cached, as TFF takes long to compile."""
    return _agnostic(_named(name)).learning_process


@functools.cache
def _softmax() -> Any:
    return tff_models.functional()


def _moved(process: Any) -> tuple[np.ndarray, Any, list[Any]]:
    """Runs three rounds; returns the change of the weights, the last state, and the reports."""
    state, reports = process.initialize(), []
    before = process.get_model_weights(state).trainable
    for round_num in range(3):
        state, report = process.next(state, _cohort(round_num))
        reports.append(report)
    after = process.get_model_weights(state).trainable
    return flat(after) - flat(before), state, reports


@pytest.fixture(scope="module")
def plain(tff_runtime):
    return _moved(_agnostic().learning_process)


@pytest.mark.nightly_cases("dp")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["robust", "dp"])
def test_tff_aggregators_keep_the_updates_direction(plain, name):
    moved, state, reports = _moved(_under(name))
    # These aggregators clip, so updates are not longer and nearly keep their direction. DP starts
    # with a small clip norm, which changes the direction more.
    cosine = moved @ plain[0] / np.linalg.norm(moved) / np.linalg.norm(plain[0])
    assert cosine > (0.85 if name == "dp" else 0.98)
    assert 0.3 < np.linalg.norm(moved) / np.linalg.norm(plain[0]) < 1.01
    for actual, expected in zip(reports, plain[2]):
        train, plain_train = (r["client_work"]["train"] for r in (actual, expected))
        np.testing.assert_array_equal(train["num_examples"], plain_train["num_examples"])
        np.testing.assert_allclose(train["loss"], plain_train["loss"], rtol=0.02)
        assert actual["skipped"] == 0
    first = _under(name).initialize()
    kept = tf.nest.flatten(state.aggregations), tf.nest.flatten(first.aggregations)
    assert any(not np.array_equal(a, b) for a, b in zip(*kept)), (
        "the factory's state does not change"
    )


@pytest.mark.slow
def test_unweighted_mean_keeps_the_papers_average(plain):
    """Updates carry the paper's weights, so TFF's unweighted mean keeps the weighted average."""
    factory = tff.aggregators.UnweightedMeanFactory()
    moved, state, _ = _moved(_agnostic(aggregations.from_tff(factory)).learning_process)
    np.testing.assert_allclose(moved, plain[0], atol=2e-6)
    np.testing.assert_allclose(
        state.algorithm.memory.lambda_, plain[1].algorithm.memory.lambda_, rtol=1e-5
    )


@pytest.mark.slow
def test_round_without_clients_keeps_the_weights(tff_runtime):
    process = _under("robust")
    state = process.initialize()
    after, report = process.next(state, [])
    assert_identical(after.algorithm.weights, state.algorithm.weights)
    assert np.all(np.isfinite(flat(tf.nest.flatten(after))))
    assert report["skipped"] == 0


@pytest.mark.nightly_cases("robust_aggregator")
@pytest.mark.slow
@pytest.mark.parametrize("build", [tff.learning.secure_aggregator, tff.learning.robust_aggregator])
def test_only_secure_rejects_other_aggregators(tff_runtime, build):
    aggregation = aggregations.from_tff(build(), only_secure=True)
    process = _agnostic(aggregation)
    if build is tff.learning.secure_aggregator:
        assert check_process(aggregation, process).is_secure
    else:
        with pytest.raises(UserError, match="outside secure sums"):
            check_process(aggregation, process)


@pytest.mark.slow
def test_losses_and_counts_stay_in_secure_sums(tff_runtime):
    report = security_report(_under("robust").next)
    assert any("domain_losses" in name for name in report.secure)
    assert any("domain_counts" in name for name in report.secure)
    assert not any("domain" in name for name in report.plain)


def test_other_runtimes_reject_tff_aggregators(cohort_runtime):
    aggregation = aggregations.from_tff(tff.learning.robust_aggregator())
    with pytest.raises(UserError, match="expected the runtime tff, found"):
        cohort_runtime.training(build("agnostic_fed_avg", _softmax()), aggregation)


def test_conversion_from_tff_rejects_sums_and_other_values():
    with pytest.raises(UserError, match=r"a mean, found SumFactory: .*UnweightedMeanFactory"):
        aggregations.from_tff(tff.aggregators.SumFactory())
    with pytest.raises(UserError, match="expected a weighted or unweighted factory"):
        aggregations.from_tff("robust")
