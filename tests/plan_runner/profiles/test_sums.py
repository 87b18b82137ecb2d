"""Sums over clients, plain and secure, and the metrics of a round."""

import random
import shutil

import numpy as np
import pytest
import tensorflow as tf

from plan_runner import plan_pb2
from plan_runner.daf import PlainSums, read_sum
from plan_runner.errors import PlanError
from plan_runner.export import TensorType, open_export
from plan_runner.profile import Sent
from plan_runner.rounds import check_metrics, conformance_clients, run_rounds
from plan_runner.secure import (
    LARGEST_MODULUS,
    SecureSums,
    SecureTensor,
    read_side_channel,
)
from tests.plan_runner.exports import rehash
from tests.plan_runner.plans import spec
from tests.plan_runner.refusals import refusal
from tests.support import golden


def config(dtype="float32", shape=(), **changes):
    message = plan_pb2.ServerAggregationConfig(intrinsic_uri="federated_sum")
    message.intrinsic_args.add(input_tensor=spec("update/a", dtype, shape))
    message.output_tensors.append(spec("intermediate_update/0/a", dtype, shape))
    for name, value in changes.items():
        setattr(message, name, value)
    return message


def summed(values, **kind):
    sums = PlainSums([read_sum(config(**kind), "here")])
    for value in values:
        sums.add("ann", Sent({"update/a": np.asarray(value)}))
    return sums.results()["intermediate_update/0/a"]


def test_plain_sum_starts_from_positive_zero():
    assert not np.signbit(summed([np.float32(-0.0)]))


def test_plain_sum_adds_in_client_order():
    big, one = np.float32(2**24), np.float32(1)
    assert summed([one, one, big]) == 2**24 + 2
    assert summed([big, one, one]) == 2**24


def test_plain_sum_keeps_its_dtype():
    assert summed([np.int8(100), np.int8(100)], dtype="int8") == -56
    half = tf.bfloat16.as_numpy_dtype
    total = summed([half(256), half(1)], dtype="bfloat16")
    assert total.dtype == half
    assert total == 256


def test_plain_sum_keeps_infinities():
    values = [
        np.array([np.inf, np.nan, 3e38], np.float32),
        np.array([-np.inf, 1, 3e38], np.float32),
    ]
    assert str(summed(values, shape=(3,)).tolist()) == "[nan, nan, inf]"


@golden.values
def test_plain_sum_rejects_invalid_updates(case):
    sums = PlainSums([read_sum(config(), "here")])
    sent = Sent({name: np.asarray(value) for name, value in case.items()})
    return refusal(sums.add, "ann", sent)


def test_updates_of_different_shapes_raise():
    with pytest.raises(PlanError, match=r"expected the shape \(2,\) of the clients before, found"):
        summed([np.zeros(2, np.float32), np.zeros(3, np.float32)], shape=(None,))


def test_sum_of_strings_raises():
    with pytest.raises(PlanError, match="update/a: expected numbers, found"):
        summed([np.array(b"a", object)], dtype="string")


def test_unsupported_aggregations_raise():
    with pytest.raises(PlanError, match="intrinsic_uri: expected federated_sum, found 'fedsql"):
        read_sum(config(intrinsic_uri="fedsql_group_by"), "here")
    inner = config()
    inner.inner_aggregations.add(intrinsic_uri="federated_sum")
    with pytest.raises(PlanError, match="expected no part inner_aggregations"):
        read_sum(inner, "here")
    two = config()
    two.intrinsic_args.add(input_tensor=spec("update/b", "float32"))
    with pytest.raises(PlanError, match="expected one argument and one output, found more"):
        read_sum(two, "here")
    state = config()
    state.intrinsic_args[0].state_tensor = state.intrinsic_args[0].input_tensor
    with pytest.raises(PlanError, match="expected the part input_tensor, found none"):
        read_sum(state, "here")
    other = config()
    other.output_tensors[0] = spec("intermediate_update/0/a", "float64")
    with pytest.raises(PlanError, match=r"expected the output to be float32\[\] as the input"):
        read_sum(other, "here")


# --- Secure sums


INT64 = 9


def tensor(modulus, dtype="int64", shape=(3,)):
    return SecureTensor("sum:0", TensorType(dtype, shape), modulus, "fed:0")


def secure_sum(part, values):
    sums = SecureSums({part.name: part})
    for value in values:
        sums.add("ann", Sent({part.name: value}))
    return sums.results()[part.name]


