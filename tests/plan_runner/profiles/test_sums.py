"""Plain sums: the order, the dtype and the zero that they begin with."""

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
from plan_runner.rounds import conformance_clients, other_outputs, run_rounds, with_metrics
from plan_runner.secure import (
    LARGEST_MODULUS,
    Modulus,
    SecureSum,
    SecureTensor,
    read_side_channel,
)
from tests import golden
from tests.plan_runner.exports import rehash
from tests.plan_runner.plans import spec


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


def test_a_sum_begins_with_zero():
    assert not np.signbit(summed([np.float32(-0.0)]))


def test_the_order_is_that_of_the_clients():
    big, one = np.float32(2**24), np.float32(1)
    assert summed([one, one, big]) == 2**24 + 2
    assert summed([big, one, one]) == 2**24


def test_sums_keep_their_dtype():
    assert summed([np.int8(100), np.int8(100)], dtype="int8") == -56
    half = tf.bfloat16.as_numpy_dtype
    total = summed([half(256), half(1)], dtype="bfloat16")
    assert total.dtype == half
    assert total == 256


def test_what_is_not_finite_passes():
    values = [
        np.array([np.inf, np.nan, 3e38], np.float32),
        np.array([-np.inf, 1, 3e38], np.float32),
    ]
    assert str(summed(values, shape=(3,)).tolist()) == "[nan, nan, inf]"


@golden.values
def test_an_update_that_is_not_as_the_plan_says(case):
    sums = PlainSums([read_sum(config(), "here")])
    with pytest.raises(PlanError) as error:
        sums.add("ann", Sent({name: np.asarray(value) for name, value in case.items()}))
    return str(error.value)


def test_shapes_that_are_open_must_agree():
    with pytest.raises(PlanError, match=r"expected the shape \(2,\) of the clients before, found"):
        summed([np.zeros(2, np.float32), np.zeros(3, np.float32)], shape=(None,))


def test_strings_have_no_sum():
    with pytest.raises(PlanError, match="update/a: expected numbers, found"):
        summed([np.array(b"a", object)], dtype="string")


def test_other_aggregations_are_refused():
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


# --- Secure sums against Python's own integers


INT64 = 9


def tensor(scheme, dtype="int64", shape=(3,)):
    return SecureTensor("sum:0", TensorType(dtype, shape), scheme, "fed:0")


def channel(**parts):
    message = plan_pb2.SideChannel(restore_name="fed:0")
    message.secure_aggregand.dtype = INT64
    for name, value in parts.items():
        part = getattr(message.secure_aggregand, name)
        if isinstance(value, dict):
            part.SetInParent()
            for key, inner in value.items():
                setattr(part, key, inner)
        else:
            setattr(message.secure_aggregand, name, value)
    return message


def by_the_book(clients: int, base: int) -> int:
    """The smallest power of two that is at least 1 + clients * (base - 1)."""
    modulus = 1
    while modulus < 1 + clients * (base - 1):
        modulus *= 2
    return modulus


@pytest.mark.parametrize("clients", [1, 2, 3, 4, 5, 100, 1000])
@pytest.mark.parametrize("base", [1, 2, 3, 255, 256, 257, 1 << 20, (1 << 40) + 1])
def test_the_modulus_is_the_next_power_of_two(clients, base):
    assert Modulus(base, grows=True).of(clients) == by_the_book(clients, base)
    assert Modulus(base, grows=False).of(clients) == base


