"""Exports with damaged or hostile messages or graphs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from plan_runner import plan_pb2
from tests.plan_runner import plans
from tests.plan_runner.exports import rehash
from tests.plan_runner.hostile.attacks import saving, write_plan
from tests.plan_runner.hostile.spoiling import ROUND, Hostile, Stage, changed, swapped


def _plan(change: Callable[[plan_pb2.Plan], Any]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / "plan.pb"
        plan = plan_pb2.Plan.FromString(path.read_bytes())
        change(plan)
        path.write_bytes(plan.SerializeToString())
        rehash(folder)

    return spoil


def _other_plan(**changes: plans.Change) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        write_plan(folder, plans.daf_plan(**changes))

    return spoil


def _client_graph(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def change_plan(plan: plan_pb2.Plan) -> None:
        graph = tf.compat.v1.GraphDef.FromString(plan.client_graph_bytes.value)
        change(graph)
        plan.client_graph_bytes.value = graph.SerializeToString()

    return _plan(change_plan)


def _nested_messages(depth: int) -> bytes:
    """Returns deeply nested ServerAggregationConfigs (field 6) of a plan."""
    content = b""
    for field in [6] * depth + [2, 4, 4]:
        content = bytes([field << 3 | 2]) + varint(len(content)) + content
    return content


def varint(value: int) -> bytes:
    """Returns the number in protobuf's variable-length encoding."""
    digits = b""
    while value > 127:
        digits, value = digits + bytes([value & 127 | 128]), value >> 7
    return digits + bytes([value])


def _huge_constant(graph: Any) -> None:
    node = graph.node.add(name="huge", op="Const")
    node.attr["dtype"].type = tf.float32.as_datatype_enum
    tensor = node.attr["value"].tensor
    tensor.dtype = tf.float32.as_datatype_enum
    tensor.float_val.append(1.0)
    tensor.tensor_shape.dim.add(size=1 << 40)


def _calls_itself(graph: Any) -> None:
    function = graph.library.function.add()
    function.signature.name = "again"
    call = function.node_def.add(name="call", op="PartitionedCall")
    call.attr["f"].func.name = "again"


def _nested_read(x: tf.Tensor) -> tf.Tensor:
    """Reads a file in a branch of a branch."""

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        def read() -> tf.Tensor:
            return tf.cast(tf.strings.length(tf.io.read_file("/etc/passwd")), tf.float32)

        return tf.cond(x > 0, lambda: tf.cond(x > 1, read, lambda: x), lambda: x)

    return inner(x)


def _restores(x: tf.Tensor) -> tf.Tensor:
    (value,) = tf.raw_ops.RestoreV2(
        prefix=tf.constant("/etc/passwd"),
        tensor_names=["a"],
        shape_and_slices=[""],
        dtypes=[tf.float32],
    )
    return x + value


def _forever(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda v: v < np.inf, lambda v: tf.sin(v), [x])[0]


def _sleeps(x: tf.Tensor) -> tf.Tensor:
    """Waits an hour for each example of a dataset."""
    examples = tf.data.Dataset.range(9)
    sleeping = tf.raw_ops.SleepDataset(
        input_dataset=examples._variant_tensor,
        sleep_microseconds=tf.constant(3_600_000_000, tf.int64),
        output_types=[tf.int64],
        output_shapes=[[]],
    )
    dataset = tf.data.experimental.from_variant(sleeping, examples.element_spec)
    return dataset.reduce(x, lambda total, _: tf.sin(total))


def _fills(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.fill([1 << 20, 1 << 13], x))


def _grows(x: tf.Tensor) -> tf.Tensor:
    """Doubles a vector until memory is exhausted."""
    _, values = tf.while_loop(
        lambda i, v: i < 1000,
        lambda i, v: (i + 1, tf.concat([v, v], 0)),
        [0, tf.reshape(x, [1])],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
    )
    return tf.reduce_sum(values)


