"""`check_graph` rejects operations that may have side effects."""

import re

import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import op_def_registry

from plan_runner import graph_check
from plan_runner.errors import PlanError
from plan_runner.graph_check import Permissions, check_graph
from tests.plan_runner.refusals import refusal
from tests.support import golden

raw = tf.raw_ops
PATHS = Permissions(reads=frozenset({"in:0"}), writes=frozenset({"out:0"}))


def built(build) -> tf.compat.v1.GraphDef:
    with tf.Graph().as_default() as graph:
        build()
    return graph.as_graph_def()


def graph_with(op):
    """Returns a graph with one node of this op, and the node."""
    graph = tf.compat.v1.GraphDef()
    return graph, graph.node.add(name="bad", op=op)


def path(name):
    return tf.compat.v1.placeholder(tf.string, [], name)


def refused(build, permissions=PATHS) -> str:
    graph = build if isinstance(build, tf.compat.v1.GraphDef) else built(build)
    return refusal(check_graph, graph, permissions, "graph")


def restore(source, name="bad"):
    return raw.RestoreV2(
        prefix=source, tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.float32], name=name
    )


def save(target):
    raw.SaveSlices(
        filename=target, tensor_names=["a"], shapes_and_slices=[""], data=[1.0], name="bad"
    )


@pytest.mark.parametrize(
    "op",
    [
        *("ReadFile", "TFRecordDataset", "PyFunc", "PyFuncStateless", "ImmutableConst", "PrintV2"),
        *("DebugIdentityV2", "DecodeProtoV2", "InitializeTableFromTextFileV2", "SaveV2"),
        *("MergeV2Checkpoints", "CacheDataset", "DatasetFromGraph", "MyOwnOp", "_Send"),
    ],
)
def test_operations_with_side_effects_raise(op):
    graph, _ = graph_with(op)
    assert refused(graph).startswith(f"graph: bad: {op} is refused: ")


def test_file_operations_in_functions_raise():
    def build():
        @tf.function
        def inner(x):
            return tf.cond(x > 0, lambda: tf.io.read_file("/etc/passwd"), lambda: "")

        inner(tf.compat.v1.placeholder(tf.int32, []))

    assert re.match(r"graph: function .*: .*: ReadFile is refused: ", refused(build))

    def hidden():
        @tf.function
        def inner(source):
            return restore(source)

        inner(path("in"))

    assert ": RestoreV2 is refused: " in refused(hidden)

    def in_dataset():
        dataset = tf.data.Dataset.range(3).map(lambda i: tf.io.read_file(tf.as_string(i)))
        dataset.reduce("", lambda a, b: a + b)

    assert ": ReadFile is refused: " in refused(in_dataset)


def test_paths_of_the_plan_are_accepted():
    def build():
        restore(path("in"))
        restore(tf.compat.v1.placeholder_with_default("/etc/passwd", [], "in2"), "bad2")
        save(path("out"))

    permissions = Permissions(frozenset({"in:0", "in2:0"}), frozenset({"out:0"}))
    check_graph(built(build), permissions, "graph")


@pytest.mark.parametrize(
    "build",
    [
        lambda: restore(tf.constant("/etc/passwd")),
        lambda: restore(path("other")),
        # Reading an output path or writing an input path is not allowed.
        lambda: restore(path("out")),
        lambda: save(path("in")),
        lambda: restore(path("in") + "/../other"),
        lambda: restore(tf.where(True, path("in"), "/etc/passwd")),
        lambda: restore(tf.compat.v1.placeholder_with_default("/etc/passwd", [], "other")),
        # TensorFlow could feed another path to an op between the placeholder and the file op.
        lambda: restore(tf.identity(path("in"))),
        lambda: restore(tf.compat.v1.placeholder_with_default(path("in"), [])),
    ],
)
def test_other_paths_raise(build):
    assert "graph: bad: " in refused(build)
    assert "is refused: its path is not a placeholder that the plan names" in refused(build)


@golden.values
def test_wrong_feeds_raise(case):
    def build():
        tf.identity(path("out"), "same")
        path("number")

    check_graph(
        built(build), Permissions(writes=PATHS.writes, fed=frozenset({"number:0"})), "graph"
    )
    return refused(build, Permissions(writes=PATHS.writes, fed=frozenset({case})))


def test_feeding_a_constant_raises():
    def build():
        restore(tf.constant("/etc/passwd", name="in"))

    assert refused(build) == "graph: expected a placeholder for 'in:0', which is fed"


def test_graph_must_read_examples_once():
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="a", op="ExternalDataset")
    check_graph(graph, Permissions(examples=True), "graph")
    assert refused(graph) == "graph: expected 0 ExternalDataset, found 1"
    graph.node.add(name="b", op="ExternalDataset")
    error = refused(graph, Permissions(examples=True))
    assert error == "graph: expected 1 ExternalDataset, found 2"
    graph.node[1].name = "a"
    assert "expected nodes with distinct names" in refused(graph, Permissions(examples=True))
    in_function = tf.compat.v1.GraphDef()
    in_function.library.function.add().node_def.add(name="c", op="ExternalDataset")
    assert "c: ExternalDataset is refused" in refused(in_function)


