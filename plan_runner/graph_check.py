"""Checks of a plan's graphs, which are untrusted code.

The lists below name the operations that may run, so operations of later TensorFlow versions are
rejected. This module also parses TensorFlow's messages in a plan.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

import tensorflow as tf
from google.protobuf import any_pb2
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf import saver_pb2, struct_pb2
from tensorflow.python.framework import op_def_registry

from plan_runner import plan_pb2
from plan_runner.errors import PlanError
from plan_runner.export import TensorType
from plan_runner.plan_messages import parse_foreign

# Maximum total size of a graph's unpacked constants, in bytes.
_MAX_BYTES = 1 << 30


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Allowed stateful operations, keyed by the reason why they are allowed. All of them keep their
# state in the session.
STATEFUL = {
    reason: _names(names)
    for reason, names in {
        "control flow and calls, whose bodies are checked as well": """
            Assert Case DeviceIndex If StatefulPartitionedCall While
        """,
        "checks of numbers": "CheckNumerics CheckNumericsV2",
        "uninitialised memory of the graph's own": "Empty DeepCopy",
        "random numbers": """
            Multinomial NonDeterministicInts ParameterizedTruncatedNormal RandomCrop RandomGamma
            RandomPoisson RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform
            RandomUniformInt RngReadAndSkip RngSkip StatefulRandomBinomial StatefulStandardNormal
            StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt
            StatefulUniformInt StatelessRandomGetAlg TruncatedNormal
        """,
        "variables": """
            AssignAddVariableOp AssignSubVariableOp AssignVariableOp DestroyResourceOp
            ReadVariableOp ResourceGather ResourceGatherNd ResourceStridedSliceAssign
            TemporaryVariable VarHandleOp VarIsInitializedOp Variable VariableShape VariableV2
        """,
        "datasets over tensors, and what reads them": """
            AnonymousIteratorV2 AnonymousIteratorV3 AnonymousMemoryCache
            AnonymousRandomSeedGenerator AnonymousSeedGenerator DatasetToSingleElement
            DeleteIterator DeleteMemoryCache DeleteRandomSeedGenerator DeleteSeedGenerator
            DummyIterationCounter DummyMemoryCache DummySeedGenerator GroupByReducerDataset
            IteratorGetNext IteratorGetNextAsOptional IteratorGetNextSync IteratorV2 MakeIterator
            RandomDataset RandomDatasetV2 RangeDataset ReduceDataset ShuffleAndRepeatDatasetV2
            ShuffleDatasetV2 ShuffleDatasetV3 SparseTensorSliceDataset TensorDataset
            TensorSliceDataset
        """,
        "tables that are filled from tensors": """
            AnonymousHashTable AnonymousMutableDenseHashTable AnonymousMutableHashTable HashTableV2
            InitializeTableV2 LookupTableExportV2 LookupTableFindV2 LookupTableImportV2
            LookupTableInsertV2 LookupTableRemoveV2 LookupTableSizeV2 MutableDenseHashTableV2
            MutableHashTableV2
        """,
        "arrays and stacks of loops": """
            StackCloseV2 StackPopV2 StackPushV2 StackV2 TensorArrayCloseV3 TensorArrayConcatV3
            TensorArrayGatherV3 TensorArrayGradV3 TensorArrayReadV3 TensorArrayScatterV3
            TensorArraySizeV3 TensorArraySplitV3 TensorArrayV3 TensorArrayWriteV3
        """,
        "candidates drawn from numbers": """
            AllCandidateSampler LearnedUnigramCandidateSampler LogUniformCandidateSampler
            UniformCandidateSampler
        """,
        "recurrent layers, in the branch that a device with cuDNN takes": """
            CudnnRNN CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3 CudnnRNNV2 CudnnRNNV3
        """,
    }.items()
}
# Prefixes of the names of further allowed stateful operations, which apply gradients to variables
# or scatter into them.
STATEFUL_PREFIXES = ("ResourceApply", "ResourceScatter", "ResourceSparseApply")
# Allowed stateless operations with string inputs, and allowed string attributes. Only a string can
# name a file or a host, so all stateless operations without strings are allowed.
STRING_INPUTS = _names(
    """
    DecodeAndCropJpeg DecodeBase64 DecodeBmp DecodeCSV DecodeGif DecodeImage DecodeJpeg
    DecodePaddedRaw DecodePng DecodeRaw EncodeBase64 Fingerprint ParseExample ParseExampleV2
    ParseSequenceExample ParseSequenceExampleV2 ParseSingleExample ParseSingleSequenceExample
    ReduceJoin RegexFullMatch RegexReplace ShardedFilename StaticRegexFullMatch StaticRegexReplace
    StringJoin StringLength StringLower StringNGrams StringSplit StringSplitV2 StringStrip
    StringToHashBucket StringToHashBucketFast StringToHashBucketStrong StringToNumber StringUpper
    Substr UnicodeDecode UnicodeDecodeWithOffsets UnicodeTranscode UnsortedSegmentJoin
    """
)
STRING_ATTRIBUTES = _names(
    """
    align allowed_devices cardinality_options config config_proto container context_dense_keys
    context_sparse_keys data_format dct_method debug_name dense_keys density_unit deterministic
    direction dst_format encoding equation errors executor_type feature_list_dense_keys
    feature_list_dense_missing_assumed_empty feature_list_sparse_keys field_delim fill fill_mode
    frame_name input_encoding input_mode interpolation kernel_type left_pad message metadata method
    mode na_value noise output_encoding padding pattern placeholder ragged_keys rewrite right_pad
    rnn_mode round_mode row_partition_types separator serialized_options set_operation shared_name
    sparse_keys src_format stack_name template tensor_array_name unit var_name
    """
)
# String attributes that only TensorFlow versions after 2.14 have, mapped to their allowed values.
STRING_VALUES = {"bad_indices_policy": frozenset((b"", b"DEFAULT", b"ERROR", b"IGNORE"))}
# Operations whose first input is a path. The path must be a placeholder that the plan names.
READS_FILE = frozenset(("Restore", "RestoreSlice", "RestoreV2"))
WRITES_FILE = frozenset(("Save", "SaveSlices"))
PLACEHOLDERS = frozenset(("Placeholder", "PlaceholderV2", "PlaceholderWithDefault"))
# The platform's operation that yields a client's examples.
EXTERNAL_DATASET = "ExternalDataset"
_NEVER_CONSTANT = (types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT)


def is_stateful_allowed(op: str) -> bool:
    """Whether a stateful operation may run."""
    return op.startswith(STATEFUL_PREFIXES) or any(op in ops for ops in STATEFUL.values())


@dataclasses.dataclass(frozen=True)
class Permissions:
    """The inputs and outputs that a graph may have.

    Attributes:
        reads: Names of the tensors with paths of files to read.
        writes: Names of the tensors with paths of files to write.
        fed: Names of the fed tensors that are not paths, such as sums and the dataset token.
        examples: Whether the graph reads a client's examples by one ExternalDataset operation.
    """

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    fed: frozenset[str] = frozenset()
    examples: bool = False

    @classmethod
    def for_client(cls, phase: plan_pb2.ClientPhase) -> "Permissions":
        """Returns the permissions of a client graph for TensorFlow or TFLite."""
        spec, router = phase.tensorflow_spec, phase.federated_compute
        written = router.output_filepath_tensor_name
        return cls(
            reads=frozenset([tensor_name(router.input_filepath_tensor_name)]),
            writes=frozenset([tensor_name(written)] if written else []),
            fed=frozenset([tensor_name(spec.dataset_token_tensor_name)]),
            examples=True,
        )


def check_graph(graph: tf.compat.v1.GraphDef, permissions: Permissions, where: str) -> None:
    """Checks the operations of a graph and of its functions."""
    check_bounds(graph, where)
    functions = {function.signature.name for function in graph.library.function}
    for name in sorted(functions):
        if op_def_registry.get(name) is not None:
            raise PlanError(f"{where}: function {name}: expected a name that no op has")
    nodes = {node.name: node for node in graph.node}
    if len(nodes) != len(graph.node):
        raise PlanError(f"{where}: expected nodes with distinct names, found a name twice")
    external = [node for node in graph.node if node.op == EXTERNAL_DATASET]
    if len(external) != int(permissions.examples):
        raise PlanError(
            f"{where}: expected {int(permissions.examples)} ExternalDataset, found {len(external)}"
        )
    _check_fed(nodes, permissions, where)
    for node in graph.node:
        if node.op in READS_FILE:
            _check_path(node, permissions.reads, where)
        elif node.op in WRITES_FILE:
            _check_path(node, permissions.writes, where)
        elif node.op != EXTERNAL_DATASET:
            _check_node(node, functions, where)
    for function in graph.library.function:
        place = f"{where}: function {function.signature.name}"
        for node in function.node_def:
            _check_node(node, functions, place)
    for gradient in graph.library.gradient:
        _check_functions([gradient.gradient_func], functions, f"{where}: gradients")


def _check_fed(nodes: Mapping[str, Any], permissions: Permissions, where: str) -> None:
    """Checks that fed tensors are placeholders, and that no path is also in `permissions.fed`."""
    paths = permissions.reads | permissions.writes
    for name in sorted(paths | permissions.fed):
        # Compare exact names, because TensorFlow treats "x:00" as "x:0".
        node, _, output = name.rpartition(":")
        # If the graph lacks the tensor, the session raises an error.
        if node in nodes and (output != "0" or nodes[node].op not in PLACEHOLDERS):
            raise PlanError(f"{where}: expected a placeholder for {name!r}, which is fed")
        if name in paths and name in permissions.fed:
            raise PlanError(
                f"{where}: expected a path for {name!r} only, another value is also fed"
            )


def _check_path(node: Any, allowed: frozenset[str], where: str) -> None:
    """Checks that the path of a file operation is directly an allowed placeholder."""
    path = next((name for name in node.input if not name.startswith("^")), "")
    if tensor_name(path) not in allowed:
        raise PlanError(
            f"{where}: {node.name}: {node.op} is refused: its path is not a placeholder that the "
            "plan names"
        )


def _check_node(node: Any, functions: Iterable[str], where: str) -> None:
    place = f"{where}: {node.name}"
    # Check all attributes, even those that the operation's definition lacks.
    for value in node.attr.values():
        called = [value.func, *value.list.func]
        _check_functions([function.name for function in called], functions, place)
    if node.op in functions:
        return
    definition = op_def_registry.get(node.op)
    if definition is None:
        raise PlanError(f"{place}: {node.op} is refused: this TensorFlow does not know it")
    problem = next(_problems(node, definition), None)
    if problem:
        raise PlanError(f"{place}: {node.op} is refused: {problem}")


def _problems(node: Any, definition: Any) -> Iterator[str]:
    if node.op.startswith("_"):
        yield "it is internal to TensorFlow"
    if definition.is_stateful and not is_stateful_allowed(node.op):
        yield "its effects may reach outside the graph"
    if node.op not in STRING_INPUTS and not is_stateful_allowed(node.op):
        for argument in definition.input_arg:
            if argument.type == types_pb2.DT_STRING:
                yield f"its input {argument.name} may name a file"
    for attribute in definition.attr:
        if attribute.type not in ("string", "list(string)"):
            continue
        if attribute.name in STRING_VALUES:
            value = node.attr[attribute.name].s if attribute.name in node.attr else b""
            if value not in STRING_VALUES[attribute.name]:
                yield f"its attribute {attribute.name} has an unknown value"
        elif attribute.name not in STRING_ATTRIBUTES:
            yield f"its attribute {attribute.name} may name a file or code"
    # TensorFlow would decode objects from constants of these types.
    if node.op == "Const" and _dtype(node) in _NEVER_CONSTANT:
        yield "it is not a constant of numbers or strings"


def _dtype(node: Any) -> int:
    # Reading a missing key of a protobuf map would add the key.
    return int(node.attr["dtype"].type) if "dtype" in node.attr else types_pb2.DT_INVALID


def _check_functions(called: Iterable[str], functions: Iterable[str], where: str) -> None:
    for name in called:
        # An empty name is an absent branch, which some operations allow.
        if name and name not in functions:
            raise PlanError(f"{where}: expected a function of this graph, found {name!r}")


@dataclasses.dataclass(frozen=True)
class NamedTensor:
    """Name and type of a tensor in a graph or in a checkpoint."""

    name: str
    kind: TensorType


def parse_graph(packed: any_pb2.Any, where: str) -> tf.compat.v1.GraphDef:
    """Parses the graph in an `Any` message."""
    if packed.type_url.rpartition("/")[2] != "tensorflow.GraphDef":
        raise PlanError(f"{where}: expected tensorflow.GraphDef, found {packed.type_url!r}")
    return parse_foreign(tf.compat.v1.GraphDef, packed.value, where)


def tensor_spec(content: bytes, where: str) -> NamedTensor:
    """Parses a serialised TensorSpecProto."""
    spec = parse_foreign(struct_pb2.TensorSpecProto, content, where)
    if not spec.name or spec.shape.unknown_rank or not spec.dtype:
        raise PlanError(
            f"{where}: expected a tensor's name, dtype and shape, found only some of them"
        )
    shape: list[Optional[int]] = [d.size if d.size >= 0 else None for d in spec.shape.dim]
    return NamedTensor(spec.name, TensorType(dtype_name(spec.dtype, where), tuple(shape)))


def tensor_specs(contents: Sequence[bytes], where: str) -> dict[str, NamedTensor]:
    """Parses serialised TensorSpecProtos, and returns them in the same order, keyed by name."""
    specs: dict[str, NamedTensor] = {}
    for content in contents:
        spec = tensor_spec(content, where)
        if spec.name in specs:
            raise PlanError(f"{where}: expected {spec.name} once, found it again")
        specs[spec.name] = spec
    return specs


def saver_def(content: bytes, where: str) -> saver_pb2.SaverDef:
    """Parses a SaverDef, which must save a checkpoint as one file."""
    saver = parse_foreign(saver_pb2.SaverDef, content, where)
    if saver.version not in (saver_pb2.SaverDef.LEGACY, saver_pb2.SaverDef.V1) or saver.sharded:
        raise PlanError(
            f"{where}: expected a saver of one file (version 1), found version {saver.version}"
        )
    if not saver.filename_tensor_name:
        raise PlanError(f"{where}: expected the part filename_tensor_name, found none")
    return saver


def dtype_name(number: int, where: str) -> str:
    """Returns TensorFlow's name of a DataType number."""
    try:
        return str(tf.as_dtype(number).name)
    except TypeError as e:
        raise PlanError(f"{where}: expected a DataType of TensorFlow, found {number}") from e


