"""A client's TFLite graph by itself: what it is fed."""

import numpy as np
import pytest
import tensorflow as tf

from plan_runner import plan_pb2
from plan_runner.errors import PlanError
from plan_runner.graph_session import read_checkpoint, write_checkpoint
from plan_runner.tflite import TfLiteClient
from tests.plan_runner.graphs.converted import converted, restored, saved


def _scaled(path, output, token, scale):
    unchanged = 0.0 * tf.cast(tf.strings.length(token), tf.float32)
    return [saved(output, restored(path) * tf.strings.to_number(scale) + unchanged)]


def _phase(scale):
    phase = plan_pb2.ClientPhase()
    phase.tensorflow_spec.dataset_token_tensor_name = "token:0"
    phase.federated_compute.input_filepath_tensor_name = "in:0"
    phase.federated_compute.output_filepath_tensor_name = "out:0"
    constant = tf.make_tensor_proto(scale).SerializeToString()
    phase.tensorflow_spec.constant_inputs["scale:0"] = constant
    return phase


@pytest.fixture(scope="module")
def content():
    return converted(_scaled, ("in", "out", "token", "scale"))


@pytest.mark.parametrize("scale", [7, 7.0, b"7"])
def test_constants_of_the_plan_are_fed_as_text(content, tmp_path, scale):
    """As the platform's client does; a name that TensorFlow has not was asked for once."""
    write_checkpoint(tmp_path / "in", {"a": np.array([1.0, 2.0], np.float32)})
    TfLiteClient(content, _phase(scale)).run("ann", [], tmp_path / "in", tmp_path / "out")
    assert read_checkpoint(tmp_path / "out", "out")["b"].tolist() == [7.0, 14.0]


def test_a_constant_is_one_value(content):
    with pytest.raises(PlanError, match=r"constant_inputs: scale:0: expected one value, found \(2"):
        TfLiteClient(content, _phase([1, 2]))