def test_functions_with_invalid_names_raise():
    graph = tf.compat.v1.GraphDef()
    graph.library.function.add().signature.name = "ReadFile"
    assert "function ReadFile: expected a name that no op has" in refused(graph)
    graph, node = graph_with("PartitionedCall")
    node.attr["f"].func.name = "PyFunc"
    assert "bad: expected a function of this graph, found 'PyFunc'" in refused(graph)
    graph, node = graph_with("Case")
    node.attr["branches"].list.func.add().name = "elsewhere"
    assert "expected a function of this graph, found 'elsewhere'" in refused(graph)
    graph = tf.compat.v1.GraphDef()
    graph.library.gradient.add(function_name="a", gradient_func="elsewhere")
    assert "gradients: expected a function of this graph" in refused(graph)


def test_constant_of_variant_dtype_raises():
    graph, node = graph_with("Const")
    node.attr["dtype"].type = tf.variant.as_datatype_enum
    assert refused(graph).startswith("graph: bad: Const is refused: it is not a constant of")


def test_attribute_of_later_tensorflow_has_known_values(monkeypatch):
    """TensorFlow 2.18 added `bad_indices_policy`; earlier definitions get it from this test."""
    definition = op_def_pb2.OpDef.FromString(op_def_registry.get("GatherNd").SerializeToString())
    if not any(attribute.name == "bad_indices_policy" for attribute in definition.attr):
        definition.attr.add(name="bad_indices_policy", type="string")
    monkeypatch.setattr(op_def_registry, "get", {"GatherNd": definition}.get)
    graph, node = graph_with("GatherNd")
    check_graph(graph, PATHS, "graph")
    for value in (b"", b"IGNORE"):
        node.attr["bad_indices_policy"].s = value
        check_graph(graph, PATHS, "graph")
    node.attr["bad_indices_policy"].s = b"/etc/passwd"
    expected = "GatherNd is refused: its attribute bad_indices_policy has an unknown value"
    assert refused(graph) == f"graph: bad: {expected}"


def test_check_does_not_change_the_graph():
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="a", op="Const")
    graph.node.add(name="b", op="PartitionedCall")
    before = graph.SerializeToString()
    check_graph(graph, Permissions(), "graph")
    assert graph.SerializeToString() == before


@pytest.mark.slow
def test_training_operations_are_accepted():
    def build():
        def parse(record):
            features = {"x": tf.io.FixedLenFeature([4], tf.float32)}
            return tf.io.parse_single_example(record, features)["x"]

        words = tf.strings.split(tf.strings.lower(tf.constant("A b c")))
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), default_value=0
        )
        table.lookup(words)
        dataset = tf.data.Dataset.from_tensor_slices(tf.constant(["x"])).map(parse)
        dataset = dataset.shuffle(10).repeat(2).batch(2).prefetch(1).take(3)
        weights = tf.random.normal([4, 3]) + tf.random.stateless_normal([4, 3], [1, 2])
        variable = tf.compat.v1.get_variable("w", initializer=tf.zeros([3]), use_resource=True)
        variable.assign_add(tf.ones([3]))

        @tf.function
        def step(total, x):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                y = tf.nn.log_softmax(tf.einsum("ij,jk->ik", x, weights))
                image = tf.reshape(tf.tile(y, [1, 12]), [-1, 6, 6, 1])
                pooled = tf.nn.max_pool2d(
                    tf.nn.conv2d(image, tf.ones([3, 3, 1, 2]), 1, "SAME"), 2, 2, "SAME"
                )
                loss = (
                    tf.reduce_mean(pooled)
                    + tf.while_loop(lambda i: i < 3.0, lambda i: i + 1.0, [0.0])[0]
                )
            tf.debugging.assert_all_finite(loss, "loss")
            return total + tape.gradient(loss, weights)

        dataset.reduce(weights, step)

    check_graph(built(build), Permissions(), "graph")


def test_operations_with_suspicious_names_raise():
    operations = op_def_pb2.OpList.FromString(
        pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    )
    suspicious = re.compile(
        "File|PyFunc|Rpc|Record|Snapshot|Sql|LMDB|Csv|CSV|SaveDataset|LoadDataset|DataService|"
        "Checkpoint|Summary(Writer)|Collective|Send|Recv|TPU|Nccl|Restore|^Save|Debug|Mlir|Custom"
    )
    judged = 0
    for definition in operations.op:
        if not suspicious.search(definition.name) or definition.name in graph_check.STRING_INPUTS:
            continue
        graph, _ = graph_with(definition.name)
        judged += 1
        try:
            check_graph(graph, PATHS, "graph")
        except PlanError:
            continue
        # An accepted operation must have neither state nor strings, since it then cannot access a
        # file.
        assert not definition.is_stateful, definition.name
        assert not any(a.type == tf.string.as_datatype_enum for a in definition.input_arg)
        attributes = {a.name for a in definition.attr if a.type in ("string", "list(string)")}
        assert attributes <= graph_check.STRING_ATTRIBUTES, definition.name
    assert judged > 100


def test_lists_of_operations_contain_existing_ones_only():
    for names in (
        *graph_check.STATEFUL.values(),
        graph_check.STRING_INPUTS,
        graph_check.READS_FILE,
        graph_check.WRITES_FILE,
    ):
        for name in names:
            assert op_def_registry.get(name) is not None, name
