"""Files of TensorFlow Lite: what ops they hold, and the same graph in fewer bytes."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import flatbuffers
import numpy as np
from flatbuffers import flexbuffers
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.lite.python import schema_py_generated as schema

from tff_agnostic.deployment.device.uniform_constants import fill_uniform_constants

_FLEX = "Flex"
_IDENTIFIER = b"TFL3"
# By which an interpreter knows whether it is new enough.
_KEPT_METADATA = b"min_runtime_version"


def custom_op_names(content: bytes) -> list[str]:
    """Returns the ops of a flatbuffer that TFLite has not itself; TensorFlow's begin with Flex."""
    model = schema.Model.GetRootAs(content, 0)
    codes = [model.OperatorCodes(i).CustomCode() for i in range(model.OperatorCodesLength())]
    return sorted(code.decode() for code in codes if code)


def in_fixed_order(content: bytes) -> bytes:
    """Returns a flatbuffer that is the same in every process.

    A Flex op holds its node's attributes in an order that changes from process to process. In
    another order they have the same length, so that nothing else in the file moves.
    """
    model = schema.Model.GetRootAs(content, 0)
    for operator in _operators(model):
        code = model.OperatorCodes(operator.OpcodeIndex()).CustomCode()
        if code and code.decode().startswith(_FLEX):
            options = operator.CustomOptionsAsNumpy().tobytes()
            found = flexbuffers.GetRoot(options).AsVector[1].AsStringBytes
            fixed = NodeDef.FromString(found).SerializeToString(deterministic=True)
            content = content.replace(found, fixed)
    return content


def compacted(content: bytes, outputs: Sequence[str]) -> bytes:
    """Returns the same graph in fewer bytes, as every device downloads it.

    Large constants of one number everywhere are filled on the device. Tensors that a client does
    not look up lose their names, those without a constant share the empty buffer, equal constants
    one, and of the notes only the oldest runtime's version stays.

    Args:
        content: The graph.
        outputs: The names of its outputs.

    Raises:
        ValueError: If two outputs are one tensor, and no constant.
    """
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    _name_outputs(model, outputs)
    fill_uniform_constants(model)
    buffers, places = model.buffers[:1], {b"": 0}

    def place(number: int) -> int:
        data = model.buffers[number].data
        key = b"" if data is None else bytes(data)
        if key not in places:
            places[key] = len(buffers)
            buffers.append(model.buffers[number])
        return places[key]

    for number, graph in enumerate(model.subgraphs):
        looked_up = {*graph.inputs, *graph.outputs} if number == 0 else set()
        for index, tensor in enumerate(graph.tensors):
            tensor.buffer = place(tensor.buffer)
            if index not in looked_up:
                tensor.name = None
    model.metadata = [entry for entry in model.metadata if entry.name == _KEPT_METADATA]
    for entry in model.metadata:
        entry.buffer = place(entry.buffer)
    model.buffers = buffers
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), _IDENTIFIER)
    return bytes(builder.Output())


def _name_outputs(model: Any, names: Sequence[str]) -> None:
    """Gives each output a tensor of its own: the converter makes one of equal constants."""
    graph = model.subgraphs[0]
    found: list[int] = []
    for index, name in zip(list(graph.outputs), names):
        if index in found:
            tensor = copy.copy(graph.tensors[index])
            if model.buffers[tensor.buffer].data is None:
                raise ValueError(f"TFLite: expected an output of its own for {name}, found none")
            tensor.name = name.encode()
            index = len(graph.tensors)
            graph.tensors.append(tensor)
        found.append(index)
    graph.outputs = np.array(found, np.int32)


def oldest_runtime(content: bytes) -> str:
    """Returns the version of TFLite's oldest runtime that has all builtin ops; "" if unknown."""
    model = schema.Model.GetRootAs(content, 0)
    for i in range(model.MetadataLength()):
        if model.Metadata(i).Name() == _KEPT_METADATA:
            data = model.Buffers(model.Metadata(i).Buffer()).DataAsNumpy().tobytes()
            return str(data.rstrip(b"\0").decode())
    return ""


def _operators(model: Any) -> Iterator[Any]:
    for i in range(model.SubgraphsLength()):
        graph = model.Subgraphs(i)
        for k in range(graph.OperatorsLength()):
            yield graph.Operators(k)
