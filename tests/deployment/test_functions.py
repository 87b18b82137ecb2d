"""Names of graph nodes and checkpoint tensors, and compact TFLite flatbuffers."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.base.errors import UserError
from tff_agnostic.base.report_fields import ReportField
from tff_agnostic.deployment.graphs import (
    leaves,
    named,
    only_element,
    side_channel_names,
    with_renamed_functions,
    with_renamed_nodes,
)
from tff_agnostic.deployment.metrics import scalar_outputs
from tff_agnostic.models.tflite_files import compacted, custom_op_names, oldest_runtime


def _graph():
    """Returns a graph with nested functions, and the name of its output."""
    with tf.Graph().as_default() as graph:

        @tf.function
        def doubled(x):
            tf.debugging.assert_greater(x, 0.0)
            return 2.0 * x

        @tf.function
        def unused(x):
            return x

        @tf.function
        def outer(x, steps):
            total = tf.while_loop(
                lambda i, _: i < steps, lambda i, v: (i + 1, v + doubled(v)), [0, doubled(x)]
            )[1]
            return tf.cond(total > 100.0, lambda: doubled(total), lambda: total)

        x = tf.compat.v1.placeholder(tf.float32, [], "x")
        y = tf.identity(outer(x, 2), "y")
        unused(y)
    return graph.as_graph_def(), y.name


def _compute(graph_def, copies):
    """Returns the result of chained copies of a graph, and the names of their functions."""
    with tf.Graph().as_default() as graph:
        value = tf.constant(3.0)
        for name, (copy, fed, fetched) in copies.items():
            renamed = with_renamed_functions(copy, f"{name}_function")
            [value] = tf.graph_util.import_graph_def(
                renamed, input_map={fed: value}, return_elements=[fetched], name=name
            )
        with tf.compat.v1.Session(graph=graph) as session:
            return session.run(value), [
                f.signature.name for f in graph.as_graph_def().library.function
            ]


def _renamed(graph_def, fetched):
    renamed, new_names = with_renamed_nodes(graph_def)
    return renamed, f"{new_names['x']}:0", f"{new_names[fetched.partition(':')[0]]}:0"


@pytest.mark.slow
def test_renaming_graph_copies_does_not_change_results():
    graph_def, fetched = _graph()
    once, names = _compute(graph_def, {"once": _renamed(graph_def, fetched)})
    # The graph doubles 3 and triples it twice. The result, 54, is below 100, and stays.
    assert once == 3.0 * 2 * 3 * 3
    assert names and all(name.startswith("once_function_") for name in names)
    copies = {"first": _renamed(graph_def, fetched), "second": _renamed(graph_def, fetched)}
    twice, names = _compute(graph_def, copies)
    # The second copy turns 54 into 972, which exceeds 100 and so is doubled.
    assert twice == once * 2 * 3 * 3 * 2
    assert {name.partition("_")[0] for name in names} == {"first", "second"}


def test_unused_functions_are_removed():
    graph_def, _ = _graph()
    called = with_renamed_functions(graph_def, "f")
    alone = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    alone.node.extend(node for node in graph_def.node if node.op == "Placeholder")
    assert len(called.library.function) > 0
    assert len(with_renamed_functions(alone, "f").library.function) == 0


# --- Tensors are named after the leaves of TFF types


_TYPE = tff.to_type(
    collections.OrderedDict(
        weights=collections.OrderedDict(b=(np.float32, [2]), a=[(np.float32, [3, 2]), np.int32]),
        round_num=np.int64,
    )
)


def test_leaf_paths_have_names_and_positions():
    assert [leaf.path for leaf in leaves(_TYPE)] == [
        "weights/b",
        "weights/a/0",
        "weights/a/1",
        "round_num",
    ]
    second = named(leaves(_TYPE), "server")[1]
    assert second == tf.TensorSpec([3, 2], tf.float32, "server/weights/a/0")
    (leaf,) = leaves(tff.TensorType(np.int32))
    assert leaf.named("client") == tf.TensorSpec([], tf.int32, "client")
    assert leaves(tff.to_type([])) == ()


def test_only_element_returns_element_of_single_lists():
    assert only_element(tff.to_type([_TYPE])) == _TYPE
    assert only_element(_TYPE) == _TYPE


def test_side_channels_have_the_platforms_names():
    name = side_channel_names("federated_secure_sum_bitwidth", leaves(_TYPE))[-1]
    assert name == "sidechannel_secagg_federated_secure_sum_bitwidth_update/round_num"


def test_leaves_reject_sequences():
    with pytest.raises(TypeError, match=r"expected a structure of tensors, found .* at a/0"):
        leaves(tff.to_type(collections.OrderedDict(a=[tff.SequenceType(np.int32)])))


def test_metric_names_become_valid_node_names():
    structure = leaves(tff.to_type(collections.OrderedDict([("top 3, größte", np.float32)])))
    (spec,) = named(structure, "metrics")
    with tf.Graph().as_default():
        quantities = {"top 3, größte": ReportField("top 3, größte", "a share")}
        outputs = scalar_outputs(structure, [tf.constant(0.5)], quantities)
        assert {name: output.op.name for name, output in outputs.items()} == {spec.name: spec.name}


def test_rejects_metrics_with_equal_node_names():
    same = collections.OrderedDict([("top 3", np.float32), ("top_3", np.float32)])
    with pytest.raises(UserError, match="found 'top 3' and 'top_3'"):
        leaves(tff.to_type(same))


# --- Compact flatbuffers


_SIZE = 5000
_OUTPUTS = ("y0", "y1", "y2")


def _computed(x):
    """Returns sums with uniform constants, a mixed constant and a small constant."""
    mixed = tf.constant(np.arange(_SIZE) % 2, tf.float32)
    constants = [tf.fill([_SIZE], -2.5), tf.zeros([_SIZE]) * -1.0, mixed, tf.fill([3], 7.0)]
    # Each sum includes x, since the converter would join the constants otherwise.
    parts = [part + x[0] for part in constants]
    counts = tf.fill([_SIZE], tf.constant(2**40, tf.int64)) + tf.cast(x[1], tf.int64)
    inside = tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, v + tf.ones([2000])), [0, x])
    return tf.concat(parts, 0), counts, inside[1]


@pytest.fixture(scope="module")
def converted():
    return _converted(_computed)


def _converted(computed):
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [2000], "x")
        outputs = [tf.identity(y, f"y{i}") for i, y in enumerate(computed(x))]
        definition = graph.as_graph_def()
    converter = tf.compat.v1.lite.TFLiteConverter(
        definition,
        None,
        None,
        input_arrays_with_shape=[("x", [2000])],
        output_arrays=[y.op.name for y in outputs],
    )
    return converter.convert()


def _run(content):
    interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    (x,) = interpreter.get_input_details()
    assert x["name"] == "x"
    interpreter.set_tensor(x["index"], np.linspace(-1, 1, 2000, dtype=np.float32))
    interpreter.invoke()
    return {y["name"]: interpreter.get_tensor(y["index"]) for y in interpreter.get_output_details()}


def test_compact_flatbuffer_has_equal_results(converted):
    small = compacted(converted, _OUTPUTS)
    results, expected = _run(small), _run(converted)
    assert set(results) == set(expected) == {*_OUTPUTS}
    for name, value in expected.items():
        assert (results[name].dtype, results[name].tobytes()) == (value.dtype, value.tobytes())
    # Only the mixed constant is stored in full.
    assert 4 * _SIZE < len(small) < 4 * _SIZE + 8000
    assert len(converted) - len(small) > 8 * _SIZE
    assert oldest_runtime(small) == oldest_runtime(converted) != ""
    assert custom_op_names(small) == []
    assert compacted(small, _OUTPUTS) == small


def test_equal_constants_stay_separate_outputs():
    """The converter joins equal constants into one tensor."""
    content = _converted(lambda x: [x + 1.0, tf.zeros([2]), tf.zeros([2])])
    assert set(_run(content)) == {"y0", "y1"}
    results = _run(compacted(content, _OUTPUTS))
    assert set(results) == {*_OUTPUTS}
    for name in ("y1", "y2"):
        np.testing.assert_array_equal(results[name], [0.0, 0.0])
