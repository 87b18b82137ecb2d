"""Checks the TFLite graph for devices, and compares its outputs with TensorFlow's graph."""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from flatbuffers import flexbuffers
from google.protobuf import message
from tensorflow.core.framework import graph_pb2, node_def_pb2
from tensorflow.lite.python import schema_py_generated as schema

from plan_runner import plan_pb2
from plan_runner.errors import PlanError, reason
from plan_runner.export import CLIENT_ONLY_PLAN, Export
from plan_runner.graph_check import Permissions, check_graph, tensor_specs
from plan_runner.graph_session import read_checkpoint
from plan_runner.kernel import dataset_token, kernel_problem
from plan_runner.plan_messages import read_plans
from plan_runner.ram_files import File

_WHERE = f"{CLIENT_ONLY_PLAN}: tflite_graph"
_FLEX = "Flex"
# Exceptions that a damaged file can raise.
_DAMAGE = (
    AttributeError,
    IndexError,
    TypeError,
    UnicodeDecodeError,
    ValueError,
    message.DecodeError,
    struct.error,
)
_NO_FLEX = "link the Flex delegate"


class TfLiteClient:
    """A TFLite client graph, which runs one client at a time.

    The kernel of ExternalDataset must be loaded.

    Args:
        content: The flatbuffer, which `check_tflite` must have checked.
    """

    def __init__(self, content: bytes, phase: plan_pb2.ClientPhase) -> None:
        self._spec, self._router = phase.tensorflow_spec, phase.federated_compute
        self._outputs = tensor_specs(self._spec.output_tensor_specs, f"{_WHERE}: outputs")
        try:
            self._interpreter = tf.lite.Interpreter(model_content=content)
            self._interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as e:
            # Some TensorFlow packages, such as version 2.21, have no Flex delegate.
            if _NO_FLEX in str(e):
                raise PlanError("TFLite has no Flex delegate in this TensorFlow") from e
            raise PlanError(f"{_WHERE}: expected a graph for TFLite, found {reason(e)}") from e
        self._inputs = _indices(self._interpreter.get_input_details())

    def run(
        self, name: str, examples: Sequence[bytes], checkpoint: File, update: Optional[File] = None
    ) -> dict[str, np.ndarray]:
        """See `ClientGraph.run`."""
        feeds: dict[str, Any] = {
            self._spec.dataset_token_tensor_name: dataset_token(examples),
            self._router.input_filepath_tensor_name: str(checkpoint).encode(),
        }
        if update is not None:
            feeds[self._router.output_filepath_tensor_name] = str(update).encode()
        if set(feeds) != set(self._inputs):
            raise PlanError(
                f"{_WHERE}: expected inputs {sorted(feeds)}, found {sorted(self._inputs)}"
            )
        try:
            for tensor, value in feeds.items():
                self._interpreter.set_tensor(self._inputs[tensor], np.array(value, np.bytes_))
            self._interpreter.invoke()
        except (RuntimeError, ValueError) as e:
            raise PlanError(f"{_WHERE}: client {name}: the graph failed ({reason(e)})") from e
        if update is not None and not update.is_file():
            raise PlanError(f"{_WHERE}: client {name}: expected an update, the graph wrote none")
        indices = _indices(self._interpreter.get_output_details())
        return {name: self._interpreter.get_tensor(indices[name]) for name in self._outputs}


class TfLiteComparison:
    """Compares clients' outputs of the TFLite graph and of TensorFlow's graph.

    Attributes:
        clients: Number of compared clients.
        largest: Maximum over all tensors of `relative_difference` with `smallest=1`. Integers for
            secure sums may differ like floats, because they are rounded floats.
    """

    def __init__(self, client: TfLiteClient) -> None:
        self._client = client
        self.clients = 0
        self.largest = 0.0

    def compare(
        self,
        name: str,
        examples: Sequence[bytes],
        checkpoint: File,
        update: Optional[File],
        sent: Mapping[str, np.ndarray],
    ) -> None:
        """Runs a client on TFLite, and compares the result with TensorFlow's.

        Args:
            name: The client's name, for error messages.
            update: Checkpoint that the client wrote in TensorFlow; None if it writes none.
            sent: Tensors that the client returned directly in TensorFlow.
        """
        other = update and update.with_name(f"{update.name}.tflite")
        outputs = self._client.run(name, examples, checkpoint, other)
        if update is not None and other is not None:
            sent, outputs = read_checkpoint(update, name), read_checkpoint(other, name)
            other.unlink()
        if set(outputs) != set(sent):
            raise PlanError(f"{_WHERE}: expected {sorted(sent)}, found {sorted(outputs)}")
        for tensor, value in sent.items():
            difference = relative_difference(value, outputs[tensor], smallest=1.0)
            self.largest = max(self.largest, difference)
        self.clients += 1


def tflite_comparison(export: Export) -> TfLiteComparison:
    """Loads and checks an export's TFLite graph, and returns a comparison with it."""
    plan, device = read_plans(export)
    if not device.tflite_graph:
        raise PlanError(f"{_WHERE}: expected one, found none")
    if kernel_problem():
        raise PlanError(kernel_problem())
    phase = plan.phase[0].client_phase
    check_tflite(device.tflite_graph, Permissions.for_client(phase), _WHERE)
    return TfLiteComparison(TfLiteClient(device.tflite_graph, phase))


