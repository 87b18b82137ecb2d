"""TensorFlow Lite files: lists their ops, and rewrites their graphs in fewer bytes.

TFLite's converter evaluates constant expressions, such as zeros in the shape of each weight, and
stores the results. For a large model these would dominate the download. Large constants with a
single value therefore become ops that create them on the device.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Optional

import flatbuffers
import numpy as np
from flatbuffers import flexbuffers
from tensorflow.lite.python import schema_py_generated as schema

from tff_agnostic.base.later import tf

_FLEX = "Flex"
_IDENTIFIER = b"TFL3"
# Metadata entry with the minimum version of the interpreter that runs the file.
_KEPT_METADATA = b"min_runtime_version"
# Only constants of at least this size are replaced by ops. Constants that the interpreter needs
# before a run, such as shapes, are smaller, and stay.
_MIN_BYTES = 1024
# Dtypes that the fill op of every runtime supports.
_DTYPES = {
    schema.TensorType.FLOAT32: np.float32,
    schema.TensorType.INT32: np.int32,
    schema.TensorType.INT64: np.int64,
}


def custom_op_names(content: bytes) -> list[str]:
    """Returns the names of a flatbuffer's non-builtin ops; TensorFlow's ops start with Flex."""
    model = schema.Model.GetRootAs(content, 0)
    codes = [model.OperatorCodes(i).CustomCode() for i in range(model.OperatorCodesLength())]
    return sorted(code.decode() for code in codes if code)


def in_fixed_order(content: bytes) -> bytes:
    """Returns the flatbuffer with node attributes in a fixed order, to make files reproducible.

    In Flex ops, the order of a node's attributes varies between processes. The order does not
    affect the node's length, so nothing else in the file moves.
    """
    model = schema.Model.GetRootAs(content, 0)
    for operator in _operators(model):
        code = model.OperatorCodes(operator.OpcodeIndex()).CustomCode()
        if code and code.decode().startswith(_FLEX):
            options = operator.CustomOptionsAsNumpy().tobytes()
            attributes = flexbuffers.GetRoot(options).AsVector[1].AsStringBytes
            fixed = tf.compat.v1.NodeDef.FromString(attributes).SerializeToString(
                deterministic=True
            )
            content = content.replace(attributes, fixed)
    return content


def compacted(content: bytes, outputs: Sequence[str]) -> bytes:
    """Returns the same graph in fewer bytes, which every device downloads.

    Large uniform constants are filled on the device. Only inputs and outputs keep their names,
    because clients look them up. Tensors without a constant share the empty buffer, and equal
    constants share a buffer. The minimum runtime version is the only metadata that remains.

    Raises:
        ValueError: If two outputs are the same tensor, and it is not a constant.
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
    """Gives each output a separate tensor, because the converter merges equal constants."""
    graph = model.subgraphs[0]
    indices: list[int] = []
    for index, name in zip(list(graph.outputs), names):
        if index in indices:
            tensor = copy.copy(graph.tensors[index])
            if model.buffers[tensor.buffer].data is None:
                raise ValueError(f"TFLite: expected a separate output for {name}, found none")
            tensor.name = name.encode()
            index = len(graph.tensors)
            graph.tensors.append(tensor)
        indices.append(index)
    graph.outputs = np.array(indices, np.int32)


def oldest_runtime(content: bytes) -> str:
    """Returns the version of the oldest TFLite runtime with all builtin ops; "" if unknown."""
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


def fill_uniform_constants(model: Any) -> None:
    """Replaces a model's large uniform constants by ops that create them, in place.

    Args:
        model: A `ModelT`, the mutable form of TFLite's schema.
    """
    opcode = None
    for graph in model.subgraphs:
        made = []
        for index in range(len(graph.tensors)):
            tensor = graph.tensors[index]
            value = _uniform_value(tensor, model.buffers[tensor.buffer].data)
            if value is None:
                continue
            opcode = _fill_opcode(model) if opcode is None else opcode
            inputs = [
                _constant(model, graph, np.array(tensor.shape, np.int32), schema.TensorType.INT32),
                _constant(model, graph, value, tensor.type),
            ]
            tensor.buffer = 0
            made.append(_fill(opcode, inputs, index))
        graph.operators = made + graph.operators


def _uniform_value(tensor: Any, data: Optional[np.ndarray]) -> Optional[np.ndarray]:
    """Returns the value of a large uniform constant, a scalar; None for other tensors."""
    dtype = _DTYPES.get(tensor.type)
    if data is None or len(data) < _MIN_BYTES or dtype is None:
        return None
    # Compare bits, so that NaNs are equal and 0 differs from -0.
    rows = np.asarray(data, np.uint8).reshape(-1, np.dtype(dtype).itemsize)
    return rows[0].view(dtype).reshape([]) if (rows == rows[0]).all() else None


def _constant(model: Any, graph: Any, value: np.ndarray, kind: int) -> int:
    buffer, tensor = schema.BufferT(), schema.TensorT()
    buffer.data = np.frombuffer(value.tobytes(), np.uint8)
    model.buffers.append(buffer)
    tensor.shape, tensor.type = np.array(value.shape, np.int32), kind
    tensor.buffer, tensor.hasRank = len(model.buffers) - 1, True
    graph.tensors.append(tensor)
    return len(graph.tensors) - 1


def _fill(opcode: int, inputs: list[int], output: int) -> Any:
    operator = schema.OperatorT()
    operator.opcodeIndex = opcode
    operator.inputs, operator.outputs = np.array(inputs, np.int32), np.array([output], np.int32)
    operator.builtinOptionsType = schema.BuiltinOptions.FillOptions
    operator.builtinOptions = schema.FillOptionsT()
    return operator


def _fill_opcode(model: Any) -> int:
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.FILL
    code.version = 1
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1
