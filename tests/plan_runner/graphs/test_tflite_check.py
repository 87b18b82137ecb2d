"""`check_tflite` rejects TFLite graphs with side effects."""

import inspect

import pytest
import tensorflow as tf

from plan_runner.errors import PlanError
from plan_runner.graph_check import Permissions
from plan_runner.tflite import check_tflite
from tests.plan_runner.graphs.converted import converted, restored, saved, saving_graph
from tests.plan_runner.hostile.attacks import (
    custom_code,
    edited,
    tensor_number,
    write_over_path,
)

_PATHS = Permissions(frozenset(["in:0"]), frozenset(["out:0"]))


@pytest.fixture(scope="module")
def saving():
    return saving_graph()


def test_tflite_graph_of_a_client_passes(saving):
    check_tflite(saving, _PATHS, "here")
    check_tflite(edited(saving, lambda model, graph: None), _PATHS, "here")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda i, o: [saved(i, restored(i))], "SaveSlices is refused: its path is not"),
        (lambda i, o: [saved(o, restored(o))], "RestoreV2 is refused: its path is not"),
        (
            lambda i, o: [tf.cond(tf.equal(i, ""), lambda: tf.io.read_file(i), lambda: i)],
            "ReadFile is refused",
        ),
    ],
)
def test_tflite_graphs_with_file_access_raise(build, message):
    with pytest.raises(PlanError, match=f"^here: .*{message}"):
        check_tflite(converted(build), _PATHS, "here")


def _is_an_intermediate(model, graph):
    graph.operators[0].intermediates = [tensor_number(graph, "out:0")]


def _has_a_value(model, graph):
    tensor = graph.tensors[tensor_number(graph, "out:0")]
    model.buffers[tensor.buffer].data = list(b"/tmp/elsewhere")


def _duplicate_names(model, graph):
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
        (_duplicate_names, "expected nodes with distinct names, found a name twice"),
        (_twice, "expected every input once, found in:0 again"),
        (_options_elsewhere, "expected options within the operator, found options"),
    ],
)
def test_replaced_tflite_paths_raise(saving, spoil, message):
    takes_bytes = "content" in inspect.signature(spoil).parameters
    spoiled = spoil(saving) if takes_bytes else edited(saving, spoil)
    with pytest.raises(PlanError, match=f"^here: .*{message}"):
        check_tflite(spoiled, _PATHS, "here")


def test_damaged_flatbuffer_raises(saving):
    for content in (b"", b"TFL3", b"\xff" * 100):
        with pytest.raises(PlanError, match=r"^here: expected a flatbuffer of TFLite, found "):
            check_tflite(content, _PATHS, "here")
    for length in range(8, len(saving), 97):
        try:
            check_tflite(saving[:length], _PATHS, "here")
        except PlanError as e:
            assert "\n" not in str(e)
