"""The client's graph in a plan, and the format of the client's examples.

An example is a serialised `tf.train.Example` with the features "x" (or "x/NAME"
for each column of x), "y" and "domain_id".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from plan_runner import plan_pb2
from tff_agnostic.base.errors import UserError
from tff_agnostic.base.files import tensorflow_writes
from tff_agnostic.base.later import tf, tff
from tff_agnostic.base.registry import Registry
from tff_agnostic.computations.verification import without_graph_optimization
from tff_agnostic.deployment import graphs
from tff_agnostic.deployment.graphs import (
    file_path,
    finished,
    node_spec,
    restore,
    save,
    with_renamed_functions,
    with_renamed_nodes,
)
from tff_agnostic.models.model import Examples

_DATA_TOKEN = "data_token"
_INPUT_PATH = "input_filepath"
_OUTPUT_PATH = "output_filepath"
_SAVE_UPDATE = "save_client_update_tensors"
OP_NAME = "ExternalDataset"
_DEFINITION = """
name: "ExternalDataset"
input_arg { name: "token" type: DT_STRING }
input_arg { name: "selector" type: DT_STRING }
output_arg { name: "handle" type: DT_VARIANT }
is_stateful: true
"""
# Dtype in a `tf.train.Example`, by dtype of the column.
_STORED_AS: Registry[str] = Registry(
    "dtype of an exported task's columns",
    {
        "float32": "float32",
        "int64": "int64",
        "int32": "int64",
        "uint8": "int64",
        "bool": "int64",
    },
)


@dataclasses.dataclass(frozen=True)
class ExampleFormat:
    """The format of serialised examples.

    Attributes:
        columns: Specs of a client's columns; see `Model.client_data_spec`.
        num_domains: Number of domains, p; domain ids are in [0, p).
    """

    columns: Mapping[str, Any]
    num_domains: int

    def __post_init__(self) -> None:
        for name, spec in self._specs():
            _ = _STORED_AS[spec.dtype.name]
            if not spec.shape[1:].is_fully_defined():
                raise UserError(
                    f"export: expected one shape for all examples of column {name}, found "
                    f"{spec.shape}"
                )

    def features(self) -> dict[str, dict[str, Any]]:
        """Returns dtype and shape of each feature, for the manifest."""
        return {
            name: {"dtype": _STORED_AS[spec.dtype.name], "shape": spec.shape[1:].as_list()}
            for name, spec in self._specs()
        }

    def parse(self, serialized: tf.Tensor) -> list[tf.Tensor]:
        """Parses serialised examples, string [n], to columns [n, ...] in the order of `columns`.

        Running the tensors fails if a feature is missing, or a domain id is out of range.
        """
        parsed = tf.io.parse_example(
            serialized,
            {
                name: tf.io.FixedLenFeature(
                    spec.shape[1:], tf.as_dtype(_STORED_AS[spec.dtype.name])
                )
                for name, spec in self._specs()
            },
        )
        # Check ids with `gather`: every device has the op, and its error shows the id and range.
        parsed["domain_id"] = tf.gather(
            tf.range(self.num_domains, dtype=tf.int64), parsed["domain_id"], name="domain_id"
        )
        return [tf.cast(parsed[name], spec.dtype) for name, spec in self._specs()]

    def serialize(self, examples: Examples) -> Iterator[bytes]:
        """Serialises the examples of one client."""
        columns = [
            (name, _tensor_value(examples, name), _LISTS[_STORED_AS[spec.dtype.name]])
            for name, spec in self._specs()
        ]
        for row in range(len(examples["domain_id"])):
            features = tf.train.Features()
            for name, column, fill in columns:
                fill(features.feature[name], np.ravel(column[row]))
            yield tf.train.Example(features=features).SerializeToString(deterministic=True)

    def write(self, path: Path, examples: Examples) -> None:
        """Writes one client's examples as a TFRecord file; raises an OSError if it cannot."""
        with tensorflow_writes(), tf.io.TFRecordWriter(str(path)) as file:
            for record in self.serialize(examples):
                file.write(record)

    def _specs(self) -> Iterator[tuple[str, tf.TensorSpec]]:
        for name, spec in self.columns.items():
            if isinstance(spec, Mapping):
                for key in spec:
                    yield f"{name}/{key}", spec[key]
            else:
                yield name, spec