def channel(modulus, dtype=INT64):
    message = plan_pb2.SideChannel(restore_name="fed:0")
    message.secure_aggregand.dtype = dtype
    message.secure_aggregand.fixed_modulus.modulus = modulus
    return message


@pytest.mark.parametrize("modulus", [1 << 8, 997, LARGEST_MODULUS, LARGEST_MODULUS - 57])
def test_secure_sums_equal_python_integers(modulus):
    generator = random.Random(7)
    values = [[generator.randrange(modulus) for _ in range(3)] for _ in range(6)]
    values.append([0, modulus - 1, modulus - 1])
    total = secure_sum(tensor(modulus), [np.array(row, np.int64) for row in values])
    assert total.tolist() == [sum(column) % modulus for column in zip(*values)]
    assert total.dtype == np.int64
    assert tensor(modulus).packed_bytes == -(-3 * (modulus - 1).bit_length() // 8)


@pytest.mark.parametrize("dtype", ["int8", "uint64"])
def test_secure_sum_keeps_its_dtype(dtype):
    total = secure_sum(tensor(64, dtype, ()), [np.array(15, dtype)] * 2)
    assert (total.dtype, total) == (dtype, 30)


def test_secure_sum_beyond_its_dtype_raises():
    with pytest.raises(PlanError, match=r"^sum:0: expected a sum within int8, found 254$"):
        secure_sum(tensor(255, "int8", ()), [np.array(127, np.int8)] * 2)


@golden.values
def test_secure_sum_rejects_invalid_values(case):
    return refusal(secure_sum, tensor(16), [case])


def test_read_side_channel_returns_the_tensor():
    expected = SecureTensor("a:0", TensorType("int64", ()), 12, "fed:0")
    assert read_side_channel("a:0", channel(12), "here") == expected


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (plan_pb2.SideChannel(restore_name="a"), "expected secure_aggregand and restore_name"),
        (channel(0), "fixed_modulus: expected 1 to 2"),
        (channel(1 << 63), "fixed_modulus: expected 1 to 2"),
        (channel(12, dtype=1), "dtype: expected integers, found float32"),
        (channel(12, dtype=999), "dtype: expected a DataType of TensorFlow, found 999"),
    ],
)
def test_invalid_side_channels_raise(message, error):
    with pytest.raises(PlanError, match=f"^here: .*{error}"):
        read_side_channel("a:0", message, "here")


# --- A round's outputs include its metrics


_METRICS = {"m/one": np.asarray(np.float32(0.5)), "m/two": np.array([3, 4])}
_OUTPUTS = {"m/one": np.float32(0.5), "m/two/0": np.int64(3), "m/two/1": np.int64(4)}


def test_check_metrics_returns_outputs_that_are_no_metrics():
    outputs = {**_OUTPUTS, "m/two/all": 7}
    assert check_metrics(_METRICS, outputs, ["m/one", "m/two"], "here") == {"m/two/all": 7}
    assert check_metrics(_METRICS, {}, ["m/one", "m/two"], "here") == {}
    assert check_metrics(_METRICS, {"m/two": np.array([3, 4])}, _METRICS, "here") == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("m/two/1", np.int64(5)),
        ("m/one", np.float64(0.5)),
        ("m/two/0", np.zeros(2, np.int64)),
        ("m/two", np.array([3, 5])),
        ("m/two", np.int64(3)),
    ],
)
def test_outputs_that_differ_from_metrics_raise(name, value):
    with pytest.raises(PlanError, match=f"^here: {name}: expected the same value in"):
        check_metrics(_METRICS, {**_OUTPUTS, name: value}, _METRICS, "here")


def test_missing_metric_element_raises():
    with pytest.raises(PlanError, match=r"^here: m/two: expected 2 scalars, .*, found 1$"):
        check_metrics(_METRICS, {"m/two/1": np.int64(4)}, _METRICS, "here")


@pytest.mark.slow
def test_too_many_clients_for_secure_sums_raise(exports, tmp_path):
    folder = shutil.copytree(exports["secure"], tmp_path / "export")
    rehash(folder, privacy={"maximum_clients_per_round": 2})
    export = open_export(folder)
    clients = conformance_clients(export)
    assert len(list(run_rounds(export, [clients[:2]]))) == 1
    with pytest.raises(PlanError, match=r"^round 2: expected at most 2 clients, .* found 3; .*"):
        list(run_rounds(export, [clients[:2], clients]))