def relative_difference(expected: np.ndarray, actual: np.ndarray, smallest: float = 0.01) -> float:
    """Returns max |expected - actual| / max(|expected|, smallest), over finite `expected`.

    Equal infinities, and two NaNs, have the difference 0. The result is infinite if only one of two
    numbers is NaN, or if shapes or dtypes differ.

    Args:
        smallest: Minimum of the denominator, as values near zero are only exact up to rounding.
    """
    if (expected.dtype, expected.shape) != (actual.dtype, actual.shape):
        return math.inf
    a, b = expected.astype(np.float64), actual.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.where(same, 0.0, np.abs(a - b))
    difference = np.max(np.where(np.isnan(differences), math.inf, differences), initial=0.0)
    return float(difference / np.max(np.abs(a), initial=smallest, where=np.isfinite(a)))


def check_tflite(content: bytes, permissions: Permissions, where: str) -> None:
    """Checks that a flatbuffer only has TFLite's operations, and operations that plans may use."""
    try:
        graph = _as_graph(content, where)
    except _DAMAGE as e:
        if isinstance(e, PlanError):
            raise
        raise PlanError(f"{where}: expected a flatbuffer of TFLite, found a damaged one") from e
    check_graph(graph, permissions, where)


def _as_graph(content: bytes, where: str) -> graph_pb2.GraphDef:
    """Returns a graph of a flatbuffer's TensorFlow operations, with placeholders as inputs."""
    model = schema.Model.GetRootAs(content, 0)
    graph = graph_pb2.GraphDef()
    main = model.Subgraphs(0)
    names = _fed(model, main, where)
    for name in names.values():
        graph.node.add(name=name.partition(":")[0], op="Placeholder")
    for number in range(model.SubgraphsLength()):
        subgraph = model.Subgraphs(number)
        if number == 0:
            body = graph.node
        else:
            function = graph.library.function.add()
            function.signature.name = subgraph.Name().decode()
            body = function.node_def
        for position, (operator, node) in enumerate(_flex_nodes(model, subgraph, where)):
            del node.input[:]
            if number == 0:
                inputs = [int(operator.Inputs(i)) for i in range(operator.InputsLength())]
                node.input.extend(names.get(index, f"computed_{index}") for index in inputs)
            node.name = f"{node.op}_{number}_{position}"
            body.append(node)
    return graph


def _fed(model: Any, main: Any, where: str) -> dict[int, str]:
    """Returns the names of the fed tensors, keyed by index.

    Values in the file for fed tensors, and operations that write to fed tensors, raise PlanError:
    they could replace a checked path.
    """
    names: dict[int, str] = {}
    for index in (int(main.Inputs(i)) for i in range(main.InputsLength())):
        tensor = main.Tensors(index)
        if index in names:
            raise PlanError(f"{where}: expected every input once, found {names[index]} again")
        names[index] = tensor.Name().decode()
        buffer = model.Buffers(tensor.Buffer())
        # Newer files may store values after the flatbuffer.
        elsewhere = [getattr(buffer, part, int)() for part in ("Offset", "Size")]
        if buffer.DataLength() or any(elsewhere) or tensor.IsVariable():
            raise PlanError(f"{where}: {names[index]}: expected an input, found a value for it")
    for position in range(main.OperatorsLength()):
        operator = main.Operators(position)
        written = {int(operator.Outputs(i)) for i in range(operator.OutputsLength())}
        written |= {int(operator.Intermediates(i)) for i in range(operator.IntermediatesLength())}
        for index in sorted(written & set(names)):
            raise PlanError(
                f"{where}: {names[index]}: expected no operation that writes into an input, found "
                "one"
            )
    return names


def _flex_nodes(
    model: Any, subgraph: Any, where: str
) -> Iterator[tuple[Any, node_def_pb2.NodeDef]]:
    for position in range(subgraph.OperatorsLength()):
        operator = subgraph.Operators(position)
        code = model.OperatorCodes(operator.OpcodeIndex())
        if max(code.BuiltinCode(), code.DeprecatedBuiltinCode()) != schema.BuiltinOperator.CUSTOM:
            continue
        name = (code.CustomCode() or b"").decode()
        if not name.startswith(_FLEX):
            raise PlanError(f"{where}: {name} is neither an op of TFLite nor one of TensorFlow")
        # TFLite would use these options instead of the checked ones.
        if any(
            getattr(operator, f"LargeCustomOptions{part}", int)() for part in ("Offset", "Size")
        ):
            raise PlanError(
                f"{where}: {name}: expected options within the operator, found options elsewhere"
            )
        options = flexbuffers.GetRoot(operator.CustomOptionsAsNumpy().tobytes()).AsVector
        node = node_def_pb2.NodeDef.FromString(options[1].AsStringBytes)
        if {options[0].AsString, node.op} != {name[len(_FLEX) :]}:
            raise PlanError(
                f"{where}: expected {name[len(_FLEX) :]} in its options, found {node.op}"
            )
        yield operator, node


def _indices(details: Sequence[dict[str, Any]]) -> dict[str, int]:
    return {detail["name"]: detail["index"] for detail in details}
