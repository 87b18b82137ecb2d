"""Clients: files of serialised examples, the client graph that works on them, and what feeds it."""

import abc
import contextlib
import dataclasses
import math
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, Optional

import numpy as np
import tensorflow as tf
from google.protobuf import message

from plan_runner import graph_check, kernel, plan_pb2
from plan_runner.errors import PlanError, counted, reason
from plan_runner.export import DEFAULT_LIMITS, SUFFIX, Limits, TensorType, check_frames
from plan_runner.graph_check import (
    Permissions,
    check_graph,
    constants,
    graph_of,
    tensor_name,
    tensor_specs,
)
from plan_runner.graph_session import GraphSession, load_graph, session_config
from plan_runner.plan_messages import check_parts, parse
from plan_runner.ram_files import File
from plan_runner.tflite import TfLiteComparison

_LISTS = {"float32": "float_list", "int64": "int64_list", "string": "bytes_list"}
_DTYPES = {name: dtype for dtype, name in _LISTS.items()}
_WHERE = "plan.pb: client"


@dataclasses.dataclass(frozen=True)
class Client:
    """A client; its examples are read when it takes part.

    Attributes:
        name: Its name.
        path: Its TFRecord file.
        features: The features of its examples.
        max_records: How many examples it may have.
    """

    name: str
    path: Path
    features: Mapping[str, TensorType]
    max_records: int = DEFAULT_LIMITS.max_records

    def examples(self) -> list[bytes]:
        """Returns its serialised examples."""
        records = read_records(self.path, self.max_records)
        for number, record in enumerate(records, 1):
            check_example(record, self.features, f"{self.path}, record {number}")
        return records


def clients_in(
    folder: Path, features: Mapping[str, TensorType], limits: Limits = DEFAULT_LIMITS
) -> dict[str, Client]:
    """Returns the clients with files in a folder, by name, in order.

    Args:
        limits: How many a client may have.
    """
    if not folder.is_dir():
        raise PlanError(f"{folder}: expected a folder with files NAME{SUFFIX}, found none")
    paths = {path.name[: -len(SUFFIX)]: path for path in folder.glob(f"*{SUFFIX}")}
    if not paths:
        raise PlanError(f"{folder}: expected files NAME{SUFFIX}, found no clients")
    most = limits.max_records
    return {name: Client(name, paths[name], features, most) for name in sorted(paths)}


def read_records(path: Path, max_records: int = DEFAULT_LIMITS.max_records) -> list[bytes]:
    """Returns the records of a TFRecord file, which may be empty."""
    check_frames(path, max_records)
    try:
        return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    except tf.errors.OpError as e:
        raise PlanError(f"{path}: expected a TFRecord file, cannot read it ({_short(e)})") from e


def _short(error: Any) -> str:
    # The rest is about TensorFlow's nodes, which are of no use to the reader.
    return reason(ValueError(str(error.message).partition("}} ")[2] or str(error.message)))


def check_example(record: bytes, features: Mapping[str, TensorType], where: str) -> None:
    """Checks that a record is an example with the features that a plan reads."""
    try:
        found = tf.train.Example.FromString(record).features.feature
    except message.DecodeError as e:
        raise PlanError(f"{where}: expected a tf.train.Example, cannot parse it") from e
    for name, kind in features.items():
        expected = f"{where}: feature {name!r}: expected {kind}"
        if name not in found:
            raise PlanError(f"{expected}, found none")
        which = found[name].WhichOneof("kind")
        if which != _LISTS[kind.dtype]:
            raise PlanError(f"{expected}, found {_DTYPES.get(which, 'an empty feature')}")
        count = len(getattr(found[name], which).value)
        # If a size is open, any multiple will do.
        size = math.prod(size for size in kind.shape if size is not None)
        fits = count % size == 0 if None in kind.shape and size else count == size
        if not fits:
            raise PlanError(f"{expected}, found {count} values")


