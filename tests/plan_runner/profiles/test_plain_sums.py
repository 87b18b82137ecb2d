"""Plain sums: the order, the dtype and the zero that they begin with."""

import numpy as np
import pytest
import tensorflow as tf

from plan_runner import plan_pb2
from plan_runner.daf import PlainSums, read_sum
from plan_runner.errors import PlanError
from tests import golden
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
        sums.add({"update/a": np.asarray(value)}, "client")
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
        sums.add({name: np.asarray(value) for name, value in case.items()}, "client")
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