@pytest.mark.parametrize(
    "scheme",
    [
        Modulus(1 << 8, grows=True),
        Modulus(1 << 59, grows=True),
        Modulus(1000, grows=True),
        Modulus(1 << 8, grows=False),
        Modulus(997, grows=False),
        Modulus(LARGEST_MODULUS, grows=False),
        Modulus(LARGEST_MODULUS - 57, grows=False),
    ],
)
def test_sums_are_those_of_python_integers(scheme):
    generator = random.Random(7)
    values = [[generator.randrange(scheme.bound) for _ in range(3)] for _ in range(6)]
    values.append([0, scheme.bound - 1, scheme.bound - 1])
    total = SecureSum(tensor(scheme), len(values))
    for row in values:
        total.add(np.array(row, np.int64), "client")
    modulus = scheme.of(len(values))
    assert total.result().tolist() == [sum(column) % modulus for column in zip(*values)]
    assert total.result().dtype == np.int64
    assert total.bytes_up == -(-3 * (modulus - 1).bit_length() // 8)


def test_a_growing_modulus_is_never_reached():
    scheme = Modulus(200, grows=True)
    total = SecureSum(tensor(scheme, shape=()), 5)
    for _ in range(5):
        total.add(np.array(199), "client")
    assert total.result() == 995


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint64"])
def test_dtypes(dtype):
    total = SecureSum(tensor(Modulus(16, grows=True), dtype, ()), 2)
    for _ in range(2):
        total.add(np.array(15, dtype), "client")
    assert total.result().dtype == dtype
    assert total.result() == 30


def test_a_sum_beyond_the_dtype_is_refused():
    total = SecureSum(tensor(Modulus(128, grows=True), "int8", ()), 2)
    for _ in range(2):
        total.add(np.array(127, np.int8), "client")
    with pytest.raises(PlanError, match=r"^sum:0: expected a sum within int8, found 254$"):
        total.result()


@golden.values
def test_a_client_that_breaks_its_bound(case):
    total = SecureSum(tensor(Modulus(16, grows=True)), 2)
    with pytest.raises(PlanError) as error:
        total.add(case, "client ann")
    return str(error.value)


def test_too_many_clients_for_a_modulus():
    SecureSum(tensor(Modulus(1 << 60, grows=True)), 4)
    with pytest.raises(PlanError, match=r"^sum:0: expected a modulus of at most 2\^62, 5 clients"):
        SecureSum(tensor(Modulus(1 << 60, grows=True)), 5)


@pytest.mark.parametrize(
    ("parts", "scheme"),
    [
        ({"quantized_input_bitwidth": 8}, Modulus(256, grows=True)),
        ({"quantized_input_bitwidth": 62}, Modulus(1 << 62, grows=True)),
        ({"fixed_modulus": {"modulus": 12}}, Modulus(12, grows=False)),
        ({"modulus_times_shard_size": {"base_modulus": 12}}, Modulus(12, grows=True)),
    ],
)
def test_schemes_are_read(parts, scheme):
    read = read_side_channel("a:0", channel(**parts), "here")
    assert read == SecureTensor("a:0", TensorType("int64", ()), scheme, "fed:0")


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (plan_pb2.SideChannel(restore_name="a"), "expected secure_aggregand and restore_name"),
        (channel(), "expected one of quantized_input_bitwidth, fixed_modulus, modulus_times"),
        (channel(quantized_input_bitwidth=63), "expected a modulus from 1 to 2"),
        (channel(quantized_input_bitwidth=1 << 30), "expected a modulus from 1 to 2"),
        (channel(quantized_input_bitwidth=-1), "expected a modulus from 1 to 2"),
        (channel(fixed_modulus={"modulus": 0}), "expected a modulus from 1 to 2"),
        (channel(fixed_modulus={"modulus": 1 << 63}), "expected a modulus from 1 to 2"),
        (channel(modulus_times_shard_size={"base_modulus": 0}), "expected a modulus from 1 to 2"),
        (channel(dtype=1), "dtype: expected integers, found float32"),
        (channel(dtype=999), "dtype: expected a DataType of TensorFlow, found 999"),
    ],
)
def test_impossible_side_channels(message, error):
    with pytest.raises(PlanError, match=f"^here: .*{error}"):
        read_side_channel("a:0", message, "here")


# --- Metrics among the outputs of a round, whole or by element


_TYPES = {"m/one": TensorType("float32", ()), "m/two": TensorType("int64", (2,))}
_ONE = {"m/one": np.float32(0.5)}
_TWO = {"m/two/0": np.int64(3), "m/two/1": np.int64(4)}


def test_scalars_become_the_metrics():
    found = with_metrics({"state": np.zeros(3)}, {**_ONE, **_TWO, "m/two/all": 7}, _TYPES, "here")
    assert set(found) == {"state", "m/one", "m/two"}
    assert found["m/one"] == np.float32(0.5)
    assert (found["m/two"].tolist(), found["m/two"].dtype) == ([3, 4], np.int64)
    assert other_outputs({**_ONE, **_TWO, "m/two/all": 7}, _TYPES) == {"m/two/all": 7}


def test_a_whole_metric_and_one_in_the_checkpoint_alone():
    written = {"m/one": np.asarray(np.float32(0.5)), "m/two": np.array([3, 4])}
    assert with_metrics(written, {}, _TYPES, "here") == written
    found = with_metrics(written, {"m/two": np.array([3, 4])}, _TYPES, "here")
    assert found["m/two"].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"m/two/0": np.int64(3)}, "m/two: expected 2 scalars, one for each element, found 1"),
        ({**_TWO, "m/two/1": np.zeros(2)}, "m/two: expected 2 scalars"),
        ({**_TWO, "m/two/1": np.int64(5)}, "m/two: expected the same value in"),
        ({"m/one": np.float64(0.5)}, "m/one: expected the same value in"),
    ],
)
def test_outputs_that_do_not_fit(outputs, message):
    written = {"m/one": np.asarray(np.float32(0.5)), "m/two": np.array([3, 4])}
    with pytest.raises(PlanError, match=f"^here: {message}"):
        with_metrics(written, outputs, _TYPES, "here")


@pytest.mark.slow
def test_more_clients_than_secure_sums_have_room_for(exports, tmp_path):
    folder = shutil.copytree(exports["secure"], tmp_path / "export")
    rehash(folder, privacy={"maximum_clients_per_round": 2})
    export = open_export(folder)
    clients = conformance_clients(export)
    assert len(list(run_rounds(export, [clients[:2]]))) == 1
    with pytest.raises(PlanError, match=r"^round 2: expected at most 2 clients, .* found 3; .*"):
        list(run_rounds(export, [clients[:2], clients]))
