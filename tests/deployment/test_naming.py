"""Names of tensors from TFF types."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.deployment.graphs import leaves, named, only_element, side_channel_names
from tff_agnostic.deployment.metrics import scalar_outputs
from tff_agnostic.errors import UserError
from tff_agnostic.report_fields import ReportField

_TYPE = tff.to_type(
    collections.OrderedDict(
        weights=collections.OrderedDict(b=(np.float32, [2]), a=[(np.float32, [3, 2]), np.int32]),
        round_num=np.int64,
    )
)


def test_paths_follow_names_and_positions_in_the_types_order():
    assert [leaf.path for leaf in leaves(_TYPE)] == [
        "weights/b",
        "weights/a/0",
        "weights/a/1",
        "round_num",
    ]
    assert named(leaves(_TYPE), "server")[1] == tf.TensorSpec(
        [3, 2], tf.float32, "server/weights/a/0"
    )


def test_a_tensor_alone_is_called_as_the_prefix():
    (leaf,) = leaves(tff.TensorType(np.int32))
    assert leaf.named("client") == tf.TensorSpec([], tf.int32, "client")
    assert leaves(tff.to_type([])) == ()


def test_lists_of_one_are_what_they_hold():
    assert only_element(tff.to_type([_TYPE])) == _TYPE
    assert only_element(_TYPE) == _TYPE


def test_side_channels_have_the_names_of_the_platforms_tools():
    assert side_channel_names("federated_secure_sum_bitwidth", leaves(_TYPE))[-1] == (
        "sidechannel_secagg_federated_secure_sum_bitwidth_update/round_num"
    )


def test_what_is_no_tensor():
    with pytest.raises(TypeError, match=r"expected a structure of tensors, found .* at a/0"):
        leaves(tff.to_type(collections.OrderedDict(a=[tff.SequenceType(np.int32)])))


def test_a_metric_may_be_called_what_no_node_may():
    structure = leaves(tff.to_type(collections.OrderedDict([("top 3, größte", np.float32)])))
    (spec,) = named(structure, "metrics")
    with tf.Graph().as_default():
        quantities = {"top 3, größte": ReportField("top 3, größte", "a share")}
        outputs = scalar_outputs(structure, [tf.constant(0.5)], quantities)
        assert {name: output.op.name for name, output in outputs.items()} == {spec.name: spec.name}


def test_two_metrics_of_one_node_are_refused():
    same = collections.OrderedDict([("top 3", np.float32), ("top_3", np.float32)])
    with pytest.raises(UserError, match="found 'top 3' and 'top_3'"):
        leaves(tff.to_type(same))
