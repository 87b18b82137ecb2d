"""Clients' files of serialised examples, and the client graph that processes the examples."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from google.protobuf import message

from plan_runner import graph_check, plan_pb2
from plan_runner.errors import PlanError, reason
from plan_runner.export import DEFAULT_LIMITS, SUFFIX, Limits, TensorType, check_frames
from plan_runner.graph_check import Permissions, check_graph, parse_graph, tensor_name, tensor_specs
from plan_runner.graph_session import GraphSession, load_graph
from plan_runner.plan_messages import check_parts, parse
from plan_runner.ram_files import File
from plan_runner.tflite import TfLiteComparison

_LISTS = {"float32": "float_list", "int64": "int64_list", "string": "bytes_list"}
_DTYPES = {name: dtype for dtype, name in _LISTS.items()}
_WHERE = "plan.pb: client"
# Name of the placeholder for a client's examples, and a dummy value for the dataset token, which
# the modified graph does not read.
_EXAMPLES = "plan_runner_examples"
_UNREAD_TOKEN = b"plan_runner"


@dataclasses.dataclass(frozen=True)
class Client:
    """A client, whose examples are read from its file on demand.

    Attributes:
        path: TFRecord file of the examples.
        features: Features of the examples.
        max_records: Maximum number of examples.
    """

    name: str
    path: Path
    features: Mapping[str, TensorType]
    max_records: int = DEFAULT_LIMITS.max_records

    def examples(self) -> list[bytes]:
        """Returns the serialised examples."""
        records = read_records(self.path, self.max_records)
        for number, record in enumerate(records, 1):
            check_example(record, self.features, f"{self.path}, record {number}")
        return records


def clients_in(
    folder: Path, features: Mapping[str, TensorType], limits: Limits = DEFAULT_LIMITS
) -> dict[str, Client]:
    """Returns the clients with files in a folder, keyed by name in alphabetical order."""
    if not folder.is_dir():
        raise PlanError(f"{folder}: expected a folder with files NAME{SUFFIX}, found none")
    paths = {path.name[: -len(SUFFIX)]: path for path in folder.glob(f"*{SUFFIX}")}
    if not paths:
        raise PlanError(f"{folder}: expected files NAME{SUFFIX}, found no clients")
    return {n: Client(n, paths[n], features, limits.max_records) for n in sorted(paths)}


def read_records(path: Path, max_records: int = DEFAULT_LIMITS.max_records) -> list[bytes]:
    """Returns the records of a TFRecord file, which may be empty."""
    check_frames(path, max_records)
    try:
        return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    except tf.errors.OpError as e:
        # Drop the names of TensorFlow's nodes, which do not help users.
        words = reason(ValueError(str(e.message).partition("}} ")[2] or str(e.message)))
        raise PlanError(f"{path}: expected a TFRecord file, cannot read it ({words})") from e


def check_example(record: bytes, features: Mapping[str, TensorType], where: str) -> None:
    """Checks that a record is a `tf.train.Example` with the features that a plan reads."""
    try:
        values = tf.train.Example.FromString(record).features.feature
    except message.DecodeError as e:
        raise PlanError(f"{where}: expected a tf.train.Example, cannot parse it") from e
    for name, kind in features.items():
        expected = f"{where}: feature {name!r}: expected {kind}"
        if name not in values:
            raise PlanError(f"{expected}, found none")
        which = values[name].WhichOneof("kind")
        if which != _LISTS[kind.dtype]:
            raise PlanError(f"{expected}, found {_DTYPES.get(which, 'an empty feature')}")
        count = len(getattr(values[name], which).value)
        # With an unknown dimension, any multiple of the known dimensions' product is valid.
        size = math.prod(size for size in kind.shape if size is not None)
        fits = count % size == 0 if None in kind.shape and size else count == size
        if not fits:
            raise PlanError(f"{expected}, found {count} values")


class ClientGraph:
    """The client graph of a plan, which runs one client at a time.

    Attributes:
        outputs: The tensors that a client returns directly, keyed by name.
        comparison: Runs each client again on TFLite, and compares the results; None by default.

    Args:
        writes_update: Whether a client writes a checkpoint, instead of returning tensors directly.
    """

    def __init__(self, plan: plan_pb2.Plan, writes_update: bool) -> None:
        phase = plan.phase[0].client_phase
        check_parts(phase, _WHERE, ("tensorflow_spec", "federated_compute"))
        spec, router = phase.tensorflow_spec, phase.federated_compute
        update = ("output_filepath_tensor_name",) if writes_update else ("aggregations",)
        check_parts(router, f"{_WHERE}: federated_compute", ("input_filepath_tensor_name", *update))
        results = ("target_node_names",) if writes_update else ("output_tensor_specs",)
        check_parts(
            spec,
            f"{_WHERE}: tensorflow_spec",
            ("dataset_token_tensor_name", "input_tensor_specs", *results),
            ("example_selector",),
        )
        self.outputs = tensor_specs(spec.output_tensor_specs, f"{_WHERE}: output_tensor_specs")
        secure = {
            name
            for name, config in router.aggregations.items()
            if config.HasField("secure_aggregation")
        }
        if set(self.outputs) != secure or secure != set(router.aggregations):
            raise PlanError(
                f"{_WHERE}: expected secure_aggregation of every tensor of output_tensor_specs, "
                f"found {sorted(secure)} for {sorted(self.outputs)}"
            )
        self._input = router.input_filepath_tensor_name
        self._output = router.output_filepath_tensor_name
        inputs = tensor_specs(spec.input_tensor_specs, f"{_WHERE}: input_tensor_specs")
        paths = {self._input, self._output} - {""}
        if set(inputs) != paths:
            raise PlanError(
                f"{_WHERE}: input_tensor_specs: expected {sorted(paths)}, found {sorted(inputs)}"
            )
        self._names = [*self.outputs, *spec.target_node_names]
        graph_def = parse_graph(plan.client_graph_bytes, f"{_WHERE}: graph")
        check_graph(graph_def, Permissions.for_client(phase), f"{_WHERE}: graph")
        self.comparison: Optional[TfLiteComparison] = None
        self._token = tensor_name(spec.dataset_token_tensor_name)
        selector = feed_examples(graph_def, f"{_WHERE}: graph")
        # Device services read this message instead of the graph.
        if spec.HasField("example_selector") and spec.example_selector != selector:
            raise PlanError(
                f"{_WHERE}: tensorflow_spec: example_selector: expected "
                f"{selector.collection_uri!r} as in the graph, found "
                f"{spec.example_selector.collection_uri!r}"
            )
        graph = load_graph(graph_def, f"{_WHERE}: graph")
        self._session = GraphSession(graph, _WHERE)
        self._session.require([*paths, self._token, *self._names])

    def run(
        self, name: str, examples: Sequence[bytes], checkpoint: File, update: Optional[File] = None
    ) -> dict[str, np.ndarray]:
        """Runs one client; returns the tensors that the client returns directly, keyed by name.

        Args:
            name: The client's name, for error messages.
            checkpoint: The server's checkpoint for clients.
            update: Path to which the client writes its checkpoint; None if it writes none.
        """
        feeds: dict[str, Any] = {
            _EXAMPLES: np.array(list(examples), dtype=object),
            self._token: _UNREAD_TOKEN,
            self._input: str(checkpoint),
        }
        if update is not None:
            feeds[self._output] = str(update)
        values = self._session.run(self._names, feeds, f"client {name}")
        if update is not None and not update.is_file():
            raise PlanError(f"{_WHERE}: client {name}: expected an update, the graph wrote none")
        sent = dict(zip(self.outputs, values))
        if self.comparison is not None:
            self.comparison.compare(name, examples, checkpoint, update, sent)
        return sent

    def close(self) -> None:
        """Closes the session."""
        self._session.close()


def feed_examples(graph: tf.compat.v1.GraphDef, where: str) -> plan_pb2.ExampleSelector:
    """Replaces the ExternalDataset node, which only devices can run, by a dataset of fed examples.

    Returns:
        The replaced node's example selector, which names a collection of an app's examples.
    """
    nodes = {node.name: node for node in graph.node}
    if _EXAMPLES in nodes:
        raise PlanError(f"{where}: expected no node {_EXAMPLES}, found one")
    node = next(node for node in graph.node if node.op == graph_check.EXTERNAL_DATASET)
    inputs = [name for name in node.input if not name.startswith("^")]
    if len(inputs) != 2:
        raise PlanError(f"{where}: {node.name}: expected a token and a selector, found {inputs}")
    place = f"{where}: the selector of {graph_check.EXTERNAL_DATASET}"
    selector = _selector(nodes, inputs[1], place)
    placeholder = graph.node.add(name=_EXAMPLES, op="Placeholder")
    placeholder.attr["dtype"].type = tf.string.as_datatype_enum
    placeholder.attr["shape"].shape.CopyFrom(tf.TensorShape([None]).as_proto())
    control = [name for name in node.input if name.startswith("^")]
    name = node.name
    node.Clear()
    node.name, node.op = name, "TensorSliceDataset"
    node.input.extend([_EXAMPLES, *control])
    node.attr["Toutput_types"].list.type.append(tf.string.as_datatype_enum)
    node.attr["output_shapes"].list.shape.append(tf.TensorShape([]).as_proto())
    return selector


def _selector(nodes: Any, name: str, where: str) -> plan_pb2.ExampleSelector:
    node = nodes.get(tensor_name(name).rpartition(":")[0])
    if node is None or node.op != "Const" or not node.attr["value"].tensor.string_val:
        raise PlanError(f"{where}: expected a constant string, found {name!r}")
    content = node.attr["value"].tensor.string_val[0]
    selector = parse(plan_pb2.ExampleSelector, content, where)
    check_parts(selector, where, ("collection_uri",))
    if not selector.collection_uri.startswith("app:/"):
        raise PlanError(f"{where}: expected app:/..., found {selector.collection_uri!r}")
    return selector