def tensor_name(name: str) -> str:
    """Returns a tensor's full name, which is "NAME:0" if only an operation is named."""
    return name if not name or ":" in name else f"{name}:0"


def check_bounds(graph: tf.compat.v1.GraphDef, where: str) -> None:
    """Checks the size of a graph's constants, and that no function is recursive."""
    total = 0
    for place, node in _nodes(graph):
        for tensor in _tensors(node):
            total += tensor_bytes(tensor)
            if total > _MAX_BYTES:
                raise PlanError(
                    f"{where}: {place}{node.name}: expected constants of at most 1 GiB in a graph, "
                    "found more"
                )
    called = {
        function.signature.name: _called(function.node_def) for function in graph.library.function
    }
    recursive = _recursive_function(called)
    if recursive:
        raise PlanError(f"{where}: function {recursive}: recursion is not allowed")


def tensor_bytes(tensor: Any) -> int:
    """Returns the size of a TensorProto's unpacked value in bytes."""
    sizes = [max(0, dimension.size) for dimension in tensor.tensor_shape.dim]
    try:
        width = tf.as_dtype(tensor.dtype).size or 1
    except TypeError:
        # TensorFlow reports the unknown type when it creates the value.
        width = 1
    return math.prod(sizes) * width


def _nodes(graph: Any) -> Iterator[tuple[str, Any]]:
    for node in graph.node:
        yield "", node
    for function in graph.library.function:
        for node in function.node_def:
            yield f"function {function.signature.name}: ", node


def _tensors(node: Any) -> Iterator[Any]:
    for value in node.attr.values():
        if value.HasField("tensor"):
            yield value.tensor
        yield from value.list.tensor


def _called(nodes: Iterable[Any]) -> set[str]:
    """Returns the names of all functions and operations that the nodes call."""
    names = {node.op for node in nodes}
    for node in nodes:
        for value in node.attr.values():
            names.update(function.name for function in [value.func, *value.list.func])
    return names


def _recursive_function(called: Mapping[str, set[str]]) -> str:
    """Returns the name of a directly or indirectly recursive function; "" if there is none."""
    done: set[str] = set()
    for start in called:
        # Use a loop, because a chain of functions may be longer than Python's call stack.
        path: list[tuple[str, Iterator[str]]] = [("", iter([start]))]
        open_names: set[str] = set()
        while path:
            for name in path[-1][1]:
                if name in open_names:
                    return name
                if name in called and name not in done:
                    open_names.add(name)
                    path.append((name, iter(sorted(called[name]))))
                    break
            else:
                finished, _ = path.pop()
                open_names.discard(finished)
                done.add(finished)
    return ""