def _doubles(graph: Any) -> None:
    """Adds 40 functions, which each call the previous one twice, and a call of the last one."""
    number = tf.float32.as_datatype_enum

    def call(node: Any, name: str) -> None:
        node.op = "PartitionedCall"
        node.attr["Tin"].list.type.append(number)
        node.attr["Tout"].list.type.append(number)
        node.attr["f"].func.name = name

    for depth in range(40):
        function = graph.library.function.add()
        function.signature.name = f"twice_{depth}"
        function.signature.input_arg.add(name="x", type=number)
        function.signature.output_arg.add(name="y", type=number)
        for side in ("left", "right"):
            node = function.node_def.add(name=side, op="Sin", input=["x"])
            if depth:
                call(node, f"twice_{depth - 1}")
            else:
                node.attr["T"].type = number
        outputs = ["left:output:0", "right:output:0"] if depth else ["left:y:0", "right:y:0"]
        total = function.node_def.add(name="total", op="AddV2", input=outputs)
        total.attr["T"].type = number
        function.ret["y"] = "total:z:0"
    one = graph.node.add(name="one", op="Const")
    one.attr["dtype"].type = number
    one.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(1.0))
    call(graph.node.add(name="laugh", input=["one"]), "twice_39")
    save = next(node for node in graph.node if node.name == "save_client_update_tensors")
    save.input.append("^laugh")


_QUICK = ("--max_round_seconds=15",)


GRAPHS = {
    # Messages
    "files swapped, and hashed again": Hostile(
        swapped("plan.pb", "client_only_plan.pb"), "plan.pb: expected"
    ),
    "messages in messages": Hostile(
        changed("plan.pb", lambda content: content + _nested_messages(5000)),
        "plan.pb: expected Plan, cannot parse it",
    ),
    # The runner rejects these graphs before they run.
    "a file read in a branch of a branch": Hostile(
        _other_plan(on_client=_nested_read), "ReadFile is refused", Stage.UNPLAYED
    ),
    "a checkpoint read from elsewhere": Hostile(
        _other_plan(on_client=_restores), "RestoreV2 is refused: its path", Stage.UNPLAYED
    ),
    "a checkpoint written elsewhere": Hostile(
        _other_plan(on_server=lambda x: saving(x, "/tmp/plan_runner_was_here")),
        "SaveSlices is refused: its path",
        Stage.UNPLAYED,
    ),
    "a constant of 4 TiB": Hostile(
        _client_graph(_huge_constant), "expected constants of at most 1 GiB", Stage.UNPLAYED
    ),
    "a function that calls itself": Hostile(
        _client_graph(_calls_itself), "function again: recursion is not allowed", Stage.UNPLAYED
    ),
    "a checkpoint that is a plan": Hostile(
        changed("server_state.ckpt", lambda content: content[:100] + b"\xff" * 20 + content[120:]),
        "server_state.ckpt: expected a checkpoint",
        Stage.UNPLAYED,
    ),
    "a state of another dtype": Hostile(
        lambda folder: rehash(
            folder,
            tensors={"server_state": {"server/0": {"dtype": "int64", "shape": []}}, "metrics": {}},
        ),
        "server/0: expected int64[], found float32[]",
        Stage.UNPLAYED,
    ),
    "a profile that is none": Hostile(
        lambda folder: rehash(folder, profile="x"), "expected one of daf, secure", Stage.UNPLAYED
    ),
    # Rounds
    "rounds swapped": Hostile(
        swapped(ROUND, "conformance/round_2.npz"), "NOT verified", Stage.PLAYED, status=1
    ),
    "a sum of another dtype": Hostile(
        _other_plan(on_client=lambda x: tf.cast(x, tf.float64)),
        "update/0: expected float32[], found float64[]",
        Stage.PLAYED,
    ),
    "examples that sleep": Hostile(
        _other_plan(on_client=_sleeps), "(--max_round_seconds)", Stage.ENDED, _QUICK
    ),
    "an endless loop on the server": Hostile(
        _other_plan(on_server=_forever), "(--max_round_seconds)", Stage.ENDED, _QUICK
    ),
    "a tensor of 32 GiB": Hostile(_other_plan(on_client=_fills), "client: ", Stage.ENDED),
    "a tensor that grows": Hostile(_other_plan(on_client=_grows), "client", Stage.ENDED),
    "functions that double": Hostile(_client_graph(_doubles), "(--max_", Stage.ENDED, _QUICK),
}