class ClientGraph:
    """Plays one client after the other on a plan's client graph.

    Attributes:
        minimum: How many have to take part in a round.
        outputs: The tensors that a client returns directly, by name.
        beside: A second runner of every client, whose results are compared; None by default.

    Args:
        writes_update: Whether a client writes a checkpoint; otherwise it returns tensors only.
    """

    def __init__(self, plan: plan_pb2.Plan, writes_update: bool) -> None:
        phase = plan.phase[0].client_phase
        check_parts(
            phase,
            _WHERE,
            ("tensorflow_spec", "federated_compute"),
            ("name", "minimum_number_of_participants"),
        )
        spec, router = phase.tensorflow_spec, phase.federated_compute
        update = ("output_filepath_tensor_name",) if writes_update else ("aggregations",)
        check_parts(router, f"{_WHERE}: federated_compute", ("input_filepath_tensor_name", *update))
        results = ("target_node_names",) if writes_update else ("output_tensor_specs",)
        check_parts(
            spec,
            f"{_WHERE}: tensorflow_spec",
            ("dataset_token_tensor_name", "input_tensor_specs", *results),
            ("constant_inputs", "example_selector"),
        )
        self.minimum = phase.minimum_number_of_participants
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
        graph_def = graph_of(plan.client_graph_bytes, f"{_WHERE}: graph")
        check_graph(graph_def, Permissions.of_client(phase), f"{_WHERE}: graph")
        self.beside: Optional[TfLiteComparison] = None
        self._feed = examples_feed(spec.dataset_token_tensor_name)
        selector = self._feed.prepare(graph_def, f"{_WHERE}: graph")
        # For device services that read the message, not the graph.
        if spec.HasField("example_selector") and spec.example_selector != selector:
            raise PlanError(
                f"{_WHERE}: tensorflow_spec: example_selector: expected "
                f"{selector.collection_uri!r} as in the graph, found "
                f"{spec.example_selector.collection_uri!r}"
            )
        graph = load_graph(graph_def, f"{_WHERE}: graph")
        config = session_config(plan.tensorflow_config_proto, f"{_WHERE}: tensorflow_config_proto")
        always = constants(spec.constant_inputs, f"{_WHERE}: constant_inputs")
        with contextlib.ExitStack() as stack:
            self._session = stack.enter_context(GraphSession(graph, _WHERE, config, always))
            self._session.require([*paths, *self._feed.feeds([]), *self._names])
            # All is well: the session stays open.
            stack.pop_all()

    def check_cohort(self, clients: Sized) -> None:
        """Checks that enough clients take part."""
        if len(clients) < self.minimum:
            fewest = counted(self.minimum, "client")
            raise PlanError(f"cohort: expected at least {fewest}, found {len(clients)}")

    def run(
        self, name: str, examples: Sequence[bytes], checkpoint: File, update: Optional[File] = None
    ) -> dict[str, np.ndarray]:
        """Plays one client; returns the tensors that it sends directly, by name.

        Args:
            name: The client's name, for messages.
            update: Where to write its checkpoint, if it writes one.
        """
        feeds: dict[str, Any] = {
            **self._feed.feeds(examples),
            self._input: str(checkpoint),
        }
        if update is not None:
            feeds[self._output] = str(update)
        values = self._session.run(self._names, feeds, f"client {name}")
        if update is not None and not update.is_file():
            raise PlanError(f"{_WHERE}: client {name}: expected an update, the graph wrote none")
        sent = dict(zip(self.outputs, values))
        if self.beside is not None:
            self.beside.compare(name, examples, checkpoint, update, sent)
        return sent

    def close(self) -> None:
        """Ends its session."""
        self._session.close()


_EXAMPLES = "plan_runner_examples"
# Nothing is left that reads it where a stand-in takes the op's place.
_UNREAD_TOKEN = b"plan_runner"


class ExamplesFeed(abc.ABC):
    """Gives examples to a graph.

    Args:
        token: Name of the tensor that is fed the token of the device's datasets.
    """

    def __init__(self, token: str) -> None:
        self._token = tensor_name(token)

    @abc.abstractmethod
    def prepare(self, graph: tf.compat.v1.GraphDef, where: str) -> plan_pb2.ExampleSelector:
        """Turns a checked graph into one that a session runs; returns its example selector."""

    @abc.abstractmethod
    def feeds(self, examples: Sequence[bytes]) -> dict[str, Any]:
        """Returns the values to feed, by the names of tensors."""


class KernelDataset(ExamplesFeed):
    """Leaves the graph unchanged: the op's kernel takes the examples from the token."""

    def prepare(self, graph: tf.compat.v1.GraphDef, where: str) -> plan_pb2.ExampleSelector:
        """Checks the selector; see `ExamplesFeed`."""
        return _asked_for(graph, where)[1]

    def feeds(self, examples: Sequence[bytes]) -> dict[str, Any]:
        """Returns the token; see `ExamplesFeed`."""
        return {self._token: kernel.token_of(examples)}


class FedDataset(ExamplesFeed):
    """Puts a dataset over fed examples in the place of the one node that needs a kernel."""

    def prepare(self, graph: tf.compat.v1.GraphDef, where: str) -> plan_pb2.ExampleSelector:
        """Replaces the node; see `ExamplesFeed`."""
        node, selector = _asked_for(graph, where)
        if any(other.name == _EXAMPLES for other in graph.node):
            raise PlanError(f"{where}: expected no node {_EXAMPLES}, found one")
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

    def feeds(self, examples: Sequence[bytes]) -> dict[str, Any]:
        """Returns the examples, and an unused token; see `ExamplesFeed`."""
        return {_EXAMPLES: np.array(list(examples), dtype=object), self._token: _UNREAD_TOKEN}


def examples_feed(token: str) -> ExamplesFeed:
    """Returns the kernel's way where there is one, and the stand-in's otherwise."""
    return FedDataset(token) if kernel.kernel_problem() else KernelDataset(token)


def _asked_for(graph: tf.compat.v1.GraphDef, where: str) -> tuple[Any, plan_pb2.ExampleSelector]:
    """Returns the one node of the op, and its selector, which selects an app's examples."""
    nodes = {node.name: node for node in graph.node}
    node = next(node for node in graph.node if node.op == graph_check.EXTERNAL_DATASET)
    inputs = [name for name in node.input if not name.startswith("^")]
    if len(inputs) != 2:
        raise PlanError(f"{where}: {node.name}: expected a token and a selector, found {inputs}")
    return node, _selector(
        nodes, inputs[1], f"{where}: the selector of {graph_check.EXTERNAL_DATASET}"
    )


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