@dataclasses.dataclass(frozen=True)
class ExampleSource:
    """The source of a client's examples.

    Attributes:
        collection_uri: A device's collection, as "app:/PATH".
        max_examples: Number of a client's first examples to use; None for all.
    """

    format: ExampleFormat
    collection_uri: str
    max_examples: Optional[int]


@dataclasses.dataclass(frozen=True)
class TfFunction:
    """A TensorFlow graph as a function of tensors.

    Attributes:
        graph_def: The graph, not optimised, as each runner optimises it for its machine.
        parameters: Names of the tensors to feed.
        results: Names of the tensors to fetch.
        parameter_type: TFF type with the parameters as leaves.
        result_type: TFF type with the results as leaves.
    """

    graph_def: tf.compat.v1.GraphDef
    parameters: tuple[str, ...]
    results: tuple[str, ...]
    parameter_type: Any
    result_type: Any

    def __call__(self, arguments: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Adds the graph to the current one, under `name`, and returns the results."""
        return tf.graph_util.import_graph_def(
            # Two imported graphs may contain different functions of the same name.
            with_renamed_functions(self.graph_def, f"{name}_function"),
            input_map=dict(zip(self.parameters, arguments, strict=True)),
            return_elements=list(self.results),
            name=name,
        )


@dataclasses.dataclass(frozen=True)
class ClientWork:
    """The clients' computation, and the destinations of its results.

    Attributes:
        function: Function (columns of the examples, values from the server) -> client output.
        client_input: Specs of the tensors in the checkpoint from the server.
        update: Specs of the first results of `function`, which go to the client's checkpoint.
        side_channels: Names of the other results of `function`, which are summed securely.
    """

    function: TfFunction
    client_input: Sequence[tf.TensorSpec]
    update: Sequence[tf.TensorSpec]
    side_channels: Sequence[str]


def build_client_graph(
    work: ClientWork, source: ExampleSource
) -> tuple[tf.compat.v1.GraphDef, plan_pb2.ClientPhase]:
    """Returns the client's graph, and its phase in the plan.

    The inputs of the graph are the path of the server's checkpoint, the path for the update if
    there is one, and the token of the device's datasets.
    """
    spec = plan_pb2.TensorflowSpec()
    router = plan_pb2.FederatedComputeIORouter()
    with tf.Graph().as_default() as graph:
        token = tf.compat.v1.placeholder(tf.string, shape=(), name=_DATA_TOKEN)
        spec.dataset_token_tensor_name = token.name

        input_path = file_path(_INPUT_PATH)
        router.input_filepath_tensor_name = _add_input(spec, input_path)
        from_server = restore(input_path, work.client_input, "restore_client_input")

        selector = plan_pb2.ExampleSelector(collection_uri=source.collection_uri)
        # Some device services read the selector from this message, others from the graph.
        spec.example_selector.CopyFrom(selector)
        serialized = serialized_examples(
            token, selector.SerializeToString(deterministic=True), source.max_examples
        )
        columns = source.format.parse(serialized)
        results = work.function([*columns, *from_server], "work")

        if work.update:
            output_path = file_path(_OUTPUT_PATH)
            router.output_filepath_tensor_name = _add_input(spec, output_path)
            save(output_path, work.update, results[: len(work.update)], _SAVE_UPDATE)
            spec.target_node_names.append(_SAVE_UPDATE)
        for name, result in zip(work.side_channels, results[len(work.update) :]):
            output = tf.identity(result, name=name)
            spec.output_tensor_specs.append(node_spec(output))
            router.aggregations[output.name].secure_aggregation.SetInParent()
        graph_def = finished(graph, _names(spec, router))
    return graph_def, plan_pb2.ClientPhase(tensorflow_spec=spec, federated_compute=router)


def client_work(
    function: TfFunction,
    client_input: Sequence[graphs.Leaf],
    update: Sequence[graphs.Leaf],
    side_channels: Sequence[str] = (),
) -> ClientWork:
    """Returns client work with the names that the platform uses in checkpoints."""
    return ClientWork(
        function,
        graphs.named(client_input, graphs.CLIENT),
        graphs.named(update, graphs.UPDATE),
        side_channels,
    )


def _add_input(spec: plan_pb2.TensorflowSpec, path: tf.Tensor) -> str:
    spec.input_tensor_specs.append(node_spec(path))
    return str(path.name)


def _names(spec: plan_pb2.TensorflowSpec, router: plan_pb2.FederatedComputeIORouter) -> list[str]:
    fed = [router.input_filepath_tensor_name, router.output_filepath_tensor_name]
    return [
        spec.dataset_token_tensor_name,
        *(name for name in fed if name),
        *spec.target_node_names,
        *sorted(router.aggregations),
    ]


def serialized_examples(
    token: tf.Tensor, selector: bytes, max_examples: Optional[int]
) -> tf.Tensor:
    """Returns the device's serialised examples, string [n].

    The function registers the signature of the op `ExternalDataset` in TensorFlow, without a
    kernel.

    Args:
        token: The client's name for its datasets, a string scalar.
        selector: A serialised ExampleSelector.
        max_examples: Number of first examples to read; None for all.
    """
    # This is TensorFlow's only function that can register an op for which no library exists.
    from tensorflow.lite.python.convert import register_custom_opdefs

    # A second registration of the same op would end the process.
    from tensorflow.python.framework import op_def_registry

    if op_def_registry.get(OP_NAME) is None:
        register_custom_opdefs([_DEFINITION])
    node = tf.compat.v1.get_default_graph().create_op(
        OP_NAME,
        [token, tf.constant(selector)],
        [tf.variant],
        name="examples",
    )
    dataset = tf.data.experimental.from_variant(
        node.outputs[0], structure=tf.TensorSpec([], tf.string)
    )
    if max_examples is not None:
        dataset = dataset.take(max_examples)
    # Without examples there is no batch, and the result is the empty tensor below.
    batches = dataset.batch(tf.int64.max)
    return batches.reduce(tf.zeros([0], tf.string), lambda _, batch: batch)


def from_local_computation(computation: tff.Computation) -> TfFunction:
    """Returns the TensorFlow function of a computation with at most one placement."""
    block = tff.backends.mapreduce.consolidate_and_extract_local_processing(
        computation.to_building_block(), without_graph_optimization()
    )
    return from_compiled(block)


def from_compiled(computation: Any) -> TfFunction:
    """Returns the TensorFlow graph of a `tff.Computation`, or of a building block.

    Raises:
        ValueError: If the graph has variables.
    """
    block = computation
    if isinstance(computation, tff.Computation):
        block = computation.to_building_block()
    proto = block.proto.tensorflow
    if proto.initialize_op:
        raise ValueError("expected a computation without variables")
    graph_def = tf.compat.v1.GraphDef()
    proto.graph_def.Unpack(graph_def)
    graph_def, new_names = with_renamed_nodes(graph_def)

    def renamed(binding: Any) -> tuple[str, ...]:
        split = (name.partition(":") for name in _tensor_names(binding))
        return tuple(f"{new_names[node]}:{output or 0}" for node, _, output in split)

    return TfFunction(
        graph_def=graph_def,
        parameters=renamed(proto.parameter) if proto.HasField("parameter") else (),
        results=renamed(proto.result),
        parameter_type=block.type_signature.parameter,
        result_type=block.type_signature.result,
    )


def _tensor_names(binding: Any) -> Iterator[str]:
    kind = binding.WhichOneof("binding")
    if kind == "struct":
        for element in binding.struct.element:
            yield from _tensor_names(element)
    elif kind == "tensor":
        yield binding.tensor.tensor_name
    elif kind is not None:
        raise ValueError(f"expected tensors, found a {kind}")


def _tensor_value(examples: Examples, name: str) -> np.ndarray:
    column, _, key = name.partition("/")
    return examples[column][key] if key else examples[column]


def _fill_ints(feature: tf.train.Feature, values: np.ndarray) -> None:
    feature.int64_list.value.extend(values.astype(np.int64).tolist())


def _fill_floats(feature: tf.train.Feature, values: np.ndarray) -> None:
    feature.float_list.value.extend(values.tolist())


_LISTS = {"int64": _fill_ints, "float32": _fill_floats}
