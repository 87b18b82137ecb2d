"""An aggregation's guarantees are checked in every step before a round runs."""

import dataclasses
import enum
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.support import golden
from tests.support.algorithms import build
from tests.support.clients import cohort
from tff_agnostic.aggregations.aggregation import ClientFacts, FederatedSums, SecurityProperty
from tff_agnostic.computations import PlainSum, SecureSum
from tff_agnostic.computations.tff_process import Process, build_process
from tff_agnostic.computations.verification import (
    CHECKS,
    ROUND_CHECKS,
    check_guarantees,
    check_process,
)
from tff_agnostic.models import logistic_regression

_EVALUATED = (logistic_regression(4, 3), 3)


@dataclasses.dataclass(frozen=True)
class _Leaky(SecureSum):
    """Secure sums with a leak: a plain sum of one of the client's values.

    Attributes:
        leaks: Called with bounds; returns whether a step with these bounds leaks.
    """

    name: str = "secure"
    leaks: Callable[[Any], bool] = lambda bounds: True
    guarantees: frozenset[SecurityProperty] = frozenset({SecurityProperty.SECURE_SUMS})

    def encode(self, params: Any, output: Any, bounds: Any, client: ClientFacts) -> Any:
        secure = super().encode(params, output, bounds, client)
        return {"mood": client.examples_cut, "secure": secure} if self.leaks(bounds) else secure

    def federated_sum(self, encoded: Any, bounds: Any, sums: FederatedSums) -> Any:
        if not self.leaks(bounds):
            return super().federated_sum(encoded, bounds, sums)
        secure = super().federated_sum(encoded["secure"], bounds, sums)
        return sums.joined({"mood": sums.plain(encoded["mood"]), "secure": secure})

    def decode(self, state: Any, summed: Any, bounds: Any) -> tuple[Any, Any, Mapping[str, Any]]:
        return super().decode(state, summed["secure"] if self.leaks(bounds) else summed, bounds)


class _Unchecked(enum.Enum):
    """A guarantee without a check."""

    DIFFERENTIAL_PRIVACY = "differential privacy"


def test_rejects_guarantees_without_a_check(streaming_runtime):
    aggregation = _Leaky(
        name="private",
        leaks=lambda bounds: False,
        guarantees=SecureSum.guarantees | {_Unchecked.DIFFERENTIAL_PRIVACY},
    )
    expected = "aggregation private declares 'differential privacy', but no check"
    assert expected in golden.refusal(streaming_runtime.training, build("fed_avg"), aggregation)
    assert expected in golden.refusal(streaming_runtime.evaluation, *_EVALUATED, aggregation)


def test_every_guarantee_has_a_check():
    assert set(CHECKS) == set(SecureSum.guarantees)
    assert {*CHECKS, *ROUND_CHECKS} == set(SecurityProperty)


@pytest.mark.slow_cases("tff_runtime")
@pytest.mark.parametrize("runtime", ["streaming_runtime", "tff_runtime"])
def test_rejects_client_value_in_plain_sum(request, runtime):
    runtime, aggregation = request.getfixturevalue(runtime), _Leaky()
    message = golden.refusal(runtime.training, build("agnostic_fed_avg"), aggregation)
    assert "secure aggregation is required, but 1 values of a client" in message
    assert message.endswith(": mood")
    assert message.startswith("step 'training': ")
    message = golden.refusal(runtime.evaluation, *_EVALUATED, aggregation)
    assert message.startswith("step 'evaluation': ")


@pytest.mark.slow
def test_aggregation_without_guarantees_is_not_checked(streaming_runtime):
    aggregation = _Leaky(guarantees=frozenset())
    training = streaming_runtime.training(build("fed_avg"), aggregation)
    assert training.security is None
    state, _ = training.next(training.initialize(), cohort())
    assert state.round_num == 1


def test_rejection_names_the_leaking_step(streaming_runtime):
    leaky = _Leaky(leaks=lambda bounds: "weighted_delta" not in bounds._fields)
    message = golden.refusal(streaming_runtime.training, build("above_mean"), leaky)
    assert message.startswith("step 'survey': secure aggregation is required, but 1 ")


@pytest.mark.slow
def test_security_report_lists_values_by_step(streaming_runtime):
    security = streaming_runtime.training(build("above_mean"), SecureSum()).security
    assert security.is_secure
    assert any(value.startswith("survey: values.loss") for value in security.secure)
    assert any(value.startswith("training: values.weighted_delta") for value in security.secure)


def _with_next(process: Process, next_: tff.Computation) -> Process:
    return process._replace(learning_process=SimpleNamespace(next=next_))


@tff.tensorflow.computation(np.float32, np.float32)
def _add(a: Any, b: Any) -> Any:
    return a + b


@tff.tensorflow.computation(np.float32)
def _same(value: Any) -> Any:
    return value


_WAYS = {
    "federated_sum": tff.federated_sum,
    "federated_max": tff.federated_max,
    "federated_aggregate": lambda value: tff.federated_aggregate(
        value, np.float32(0), _add, _add, _same
    ),
}


@pytest.fixture(scope="module")
def process():
    """The process of secure rounds with two steps."""
    secure = build_process(build("above_mean"), SecureSum())
    assert check_process(SecureSum(), secure).is_secure
    return secure


@pytest.mark.slow
@pytest.mark.nightly_cases(but=["federated_max"])
@pytest.mark.parametrize("way", list(_WAYS))
def test_rejects_sums_outside_the_steps(process, way):
    """Each step is secure, but the round has another sum outside the steps."""
    next_ = process.learning_process.next
    state_type, data_type = next_.type_signature.parameter

    @tff.tensorflow.computation(data_type.member)
    def first_domain(examples: Any) -> Any:
        return tf.cast(examples["domain_id"][0], tf.float32)

    @tff.federated_computation(state_type, data_type)
    def with_a_sum(state: Any, client_data: Any) -> Any:
        leaked = _WAYS[way](tff.federated_map(first_domain, client_data))
        return next_(state, client_data), leaked

    message = golden.refusal(check_process, SecureSum(), _with_next(process, with_a_sum))
    assert message == f"secure aggregation is required, but the round has {way}"


def test_plain_sums_have_no_security_report():
    assert check_guarantees(PlainSum(), {}) is None
