"""Secure sums against Python's own integers."""

import random

import numpy as np
import pytest

from plan_runner import plan_pb2
from plan_runner.errors import PlanError
from plan_runner.export import TensorType
from plan_runner.secure import (
    LARGEST_MODULUS,
    Modulus,
    SecureSum,
    SecureTensor,
    read_side_channel,
)
from tests import golden

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
