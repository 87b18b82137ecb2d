"""An export and a TFLite graph that write a file of the attacker's choice."""

import struct
from pathlib import Path
from typing import Any

import flatbuffers
import tensorflow as tf
from flatbuffers import flexbuffers
from tensorflow.core.framework import node_def_pb2
from tensorflow.lite.python import schema_py_generated as schema

from plan_runner import plan_pb2
from tests.plan_runner import plans
from tests.plan_runner.exports import rehash


def save_elsewhere(folder: Path, written: Path) -> None:
    """Changes an export so that its client's graph writes another file."""
    write_plan(folder, plans.daf_plan(on_client=lambda x: saving(x, str(written))))


def write_plan(folder: Path, plan: plan_pb2.Plan) -> None:
    """Replaces an export's plan."""
    (folder / "plan.pb").write_bytes(plan.SerializeToString(deterministic=True))
    device = plan_pb2.ClientOnlyPlan(graph=plan.client_graph_bytes.value)
    (folder / "client_only_plan.pb").write_bytes(device.SerializeToString())
    rehash(folder)


def saving(x: tf.Tensor, path: str) -> tf.Tensor:
    """Returns x after writing it to a file."""
    save = tf.raw_ops.SaveSlices(
        filename=tf.constant(path), tensor_names=["a"], shapes_and_slices=[""], data=[x]
    )
    with tf.control_dependencies([save]):
        return tf.identity(x)


def write_over_path(content: bytes, written: str, path: str = "out:0") -> bytes:
    """Returns a TFLite graph that saves to its path, then saves again to `written`.

    In between, a FlexIdentity of a string overwrites the tensor that holds the path.
    """

    def edit(model: Any, graph: Any) -> None:
        save = next(op for op in graph.operators if custom_code(model, op) == b"FlexSaveSlices")
        text = schema.BufferT()
        # TFLite's format of one string: the count, its beginning, and the end of all strings.
        text.data = list(struct.pack("<3i", 1, 12, 12 + len(written)) + written.encode())
        model.buffers.append(text)
        constant = schema.TensorT()
        constant.name, constant.shape = b"elsewhere", []
        constant.type, constant.buffer = schema.TensorType.STRING, len(model.buffers) - 1
        graph.tensors.append(constant)
        code = schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.CUSTOM
        code.customCode, code.version = b"FlexIdentity", 1
        model.operatorCodes.append(code)
        identity = schema.OperatorT()
        identity.opcodeIndex = len(model.operatorCodes) - 1
        identity.inputs = [len(graph.tensors) - 1]
        identity.outputs = [tensor_number(graph, path)]
        node = node_def_pb2.NodeDef(name="over", op="Identity", input=["elsewhere"])
        node.attr["T"].type = tf.string.as_datatype_enum
        identity.customOptions = _options(node)
        graph.operators = [*graph.operators, identity, save]

    return edited(content, edit)


def edited(content: bytes, edit: Any) -> bytes:
    """Returns a flatbuffer after `edit(model, graph)`."""
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    edit(model, model.subgraphs[0])
    builder = flatbuffers.Builder(0)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def tensor_number(graph: Any, name: str) -> int:
    return next(n for n, tensor in enumerate(graph.tensors) if tensor.name == name.encode())


def custom_code(model: Any, operator: Any) -> Any:
    return model.operatorCodes[operator.opcodeIndex].customCode


def _options(node: Any) -> list[int]:
    builder = flexbuffers.Builder()
    with builder.Vector():
        builder.String(node.op)
        builder.String(node.SerializeToString().decode("latin-1"))
    return list(builder.Finish())
