"""Security reports list the values that clients send, in rounds with and without leaks."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.support.algorithms import build
from tff_agnostic.aggregations.aggregation import ClientLimits
from tff_agnostic.base.errors import UserError
from tff_agnostic.computations import PlainSum, build_learning_process
from tff_agnostic.computations.verification import (
    require_no_plain_sums,
    require_only_secure_sums,
    security_report,
)


@pytest.mark.slow
def test_plain_sums_are_reported_by_name():
    algorithm = build("agnostic_fed_avg")
    report = security_report(build_learning_process(algorithm, PlainSum()).next)
    assert not report.is_secure
    assert report.secure == ()
    text = " ".join(report.plain)
    bounds = algorithm.steps[0].bounds(ClientLimits())
    fields = [f for f in bounds._fields if tf.nest.flatten(getattr(bounds, f))]
    for field in (*fields, "accuracy"):
        assert field in text
        assert field in report.summary()
    assert "outside secure sums" in report.summary()


_SERVER = tff.FederatedType(np.float32, tff.SERVER)
_CLIENTS = tff.FederatedType(np.float32, tff.CLIENTS)


@tff.tensorflow.computation(np.float32, np.float32)
def _client_work(state, example):
    rounded = tf.cast(tf.round(tf.clip_by_value(state - example, 0.0, 100.0)), tf.int64)
    return {"update": rounded, "mood": example}


def test_rejects_metrics_outside_secure_sums():
    @tff.federated_computation(_SERVER, _CLIENTS)
    def leaky_round(state, data):
        work = tff.federated_map(_client_work, (tff.federated_broadcast(state), data))
        update = tff.federated_secure_sum_bitwidth(work["update"], 8)
        leaked = tff.federated_sum(tff.federated_zip({"loss": data, "mood": work["mood"]}))
        return state, tff.federated_zip((update, leaked))

    message = r"^secure aggregation is required, .*2 values .*loss \(float32\), mood \(float32\)"
    with pytest.raises(UserError, match=message):
        require_only_secure_sums(leaky_round)
    report = security_report(leaky_round)
    assert (len(report.plain), len(report.secure)) == (2, 1)


def _round_with(uri, by_name):
    """Returns a round that calls an intrinsic, directly or through a local name."""
    data = tff.framework.Reference("data", _CLIENTS)
    intrinsic = tff.framework.Intrinsic(uri, tff.FunctionType(_CLIENTS, _SERVER))
    result = tff.framework.Call(intrinsic, data)
    if by_name:
        name = tff.framework.Reference("add", intrinsic.type_signature)
        result = tff.framework.Block([("add", intrinsic)], tff.framework.Call(name, data))
    block = tff.framework.Lambda("data", _CLIENTS, result)
    return tff.framework.ConcreteComputation.from_building_block(block)


@pytest.mark.parametrize(
    ("uri", "by_name"), [("federated_sum", False), ("federated_secure_looking_sum", True)]
)
def test_rejects_other_intrinsics_under_any_name(uri, by_name):
    """Only intrinsics that this package uses count as secure, regardless of names."""
    with pytest.raises(UserError, match=f"is required, but the round has {uri}$"):
        require_no_plain_sums(_round_with(uri, by_name))


def test_accepts_secure_sums_of_this_package():
    @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
    def secure_round(data):
        bits = tff.federated_secure_sum_bitwidth(data, 8)
        return bits, tff.backends.mapreduce.federated_secure_modular_sum(data, 256)

    require_no_plain_sums(secure_round)
