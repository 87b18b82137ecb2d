"""The report of what leaves the clients, on rounds that leak and rounds that do not."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.computations.aggregation import PlainSum, SecureBounds, SecureSum
from tff_agnostic.computations.algorithm import AlgorithmParams
from tff_agnostic.computations.evaluation import build_evaluation
from tff_agnostic.computations.registry import ALGORITHMS
from tff_agnostic.computations.secure_check import require_only_secure_sums, security_report
from tff_agnostic.computations.template import build_learning_process
from tff_agnostic.errors import UserError
from tff_agnostic.models import logistic_regression


def _process(name: str, aggregation: Any):
    algorithm = ALGORITHMS[name](logistic_regression(4, 3), 2, AlgorithmParams(target_domain=0))
    return build_learning_process(algorithm, aggregation)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_algorithm_sends_nothing_but_secure_sums_when_asked(name):
    report = require_only_secure_sums(_process(name, SecureSum()).next)
    assert report.is_secure
    assert report.plain == ()
    assert "secure sums only" in report.summary()
    # Everything of a client's output, the counts of clipped values and the number of clients.
    text = " ".join(report.secure)
    for field in (
        "weighted_delta",
        "beta",
        "domain_losses",
        "domain_counts",
        "accuracy",
        "clipped",
    ):
        assert field in text


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_plain_sums_are_reported_by_name(name):
    report = security_report(_process(name, PlainSum()).next)
    assert not report.is_secure
    assert report.secure == ()
    text = " ".join(report.plain)
    for field in ("weighted_delta", "beta", "domain_losses", "domain_counts", "accuracy"):
        assert field in text
    assert "outside secure sums" in report.summary()
    assert "weighted_delta" in report.summary()


_SERVER = tff.FederatedType(np.float32, tff.SERVER)
_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)


@tff.tensorflow.computation(np.float32, np.float32)
def _client_work(state, example):
    rounded = tf.cast(tf.round(tf.clip_by_value(state - example, 0.0, 100.0)), tf.int64)
    return {"update": rounded, "mood": example}


def test_a_single_metric_beside_secure_sums_is_caught():
    @tff.federated_computation(_SERVER, _CLIENTS)
    def leaky_round(state, data):
        work = tff.federated_map(_client_work, (tff.federated_broadcast(state), data))
        update = tff.federated_secure_sum_bitwidth(work["update"], 8)
        return state, tff.federated_zip((update, tff.federated_sum(work["mood"])))

    with pytest.raises(UserError, match=r"1 values of a client .*float32.*: mood$") as error:
        require_only_secure_sums(leaky_round)
    assert "secure aggregation was asked for" in str(error.value)
    report = security_report(leaky_round)
    assert len(report.plain) == 1
    assert len(report.secure) == 1


def test_a_structure_of_metrics_beside_secure_sums_is_named():
    @tff.federated_computation(_SERVER, _CLIENTS)
    def leaky_round(state, data):
        work = tff.federated_map(_client_work, (tff.federated_broadcast(state), data))
        update = tff.federated_secure_sum_bitwidth(work["update"], 8)
        metrics = tff.federated_sum(tff.federated_zip({"loss": data, "mood": work["mood"]}))
        return state, tff.federated_zip((update, metrics))

    with pytest.raises(UserError, match=r"2 values .*loss \(float32\), mood \(float32\)"):
        require_only_secure_sums(leaky_round)


def test_a_plain_mean_is_caught():
    @tff.federated_computation(_SERVER, _CLIENTS)
    def mean_round(state, data):
        return state, tff.federated_mean(data)

    with pytest.raises(UserError, match="outside secure sums"):
        require_only_secure_sums(mean_round)


@pytest.mark.parametrize(("aggregation", "is_secure"), [(SecureSum(), True), (PlainSum(), False)])
def test_evaluations(aggregation, is_secure):
    evaluation = build_evaluation(logistic_regression(4, 3), 2, aggregation)
    report = security_report(evaluation)
    assert report.is_secure == is_secure
    assert "histogram" in " ".join(report.secure if is_secure else report.plain)


@dataclasses.dataclass(frozen=True)
class _LeakyAggregation:
    """Calls itself secure, and sends beta in a plain sum beside the secure one."""

    name: str = "secure"
    bounds: SecureBounds = SecureBounds()

    def encode(self, output: Any, bounds: Any) -> Any:
        return {"beta": output.beta, "secure": SecureSum(self.bounds).encode(output, bounds)}

    def federated_sum(self, encoded: tff.Value, bounds: Any) -> tff.Value:
        secure = SecureSum(self.bounds).federated_sum(encoded["secure"], bounds)
        return tff.federated_zip({"beta": tff.federated_sum(encoded["beta"]), "secure": secure})

    def decode(self, summed: Any, bounds: Any) -> Any:
        return SecureSum(self.bounds).decode(summed["secure"], bounds)


def test_the_runtime_refuses_an_aggregation_that_only_calls_itself_secure(tff_runtime):
    algorithm = ALGORITHMS["agnostic_fed_avg"](logistic_regression(4, 3), 2, AlgorithmParams())
    with pytest.raises(
        UserError, match=r"secure aggregation was asked for.*1 values .*float32.*: beta$"
    ):
        tff_runtime.training(algorithm, _LeakyAggregation())


def test_the_runtime_refuses_it_for_evaluations_too(tff_runtime):
    with pytest.raises(UserError, match="secure aggregation was asked for"):
        tff_runtime.evaluation(logistic_regression(4, 3), 2, _LeakyEvaluationAggregation())


class _LeakyEvaluationAggregation(_LeakyAggregation):
    def encode(self, output: Any, bounds: Any) -> Any:
        secure = SecureSum(self.bounds).encode(output, bounds)
        return {"beta": output.sums.losses, "secure": secure}
