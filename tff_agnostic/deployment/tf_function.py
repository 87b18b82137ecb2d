"""TFF computations of local work as TensorFlow graphs with flat lists of tensors."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_agnostic.computations.compiling import without_graph_optimization
from tff_agnostic.deployment.functions import with_renamed_functions, with_renamed_nodes


@dataclasses.dataclass(frozen=True)
class TfFunction:
    """A TensorFlow graph as a function of tensors.

    Attributes:
        graph_def: The graph, not optimised: whoever runs it does that for its own machine.
        parameters: Names of the tensors to feed.
        results: Names of the tensors to fetch.
        parameter_type: TFF type that the parameters are the leaves of.
        result_type: TFF type that the results are the leaves of.
    """

    graph_def: tf.compat.v1.GraphDef
    parameters: tuple[str, ...]
    results: tuple[str, ...]
    parameter_type: Any
    result_type: Any

    def __call__(self, arguments: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
        """Adds the graph to the current one, under `name`, and returns the results."""
        if len(arguments) != len(self.parameters):
            raise ValueError(
                f"{name}: expected {len(self.parameters)} tensors, found {len(arguments)}"
            )
        return tf.graph_util.import_graph_def(
            # Two graphs of a form may have functions of one name with different bodies.
            with_renamed_functions(self.graph_def, f"{name}_function"),
            input_map=dict(zip(self.parameters, arguments)),
            return_elements=list(self.results),
            name=name,
        )


def from_local_computation(computation: tff.Computation) -> TfFunction:
    """Returns the TensorFlow of a computation all of whose values have one placement, or none."""
    block = tff.backends.mapreduce.consolidate_and_extract_local_processing(
        computation.to_building_block(), without_graph_optimization()
    )
    return from_compiled(block)


def from_compiled(computation: Any) -> TfFunction:
    """Returns a computation that TFF has compiled to TensorFlow.

    Args:
        computation: A `tff.Computation`, or a building block, of one TensorFlow graph.

    Raises:
        ValueError: If the graph has variables to initialise: plans have none.
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
