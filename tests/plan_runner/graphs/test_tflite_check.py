"""TFLite graphs that do more than compute are refused before TFLite sees them."""

import inspect

import pytest
import tensorflow as tf

from plan_runner.clients.tflite_check import check_tflite
from plan_runner.errors import PlanError
from plan_runner.graphs.check import Permissions
from tests.plan_runner.hostile.attacks import (
    custom_code,
    edited,
    tensor_number,
    write_over_path,
)

_PATHS = Permissions(frozenset(["in:0"]), frozenset(["out:0"]))


def _converted(build):
    """The flatbuffer of a graph with the inputs "in" and "out", two strings."""
    with tf.Graph().as_default() as graph:
        paths = [tf.compat.v1.placeholder(tf.string, [], name) for name in ("in", "out")]
        outputs = build(*paths)
    converter = tf.compat.v1.lite.TFLiteConverter(
        graph.as_graph_def(),
        None,
        None,
        input_arrays_with_shape=[("in:0", []), ("out:0", [])],
        output_arrays=[output.name for output in outputs if isinstance(output, tf.Tensor)],
    )
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.TFLITE_BUILTINS,
        tf.lite.OpsSet.SELECT_TF_OPS,
    ]
    converter._experimental_allow_all_select_tf_ops = True
    nodes = [output.name for output in outputs if isinstance(output, tf.Operation)]
    converter._control_output_arrays = nodes or None
    return converter.convert()


def _restored(path):
    value = tf.raw_ops.RestoreV2(
        prefix=path, tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.float32]
    )[0]
    return tf.reshape(value, [2])


def _saved(path, value):
    return tf.raw_ops.SaveSlices(
        filename=path, tensor_names=["b"], shapes_and_slices=[""], data=[value], name="save"
    )


@pytest.fixture(scope="module")
def saving():
    return _converted(lambda i, o: [_saved(o, _restored(i) * 2.0)])


def test_a_graph_that_computes(saving):
    check_tflite(saving, _PATHS, "here")
    check_tflite(edited(saving, lambda model, graph: None), _PATHS, "here")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda i, o: [_saved(i, _restored(i))], "SaveSlices is refused: its path is not one"),
        (lambda i, o: [_saved(o, _restored(o))], "RestoreV2 is refused: its path is not one"),
        (
            lambda i, o: [_saved(tf.constant("/tmp/elsewhere"), _restored(i))],
            "SaveSlices is refused: its path is not one",
        ),
        (lambda i, o: [tf.io.read_file(i)], "ReadFile is refused: its input filename may name a"),
        (
            lambda i, o: [tf.cond(tf.equal(i, ""), lambda: tf.io.read_file(i), lambda: i)],
            "ReadFile is refused",
        ),
    ],
)
def test_a_graph_that_reaches_files(build, message):
    with pytest.raises(PlanError, match=f"^here: .*{message}"):
        check_tflite(_converted(build), _PATHS, "here")


def _is_an_intermediate(model, graph):
    graph.operators[0].intermediates = [tensor_number(graph, "out:0")]


def _has_a_value(model, graph):
    tensor = graph.tensors[tensor_number(graph, "out:0")]
    model.buffers[tensor.buffer].data = list(b"/tmp/elsewhere")


def _twice_of_one_name(model, graph):
    graph.tensors[tensor_number(graph, "in:0")].name = b"out:0"


def _twice(model, graph):
    graph.inputs = [*graph.inputs, graph.inputs[0]]


def _options_elsewhere(model, graph):
    operator = next(op for op in graph.operators if custom_code(model, op))
    operator.largeCustomOptionsOffset, operator.largeCustomOptionsSize = 100, 10


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda content: write_over_path(content, "/tmp/elsewhere"),
            "out:0: expected no operation that writes into an input, found one",
        ),
        (_is_an_intermediate, "out:0: expected no operation that writes into an input, found one"),
        (_has_a_value, "out:0: expected an input, found a value for it"),
        (_twice_of_one_name, "expected nodes of different names, found one twice"),
        (_twice, "expected every input once, found in:0 again"),
        (_options_elsewhere, "expected its options in it, found some elsewhere"),
    ],
)
def test_a_graph_whose_paths_are_not_what_is_fed(saving, spoil, message):
    of_bytes = "content" in inspect.signature(spoil).parameters
    spoiled = spoil(saving) if of_bytes else edited(saving, spoil)
    with pytest.raises(PlanError, match=f"^here: .*{message}"):
        check_tflite(spoiled, _PATHS, "here")


@pytest.mark.parametrize("content", [b"", b"TFL3", b"\xff" * 100])
def test_no_flatbuffer(content):
    with pytest.raises(PlanError, match=r"^here: expected a flatbuffer of TFLite, found "):
        check_tflite(content, _PATHS, "here")


def test_a_flatbuffer_that_is_cut(saving):
    for length in range(8, len(saving), 97):
        try:
            check_tflite(saving[:length], _PATHS, "here")
        except PlanError as e:
            assert "\n" not in str(e)
